"""The fault matrix, part two: what goes wrong while a server is measured, and what becomes of its points.

For each: what the point's file says (cause and the server's own words), that the other points are measured,
that the next run continues, and that nothing of ours is left: no process, no temporary file.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_server import truth
from fake_starts import closed, fake_start, survivors
from servelab import engine, measure
from servelab.records import PointRecord, read_point
from servelab.spec import ServerStart, Workload

pytestmark = pytest.mark.slow  # servers start, die and are started again: seconds each


class Job:
    """One measuring job in a folder of its own; says what it said."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.truth = root / "truth.jsonl"
        self.said: list[str] = []

    def start(self, *workloads: Workload, faults: list[dict[str, Any]], **changes: Any) -> ServerStart:
        knobs = {"truth": str(self.truth), "step_ms": 1.0, "boot_ms": 1, "compile_ms": 1, "faults": faults}
        return fake_start(*workloads, knobs=knobs, **changes)

    def run(self, start: ServerStart, retry_failed: bool = False) -> measure.Outcome:
        places = measure.Places.of(self.root)
        outcome = measure.measure_start(start, places, measure.Watcher(self.said.append), {}, retry_failed)
        assert survivors(self.truth) == []
        assert not list(self.root.rglob("*.tmp"))
        return outcome

    def records(self, start: ServerStart) -> dict[str, PointRecord]:
        return {
            point.name: read_point(self.root / start.path(point), start.key(point)) for point in start.points
        }

    def causes(self, start: ServerStart) -> dict[str, str | None]:
        return {name: record.meta.cause for name, record in self.records(start).items()}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def requests(record: PointRecord) -> list[dict[str, Any]]:
    rows = record.requests.to_pylist()
    return [row for row in rows if row["role"] == "measured"]


# --- single requests
# -------------------------------------------------------------------------------------------

REQUEST_FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"do": "http", "status": 500, "message": "boom"}, "http_error", "boom"),
    ({"do": "http", "status": 429, "message": "too many"}, "http_error", "too many"),
    ({"do": "http", "status": 400, "message": "too long"}, "http_error", "too long"),
    ({"do": "error_event", "after": 3}, "error_event", "the engine ran into an error"),
    ({"do": "close", "after": 3}, "closed_early", ""),
    ({"do": "reset", "after": 3}, "reset", ""),
    ({"do": "usage", "completion": 2}, "output_tokens", ""),
    ({"do": "usage", "prompt": 5}, "input_tokens", ""),
    ({"do": "no_usage"}, "usage_missing", ""),
    ({"do": "no_finish"}, "closed_early", ""),
    ({"do": "garbage", "after": 3}, "bad_stream", ""),
]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], PointRecord]:
    """One point of which every second request meets one of REQUEST_FAULTS, in their order."""
    job = Job(tmp_path_factory.mktemp("faulty"))
    faults = [{**fault, "requests": [2 * n + 2]} for n, (fault, _, _) in enumerate(REQUEST_FAULTS)]
    start = job.start(closed(1, 2 * len(REQUEST_FAULTS) + 1), faults=faults)
    assert job.run(start).failed == 0
    record = job.records(start)["p1"]
    return requests(record), record


@pytest.mark.parametrize(
    "number", range(len(REQUEST_FAULTS)), ids=[f"{f[0]['do']}-{n}" for n, f in enumerate(REQUEST_FAULTS)]
)
def test_a_request_that_fails_is_a_row_with_its_cause(
    faulty: tuple[list[dict[str, Any]], PointRecord], number: int
) -> None:
    """Error statuses, error events, early ends, lies about usage: the row names the cause and quotes the server."""
    rows, _ = faulty
    fault, cause, words = REQUEST_FAULTS[number]
    row = rows[2 * number + 1]
    assert not row["ok"]
    assert row["cause"] in ((cause, "token_count") if fault["do"] == "usage" else (cause,))
    assert words in (row["detail"] or "")
    if fault["do"] == "http":
        assert row["http_status"] == fault["status"]


def test_requests_beside_a_failed_one_are_untouched(faulty: tuple[list[dict[str, Any]], PointRecord]) -> None:
    """The point is kept with all its rows, the good ones complete; nothing failed is left out."""
    rows, record = faulty
    assert record.meta.status == "ok"
    assert [row["ok"] for row in rows] == [n % 2 == 0 for n in range(len(rows))]
    assert all(sum(row["chunk_tokens"]) == 8 for row in rows[::2])


def test_a_point_of_which_every_request_fails_is_a_failed_point(job: Job) -> None:
    """Zero successes are not a measurement of zero: the point failed, and says what the server said."""
    start = job.start(closed(2, 4), faults=[{"do": "http", "status": 503, "message": "engine dead"}])
    assert job.run(start).failed == 1
    meta = job.records(start)["p1"].meta
    assert (meta.status, meta.cause) == ("failed", "all_failed")
    assert "engine dead" in (meta.detail or "")


# --- streams that stall, servers that die
# ------------------------------------------------------------------------


def test_a_stalled_stream_ends_after_the_stall_limit(job: Job) -> None:
    """A stream that stops is a failed row after stall_s; the others are measured, the next point too."""
    start = job.start(
        closed(2, 4), closed(1, 2), faults=[{"do": "stall", "after": 3, "requests": [2]}], stall_s=1.0
    )
    began = time.monotonic()
    job.run(start)
    assert time.monotonic() - began < 90
    records = job.records(start)
    rows = requests(records["p1"])
    assert [row["cause"] for row in rows].count("stalled") == 1
    assert sum(row["ok"] for row in rows) == 3
    assert all(row["ok"] for row in requests(records["p2"]))


def test_a_server_that_halts_does_not_hold_the_night_up(job: Job) -> None:
    """A scheduler that stops for good: every request in flight and to come is failed within the point's limits."""
    start = job.start(
        closed(2, 6), faults=[{"do": "halt", "after": 2, "requests": [3]}], stall_s=0.7, timeout_s=6.0
    )
    began = time.monotonic()
    job.run(start)
    assert time.monotonic() - began < 90
    rows = requests(job.records(start)["p1"])
    assert len(rows) == 6
    assert {row["cause"] for row in rows if not row["ok"]} <= {"stalled", "timeout"}


def test_a_point_has_a_deadline(job: Job) -> None:
    """A point that takes longer than timeout_s is a failed point with the rows it has."""
    workload = closed(1, 500, output_tokens=50)
    start = job.start(workload, faults=[], timeout_s=1.5)
    began = time.monotonic()
    job.run(start)
    assert time.monotonic() - began < 90
    meta = job.records(start)["p1"].meta
    assert (meta.status, meta.cause) == ("failed", "timeout")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("die", "killed by signal 9"),
        pytest.param("die_engine", "illegal memory access"),
    ],
)
def test_a_server_that_dies_mid_stream_costs_its_point_only(job: Job, fault: str, words: str) -> None:
    """Requests in flight are failed rows, the point is failed in the server's words, the rest gets a new server."""
    start = job.start(
        closed(1, 2),
        closed(4, 8, output_tokens=30),
        closed(1, 3),
        faults=[{"do": fault, "after": 5, "requests": [6], "starts": [1]}],
    )
    outcome = job.run(start)
    assert (outcome.starts, outcome.measured, outcome.failed) == (2, 3, 1)
    records = job.records(start)
    assert job.causes(start) == {"p1": None, "p2": "server_died", "p3": None}
    assert words in (records["p2"].meta.detail or "")
    rows = requests(records["p2"])
    assert len(rows) == 8
    in_flight = [row for row in rows if not row["ok"]]
    assert in_flight and {row["cause"] for row in in_flight} <= {
        "server_died",
        "reset",
        "closed_early",
        "error_event",
        "http_error",
        "connect",
    }
    assert records["p1"].meta.session["id"] != records["p3"].meta.session["id"]
    assert any("a new one for the remaining 1 points" in line for line in job.said)


def test_a_dying_server_is_noticed_at_once(job: Job) -> None:
    """Requests in flight do not wait for the stall limit when the process has gone."""
    start = job.start(
        closed(4, 8, output_tokens=50),
        faults=[{"do": "die", "after": 5, "requests": [2]}],
        stall_s=60.0,
        timeout_s=120.0,
    )
    began = time.monotonic()
    job.run(start)
    assert time.monotonic() - began < 90


# --- starts that fail
# ------------------------------------------------------------------------------------------


def test_a_start_that_fails_is_recorded_and_told_in_one_line(job: Job) -> None:
    """Every point of the start says why in the server's own words; the person sees one line and where the log is."""
    faults = [{"do": "die_at_start", "words": "oom"}]
    start = job.start(closed(), closed(1, 2), faults=faults)
    outcome = job.run(start)
    assert (outcome.starts, outcome.measured, outcome.failed) == (1, 2, 2)
    for record in job.records(start).values():
        assert record.meta.cause == "server_start"
        assert "out_of_memory" in (record.meta.detail or "") and "CUDA out of memory" in (
            record.meta.detail or ""
        )
    told = [line for line in job.said if "did not start" in line]
    assert len(told) == 1 and "CUDA out of memory" in told[0] and "\n" not in told[0]
    assert any("server.log" in line for line in job.said)
    assert "CUDA out of memory" in (job.root / start.log_directory() / "server.log").read_text()


def test_a_failed_start_is_tried_again_only_when_asked(job: Job) -> None:
    """The next run takes failed points as they are; with retry_failed they are measured on a new server."""
    start = job.start(closed(), closed(1, 2), faults=[{"do": "die_at_start", "starts": [1]}])
    job.run(start)
    again = job.run(start)
    assert (again.starts, again.measured, again.kept) == (0, 0, 2)
    retried = job.run(start, retry_failed=True)
    assert (retried.starts, retried.measured, retried.failed) == (1, 2, 0)
    assert job.causes(start) == {"p1": None, "p2": None}


# --- files
# -----------------------------------------------------------------------------------------------------


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 3],
    "last byte gone": lambda data: data[:-1],
    "garbage": lambda data: os.urandom(len(data)),
    "end zeroed": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
}


def test_damaged_files_are_named_and_measured_again(job: Job) -> None:
    """Power loss: truncated, empty or overwritten points are seen, named, and measured again; the others are kept."""
    start = job.start(*[closed(1, n) for n in range(1, len(DAMAGE) + 3)], faults=[])
    job.run(start)
    store = measure.Places.of(job.root).store
    good = [store.path(start.key(point)).read_bytes() for point in start.points[len(DAMAGE) :]]
    for point, change in zip(start.points, DAMAGE.values(), strict=False):
        path = store.path(start.key(point))
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(change(data))
    job.said.clear()
    outcome = job.run(start)
    assert (outcome.starts, outcome.measured, outcome.kept) == (1, len(DAMAGE), 2)
    for number, how in enumerate(DAMAGE, start=1):
        assert any(line.startswith(f"p{number}:") and "damaged" in line for line in job.said), how
    assert {record.meta.status for record in job.records(start).values()} == {"ok"}
    assert [store.path(start.key(point)).read_bytes() for point in start.points[len(DAMAGE) :]] == good


def test_a_file_under_a_wrong_name_is_not_believed(job: Job) -> None:
    """A sound point of another spec, put where a point should be, is refused and measured again."""
    start = job.start(closed(), closed(1, 2), faults=[])
    job.run(start)
    store = measure.Places.of(job.root).store
    first, second = (store.path(start.key(point)) for point in start.points)
    first.unlink()
    first.write_bytes(second.read_bytes())
    outcome = job.run(start)
    assert (outcome.measured, outcome.kept) == (1, 1)
    assert job.records(start)["p1"].meta.name == "p1"


def test_every_truncation_is_refused(job: Job) -> None:
    """No prefix of a point's file passes for a point, wherever the power went."""
    from servelab.records import BadPointError

    start = job.start(closed(1, 1), faults=[])
    job.run(start)
    data = (job.root / start.path(start.points[0])).read_bytes()
    part = job.root / "part.arrow"
    for length in [*range(0, len(data), 97), *range(len(data) - 40, len(data))]:
        part.write_bytes(data[:length])
        with pytest.raises(BadPointError):
            read_point(part)
    part.write_bytes(data)
    assert read_point(part).meta.name == "p1"


def test_points_of_others_are_opened_safely(job: Job) -> None:
    """A file too large for a point, and metadata that is nested, of another shape or no JSON, are refused in a line."""
    import pyarrow as pa

    from servelab.records import MAX_POINT_BYTES, BadPointError

    start = job.start(closed(1, 1), faults=[])
    job.run(start)
    good = job.root / start.path(start.points[0])
    vast = job.root / "vast.arrow"
    with vast.open("wb") as file:
        file.truncate(MAX_POINT_BYTES + 1)
    with pytest.raises(BadPointError, match="more than a point may have"):
        read_point(vast)
    table = pa.ipc.open_file(good.read_bytes()).read_all()
    hostile = job.root / "hostile.arrow"
    value = json.loads(table.schema.metadata[b"servelab.point"])
    mistaken, strange = (
        json.dumps({**value, **change}).encode() for change in ({"spec": [1]}, {"__class__": "os.system"})
    )
    for text in (b"[" * 100_000, b"[1, 2]", b"7", b'{"key": 1}', b"\xff\xfe", mistaken, strange):
        changed = table.replace_schema_metadata({**table.schema.metadata, b"servelab.point": text})
        with pa.ipc.new_file(str(hostile), changed.schema) as writer:
            writer.write_table(changed)
        with pytest.raises(BadPointError) as caught:
            read_point(hostile)
        assert "\n" not in str(caught.value)


def test_an_older_schema_is_refused_by_its_number(job: Job) -> None:
    """A point of a schema that this servelab does not read says so, and is measured again."""
    import pyarrow as pa

    start = job.start(closed(1, 1), faults=[])
    job.run(start)
    path = measure.Places.of(job.root).store.path(start.key(start.points[0]))
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    old = table.replace_schema_metadata({**table.schema.metadata, b"servelab.schema": b"0"})
    path.unlink()
    with pa.ipc.new_file(str(path), old.schema) as writer:
        writer.write_table(old)
    assert job.run(start).measured == 1
    assert any("schema 0" in line for line in job.said)


def test_unwritable_results_end_the_job_and_keep_what_is_there(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk full at the second point: the job ends with the error, the first point is whole, the server is gone."""
    from servelab import records, store

    start = job.start(closed(), closed(1, 2), faults=[])
    real, written = records.write_atomically, []

    def full(path: Path, data: Any) -> None:
        if path.suffix == ".arrow" and written:
            raise OSError(28, "No space left on device")
        written.append(path)
        real(path, data)

    monkeypatch.setattr(store, "write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        job.run(start)
    assert survivors(job.truth) == []
    monkeypatch.setattr(store, "write_atomically", real)
    outcome = job.run(start)
    assert (outcome.measured, outcome.kept) == (1, 1)


# --- clocks, limits, neighbours
# ----------------------------------------------------------------------------------


def test_a_clock_that_steps_backwards_changes_no_measurement(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of day goes back an hour at every reading: intervals come from the monotonic clock and stay positive."""
    real = time.time
    steps = iter(range(1, 10_000_000))
    start = job.start(closed(), faults=[])
    monkeypatch.setattr(time, "time", lambda: real() - 3600 * next(steps))
    job.run(start)
    monkeypatch.undo()
    record = job.records(start)["p1"]
    assert record.meta.status == "ok"
    for row in requests(record):
        assert row["ok"]
        assert row["intended_s"] <= row["sent_s"] <= row["first_byte_s"] <= row["end_s"]
        assert row["chunk_s"] == sorted(row["chunk_s"])
    assert 0 < record.meta.session["ready_s"] < 60


def test_measurement_with_sixty_four_file_descriptors(job: Job) -> None:
    """A shell that allows 64 open files does not bound the load: client and server raise what they may raise."""
    import resource

    start = job.start(closed(100, 100), closed(2, 4), faults=[])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        job.run(start)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for record in job.records(start).values():
        assert record.meta.status == "ok" and all(row["ok"] for row in requests(record))


def test_an_attached_server_gets_no_more_than_its_limit(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """engine.max_concurrency bounds the load on a server that is not ours; it is neither stopped nor restarted."""
    from servelab import server

    ours = job.start(faults=[])
    with server.launch(ours, job.root / "log", job.root / "boot") as live:
        monkeypatch.setenv("KEY", live.target.api_key)
        changes = {
            "kind": "attach", "url": live.target.base_url, "api_key_env": "KEY", "command": (), "max_concurrency": 2,
        }  # fmt: skip
        start = fake_start(closed(8, 16), closed(2, 4), engine_changes=changes)
        start = replace(start, model=replace(start.model, path=str(job.root)))
        outcome = measure.measure_start(
            start, measure.Places.of(job.root), measure.Watcher(job.said.append), {}
        )
        assert live.alive()
        assert (outcome.measured, outcome.failed) == (2, 1)
        records = job.records(start)
        assert live.target.api_key not in json.dumps([vars(record.meta) for record in records.values()])
    meta = records["p1"].meta
    assert (meta.status, meta.cause) == ("failed", "not_supported")
    assert "max_concurrency (2)" in (meta.detail or "")
    assert records["p2"].meta.status == "ok" and records["p2"].meta.session["boot"] == "attached"
    assert len(truth.read(job.truth, "request")) == 4
    assert len(truth.read(job.truth, "start")) == 1


@pytest.mark.parametrize(
    "changes", [{"boot": "first"}, {"boot": "restart"}, {"options": {"max_num_seqs": 4}}]
)
def test_what_an_attached_server_cannot_give_is_not_measured(changes: dict[str, Any]) -> None:
    """Experiments that need a start of their own, or options, are refused on a server that is not ours."""
    start = fake_start(closed(), engine_changes={"kind": "attach", "url": "http://127.0.0.1:1"}, **changes)
    assert "attached server" in (engine.refusal(start, closed()) or "")
    assert engine.refusal(replace(start, boot="any", options={}), closed()) is None


def test_two_jobs_on_one_machine_take_turns(job: Job) -> None:
    """The second waits for the first and says for whom; their servers never live at the same time."""
    import threading

    starts = [job.start(closed(2, 8, output_tokens=40), faults=[], slug=f"s{n}") for n in (1, 2)]
    said: dict[int, list[str]] = {1: [], 2: []}

    def run(number: int) -> None:
        watcher = measure.Watcher(said[number].append)
        measure.measure_start(starts[number - 1], measure.Places.of(job.root / str(number)), watcher, {})

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lives = [line for line in truth.read(job.truth) if line["what"] in ("start", "stop")]
    assert [line["what"] for line in sorted(lives, key=lambda line: line["at"])] == [
        "start",
        "stop",
        "start",
        "stop",
    ]
    waiting = [
        line for lines in said.values() for line in lines if "waiting for the cpu of this machine" in line
    ]
    assert len(waiting) == 1 and str(os.getpid()) in waiting[0]


def test_memory_does_not_grow_with_the_number_of_points(job: Job) -> None:
    """Forty points in one job take no more memory than the first fifteen did (within a few MB)."""
    import gc

    start = job.start(*[closed(2, 4, output_tokens=5 + n) for n in range(40)], faults=[])
    sizes: list[int] = []
    seen: list[Mapping[str, Any]] = []

    def done(record: PointRecord, seconds: float) -> None:
        gc.collect()
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
        seen.append(record.meta.client)

    measure.measure_start(start, measure.Places.of(job.root), measure.Watcher(job.said.append, done), {})
    assert len(sizes) == 40
    assert sizes[-1] - sizes[15] < 12 << 20


# --- secrets and hostile text
# ------------------------------------------------------------------------------------


def test_no_secret_reaches_a_result_or_a_log(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the shell, of the config's environment and of the start itself are in no file that the job leaves."""
    secrets = {"HF_TOKEN": "hf_" + "a1b2c3d4e5f6g7h8", "OPENAI_API_KEY": "sk-" + "z9y8x7w6v5u4t3s2r1"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    start = job.start(closed(), faults=[{"do": "die_at_start", "words": "secret", "starts": [2]}])
    job.run(start)
    job.run(replace(start, start=2))
    hidden = [*secrets.values(), "hf_abcdefghijklmnopqrstuvwxyz"]
    files = [path for path in job.root.rglob("*") if path.is_file() and path != job.truth]
    assert len(files) >= 4
    texts = "\n".join(job.said).encode()
    for path in files:
        texts += b"\n" + path.read_bytes()
        if path.suffix == ".arrow":
            texts += json.dumps(vars(read_point(path).meta)).encode()
    assert [value for value in hidden if value.encode() in texts] == []


def test_a_hostile_servers_words_stay_one_plain_line(job: Job) -> None:
    """Control characters, markup and shell syntax in a server's last words are text; the record is one line of it."""
    start = job.start(closed(), faults=[{"do": "die_at_start", "words": "hostile"}])
    job.run(start)
    detail = job.records(start)["p1"].meta.detail or ""
    assert "<script>alert(1)</script>" in detail and "$(id)" in detail
    assert not [char for char in detail if ord(char) < 32 or ord(char) == 127]
    assert not [line for line in job.said if "\x1b" in line]


def test_names_with_shell_syntax_run_nothing(job: Job) -> None:
    """Model names and option values reach the server as they are; no shell ever reads them."""
    trap = job.root / "trap"
    start = job.start(
        closed(1, 1), faults=[], options={"revision": f"x; touch {trap}; $(touch {trap}) `touch {trap}`"}
    )
    start = replace(start, model=replace(start.model, path=f"m'\"; touch {trap} #"))
    job.run(start)
    assert not trap.exists()
    argv = truth.read(job.truth, "start")[0]["argv"]
    assert f"--revision=x; touch {trap}; $(touch {trap}) `touch {trap}`" in argv
    assert f"--model=m'\"; touch {trap} #" in argv


def test_what_else_the_machine_did_is_kept_with_the_point(job: Job) -> None:
    """Every point says how busy other processes kept the machine, so that a disturbed one can be told."""
    start = job.start(closed(4, 40, output_tokens=40), faults=[])
    job.run(start)
    during = job.records(start)["p1"].meta.machine["during"]
    assert during["foreign_cpus"] >= 0
    assert during["wall_s"] > 0


def test_the_metrics_poll_ends_when_it_is_told_to() -> None:
    """Told to stop in the very moment in which an answer has come, the poll stops; it once went on for ever."""
    from servelab.exchange import Exchange
    from servelab.metrics_poll import MetricsPoll

    class Wire:
        """Keeps what it is given."""

        def __init__(self) -> None:
            self.asked: list[Exchange] = []

        def submit(self, exchange: Exchange) -> None:
            self.asked.append(exchange)

        def abort(self, exchange: Exchange, cause: str) -> None:
            exchange.cause = cause

    async def stop_with_the_answer() -> None:
        wire = Wire()
        poll = MetricsPoll(wire)  # type: ignore[arg-type]
        poll.start(0.001)
        while not wire.asked:
            await asyncio.sleep(0.001)
        assert wire.asked[0].on_end is not None
        wire.asked[0].on_end(wire.asked[0])
        await poll.stop()
        assert len(wire.asked) == 1

    asyncio.run(asyncio.wait_for(stop_with_the_answer(), 5))
