"""The export has vllm bench serve's keys, and its numbers are vLLM's definitions applied to the point's rows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from servelab.records import (
    PointMeta,
    PointRecord,
    encode_point,
    requests_table,
    series_table,
    write_atomically,
)
from servelab.vllm_bench_export import export

# Written by `vllm bench serve --save-result --save-detailed` of vLLM 0.31.0 with --percentile-metrics
# ttft,tpot,itl,e2el.
SUMMARIES = {
    f"{stat}_{m}_ms" for m in ("ttft", "tpot", "itl", "e2el") for stat in ("mean", "median", "std", "p99")
}
KEYS = SUMMARIES | {
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "queue_times",
    "generated_texts",
    "errors",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
}


def row(index: int, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "index": index,
        "role": "measured",
        "slot": 0,
        "intended_s": 1.0,
        "sent_s": 1.0,
        "end_s": 2.0,
        "chunk_s": [],
        "chunk_tokens": [],
        "input_tokens_asked": 10,
        "output_tokens_asked": 3,
        "input_tokens": 10,
        "output_tokens": 3,
        "ok": True,
    }
    return {**values, **changes}


@pytest.fixture
def record() -> PointRecord:
    meta = PointMeta(
        "0" * 32,
        {"workload": {"concurrency": 2, "requests": 3, "input_tokens": 10, "output_tokens": 3}},
        "c2.r1",
        "study",
        "load",
        "slug",
        window={"first_send_s": 1.0, "last_token_s": 3.0},
        start={"model": {"name": "small"}, "start": 1},
        provenance={"started_at": "2026-11-29T20:00:00+00:00"},
    )
    rows = [
        row(0, role="warmup", chunk_s=[0.5], chunk_tokens=[3]),
        row(0, chunk_s=[1.5, 1.6, 1.8], chunk_tokens=[1, 1, 1]),
        row(1, sent_s=1.25, chunk_s=[2.25, 3.0], chunk_tokens=[1, 2]),
        row(
            2,
            ok=False,
            cause="stalled",
            detail="no byte for 5 s",
            chunk_s=[2.0],
            chunk_tokens=[1],
            output_tokens=None,
        ),
    ]
    return PointRecord(meta, requests_table(rows), series_table([]))


def test_the_keys_are_vllms(record: PointRecord) -> None:
    """Every key of vLLM's file is there; keys of ours say that they are."""
    out = export(record)
    assert set(out) >= KEYS
    extra = {key for key in set(out) - KEYS if not key.startswith("servelab_")}
    assert {key.split("_")[0] for key in extra} == {"p50", "p90", "p95"}


def test_the_numbers_are_vllms_definitions(record: PointRecord) -> None:
    """By hand: two successes of three, 6 tokens in 2 s, latencies from the sent time, gaps between chunks pooled."""
    out = export(record)
    assert (out["completed"], out["failed"], out["num_prompts"]) == (2, 1, 3)
    assert (out["duration"], out["output_throughput"], out["request_throughput"]) == (2.0, 3.0, 1.0)
    assert (out["total_input_tokens"], out["total_token_throughput"]) == (20, 13.0)
    assert out["ttfts"] == pytest.approx([0.5, 1.0, 0.0]) and out["median_ttft_ms"] == pytest.approx(750)
    assert out["itls"][0] == pytest.approx([0.1, 0.2]) and out["itls"][1:] == [[0.75], []]
    assert out["mean_itl_ms"] == pytest.approx(350) and out["median_itl_ms"] == pytest.approx(200)
    assert out["mean_tpot_ms"] == pytest.approx((150 + 375) / 2)
    assert out["mean_e2el_ms"] == pytest.approx((800 + 1750) / 2)
    assert out["queue_times"] == [0.0, 0.25, 0.0] and out["errors"] == ["", "", "stalled: no byte for 5 s"]
    assert out["output_lens"] == [3, 3, 0] and out["max_concurrent_requests"] == 2
    assert (
        out["max_output_tokens_per_s"] == 3 and out["max_concurrency"] == 2 and out["request_rate"] == "inf"
    )


def test_a_point_without_a_success_is_exported_too(record: PointRecord) -> None:
    """All failed: zeros and errors, valid JSON, no exception."""
    table = record.requests.slice(3, 1)
    out = export(PointRecord(PointMeta(**{**vars(record.meta), "window": {}}), table, record.series))
    assert (out["completed"], out["failed"], out["output_throughput"], out["mean_ttft_ms"]) == (
        0,
        1,
        0.0,
        0.0,
    )
    json.dumps(out, allow_nan=False)


def test_the_command_writes_a_file_a_point_and_names_a_damaged_one(
    record: PointRecord, tmp_path: Path
) -> None:
    """Good points are exported, a damaged one is an error message and a failing exit status."""
    good, bad = tmp_path / "c2.r1.arrow", tmp_path / "bad.arrow"
    write_atomically(good, encode_point(record))
    bad.write_bytes(good.read_bytes()[:100])
    program = Path(__file__).parents[1] / "workflow/scripts/export_vllm_bench.py"
    command = [sys.executable, str(program), str(good), str(bad), "--to", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "bad.arrow" in done.stderr
    [file] = (tmp_path / "out").iterdir()
    assert file.name == "study-load-slug-start1-c2.r1.json"
    assert json.loads(file.read_text(encoding="utf-8"))["completed"] == 2
