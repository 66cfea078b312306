"""Every experiment measured on the fake server, whose truth is known: what is concluded is what happened."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fake_server import truth
from fake_server.api import logprob
from fake_starts import fake_start
from made_study import said, study
from servelab import experiments
from servelab.claims import Analysis
from servelab.config.schema import Experiment
from servelab.experiments import (
    chunked_prefill,
    cuda_graphs,
    kv_capacity,
    kv_dtype,
    max_num_seqs,
    perplexity,
    preemption,
    prefix_cache,
    startup,
)
from servelab.measure import Places, Watcher, measure_start
from servelab.records import PointRecord, read_point
from servelab.spec import Point

pytestmark = pytest.mark.slow


def measured(
    kind: str,
    config: Experiment,
    root: Path,
    knobs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> tuple[Analysis, list[PointRecord]]:
    """Expand, measure every start on the fake server, analyse."""
    module = experiments.KINDS[kind]
    records = []
    knobs = {"truth": str(root / "truth"), **knobs}
    for number, plan in enumerate(module.expand(config)):
        points = tuple(
            Point(f"{name}-r{repeat}", workload, repeat, "e")
            for repeat in range(1, config.repeats + 1)
            for name, workload in plan.workloads
        )
        for start in range(1, (plan.starts or config.starts) + 1):
            made = fake_start(
                knobs=knobs, options={**(options or {}), **plan.options}, boot=plan.boot, start=start
            )
            made = replace(made, experiment="e", slug=f"s{number}", points=points)
            quiet = Watcher(lambda text: None, lambda record, seconds: None, lambda missing, total: None)
            measure_start(made, Places.of(root), quiet, {})
            records += [read_point(root / made.path(point), made.key(point)) for point in points]
    assert [record.meta.detail for record in records if record.meta.status != "ok"] == []
    return module.analyse(study(kind, records), "e", config), records


def test_capacity_of_first_start_and_restarts(tmp_path: Path) -> None:
    """The fake server has 460 blocks of 16 tokens on a first start and 512 on restarts, twice as many in fp8."""
    config = kv_capacity.Config(kv_cache_dtype=["auto", "fp8"], restarts=1)
    analysis, _ = measured("kv_capacity", config, tmp_path, {"blocks": 512, "first_boot_share": 0.9})
    starts = analysis.tables[0].frame.set_index(["kv_cache_dtype", "boot"])["kv_cache_tokens"].to_dict()
    assert starts == {
        ("auto", "first"): 460 * 16, ("auto", "restart"): 512 * 16,
        ("fp8", "first"): 921 * 16, ("fp8", "restart"): 1024 * 16,
    }  # fmt: skip
    found = said(analysis)
    assert found["kv_capacity_restart_differ_each"]["restarts"] == 1
    assert found["kv_capacity_dtype"]["ratio"] == pytest.approx(921 / 460)


def test_preemptions_and_what_resumed_requests_found(tmp_path: Path) -> None:
    """Preemptions are the server's own count, and the tokens found on resuming lie within what is concluded."""
    config = preemption.Config(
        input_tokens=[64], output_tokens=[32], concurrency=[2, 12], requests_per_slot=2
    )
    analysis, _ = measured(
        "preemption",
        config,
        tmp_path,
        {"step_ms": 2.0},
        {"num_gpu_blocks_override": 61, "max_model_len": 512},
    )
    cells = analysis.tables[0].frame.set_index("concurrency")
    told = truth.read(tmp_path / "truth", "request")
    happened = sum(line["preemptions"] for line in told)
    assert happened > 0
    assert cells.loc[2, "preemptions"] == 0 and cells.loc[2, "recomputed_tokens"] == 0
    assert cells.loc[12, "preemptions"] == happened
    found = said(analysis)
    assert found["preemption_boundary"]["above_with"] == 1
    resumed = next(values for name, values in found.items() if name.startswith("preemption_resume"))
    cached = sum(line["resumed_cached"] for line in told)
    lost = cells.loc[12, "recomputed_tokens"] + cached  # what the preempted had computed
    assert lost > 0 and resumed["low"] <= cached / lost <= max(resumed["high"], 1e-9) + 0.02


def test_where_requests_stand_under_a_cap(tmp_path: Path) -> None:
    """Of 8 in flight under a cap of 2 two run and six wait."""
    config = max_num_seqs.Config(
        max_num_seqs=[2, 8], concurrency=8, input_tokens=32, output_tokens=24, requests_per_slot=8
    )
    analysis, _ = measured("max_num_seqs", config, tmp_path, {"step_ms": 5.0})
    cells = analysis.tables[0].frame.set_index("max_num_seqs")
    assert cells.loc[2, "running_mean"] == pytest.approx(2, abs=0.3)
    assert cells.loc[2, "waiting_mean"] == pytest.approx(6, abs=1.0)
    assert cells.loc[8, "waiting_mean"] < cells.loc[2, "waiting_mean"] / 2
    assert cells.loc[8, "output_throughput_tok_s"] > 2 * cells.loc[2, "output_throughput_tok_s"]
    assert said(analysis)["max_num_seqs_throughput_unknown"]["ratio"] < 0.5


def test_an_eight_bit_cache_holds_the_long_load(tmp_path: Path) -> None:
    """With twice the blocks the long load fits and its TTFT falls; short context is as fast as before."""
    config = kv_dtype.Config(
        num_gpu_blocks_override=[65, 129], output_tokens=32, short_input_tokens=32, short_requests=3,
        long_concurrency=8, long_input_tokens=192, long_requests=16,
    )  # fmt: skip
    analysis, _ = measured("kv_dtype", config, tmp_path, {"step_ms": 3.0}, {"max_model_len": 512})
    found = said(analysis)
    assert found["kv_dtype_long_ttft_unknown"]["ratio"] < 0.7
    assert found["kv_dtype_short_throughput_unknown"]["ratio"] == pytest.approx(1, abs=0.25)
    assert found["kv_dtype_capacity_given"]["other"] == 129 * 16


def test_perplexity_is_the_servers_own(tmp_path: Path) -> None:
    """The sum of the fake server's logprobs comes back, the same twice, and fp8 moves it as the server says."""
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"word{n % 97}" for n in range(4000)), encoding="utf-8")
    config = perplexity.Config(text=str(text), segments=4, segment_tokens=64)
    analysis, records = measured("perplexity", config, tmp_path, {})
    frame = analysis.tables[0].frame
    assert frame.groupby("kv_cache_dtype")["perplexity"].nunique().to_dict() == {"auto": 1, "fp8": 1}
    assert len({record.meta.extra["tokens_digest"] for record in records}) == 1
    assert all(record.requests["scored_tokens"].to_pylist() == [63] * 4 for record in records)
    found = said(analysis)
    assert found["perplexity_repeats_equal"]["points"] == 2
    base, other = (frame[frame["kv_cache_dtype"] == dtype]["perplexity"].iloc[0] for dtype in ("auto", "fp8"))
    moved = any(name.startswith("perplexity_dtype") for name in found)
    assert (
        moved and math.isfinite(base) and (base == other) == (logprob(1, 2, "auto") == logprob(1, 2, "fp8"))
    )


def test_misses_hits_and_counters(tmp_path: Path) -> None:
    """A prefix of 512 tokens costs 512 × 200 µs once; hits save it, the server's counters agree everywhere."""
    config = prefix_cache.Config(
        repeats=1, shared_tokens=512, unique_tokens=16, groups=2, hits_per_group=3, unshared_requests=3,
        cost_concurrency=2, cost_input_tokens=64, cost_output_tokens=4, cost_requests=4,
    )  # fmt: skip
    analysis, _ = measured("prefix_cache", config, tmp_path, {"prefill_us": 200.0, "blocks": 1024})
    found = said(analysis)
    assert (found["prefix_cache_hit"]["misses"], found["prefix_cache_hit"]["hits"]) == (2, 6)
    assert found["prefix_cache_hit"]["miss"] - found["prefix_cache_hit"]["hit"] == pytest.approx(
        512 * 0.2, rel=0.35
    )
    cells = analysis.tables[0].frame.set_index(["enable_prefix_caching", "request"])
    assert cells.loc[(True, "hit"), "cached_tokens_p50"] == 512
    assert cells.loc[(False, "hit"), "ttft_p50_ms"] > 3 * cells.loc[(True, "hit"), "ttft_p50_ms"]
    assert found["prefix_cache_counters_right"]["checked"] == 6


def test_the_victims_stall_is_one_chunk(tmp_path: Path) -> None:
    """With 100 µs a prompt token the longest gap is the chunk × 100 µs and a little; the fit's slope says so."""
    config = chunked_prefill.Config(
        repeats=1, max_num_batched_tokens=[128, 512, 1024], victim_input_tokens=32, victim_output_tokens=60,
        inserted=2, input_tokens=900, insert_after_tokens=8, prefill_requests=3,
    )  # fmt: skip
    analysis, _ = measured(
        "chunked_prefill", config, tmp_path, {"prefill_us": 100.0, "step_ms": 4.0, "blocks": 512}
    )
    runs = analysis.tables[0].frame.set_index("max_num_batched_tokens")
    victims = [
        line["token_s"] for line in truth.read(tmp_path / "truth", "request") if len(line["token_s"]) == 60
    ]
    for chunk, token_s in zip((128, 512, 1024), victims, strict=True):
        longest_ms = 1000 * max(b - a for a, b in pairwise(token_s))
        assert longest_ms == pytest.approx(min(chunk, 900) * 0.1 + 4.0, abs=1.0)
        assert longest_ms - 2 < runs.loc[chunk, "itl_max_ms"] < longest_ms + 40  # a busy machine is late
    fit = analysis.tables[1].frame.iloc[0]
    assert 0.05 < fit["slope_ms_per_token"] < 0.2


def test_phases_and_compile_cache(tmp_path: Path) -> None:
    """A first start compiles, its restart does not; every start's phases add up to its time until ready."""
    config = startup.Config(restarts=1)
    analysis, records = measured("startup", config, tmp_path, {"compile_ms": 1200.0})
    ready = analysis.tables[0].frame.set_index(["enforce_eager", "boot"])["ready_s"]
    assert ready[False, "first"] - ready[False, "restart"] > 0.6
    sums = analysis.tables[1].frame.groupby(["enforce_eager", "boot"])["seconds"].sum()
    for key, seconds in sums.items():
        assert seconds == pytest.approx(ready[key], abs=0.05)
    assert {record.meta.session["boot"] for record in records} == {"first", "restart"}
    assert "startup_restart_compiled_unknown" in said(analysis)


def test_eager_and_compiled_are_told_by_the_log(tmp_path: Path) -> None:
    """On a CPU no graphs are captured: the comparison is called one of compilation."""
    config = cuda_graphs.Config(repeats=1, concurrency=[1, 4], input_tokens=32, output_tokens=8)
    analysis, _ = measured("cuda_graphs", config, tmp_path, {})
    found = said(analysis)
    assert "compiled_throughput_unknown" in found
    assert not [name for name in found if name.startswith("graphs_")]
