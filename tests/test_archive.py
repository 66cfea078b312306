"""A study is archived as a folder, and its tables and report are made again from it where no server ever was."""

import io
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from project_folder import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def tables(project: Project) -> dict[str, pd.DataFrame]:
    """Every CSV of the study's tables. Where a point lies (`path`, `rests_on`) is written as in an archive."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(project.tables().glob("*.csv"))}
    return {
        name: pd.read_csv(io.StringIO(text.replace("results/small/", "points/")))
        for name, text in texts.items()
    }


def test_archive_gives_the_same_tables_and_report_without_a_server(project: Project, tmp_path: Path) -> None:
    """Measured, archived, moved; rebuilt in a clean folder without engine, model, store or config: the same tables."""
    measured = project.run("archive")
    assert measured.returncode == 0, measured.output
    assert measured.measured == 2
    folder = tmp_path / "moved"
    shutil.move(project.root / "archive/small", folder)
    points = sorted(path.relative_to(folder).as_posix() for path in (folder / "points").rglob("*.arrow"))
    assert [name.rsplit("/", 1)[1] for name in points] == ["c1-i8-o4-r1.arrow", "c2-i8-o4-r1.arrow"]
    assert (folder / "models/tiny/config.json").is_file()
    assert list((folder / "logs").rglob("server.log")), "a server's own words belong to the study"
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["study"] == "small"

    before = tables(project)
    shutil.rmtree(project.root)
    clean = Project.make(tmp_path / "clean")
    shutil.rmtree(clean.root / "config")
    shutil.rmtree(clean.root / "models")
    rebuilt = clean.run_as_is("rebuild", "--config", f"archive={folder}")
    assert rebuilt.returncode == 0, rebuilt.output
    assert rebuilt.starts == 0 and rebuilt.measuring_jobs == []
    after = tables(clean)
    assert before and list(after) == list(before)
    for name, frame in before.items():
        pd.testing.assert_frame_equal(after[name], frame)
    report = (clean.root / "reports/small.html").read_text(encoding="utf-8")
    assert "A small study" in report


def test_archive_of_a_later_schema_of_keys_is_still_read(project: Project, tmp_path: Path) -> None:
    """Analysis reads points by their schema: no measurement version of the day, no engine's file is needed."""
    assert project.run("archive").returncode == 0
    folder = tmp_path / "moved"
    shutil.move(project.root / "archive/small", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["engine"] = "an-engine-that-is-gone"
    config["models"] = ["tiny"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    later = Project.make(tmp_path / "later", copied_workflow=True)
    version = later.root / "workflow/scripts/servelab/measurement_version.py"
    text = version.read_text(encoding="utf-8")
    version.write_text(
        text.replace("MEASUREMENT_VERSION = 1\n", "MEASUREMENT_VERSION = 1_000_001\n"), encoding="utf-8"
    )
    rebuilt = later.run_as_is("rebuild", "--config", f"archive={folder}")
    assert rebuilt.returncode == 0, rebuilt.output
    assert len(pd.read_csv(later.tables() / "points.csv")) == 2
