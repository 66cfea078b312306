"""What the analysis says of points that it cannot read, and what it does with their files."""

from pathlib import Path

import pytest

from servelab import analysis_input
from servelab.analysis_input import DamagedPointsError, Source
from servelab.config.schema import Study


def source(root: Path, *paths: str) -> Source:
    return Source(root, {}, Study(study="test"), {}, dict.fromkeys(paths), {})


def test_damaged_points_are_set_aside_and_missing_ones_told_apart(tmp_path: Path) -> None:
    """A garbled file is removed, so that it is measured again; one that is not there is not called damaged."""
    (tmp_path / "garbled.arrow").write_bytes(b"not Arrow")
    with pytest.raises(DamagedPointsError) as caught:
        analysis_input.rows(source(tmp_path, "garbled.arrow", "gone.arrow"), set_aside=True)
    assert list(caught.value.damaged) == ["garbled.arrow"]
    assert caught.value.missing == ("gone.arrow",)
    assert "1 points are damaged and were set aside" in str(caught.value)
    assert "1 points are not there: a file under config/ changed" in str(caught.value)
    assert not (tmp_path / "garbled.arrow").exists()


def test_an_archives_files_are_left_alone(tmp_path: Path) -> None:
    """Somebody else's archive is read, never changed."""
    (tmp_path / "garbled.arrow").write_bytes(b"not Arrow")
    with pytest.raises(DamagedPointsError):
        analysis_input.rows(source(tmp_path, "garbled.arrow"), set_aside=False)
    assert (tmp_path / "garbled.arrow").exists()
