"""Two studies side by side: planted differences are found, absent ones are not, changed settings are named."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import report_fixture
from servelab import compare
from servelab.compare import Measured
from servelab.report import compare_page
from servelab.report.tables import write_analyses, write_loads, write_points
from servelab.report.words import Words
from servelab.summary import COLUMNS

SCRIPT = Path(__file__).parents[1] / "workflow/scripts/compare.py"


def study(factor: float = 1.0, name: str = "b", **info: object) -> Measured:
    """The made-up study with throughput times a factor, on server starts of its own."""
    points = report_fixture.points()
    points["output_throughput_tok_s"] *= factor
    points["session_id"] = points["session_id"] + f"-{name}"
    return Measured(
        name, {**report_fixture.info(), "study": name, **info}, points, report_fixture.loads(points)
    )


def ratios(a: Measured, b: Measured) -> pd.DataFrame:
    return next(table for table in compare.analyse(a, b).tables if table.id == "ratios").frame


def test_a_planted_difference_is_seen_and_its_size_is_right() -> None:
    """30 % less throughput in the repeated load: the interval holds 0.7 and excludes 1."""
    frame = ratios(study(name="a"), study(0.7))
    row = frame[
        (frame["metric"] == "output_throughput_tok_s") & frame["load"].str.startswith("repeatability")
    ].iloc[0]
    assert row["seen"] == "yes"
    assert row["ratio_low"] < 0.7 < row["ratio_high"] < 1


def test_no_difference_is_no_difference_and_says_what_would_have_been_seen() -> None:
    """The same study twice: nothing is seen, and the smallest visible difference is given."""
    frame = ratios(study(name="a"), study())
    assert len(frame) > 10
    assert set(frame["seen"]) <= {"no", "unknown"}
    noisy = frame[frame["metric"] == "output_throughput_tok_s"]
    assert len(noisy) > 3
    assert (noisy["visible"] > 0).all()


def test_invalid_and_failed_points_are_not_compared() -> None:
    """A study of invalid points has no load in common with any."""
    bad = study()
    bad.points["verdict"] = "invalid"
    assert compare.common(study(name="a"), bad)[0] == 0
    assert [t.id for t in compare.analyse(study(name="a"), bad).tables] == ["changed_settings"]


def test_changed_settings_and_versions_are_named() -> None:
    """A server option, a version and a machine that differ are listed with both values; a title is no setting."""
    config = {"seed": 1, "server": {"max_num_seqs": 16}, "report": {"title": "x"}}
    other = {"seed": 1, "server": {"max_num_seqs": 32}, "report": {"title": "y"}}
    found = compare.changes(
        {"config": config, "versions": {"server": "0.30.0"}, "machines": [{"id": "m1"}]},
        {"config": other, "versions": {"server": "0.31.0"}, "machines": [{"id": "m2"}]},
    )
    assert found == [
        ("machine", "m1", "m2"), ("server.max_num_seqs", "16", "32"), ("version of server", "0.30.0", "0.31.0"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_page_says_what_differs_in_both_languages(language: str) -> None:
    """The comparison's page has no missing text and names both studies."""
    report = compare_page.page(study(name="first"), study(0.7, "second"), Words.of(language))
    assert report.missing_texts == ()
    assert "first" in report.html
    assert "second" in report.html


@pytest.mark.slow
def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """compare.py reads two tables folders and writes one page with its files beside it."""
    folders = []
    for one in (study(name="a"), study(0.7)):
        folders.append(tmp_path / f"results/{one.name}/tables")
        write_analyses(folders[-1], [], one.info)
        write_points(folders[-1], one.points, COLUMNS)
        write_loads(folders[-1], one.loads)
    out = tmp_path / "reports/compare-a-b.html"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, folders), "--output", str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 100_000
    assert {f.name for f in (tmp_path / "reports/compare-a-b").iterdir()} >= {
        "ratios.csv",
        "compare-ratios.png",
    }
