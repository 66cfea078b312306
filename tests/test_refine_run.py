"""`snakemake refine`: concurrencies are added within the budget, measured, and are part of the study from then on."""

import json

import pytest

from project_folder import Project
from servelab.report import tables
from servelab.summary import COLUMNS

pytestmark = pytest.mark.slow


def _believe_every_point(project: Project) -> None:
    """Verdicts depend on what else the machine does while the tests run; what is tested here does not."""
    rows = tables.read_points(project.tables())
    tables.write_points(project.tables(), rows.assign(verdict="valid"), COLUMNS)


def test_refine_measures_what_it_adds_and_stops_at_the_budget(project: Project) -> None:
    """A sweep with a wide gap gets points in the gap, each measured once; with the budget spent nothing starts."""
    project.fake.update(step_ms=2.0, decode_us=500.0)
    project.study["experiments"]["load_sweep"] |= {
        "concurrency": [1, 2, 4, 16],
        "repeats": 2,
        "requests_per_slot": 2,
    }
    project.study["refine"] = {"max_points": 1, "max_minutes": 5}
    assert project.run().returncode == 0
    before = len(project.point_paths())
    _believe_every_point(project)

    refined = project.run("refine")
    assert refined.returncode == 0, refined.output
    added = json.loads((project.root / "results/small/refined.json").read_text(encoding="utf-8"))
    (concurrency,) = added["load_sweep"]
    assert concurrency not in (1, 2, 4, 16)
    assert refined.starts == 1 and refined.measured == 2, "one concurrency, two repeats, one server"
    assert len(project.point_paths()) == before + 2

    spent = project.run("refine")
    assert spent.returncode == 0 and spent.starts == 0
    assert "the budget is spent (1 of refine.max_points=1" in spent.output
