"""The fault matrix, part three: whole Snakemake runs that are stopped, killed, starved or moved.

For each: exit code and what the user reads, which points survive, that the next run continues, that nothing
of ours is left: no process, no port, no temporary file.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from programs import need
from project_folder import Project, Run
from servelab import processes
from servelab.records import read_point

pytestmark = pytest.mark.slow

POINTS = ("all", "--omit-from", "summarise")


def until(condition: Callable[[], object], what: str, within_s: float = 180.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def ours(project: Project) -> list[str]:
    """Command lines of processes that work for this project: jobs, supervisors, servers, daemons."""
    found = []
    for each in processes.everyone():
        try:
            folder = str(Path(f"/proc/{each.pid}/cwd").readlink())
            words = (
                Path(f"/proc/{each.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
        if folder.startswith(str(project.root)) and each.pid != os.getpid():
            found.append(words)
    return found


def nothing_left(project: Project) -> None:
    """No process of the project, no temporary file, no scratch folder, no port."""
    until(lambda: not ours(project), f"the end of {ours(project)}", 100.0)
    assert project.servers_alive() == []
    assert not list((project.root / "results").rglob("*.tmp"))
    for note in project.truth("start"):
        port = next(word for word in note["argv"] if word.startswith("--port="))
        listening = Path("/proc/net/tcp").read_text()
        assert f"0100007F:{int(port.split('=')[1]):04X} 00000000:0000 0A" not in listening


@pytest.fixture
def four(project: Project) -> Project:
    """Four points on one server, slow enough to be stopped in the middle, a daemon beside the server."""
    project.study["experiments"]["load_sweep"]["concurrency"] = [1, 2, 3, 4]
    project.fake.update(step_ms=100.0, faults=[{"do": "grandchild"}])
    return project


def finish(project: Project, kept: int) -> Run:
    """The next run: it takes what is kept, measures the rest on one more server, and then nothing is left to do."""
    project.fake.update(step_ms=1.0, faults=[])
    rest = project.measure()
    assert rest.returncode == 0, rest.output
    assert (rest.starts, rest.measured, rest.kept) == (1, 4 - kept, kept)
    assert all(record.meta.status == "ok" for record in project.records().values())
    assert project.measure().measuring_jobs == []
    return rest


def job_of(project: Project) -> int:
    """Pid of the measuring job."""
    found = [
        each.pid
        for each in processes.everyone()
        if b"scripts/measure.py" in _words(each.pid)
        and str(project.root) in _folder(each.pid)
        and each.name.startswith("python")
    ]
    assert found, "no measuring job"
    return found[0]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _folder(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def test_ctrl_c_leaves_nothing_and_loses_no_finished_point(four: Project) -> None:
    """Ctrl-C (SIGINT to the whole group): exit code 1 soon, the points so far are kept, the rest is measured next."""
    process = four.begin(*POINTS)
    until(lambda: len(four.store_paths()) >= 1, "a kept point")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) != 0
    nothing_left(four)
    kept = len(four.store_paths())
    assert "points measured so far are kept" in (four.root / "run.log").read_text()
    assert 1 <= kept < 4
    finish(four, kept)


def test_sigterm_to_snakemake_ends_in_order(four: Project) -> None:
    """SIGTERM lets Snakemake finish what runs (its own rule) or stop: either way nothing is left and nothing
    is lost.
    """
    process = four.begin(*POINTS)
    until(lambda: len(four.store_paths()) >= 1, "a kept point")
    process.send_signal(signal.SIGTERM)
    process.wait(90)
    nothing_left(four)
    kept = len(four.store_paths())
    assert 1 <= kept <= 4
    if kept < 4:
        finish(four, kept)


def test_sigkill_of_snakemake_takes_its_job_and_server_along(four: Project) -> None:
    """Snakemake is killed: the job stops in order, the server and its daemon are gone, the next run needs no
    --unlock.
    """
    process = four.begin(*POINTS)
    until(lambda: len(four.store_paths()) >= 1, "a kept point")
    process.kill()
    process.wait(30)
    nothing_left(four)
    kept = len(four.store_paths())
    assert 1 <= kept < 4
    finish(four, kept)


def test_sigkill_of_snakemake_while_its_job_comes_up(four: Project) -> None:
    """A job takes seconds to come up; Snakemake is gone by then: the orphan ends itself and measures nothing."""
    process = four.begin(*POINTS)
    until(lambda: any("scripts/measure.py" in words for words in ours(four)), "a job")
    process.kill()
    process.wait(30)
    nothing_left(four)
    assert four.store_paths() == []
    finish(four, 0)


def test_sigkill_of_the_job_itself(four: Project) -> None:
    """The measuring process is killed (out of memory): Snakemake fails the job, its server does not live on."""
    process = four.begin(*POINTS)
    until(lambda: len(four.store_paths()) >= 1, "a kept point")
    os.kill(job_of(four), signal.SIGKILL)
    assert process.wait(60) != 0
    nothing_left(four)
    kept = len(four.store_paths())
    assert 1 <= kept < 4
    assert "Killed" in (four.root / "run.log").read_text() or "exit" in (four.root / "run.log").read_text()
    finish(four, kept)


def test_a_config_changed_while_running_changes_nothing_under_way(four: Project) -> None:
    """The run measures what it read; what was added in between is measured by the next run, and only that."""
    process = four.begin(*POINTS)
    until(lambda: len(four.store_paths()) >= 1, "a kept point")
    four.study["experiments"]["load_sweep"]["concurrency"] = [1, 2, 3, 4, 5]
    four.write("config/config.yaml", four.study)
    assert process.wait(120) == 0
    assert len(four.store_paths()) == 4
    four.fake.update(step_ms=1.0, faults=[])
    rest = four.measure()
    assert rest.returncode == 0, rest.output
    assert (rest.starts, rest.measured) == (1, 1)


def test_results_moved_to_another_folder_are_read_and_not_measured_again(
    project: Project, tmp_path: Path
) -> None:
    """A project folder copied elsewhere (another machine): every point is whole there, nothing is measured again."""
    assert project.measure().returncode == 0
    copy = tmp_path / "elsewhere"
    shutil.copytree(project.root, copy, symlinks=True, ignore=shutil.ignore_patterns(".snakemake"))
    shutil.rmtree(project.root / "results")
    moved = Project(copy)
    moved.study, moved.fake = project.study, {**project.fake, "truth": str(copy / "truth.jsonl")}
    again = moved.measure()
    assert again.returncode == 0, again.output
    assert (again.starts, again.measured) == (0, 0)
    assert [read_point(path).meta.status for path in moved.point_paths()] == ["ok", "ok"]


def test_results_that_cannot_be_written_end_the_job_with_the_reason(project: Project) -> None:
    """The store's place is taken by a file: the job fails, names the path, leaves no server; cleared, it goes on."""
    (project.root / "results").mkdir()
    (project.root / "results/store").write_text("in the way")
    run = project.measure()
    assert run.returncode != 0
    assert "results cannot be written" in run.output and "store" in run.output
    nothing_left(project)
    (project.root / "results/store").unlink()
    assert project.measure().returncode == 0


@pytest.fixture
def small_disk(project: Project) -> Iterator[Project]:
    """The project's results on a file system of 200 KB."""
    place = project.root / "results"
    place.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "servelab-test", str(place)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield project
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_costs_what_does_not_fit(small_disk: Project) -> None:
    """The disk fills up: a clear line and exit code, points before it are whole, with room the rest is measured."""
    small_disk.study["experiments"]["load_sweep"]["concurrency"] = list(range(1, 9))
    filler = small_disk.root / "results" / "filler"
    filler.write_bytes(b"x" * 60_000)
    run = small_disk.measure()
    assert run.returncode != 0
    assert re.search(r"results cannot be written: .*No space left", run.output), run.output
    nothing_left(small_disk)
    kept = small_disk.store_paths()
    assert 0 < len(kept) < 8
    assert all(read_point(path).meta.status == "ok" for path in kept)
    place = small_disk.root / "results"
    subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
    rest = small_disk.measure()
    assert rest.returncode == 0, rest.output
    assert (rest.measured, rest.kept) == (8 - len(kept), len(kept))


def test_a_limit_of_sixty_four_open_files_that_cannot_be_raised(project: Project, tmp_path: Path) -> None:
    """With a hard limit of 64 descriptors for client and server alike the job ends, and every request has its row."""
    from fake_starts import closed, fake_start

    start = fake_start(closed(100, 100), closed(2, 4), knobs={**project.fake}, timeout_s=8.0, stall_s=2.0)
    command = [
        sys.executable,
        str(project.root / "workflow/scripts/measure.py"),
        "--root",
        str(tmp_path),
        "--start",
        json.dumps(start.to_json()),
    ]
    limited = [need("prlimit", "util-linux"), "--nofile=64:64", *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for point in start.points[:1]:
        record = read_point(tmp_path / start.path(point))
        rows = record.requests.to_pylist()
        assert len(rows) == 100
        assert {row["cause"] for row in rows if not row["ok"]} <= {
            "connect",
            "reset",
            "stalled",
            "timeout",
            "closed_early",
            "server_died",
        }
    assert not ours(project)
