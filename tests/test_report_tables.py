"""The tables folder: what an analysis writes is what the report reads, or an error that names the file."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from servelab.claims import CALCULATED, MEASURED, NOT_MEASURED, Analysis, Finding, Table
from servelab.report.tables import (
    BadTablesError,
    read_analyses,
    read_points,
    read_table,
    write_analyses,
    write_loads,
    write_points,
    write_table,
)


def example() -> list[Analysis]:
    frame = pd.DataFrame({"n": [1, 2], "name": ["a", None], "mixed": [1, "x"], "value": [1.5, math.nan]})
    table = Table("t", frame, {"value": ("ms", MEASURED)}, "e", "template")
    values = {"low": np.float64(1.5), "high": math.inf, "none": math.nan, "list": [np.int64(1), 2]}
    finding = Finding("said", values, CALCULATED, "e", ("t",), 40, "group", "supports")
    return [
        Analysis("kind", "e", tables=[table], findings=[finding]),
        Analysis("other", "o", NOT_MEASURED, "why", {"engine": "x"}),
    ]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Kinds, reasons, findings with their numbers, columns with units and statuses survive the folder."""
    write_analyses(tmp_path, example(), {"study": "s", "nested": {"n": np.int64(3)}})
    analyses, info = read_analyses(tmp_path)
    assert info == {"study": "s", "nested": {"n": 3}}
    assert [a.kind for a in analyses] == ["kind", "other"]
    assert (analyses[1].status, analyses[1].reason, analyses[1].reason_values) == (
        NOT_MEASURED,
        "why",
        {"engine": "x"},
    )
    finding = analyses[0].findings[0]
    assert finding.values == {"low": 1.5, "high": math.inf, "none": None, "list": [1, 2]}
    assert (finding.tables, finding.weight, finding.stance) == (("t",), 40, "supports")
    table = analyses[0].tables[0]
    assert table.columns == {"value": ("ms", MEASURED)}
    assert (table.template, table.experiment) == ("template", "e")
    assert list(table.frame["mixed"]) == ["1", "x"]
    assert (tmp_path / "t.csv").read_text().splitlines()[0] == "n,name,mixed,value"


def test_json_files_are_plain_json(tmp_path: Path) -> None:
    """Infinity and NaN never reach the JSON files, which any reader must understand."""
    write_analyses(tmp_path, example(), {})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for name in ("analyses.json", "study.json"):
        json.loads((tmp_path / name).read_text(), parse_constant=refuse)


def test_what_an_earlier_analysis_left_goes_and_nothing_else(tmp_path: Path) -> None:
    """An experiment taken out leaves no table and no advice; points, loads and a person's own files stay."""
    points = pd.DataFrame({"point": ["a"]})
    write_points(tmp_path, points, {})
    write_loads(tmp_path, points)
    both = [Table("old.er", points), Table("kept", points)]
    write_analyses(tmp_path, [Analysis("k", "e", tables=both)], {})
    own = {"mine.csv": b"a", "mine.arrow": b"no table", "notes.txt": b"", "sub/old.er.csv": b""}
    for name, data in {**own, "serve.sh": b"", "alerts.yaml": b""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    written = write_analyses(tmp_path, [Analysis("k", "e", tables=[Table("kept", points)])], {})
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    before = {f"{name}{end}" for name in ("points", "loads") for end in (".arrow", ".csv")}
    assert left == {path.name for path in written} | before | set(own)
    assert {"kept.arrow", "kept.csv", "analyses.json", "study.json"} <= left


def test_no_text_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    """What a spreadsheet would run is shown as text; numbers below zero stay numbers; the Arrow file is as it was."""
    frame = pd.DataFrame({"version": ['=HYPERLINK("http://x")', "@x", "0.31.0"], "change": [-1.5, 2.0, 0.0]})
    write_table(tmp_path, Table("t", frame))
    lines = (tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()
    assert lines[1].startswith("\"'=HYPERLINK(") and lines[1].endswith(",-1.5")
    assert lines[2:] == ["'@x,2.0", "0.31.0,0.0"]
    assert read_table(tmp_path / "t.arrow").frame["version"].iloc[1] == "@x"


def test_two_tables_of_one_name_are_an_error(tmp_path: Path) -> None:
    """Nothing is overwritten silently."""
    with pytest.raises(ValueError, match="two tables"):
        write_analyses(tmp_path, example()[:1] * 2, {})


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "x" * 200])
def test_a_table_id_is_a_file_name(tmp_path: Path, name: str) -> None:
    """An id that would write elsewhere is refused."""
    with pytest.raises(ValueError, match="file name"):
        write_table(tmp_path, Table(name, pd.DataFrame({"a": [1]})))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "garbage", "missing", "other"])
def test_a_damaged_table_is_named(tmp_path: Path, damage: str) -> None:
    """A file that is cut short, garbage, missing or of another schema is refused by name."""
    path = write_table(tmp_path, Table("t", pd.DataFrame({"a": [1.0] * 500})))[0]
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "other":
        path.write_bytes(data.replace(b"servelab.tables", b"servelab.tablex"))
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"garbage" * 40)
    with pytest.raises(BadTablesError, match=r"t\.arrow"):
        read_table(path)


def test_points_keep_their_missing_values(tmp_path: Path) -> None:
    """The table of points comes back row for row, missing cells missing."""
    rows = pd.DataFrame({"point": ["a", "b"], "ttft_p50_ms": [1.0, None], "verdict": ["valid", None]})
    write_points(tmp_path, rows, {"point": "", "ttft_p50_ms": "ms", "verdict": ""})
    back = read_points(tmp_path)
    assert list(back["ttft_p50_ms"].isna()) == [False, True]
    assert list(back["verdict"].isna()) == [False, True]
