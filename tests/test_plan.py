"""`plan` says what would run and starts nothing; a config that cannot be used ends every command at once."""

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from project_folder import REPO, Project, small_study
from servelab.config.load import load
from servelab.grid import server_starts
from servelab.store import Store
from test_records import record


@pytest.fixture(scope="module")
def plan() -> ModuleType:
    """workflow/scripts/plan.py."""
    spec = importlib.util.spec_from_file_location("plan", REPO / "workflow/scripts/plan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def study(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(small_study()), **changes}


def test_plan_counts_what_is_missing(plan: ModuleType, project: Project) -> None:
    """Starts, points, which of them are missing, by name; what the store has is not counted as to do."""
    raw = study()
    raw["experiments"]["load_sweep"]["starts"] = 2
    before = plan.lines(raw, project.root)
    assert before[0] == "study small: engine fake 0.31.0, models tiny"
    assert before[-2].startswith("2 server starts with 4 points; to do: 2 starts, 4 points, about ")
    assert before[-2].endswith("(assumed: nothing was measured here yet)")
    assert before[-1] == "nothing was started"
    assert sum("2 of 2 points to measure" in line for line in before) == 2
    assert before.count("      c1-i8-o4-r1, c2-i8-o4-r1") == 2

    starts = server_starts(load(raw, project.root))
    store = Store(project.root / "results/store")
    for start, point in [
        (starts[0], starts[0].points[0]),
        *((starts[1], point) for point in starts[1].points),
    ]:
        store.put(record(start.key(point)))
    after = plan.lines(raw, project.root)
    assert any("start 1: 1 of 2 points to measure" in line for line in after)
    assert any("start 2: 2 points, all there" in line for line in after)
    assert "to do: 1 starts, 1 points" in after[-2]
    store.put(record(starts[0].key(starts[0].points[1])))
    assert plan.lines(raw, project.root)[-1] == "nothing to measure"

    store.put(record(starts[0].key(starts[0].points[0]), status="failed", cause="server_start"))
    kept = plan.lines(raw, project.root)
    assert kept[-2].startswith("1 points failed before and are kept as they are; --config retry_failed=true")
    assert kept[-1] == "nothing to measure"
    retried = plan.lines(raw, project.root, retry_failed=True)
    assert "to do: 1 starts, 1 points" in retried[-2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_that_only_look_change_nothing(project: Project) -> None:
    """plan and a dry run start no server and leave no file but Snakemake's own; `set` and a config file reach them."""
    project.write("config/config.yaml", project.study)
    before = {path for path in project.root.rglob("*") if ".snakemake" not in path.parts}
    planned = project.run(
        "plan", "--config", "set=[experiments.load_sweep.starts=3,server.max_num_seqs=[4,8]]"
    )
    assert planned.returncode == 0, planned.output
    assert "6 server starts with 12 points; to do: 6 starts, 12 points" in planned.output

    other = project.root.parent / "other.json"
    other.write_text(json.dumps(study(study="other", seed=7)), encoding="utf-8")
    dry = project.run("all", "--dry-run", "--configfile", str(other))
    assert dry.returncode == 0, dry.output
    assert "results/other/load_sweep/" in dry.output and "results/small/" not in dry.output
    assert dry.starts == planned.starts == 0
    assert {path for path in project.root.rglob("*") if ".snakemake" not in path.parts} == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_misspelt_key_ends_a_run_with_the_hint(project: Project) -> None:
    """`snakemake all` ends with a status that is not 0, names the key and the one that was meant; nothing starts, and
    no file is written."""
    project.study["experiments"]["load_sweep"]["concurency"] = [1]
    project.write("config/config.yaml", project.study)
    before = {path for path in project.root.rglob("*") if ".snakemake" not in path.parts}
    run = project.run()
    assert run.returncode != 0
    assert "the config cannot be used; nothing was started:" in run.output
    assert "experiments.load_sweep.concurency: 'concurency' is not possible here" in run.output
    assert "Did you mean «concurrency»?" in run.output
    assert "Traceback" not in run.output
    assert run.starts == 0 and run.jobs == ()
    assert {path for path in project.root.rglob("*") if ".snakemake" not in path.parts} == before


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_config_file_without_a_study_is_refused(project: Project) -> None:
    """Its keys are not laid over the default study, to be measured under that one's name."""
    project.write("mine.yaml", {key: value for key, value in study(seed=7).items() if key != "study"})
    run = project.run("plan", "--configfile", "mine.yaml")
    assert run.returncode != 0
    assert "study: '' is not possible here" in run.output
    assert "study small" not in run.output and "Traceback" not in run.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_second_run_in_the_same_folder_is_refused(project: Project) -> None:
    """While one run measures, another in the same folder says so and ends; looking is possible meanwhile."""
    project.fake["faults"] = [{"do": "slow_start", "s": 20}]
    process = project.begin("all", "--omit-from", "summarise")
    try:
        while not project.truth("start"):
            assert process.poll() is None, (project.root / "run.log").read_text(encoding="utf-8")
        second = project.run("all")
        assert second.returncode != 0
        assert f"another run is at work in {project.root}" in second.output
        assert project.run("plan").returncode == 0
    finally:
        process.terminate()
        process.wait(60)


def test_studies_that_come_with_servelab_can_be_planned(plan: ModuleType) -> None:
    """Every study in config/ is planned on any machine, with points in each of its experiments."""
    from servelab.config.yaml_file import read_yaml

    for path in sorted((REPO / "config").glob("*.yaml")):
        lines = plan.lines(read_yaml(path), Path(REPO))
        assert " server starts with " in lines[-2], path.name
