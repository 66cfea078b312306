"""E7: the victim's stall, the prefill rate and the fit of one on the other are recovered from made-up
runs."""

import pytest

from made_points import request
from made_study import placed, said, study
from servelab.experiments import chunked_prefill, workloads
from servelab.records import PointRecord
from servelab.texts import catalogue

RATE = 8000.0  # prefill tokens a second
DECODE_S = 0.015
CONFIG = chunked_prefill.Config(max_num_batched_tokens=[512, 1024, 2048, 4096, 8192])


def interference(chunk: int, repeat: int, late_s: float = 0.0) -> PointRecord:
    """A victim whose every step holds one chunk of a prompt of 3,500 tokens while three of them are read in.

    late_s: what each such step takes longer on this server.
    """
    stall_s = min(chunk, 3500) / RATE + DECODE_S + late_s
    steps = -(-3500 // chunk)
    at, chunk_s = 0.1, []
    for _ in range(32):
        at += DECODE_S
        chunk_s.append(at)
    inserted = []
    for index in range(3):
        sent = at + 0.001
        for _ in range(steps):
            at += stall_s
            chunk_s.append(at)
        inserted.append(
            request(index, sent, ttft_s=at - sent, input_tokens=3500, output_tokens=1, role="inserted")
        )
    for _ in range(20):
        at += DECODE_S
        chunk_s.append(at)
    victim = {
        **request(0, 0.0, output_tokens=len(chunk_s), input_tokens=300, role="victim"),
        "chunk_s": chunk_s,
    }
    name, workload = workloads.interference(300, len(chunk_s), 3, 3500, 32)
    options = {"max_num_batched_tokens": chunk}
    return placed([victim, *inserted], workload, options, f"s{chunk}", f"{name}-r{repeat}", repeat)


def prefill(chunk: int) -> PointRecord:
    """Three prompts alone, read in at the rate."""
    name, workload = workloads.closed(1, 3500, 1, 3)
    rows = [request(i, float(i), ttft_s=3500 / RATE, input_tokens=3500, output_tokens=1) for i in range(3)]
    return placed(rows, workload, {"max_num_batched_tokens": chunk}, f"s{chunk}", f"{name}-r1")


def everything() -> list[PointRecord]:
    chunks = CONFIG.max_num_batched_tokens
    return [prefill(c) for c in chunks] + [interference(c, r) for c in chunks for r in (1, 2)]


def test_longest_gap_rate_and_slope_are_recovered() -> None:
    """The longest gap of each run is one chunk's time plus a decode step, and the fit's slope is 1 ÷
    prefill rate."""
    analysis = chunked_prefill.analyse(study("chunked_prefill", everything()), "e", CONFIG)
    runs = analysis.tables[0].frame
    assert len(runs) == 10
    for row in runs.to_dict("records"):
        chunk = min(row["max_num_batched_tokens"], 3500)
        assert row["itl_max_ms"] == pytest.approx(1000 * (chunk / RATE + DECODE_S), rel=1e-6)
        assert row["prefill_rate_tok_s"] == pytest.approx(RATE, rel=1e-6)
        assert row["chunk_time_ms"] == pytest.approx(1000 * chunk / RATE, rel=1e-6)
        assert row["itl_alone_p50_ms"] == pytest.approx(1000 * DECODE_S, rel=1e-6)
    found = said(analysis)
    fit = found["chunked_prefill_fit_linear"]
    assert fit["slope_ms_per_token"] == pytest.approx(1000 / RATE, rel=1e-6)
    assert fit["slope_ms_per_token_low"] <= fit["slope_ms_per_token"] <= fit["slope_ms_per_token_high"]
    assert fit["sizes"] == 4  # 4,096 and 8,192 are both longer than the prompt
    assert found["chunked_prefill_range"]["smallest"] == 512
    assert found["chunked_prefill_range"]["largest"] == 8192


def test_more_runs_on_the_same_servers_make_the_slope_no_surer() -> None:
    """The start is the unit: five servers, each late in its own way, have one interval at 1 and at 4 repeats."""
    late_s = dict(zip(CONFIG.max_num_batched_tokens, (0.02, 0.0, 0.03, 0.0, 0.02), strict=True))
    fits = []
    for repeats in (1, 4):
        runs = [interference(c, r, late_s[c]) for c in late_s for r in range(1, repeats + 1)]
        records = [*map(prefill, late_s), *runs]
        analysis = chunked_prefill.analyse(study("chunked_prefill", records), "e", CONFIG)
        fit = analysis.tables[1].frame.iloc[0]
        assert (fit["starts"], fit["runs"]) == (5, 5 * repeats)
        assert fit["slope_ms_per_token_high"] - fit["slope_ms_per_token_low"] > 0.01
        told = next(found for found in analysis.findings if "_fit_" in found.template)
        assert "5 server starts" in catalogue("en").text(f"findings.{told.template}", told.values)
        fits.append([fit[f"slope_ms_per_token{end}"] for end in ("", "_low", "_high")])
    assert fits[0] == pytest.approx(fits[1], rel=1e-6)


def test_gaps_outside_the_window_do_not_count() -> None:
    """A stall of the victim long after the last insertion's first token is not the insertions' doing."""
    record = interference(512, 1)
    rows = record.requests.to_pylist()
    rows[0]["chunk_s"] = [*rows[0]["chunk_s"], rows[0]["chunk_s"][-1] + 9.0]
    rows[0]["chunk_tokens"] = [1] * len(rows[0]["chunk_s"])
    name, workload = workloads.interference(300, len(rows[0]["chunk_s"]), 3, 3500, 32)
    late = placed(rows, workload, {"max_num_batched_tokens": 512}, "s512", f"{name}-r1")
    analysis = chunked_prefill.analyse(study("chunked_prefill", [prefill(512), late]), "e", CONFIG)
    assert analysis.tables[0].frame["itl_max_ms"].max() < 1000


def test_two_sizes_give_no_fit() -> None:
    """A slope through two sizes has no honest interval, so none is reported."""
    records = [prefill(c) for c in (512, 1024)] + [interference(c, 1) for c in (512, 1024)]
    analysis = chunked_prefill.analyse(study("chunked_prefill", records), "e", CONFIG)
    assert not [name for name in said(analysis) if "fit" in name]
