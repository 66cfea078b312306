"""The job of one server start: what is missing is measured, kept at once, and shown; nothing else is touched."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_starts import closed, fake_start
from made_points import closed_rows, point
from servelab import measure, server
from servelab.measure import Outcome, Places, Watcher, measure_start
from servelab.models import MARKER
from servelab.records import PointRecord, read_point
from servelab.spec import ServerStart, Workload
from servelab.store import Store

pytestmark = pytest.mark.slow  # servers start, die and are started again: seconds each
SCRIPT = Path(__file__).parents[1] / "workflow/scripts/measure.py"


class Seen:
    """What a watcher was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.points: list[str] = []
        self.announced: list[tuple[int, int]] = []

    def watcher(self, then: Callable[[PointRecord], None] = lambda record: None) -> Watcher:
        def done(record: PointRecord, seconds: float) -> None:
            assert seconds >= 0
            self.points.append(record.meta.name)
            then(record)

        return Watcher(
            self.lines.append, done, lambda missing, total: self.announced.append((missing, total))
        )


def run(start: ServerStart, root: Path, seen: Seen | None = None, **options: Any) -> Outcome:
    return measure_start(start, Places.of(root), (seen or Seen()).watcher(), {"flops": 1e12}, **options)


def records(start: ServerStart, root: Path) -> list[PointRecord]:
    """The shown points, each checked against its key."""
    return [read_point(root / start.path(point), start.key(point)) for point in start.points]


def test_missing_points_are_measured_in_order_on_one_server(tmp_path: Path) -> None:
    """Three points, one start; a point that is added later is measured alone, on a new server, and says so."""
    start = fake_start(closed(1), closed(2), closed(4))
    seen = Seen()
    assert run(start, tmp_path, seen) == Outcome(measured=3, kept=0, failed=0, starts=1)
    assert seen.points == ["p1", "p2", "p3"]
    assert seen.announced == [(3, 3)]
    made = records(start, tmp_path)
    assert [record.meta.session["order"] for record in made] == [0, 1, 2]
    assert len({record.meta.session["id"] for record in made}) == 1
    assert all(record.meta.status == "ok" and record.meta.limits == {"flops": 1e12} for record in made)
    assert all(record.meta.machine["during"]["wall_s"] > 0 for record in made)

    more = fake_start(closed(1), closed(2), closed(4), closed(3))
    assert run(more, tmp_path) == Outcome(measured=1, kept=3, failed=0, starts=1)
    added = records(more, tmp_path)[3]
    assert added.meta.session["order"] == 0
    assert added.meta.session["id"] != made[0].meta.session["id"]
    assert run(more, tmp_path) == Outcome(measured=0, kept=4, failed=0, starts=0)


def test_points_say_what_was_fetched_for_the_model(tmp_path: Path) -> None:
    """A branch of a hub moves: the commit that was served stands in the point. A folder of one's own says nothing."""
    (tmp_path / "fake-model").mkdir()
    marker = tmp_path / "fake-model" / MARKER
    for said, recorded in (
        ('{"revision": "0123abcd", "model": {}, "made": "today"}', {"revision": "0123abcd"}),
        ('["somebody\'s own"]', {}),
        ("cut", {}),
    ):
        marker.write_text(said, encoding="utf-8")
        start = fake_start(closed(1, requests=1, output_tokens=len(said)))
        run(start, tmp_path)
        assert records(start, tmp_path)[0].meta.provenance["model"] == recorded


def test_rows_say_what_was_asked_and_what_came(tmp_path: Path) -> None:
    """Every request is a row with its tokens as asked and as counted; prompts differ between points."""
    start = fake_start(closed(2, requests=4), closed(2, requests=4, output_tokens=5))
    run(start, tmp_path)
    first, second = records(start, tmp_path)
    for record, tokens in ((first, 8), (second, 5)):
        rows = record.requests.to_pylist()
        assert len(rows) == 4
        assert all(row["ok"] and sum(row["chunk_tokens"]) == row["output_tokens"] == tokens for row in rows)
        assert all(row["input_tokens"] == row["input_tokens_asked"] == 32 for row in rows)
        assert all(row["cached_tokens"] in (None, 0) for row in rows)
    assert first.meta.spec == start.point_spec(start.points[0])


def test_server_that_does_not_start_makes_failed_points_and_takes_no_second_try(tmp_path: Path) -> None:
    """Its own words become the points' detail; the next run finds them there, retry_failed measures them again."""
    sick = {"faults": [{"do": "die_at_start", "words": "oom"}]}
    start = fake_start(closed(1), closed(2), knobs=sick)
    seen = Seen()
    assert run(start, tmp_path, seen) == Outcome(measured=2, kept=0, failed=2, starts=1)
    for record in records(start, tmp_path):
        assert (record.meta.status, record.meta.cause) == ("failed", "server_start")
        assert "CUDA out of memory" in (record.meta.detail or "")
    assert any("the server did not start (out_of_memory)" in line for line in seen.lines)
    assert run(start, tmp_path) == Outcome(measured=0, kept=2, failed=2, starts=0)
    assert run(start, tmp_path, retry_failed=True) == Outcome(measured=2, kept=0, failed=2, starts=1)


def test_a_start_that_failed_with_another_interpreter_is_tried_again(tmp_path: Path) -> None:
    """Where the interpreter lies is not in the key, but a failure may be its fault alone."""
    start = fake_start(closed(1))
    elsewhere = replace(start, engine=replace(start.engine, command=(), python="/no/such/python"))
    assert run(elsewhere, tmp_path) == Outcome(measured=1, kept=0, failed=1, starts=1)
    mended = replace(start, engine=replace(start.engine, command=(), python="/no/other/python"))
    assert start.key(start.points[0]) != elsewhere.key(start.points[0]) == mended.key(start.points[0])
    assert run(mended, tmp_path) == Outcome(measured=1, kept=0, failed=1, starts=1)
    assert "/no/other/python" in (records(mended, tmp_path)[0].meta.detail or "")
    assert run(mended, tmp_path) == Outcome(measured=0, kept=1, failed=1, starts=0)


def test_server_that_dies_is_replaced_for_the_remaining_points(tmp_path: Path) -> None:
    """The point it died in is failed with its requests as failed rows; the others are measured on a new process."""
    knobs = {
        "truth": str(tmp_path / "truth.jsonl"),
        "faults": [{"do": "die", "starts": [1], "requests": [3], "after": 2}],
    }
    start = fake_start(closed(1, requests=2), closed(2, requests=6), closed(3, requests=3), knobs=knobs)
    assert run(start, tmp_path) == Outcome(measured=3, kept=0, failed=1, starts=2)
    before, hit, after = records(start, tmp_path)
    assert (before.meta.status, after.meta.status) == ("ok", "ok")
    assert (hit.meta.status, hit.meta.cause) == ("failed", "server_died")
    rows = hit.requests.to_pylist()
    assert len(rows) == 6
    assert {row["cause"] for row in rows if not row["ok"]} <= {
        "server_died",
        "reset",
        "closed_early",
        "connect",
    }
    assert not all(row["ok"] for row in rows)
    assert before.meta.session["id"] != after.meta.session["id"]
    assert after.meta.session["order"] == 0


def test_server_that_dies_before_its_first_point_costs_that_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers once and dies of the next question: each such start pays with a point, so that the job ends."""
    ask, asked = server._ask, []

    def to_death(live: server.Server) -> float | None:
        asked.append(live.pid)
        if len(asked) > 2:
            return ask(live)
        os.kill(live.pid, signal.SIGKILL)
        assert live.life is not None and live.life.wait_for("ended", timeout_s=10.0)
        return None

    monkeypatch.setattr(server, "_ask", to_death)
    start = fake_start(closed(1), closed(2), closed(3))
    seen = Seen()
    assert run(start, tmp_path, seen) == Outcome(measured=3, kept=0, failed=2, starts=3)
    assert seen.points == ["p1", "p2", "p3"]
    first, second, third = (record.meta for record in records(start, tmp_path))
    assert (first.status, first.cause, first.session["order"]) == ("failed", "server_died", 0)
    assert "signal 9" in (first.detail or "") and second.cause == "server_died"
    assert third.status == "ok" and len({meta.session["id"] for meta in (first, second, third)}) == 3


def test_the_lock_is_that_of_the_gpus_the_server_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's environment in the config says which GPUs are used, whatever the shell says."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    changes = {"device": "cuda", "environment": {"CUDA_VISIBLE_DEVICES": "3"}}
    run(fake_start(closed(1), engine_changes=changes), tmp_path)
    locks = {path.name for path in Path(os.environ["SERVELAB_LOCKS"]).iterdir()}
    assert locks == {"gpu.lock", "gpu-3.lock"}


def test_a_trace_that_changed_since_the_config_was_read_is_not_measured(tmp_path: Path) -> None:
    """Nothing is stored under the key of the old content; the person reads which file, and the job has failed."""
    trace = tmp_path / "trace.txt"
    trace.write_text("0\n0.01\n", encoding="utf-8")
    digest = hashlib.sha256(trace.read_bytes()).hexdigest()[:32]
    replayed = Workload(
        kind="open", input_tokens=8, output_tokens=2, arrival="trace", trace=str(trace), trace_digest=digest
    )
    start = fake_start(closed(1), replayed)
    trace.write_text("0\n0.02\n", encoding="utf-8")
    command = [sys.executable, str(SCRIPT), "--root", str(tmp_path), "--start", json.dumps(start.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "trace.txt has changed since the config was read" in done.stdout
    assert "Traceback" not in done.stderr
    assert [path.stem for path in (tmp_path / "results/store").rglob("*.arrow")] == [
        start.key(start.points[0])
    ]


def test_a_run_that_was_stopped_at_the_limit_is_a_timeout_whatever_was_in_flight() -> None:
    """Rows that are all good do not make a point good whose time ran out before its load was over."""
    record = point(closed_rows())
    measure._judge_requests(record.meta, record.requests, None)
    assert record.meta.status == "ok"
    measure._judge_requests(record.meta, record.requests, ("timeout", "the point's 9 s are over"))
    assert (record.meta.status, record.meta.cause) == ("failed", "timeout")


def test_disk_full_ends_the_job_and_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first point is kept, the second cannot be: OSError leaves the job, and the next run goes on from there."""
    start = fake_start(closed(1), closed(2))
    put = Store.put
    calls = []

    def full_at_the_second(store: Store, record: PointRecord) -> Path:
        calls.append(record.meta.name)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return put(store, record)

    monkeypatch.setattr(Store, "put", full_at_the_second)
    with pytest.raises(OSError, match="No space left"):
        run(start, tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("SERVELAB_LOCKS", str(tmp_path / "locks"))
    assert run(start, tmp_path) == Outcome(measured=1, kept=1, failed=0, starts=1)


def test_bug_of_ours_is_no_failed_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is no failure of server or disk leaves the job as itself; no point is made up from it."""
    start = fake_start(closed(1))

    def broken(*arguments: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(measure.loadgen, "measure", broken)
    with pytest.raises(KeyError, match="ours"):
        run(start, tmp_path)
    assert not list(tmp_path.rglob("*.arrow"))


def test_interrupted_job_keeps_its_points(tmp_path: Path) -> None:
    """Ctrl-C after the first point: that point is kept, the server stopped, nothing is shown half."""
    start = fake_start(closed(1), closed(2))

    def interrupt(record: PointRecord) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_start(start, Places.of(tmp_path), Seen().watcher(interrupt), {})
    assert [path.stem for path in (tmp_path / "results/store").rglob("*.arrow")] == [
        start.key(start.points[0])
    ]
    assert run(start, tmp_path) == Outcome(measured=1, kept=1, failed=0, starts=1)


def test_restart_is_measured_with_a_filled_cache(tmp_path: Path) -> None:
    """A restart alone (its first start's point is in the store, the cache is not) gets a start before it that fills
    the cache; a first start gets an empty one."""
    boot = Workload(kind="boot", warmup_requests=0)
    first = fake_start(boot, boot="first", slug="fake-first")
    restart = fake_start(boot, boot="restart", slug="fake-restart")
    assert run(first, tmp_path).starts == 1
    shutil.rmtree(tmp_path / "resources")
    assert run(restart, tmp_path) == Outcome(measured=1, kept=0, failed=0, starts=2)
    assert records(first, tmp_path)[0].meta.session["boot"] == "first"
    assert records(restart, tmp_path)[0].meta.session["boot"] == "restart"
    again = replace(first, start=2)
    assert run(again, tmp_path) == Outcome(measured=1, kept=0, failed=0, starts=1)
    assert records(again, tmp_path)[0].meta.session["boot"] == "first"
