"""A point's key: everything that affects the measurement changes it, nothing else does."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from servelab.canonical import canonical_json
from servelab.spec import EngineSpec, ModelSpec, Point, ServerStart, Workload

ENGINE = EngineSpec(
    "fake", version="0.31.0", python="/somewhere/bin/python", environment={"OMP_NUM_THREADS": "2"}
)
MODEL = ModelSpec("tiny", "models/tiny", "f" * 16, 1000, 256, {"load_format": "dummy"})
POINT = Point("c2-i8-o4-r1", Workload(concurrency=2, input_tokens=8, output_tokens=4, requests=4), 1, "sweep")
START = ServerStart("study", "sweep", "tiny-1", ENGINE, MODEL, {"max_num_seqs": 8}, (POINT,), 1)


def with_engine(**changes: Any) -> ServerStart:
    return replace(START, engine=replace(ENGINE, **changes))


@pytest.mark.parametrize(
    "start",
    [
        replace(START, measurement_version=2),
        replace(START, seed=2),
        replace(START, start=2),
        replace(START, boot="first"),
        replace(START, experiment="other"),
        replace(START, options={"max_num_seqs": 9}),
        replace(START, options={"max_num_seqs": 8, "enforce_eager": True}),
        replace(START, model=replace(MODEL, fingerprint="0" * 16)),
        replace(START, model=replace(MODEL, options={})),
        with_engine(version="0.32.0"),
        with_engine(device="cuda"),
        with_engine(requirements="abc"),
        with_engine(environment={"OMP_NUM_THREADS": "4"}),
        with_engine(preload=("libiomp5.so",)),
        with_engine(url="http://127.0.0.1:9"),
        with_engine(python="", command=("numactl", "-N", "0", "vllm")),
    ],
)
def test_what_affects_the_measurement_changes_the_key(start: ServerStart) -> None:
    """Version, seed, start, boot, experiment, options, model and engine are part of a point's key."""
    assert start.key(POINT) != START.key(POINT)


@pytest.mark.parametrize("field", [f.name for f in fields(Workload)])
def test_every_field_of_a_workload_is_part_of_the_key(field: str) -> None:
    """No property of the load can change without a new key."""
    value = getattr(POINT.workload, field)
    other = (not value) if isinstance(value, bool) else value + "x" if isinstance(value, str) else value + 1
    point = replace(POINT, workload=replace(POINT.workload, **{field: other}))
    assert START.key(point) != START.key(POINT)
    assert START.key(replace(POINT, repeat=2)) != START.key(POINT)


@pytest.mark.parametrize(
    "start",
    [
        replace(START, study="renamed"),
        replace(START, slug="another-folder"),
        replace(START, points=()),
        replace(START, timeout_s=1.0, stall_s=1.0, poll_s=9.0),
        replace(START, model=replace(MODEL, name="renamed", path="/elsewhere")),
        with_engine(name="renamed", python="/elsewhere/python", startup_timeout_s=1.0, stop_timeout_s=1.0),
        with_engine(limits={"flops": 1e12}),
    ],
)
def test_what_does_not_affect_the_measurement_leaves_the_key(start: ServerStart) -> None:
    """Names, places on the disk and how long servelab is ready to wait are no part of the key."""
    assert start.key(replace(POINT, name="renamed")) == START.key(POINT)


def test_key_of_today_is_the_key_of_tomorrow() -> None:
    """A fixed point has a fixed key: code that moves every key would measure everybody's nights again."""
    assert START.key(POINT) == "d90623318e4e4e00e001cdc93d2b28ee"


def test_every_word_of_a_command_is_part_of_the_key() -> None:
    """Another image, GPU, pinning or variable in a command is another server; no command adds nothing to a key."""
    words = ("docker", "run", "--gpus=0", "-e", "VLLM_USE_V2=1", "vllm/vllm-openai:v0.31.0")
    starts = [with_engine(python="", command=(*words[:n], "other", *words[n + 1 :])) for n in range(6)]
    starts.append(with_engine(python="", command=words))
    assert len({start.key(POINT) for start in starts}) == len(starts)
    assert len({json.dumps(start.server_identity()) for start in starts}) == len(starts)
    assert "command" not in ENGINE.identity()


def test_an_attached_servers_points_belong_to_their_study() -> None:
    """An address does not say which server answers, so another study measures it; nothing else of the name counts."""
    attached = with_engine(kind="attach", python="", url="http://127.0.0.1:9")
    assert replace(attached, study="another").key(POINT) != attached.key(POINT)
    assert replace(attached, slug="another-folder").key(POINT) == attached.key(POINT)


def test_what_holds_requests_back_is_part_of_an_open_loops_key() -> None:
    """max_concurrency delays an open loop's requests; a closed loop runs as asked or not at all, whatever it is."""
    free = with_engine(kind="attach", python="", url="http://127.0.0.1:9")
    held = replace(free, engine=replace(free.engine, max_concurrency=8))
    opened = replace(POINT, workload=Workload(kind="open", rate_rps=2.0, input_tokens=8, output_tokens=4))
    assert held.key(opened) != free.key(opened)
    assert held.key(POINT) == free.key(POINT)


def test_start_survives_json() -> None:
    """What a job gets as JSON is the start it was made from, keys and paths included."""
    again = ServerStart.from_json(json.loads(canonical_json(START.to_json())))
    assert again == START
    assert again.key(again.points[0]) == START.key(POINT)
    assert again.path(POINT) == "results/study/sweep/tiny-1/start-1/c2-i8-o4-r1.arrow"


def test_shared_server_keeps_points_in_their_experiments_folder() -> None:
    """On a shared server a point lies with its experiment, the server's logs with the shared servers."""
    shared = replace(START, experiment="")
    assert shared.path(POINT) == "results/study/sweep/tiny-1/start-1/c2-i8-o4-r1.arrow"
    assert shared.log_directory() == "results/study/shared/tiny-1/start-1"
