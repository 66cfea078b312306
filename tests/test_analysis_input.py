"""What the analysis says of points that it cannot read, and what it does with their files."""

import json
import shutil
from pathlib import Path

import pytest

from made_points import closed_rows, point
from project_folder import Project, small_study
from servelab import analysis_input
from servelab.analysis_input import DamagedPointsError, Source
from servelab.config.load import load
from servelab.config.schema import Study
from servelab.grid import server_starts
from servelab.records import encode_point, write_atomically


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


NAMES = ["study", "experiment", "kind", "slug", "model", "point"]


def test_kept_points_stand_under_the_names_of_the_plan(tmp_path: Path) -> None:
    """Points measured under other names of study, model and folder are this study's, here and in its archive."""
    root = Project.make(tmp_path / "project").root
    raw = {**small_study(), "engine": {"use": "fake", "limits": {"flops": 5e12}}}
    (start,) = server_starts(load(raw, root))
    for asked in start.points:
        about = {"model": {"name": "earlier", "path": "models/earlier", "fingerprint": "f"}, "seed": 1}
        kept = point(closed_rows(), asked.workload, key=start.key(asked), start=about)
        write_atomically(root / start.path(asked), encode_point(kept))

    source = analysis_input.from_project(raw, root)
    rows = analysis_input.rows(source, set_aside=False)
    expected = [
        ["small", "load_sweep", "load_sweep", start.slug, "tiny", name]
        for name in ("c1-i8-o4-r1", "c2-i8-o4-r1")
    ]
    assert rows[NAMES].to_numpy().tolist() == expected
    assert source.model_cards()[rows["model"][0]] is not None
    recorded = source.read(str(rows["path"][0])).meta.start
    assert recorded == {"model": {"name": "tiny", "path": "models/tiny", "fingerprint": "f"}, "seed": 1}
    assert source.engine_limits == {"flops": 5e12}

    folder = tmp_path / "archive"
    places = [analysis_input.archive_path(source, path) for path in source.points]
    for path, place in zip(source.points, places, strict=True):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, folder / place)
    contents = {"order": places, "config": source.raw, "plan": analysis_input.archived(source)}
    for name, value in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    archive = analysis_input.from_archive(folder)
    assert analysis_input.rows(archive, set_aside=False)[NAMES].equals(rows[NAMES])
    assert archive.engine_limits == source.engine_limits

    (folder / "plan.json").unlink()
    earlier = analysis_input.from_archive(folder)
    assert analysis_input.rows(earlier, set_aside=False)["model"].tolist() == ["earlier", "earlier"]
    assert earlier.engine_limits == {"flops": 5e12}, "without the plan, what the config says"
