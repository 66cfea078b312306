"""Questions and answers: what people ask first, answered with this study's numbers and a link to where they stand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from servelab import stats
from servelab.report.front import Counts
from servelab.report.sections import SectionView
from servelab.report.words import Words


@dataclass(frozen=True)
class Answer:
    """A question with its answer's sentences and the (anchor, words) they rest on."""

    question: str
    sentences: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()


# Question → kind of the section whose heaviest findings answer it.
_BY_SECTION = {
    "knee": "load_sweep",
    "max_num_seqs": "max_num_seqs",
    "kv_dtype": "kv_dtype",
    "quality": "perplexity",
    "prefix_cache": "prefix_cache",
    "chunk": "chunked_prefill",
    "graphs": "cuda_graphs",
    "noise": "repeatability",
}


def answers(
    points: pd.DataFrame, sections: Sequence[SectionView], count: Counts, words: Words
) -> list[Answer]:
    """All questions in the catalogue's order; one that the study cannot answer says so."""
    computed: dict[str, Callable[[], dict[str, Any] | None]] = {
        "capacity": lambda: capacity(points),
        "memory": lambda: memory(points),
        "queue": lambda: queue(points),
        "ready": lambda: ready(points),
        "trust": lambda: vars(count) if count.points else None,
    }
    where = {
        "capacity": "kv_capacity", "memory": "kv_capacity", "queue": "load_sweep", "ready": "startup",
        "trust": "validity",
    }  # fmt: skip
    out = []
    for name in words.children("answers"):
        if not words.has(f"answers.{name}.q"):
            continue
        question = words(f"answers.{name}.q")
        kind = _BY_SECTION.get(name) or where.get(name, "")
        there = [s for s in sections if s.kind == kind and not s.reason] or [
            s for s in sections if kind == "kv_capacity" and s.kind == "load_sweep" and not s.reason
        ]
        links = tuple((s.id, s.full_title) for s in there)
        if name in computed:
            values = computed[name]()
            key = "in_blocks" if values and "block" in values else "a"
            sentences = tuple([words(f"answers.{name}.{key}", values)] if values else [])
        else:
            sentences = tuple(s.text for section in there for s in section.sentences[:2])
        out.append(Answer(question, sentences or (words("answers.unanswered"),), links if sentences else ()))
    return out


def _usable(points: pd.DataFrame) -> pd.DataFrame:
    return points[(points["status"] == "ok") & (points["verdict"] != "invalid")]


def capacity(points: pd.DataFrame) -> dict[str, Any] | None:
    """The capacity formula filled with the shortest requests of the load sweep; None without a known capacity."""
    rows = _usable(points)
    rows = rows[
        (rows["workload_kind"] == "closed") & rows["capacity_requests"].gt(0) & rows["kv_cache_tokens"].gt(0)
    ]
    sweep = rows[rows["kind"] == "load_sweep"]
    rows = sweep if len(sweep) else rows
    if not len(rows):
        return None
    row = rows.sort_values(["input_tokens", "output_tokens"]).iloc[0]
    values = {
        "tokens": float(row["kv_cache_tokens"]),
        "input": float(row["input_tokens"]),
        "output": float(row["output_tokens"]),
        "capacity": float(row["capacity_requests"]),
    }
    if pd.notna(row["kv_block_tokens"]):
        block = float(row["kv_block_tokens"])
        each = math.ceil((values["input"] + values["output"]) / block)
        values |= {"block": block, "blocks": values["tokens"] / block, "each": float(each)}
    return values


def memory(points: pd.DataFrame) -> dict[str, Any] | None:
    """Bytes of KV cache per token by the server's own figures; None if it gave none."""
    rows = points[points["kv_cache_bytes"].gt(0) & points["kv_cache_tokens"].gt(0)]
    if not len(rows):
        return None
    total, tokens = float(rows["kv_cache_bytes"].iloc[0]), float(rows["kv_cache_tokens"].iloc[0])
    return {"bytes": total / tokens, "total": total / 2**20, "tokens": tokens}


def queue(points: pd.DataFrame) -> dict[str, Any] | None:
    """First-token latency at the lowest and the highest concurrency of one load sweep; None without two of them."""
    rows = _usable(points)
    rows = rows[
        (rows["kind"] == "load_sweep") & (rows["workload_kind"] == "closed") & rows["ttft_p50_ms"].gt(0)
    ]
    if not len(rows):
        return None
    first = rows.iloc[0]
    same = rows[(rows["slug"] == first["slug"]) & (rows["experiment"] == first["experiment"])]
    same = same[
        (same["input_tokens"] == first["input_tokens"]) & (same["output_tokens"] == first["output_tokens"])
    ]
    low, high = same["concurrency"].min(), same["concurrency"].max()
    if not low < high:
        return None
    a, b = same[same["concurrency"] == low], same[same["concurrency"] == high]
    return {
        "low": float(low),
        "high": float(high),
        "low_ttft": stats.middle(a["ttft_p50_ms"]),
        "high_ttft": stats.middle(b["ttft_p50_ms"]),
        "waiting": float(b["waiting_mean"].mean()) if b["waiting_mean"].notna().any() else None,
        "low_tps": float(a["output_throughput_tok_s"].mean()),
        "high_tps": float(b["output_throughput_tok_s"].mean()),
    }


def ready(points: pd.DataFrame) -> dict[str, Any] | None:
    """Time to ready over server starts."""
    each = points.dropna(subset=["ready_s"]).groupby("session_id")["ready_s"].first()
    if not len(each):
        return None
    return {
        "ready": float(each.median()),
        "n": len(each),
        "low": float(each.min()),
        "high": float(each.max()),
    }
