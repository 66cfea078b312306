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


def comparison(project: Project) -> str:
    """The report's section on the reference, as HTML."""
    report = (project.root / "reports/small.html").read_text(encoding="utf-8")
    return report.split('<section id="reference"', 1)[1].split("</section>", 1)[0]


def pins(project: Project) -> dict[str, str]:
    return dict(json.loads((project.tables() / "study.json").read_text(encoding="utf-8"))["pins"])


def test_archive_gives_the_same_tables_and_report_without_a_server(project: Project, tmp_path: Path) -> None:
    """Measured, archived, moved; rebuilt in a clean folder without engine, model, store or config: the same tables.

    And the same comparison with another study, which the archive carries, and the same pinned environments.
    """
    measured = project.run("results/small/tables/points.arrow")
    assert measured.returncode == 0, measured.output
    assert measured.measured == 2
    project.study["study"] = "earlier"
    assert project.run("results/earlier/tables/analyses.json").returncode == 0
    project.study["study"] = "small"
    project.study["report"]["reference"] = "earlier"
    archived = project.run("archive")
    assert archived.returncode == 0, archived.output
    assert archived.measured == 0
    folder = tmp_path / "moved"
    shutil.move(project.root / "archive/small", folder)
    points = sorted(path.relative_to(folder).as_posix() for path in (folder / "points").rglob("*.arrow"))
    assert [name.rsplit("/", 1)[1] for name in points] == ["c1-i8-o4-r1.arrow", "c2-i8-o4-r1.arrow"]
    assert (folder / "models/tiny/config.json").is_file()
    assert list((folder / "logs").rglob("server.log")), "a server's own words belong to the study"
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["study"] == "small"

    before = tables(project)
    comparison_before, pins_before = comparison(project), pins(project)
    assert "The reference is another study" in comparison_before
    for words in ((), ("compare",)):  # with `studies` there is only one thing to do: it need not be named
        page = project.root / "reports/compare-small-earlier.html"
        compared = project.run_as_is(*words, "--config", "studies=[small,earlier]")
        assert compared.returncode == 0 and page.is_file(), compared.output
        page.unlink()

    report_before = (project.root / "reports/small.html").read_bytes()
    over = project.run_as_is("rebuild", "--config", f"archive={folder}")
    assert over.returncode != 0
    assert "a study «small» was measured here (results/small/load_sweep/" in over.output
    assert "Rebuild in another clone of servelab" in over.output and "Traceback" not in over.output
    assert (project.root / "reports/small.html").read_bytes() == report_before
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
    assert comparison(clean) == comparison_before
    assert pins(clean) == pins_before


def test_archive_of_a_later_schema_of_keys_is_still_read(project: Project, tmp_path: Path) -> None:
    """Analysis reads points by their schema: no measurement version of the day, no engine's file is needed.

    Nor the file of config/references that the study is compared with.
    """
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
    rebuilt = later.run_as_is("--config", f"archive={folder}")  # no target is asked for: there is only one
    assert rebuilt.returncode == 0, rebuilt.output
    assert len(pd.read_csv(later.tables() / "points.csv")) == 2
    assert not (later.root / "config/references").exists()
    assert "ids have a counterpart" in comparison(later)
