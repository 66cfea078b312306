"""A point's file: complete or refused, and read back as it was written."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from servelab import records
from servelab.records import (
    BadPointError,
    PointMeta,
    PointRecord,
    encode_point,
    read_meta,
    read_point,
    write_atomically,
)

KEY = "0123456789abcdef" * 2


def request_row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "index": 0,
        "role": "measured",
        "slot": 0,
        "intended_s": 0.0,
        "sent_s": 0.001,
        "first_byte_s": 0.05,
        "end_s": 0.2,
        "chunk_s": [0.05, 0.1, 0.2],
        "chunk_tokens": [1, 2, 1],
        "input_tokens_asked": 8,
        "output_tokens_asked": 4,
        "input_tokens": 8,
        "output_tokens": 4,
        "finish_reason": "length",
        "http_status": 200,
        "ok": True,
    }
    return row | changes


def record(key: str = KEY, **meta: Any) -> PointRecord:
    about = PointMeta(key, {"seed": 1}, "c1-i8-o4-r1", "study", "sweep", "tiny", **meta)
    rows = records.requests_table([request_row(index=i) for i in range(50)])
    polled = [{"at_s": 0.5 * i, "name": "vllm:requests", "value": 1.0} for i in range(20)]
    series = records.series_table(polled)
    return PointRecord(about, rows, series)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "point.arrow"
    write_atomically(
        path, encode_point(record(detail="«words» of the server", metrics={"after": {"a": 1.5}}))
    )
    return path


def test_point_is_read_back_as_it_was_written(file: Path) -> None:
    """Metadata, request rows and series survive; a reader that has only Arrow sees the rows too."""
    again = read_point(file, KEY)
    made = record(detail="«words» of the server", metrics={"after": {"a": 1.5}})
    assert asdict(again.meta) == asdict(made.meta)
    assert again.requests.equals(made.requests)
    assert again.series.equals(made.series)
    assert pa.ipc.open_file(str(file)).read_all().num_rows == 50
    assert read_meta(file, KEY) == again.meta


def test_every_cut_of_a_file_is_refused(file: Path, tmp_path: Path) -> None:
    """A file cut anywhere is no point, however little is missing."""
    data = file.read_bytes()
    cut = tmp_path / "cut.arrow"
    for length in {0, 1, 7, 8, *range(9, len(data), max(len(data) // 60, 1)), len(data) - 1}:
        cut.write_bytes(data[:length])
        with pytest.raises(BadPointError, match=r"cut\.arrow: "):
            read_point(cut, KEY)


def test_damage_inside_a_file_is_never_another_value(file: Path, tmp_path: Path) -> None:
    """A file with bytes overwritten is refused or still says exactly what was written: rows cannot change silently."""
    data = file.read_bytes()
    whole = read_point(file)
    hurt = tmp_path / "hurt.arrow"
    refused = 0
    for at in range(8, len(data) - 64, max(len(data) // 80, 1)):
        hurt.write_bytes(data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 64]) + data[at + 64 :])
        try:
            read = read_point(hurt, KEY)
        except BadPointError:
            refused += 1
            continue
        assert read.requests.equals(whole.requests)
        assert asdict(read.meta) == asdict(whole.meta)
    assert refused > 40


def test_missing_wrong_or_foreign_files_are_refused_by_name(file: Path, tmp_path: Path) -> None:
    """The message says which file and what is wrong: missing, no Arrow, another schema, another point's."""
    with pytest.raises(BadPointError, match=r"nowhere\.arrow: missing"):
        read_point(tmp_path / "nowhere.arrow")
    with pytest.raises(BadPointError, match=f"holds point {KEY}, not {'f' * 32}"):
        read_point(file, "f" * 32)
    text = tmp_path / "text.arrow"
    text.write_text("no arrow at all, but long enough to be one " * 10, encoding="utf-8")
    with pytest.raises(BadPointError, match="no complete Arrow file"):
        read_point(text)
    table = pa.table({"a": [1]})
    with pa.OSFile(str(text), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(BadPointError, match=f"schema none, this servelab reads {records.SCHEMA_VERSION}"):
        read_point(text)


def test_files_name_and_content_that_disagree_are_refused(file: Path) -> None:
    """A file whose key and metadata contradict each other is refused."""
    reader = pa.ipc.open_file(str(file))
    metadata = {**reader.schema.metadata, b"servelab.key": b"f" * 32}
    table = reader.read_all().replace_schema_metadata(metadata)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(BadPointError, match="its key and its metadata disagree"):
        read_point(file)


def test_rows_outside_the_schema_are_refused() -> None:
    """A row without a field that must be there, or of another type, does not become a table."""
    with pytest.raises((pa.ArrowException, TypeError)):
        records.requests_table([request_row(chunk_tokens="many")])
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_point(record(client={"lag_p50_ms": float("nan")}))


def test_failed_write_leaves_the_earlier_file_and_nothing_else(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk full while writing: the earlier content stays whole and no temporary file is left."""
    before = file.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, b"new content")
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]
