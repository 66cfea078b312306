"""What must run again, and what never: whole Snakemake runs with the fake server, counting starts and points.

Several statements share one project folder where one run's end is the next one's beginning: a run costs seconds.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from project_folder import Project, Run
from servelab import made_of
from servelab.records import read_point

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TABLES_AND_REPORT = ["analyse", "report", "summarise"]


def well(run: Run) -> Run:
    """The run, which must have ended well."""
    assert run.returncode == 0, run.output
    return run


def counts(run: Run) -> tuple[int, int, int]:
    """(server starts, points measured, points taken from the store) of a run that ended well."""
    well(run)
    return run.starts, run.measured, run.kept


def set_concurrency(project: Project, *values: int) -> None:
    project.study["experiments"]["load_sweep"]["concurrency"] = list(values)


def cut(path: Path) -> None:
    """Replace a file by its first half (a file of its own: a point and its store file are one by hard link)."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


def until(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def test_only_what_changed_is_measured(project: Project) -> None:
    """Nothing changed: no job. A concurrency more: one start, one point. One less, a title, a tolerance: no start.

    Nor where the study that the report is compared with is measured later: that is a matter of the report alone.
    """
    project.study["report"]["reference"] = "earlier"
    first = project.run()
    assert counts(first) == (1, 2, 0)
    assert first.other_jobs == TABLES_AND_REPORT
    assert (project.root / "reports/small.html").stat().st_size > 10_000
    assert project.run().nothing_to_do

    project.study["report"]["title"] = "Another title"
    title = project.would_run()
    assert title.measuring_jobs == []
    assert title.other_jobs == ["analyse", "report"]
    project.study["tolerance"] = 0.1
    tolerance = project.would_run()
    assert tolerance.measuring_jobs == []
    assert tolerance.other_jobs == TABLES_AND_REPORT

    kept_before = {path: path.stat().st_mtime_ns for path in project.store_paths()}
    set_concurrency(project, 1, 2, 4)
    assert counts(project.measure()) == (1, 1, 2)
    assert len(project.store_paths()) == 3
    assert {path: path.stat().st_mtime_ns for path in kept_before}.keys() == kept_before.keys()
    assert all(path.stat().st_size for path in kept_before)

    set_concurrency(project, 1, 4)
    less = project.run()
    assert counts(less)[:2] == (0, 0)
    assert less.other_jobs == TABLES_AND_REPORT
    assert "c2-i8" not in (project.tables() / "points.csv").read_text(encoding="utf-8")
    assert project.run().nothing_to_do

    earlier = project.root / "results/earlier/tables"
    shutil.copytree(project.tables(), earlier)
    assert [job for job in project.would_run().jobs if job != "all"] == ["report"]


def test_new_server_option_starts_that_server_only(project: Project) -> None:
    """A value more in an option's list is one more server; the servers there already are not touched."""
    assert counts(project.measure()) == (1, 2, 0)
    project.study["server"]["max_num_seqs"] = [8, 16]
    more = project.measure()
    assert counts(more) == (1, 2, 0)
    assert len(more.measuring_jobs) == 1
    assert "mns16" in more.measuring_jobs[0]
    argv = project.truth("start")[-1]["argv"]
    assert "--max-num-seqs=16" in argv

    project.study["server"]["max_num_seqs"] = [16, 8]
    assert project.measure().measuring_jobs == [], "the order of a grid is no change"


def test_lost_and_damaged_results(project: Project) -> None:
    """A lost result comes from the store, so does a cut one; what is damaged in both places is measured again."""
    assert counts(project.measure()) == (1, 2, 0)
    one, two = project.point_paths()
    one.unlink()
    cut(two)
    shutil.rmtree(project.root / ".snakemake")
    assert counts(project.measure()) == (0, 0, 2)
    assert all(read_point(path).meta.status == "ok" for path in (one, two))
    shutil.rmtree(project.root / ".snakemake")
    assert project.measure().measuring_jobs == [], "Snakemake's memory lost is no reason to do anything"

    key_of_two = read_point(two).meta.key
    for path in (two, project.root / f"results/store/{key_of_two[:2]}/{key_of_two}.arrow"):
        cut(path)
    again = project.measure()
    assert counts(again) == (1, 1, 1)
    assert "c2-i8-o4-r1: the kept file is damaged and is measured again: " in again.output
    assert read_point(two, key_of_two).meta.status == "ok"


def test_a_store_that_was_lost_is_filled_again_from_what_is_shown(project: Project) -> None:
    """Results that were copied without the store: a concurrency more measures that one, not all of them again."""
    assert counts(project.measure()) == (1, 2, 0)
    before = {path: read_point(path).meta.provenance["started_at"] for path in project.point_paths()}
    # One point is a file of another study's, too: that there are links to it says nothing.
    os.link(project.point_paths()[0], project.root / "results/another.arrow")
    shutil.rmtree(project.root / "results/store")
    set_concurrency(project, 1, 2, 4)
    planned = project.run("plan")
    assert "to do: 1 starts, 1 points" in planned.output
    assert not (project.root / "results/store").exists(), "plan only looks"
    assert counts(project.measure()) == (1, 1, 2)
    assert {path: read_point(path).meta.provenance["started_at"] for path in before} == before
    assert len(project.store_paths()) == 3


def test_what_snakemake_forgot_is_known_all_the_same(project: Project) -> None:
    """Without `.snakemake` (a copy, a deletion): nothing where nothing changed; a seed, a title, a table as ever."""
    assert counts(project.run()) == (1, 2, 0)

    def forget() -> None:
        shutil.rmtree(project.root / ".snakemake")

    forget()
    assert well(project.run()).nothing_to_do
    forget()
    project.study["report"]["title"] = "Another title"
    assert counts(project.run()) == (0, 0, 0)
    assert "Another title" in (project.root / "reports/small.html").read_text()
    forget()
    shutil.rmtree(project.root / "results/store")
    project.study["seed"] = 2
    assert counts(project.run()) == (1, 2, 0)
    assert {record.meta.spec["seed"] for record in project.records().values()} == {2}
    project.study["seed"] = 1
    assert counts(project.run()) == (0, 0, 2), (
        "the points of seed 1 went into the store before they were replaced"
    )
    for lost in ("results/small/tables/loads.csv", "reports/small"):
        path = project.root / lost
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert counts(project.run()) == (0, 0, 0)
        assert path.exists(), lost


def test_right_file_under_a_wrong_name(project: Project) -> None:
    """A whole point in another's place, here and in the store, is found by what it says and measured again."""
    assert counts(project.measure()) == (1, 2, 0)
    one, two = project.point_paths()
    key_of_two = read_point(two).meta.key
    kept = project.root / f"results/store/{key_of_two[:2]}/{key_of_two}.arrow"
    for path in (two, kept):
        path.unlink()
        shutil.copyfile(one, path)
    made_of.path(two.parent, "measure").unlink()
    assert counts(project.run("results/small/tables/points.arrow")) == (1, 1, 1)
    assert read_point(two, key_of_two).meta.name == "c2-i8-o4-r1"


def test_code_and_measurement_version(tmp_path: Path) -> None:
    """A higher measurement version measures every point again; any other change of code never measures one."""
    project = Project.make(tmp_path / "project", copied_workflow=True)
    library = project.root / "workflow/scripts/servelab"
    assert counts(project.run("results/small/tables/points.arrow")) == (1, 2, 0)

    with (library / "client.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef _unused() -> int:\n    return 1\n")
    with (library / "gates/requests.py").open("a", encoding="utf-8") as file:
        file.write("\n# a comment more\n")
    (project.root / "workflow/rules/measure.smk").touch()
    (project.root / "workflow/scripts/measure.py").touch()
    comment = project.would_run()
    assert comment.measuring_jobs == []
    assert "summarise" not in comment.jobs, (
        "a comment, or a module that tables do not come from, makes no table"
    )

    with (library / "gates/requests.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef _unused() -> int:\n    return 1\n")
    code = project.would_run()
    assert code.measuring_jobs == []
    assert code.other_jobs == TABLES_AND_REPORT

    version = library / "measurement_version.py"
    text = version.read_text(encoding="utf-8")
    raised = text.replace("MEASUREMENT_VERSION = 1\n", "MEASUREMENT_VERSION = 1_000_001\n")
    assert raised != text
    version.write_text(raised, encoding="utf-8")
    assert counts(project.measure()) == (1, 2, 0)
    assert len(project.store_paths()) == 4, "points of the earlier version are still there"


def test_killed_and_stopped_runs_go_on(project: Project) -> None:
    """SIGKILL or Ctrl-C in the middle: no server is left, finished points are kept, the next run measures the rest."""
    set_concurrency(project, 1, 2, 3, 4)
    project.fake["step_ms"] = 100.0
    for round_, number in enumerate((signal.SIGKILL, signal.SIGINT), start=1):
        process = project.begin("all", "--omit-from", "summarise")
        until(lambda least=round_: len(project.store_paths()) >= least, "a kept point")
        if number == signal.SIGKILL:
            process.kill()
        else:
            os.killpg(process.pid, number)
        assert process.wait(timeout=60) != 0
        until(lambda: not project.servers_alive(), "the server's end")
    kept = len(project.store_paths())
    assert 2 <= kept < 4
    assert not list((project.root / "results").rglob("*.tmp"))
    project.fake["step_ms"] = 1.0
    rest = project.measure()
    assert counts(rest) == (1, 4 - kept, kept)
    orders = [record.meta.session["order"] for record in project.records().values()]
    sessions = {record.meta.session["id"] for record in project.records().values()}
    assert len(sessions) == 3 and orders.count(0) == 3, (
        "each row says which server it was measured on, and when"
    )


def test_failed_points_are_data(project: Project) -> None:
    """A failure is kept with its cause and not tried again, until retry_failed=true; then there is nothing to do."""
    project.fake["faults"] = [{"do": "die_at_start", "words": "oom", "starts": [1]}]
    failed = project.run("results/small/tables/points.arrow")
    assert counts(failed) == (1, 2, 0)
    assert failed.failed == 2
    assert "the server did not start (out_of_memory)" in failed.output
    for record in project.records().values():
        assert (record.meta.status, record.meta.cause) == ("failed", "server_start")
        assert "CUDA out of memory" in (record.meta.detail or "")
    assert project.run("results/small/tables/points.arrow").nothing_to_do

    project.fake["faults"] = [{"do": "die", "requests": [1], "starts": [2], "after": 1}]
    retried = project.measure("--config", "retry_failed=true")
    assert (retried.starts, retried.measured, retried.failed) == (2, 2, 1), retried.output
    causes = [record.meta.cause for record in project.records().values()]
    assert causes == ["server_died", None], "the rest goes on, on a new process"

    project.fake["faults"] = []
    assert counts(project.measure("--config", "retry_failed=true")) == (1, 1, 1)
    assert all(record.meta.status == "ok" for record in project.records().values())
    assert project.measure("--config", "retry_failed=true").measuring_jobs == []
    assert project.measure().measuring_jobs == []


def test_servers_are_shared_only_on_request_and_boots_are_controlled(project: Project) -> None:
    """Two experiments get a server each, or with share_servers one; a first boot is followed by a restart."""
    same = dict(project.study["experiments"]["load_sweep"])
    project.study["experiments"] = {
        "a": {**same, "kind": "load_sweep"},
        "b": {**same, "kind": "load_sweep", "concurrency": [4]},
    }
    assert counts(project.measure()) == (2, 3, 0)
    project.study["share_servers"] = True
    shared = project.measure()
    assert counts(shared) == (1, 3, 0)
    assert len({record.meta.session["id"] for record in project.records().values()}) == 1

    project.study["experiments"] = {"startup": {"enforce_eager": [False], "restarts": 2}}
    project.study["share_servers"] = False
    assert counts(project.measure()) == (3, 3, 0)
    boots = {
        name.split("/")[-1]: record.meta.session["boot"]
        for name, record in project.records().items()
        if name.startswith("startup/")
    }
    assert boots == {"first-r1.arrow": "first", "restart-r1.arrow": "restart"}
    assert [note["boot"] for note in project.truth("ready")[-3:]] == ["first", "restart", "restart"]
