"""E5q: does an 8-bit KV cache change what the model says? Perplexity of a fixed text, through the server."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from servelab import stats
from servelab.canonical import path_number
from servelab.claims import CALCULATED, MEASURED, NOT_MEASURED, Analysis, Finding, Table
from servelab.config.errors import BadValueError
from servelab.config.schema import Experiment
from servelab.experiments import comparison, workloads
from servelab.experiments.base import ServerPlan, StudyData
from servelab.spec import Option, Workload
from servelab.texts_source import MAX_SEGMENT_TOKENS

KIND = "perplexity"


@dataclass
class Config(Experiment):
    """kv_cache_dtype × attention_backend: a server each; "" leaves the backend to the server.

    text: `pydoc_data.topics`, a file, or `wikitext-2`. The first segment_tokens tokens of each of `segments`
    segments are scored. repeats: twice, so that «the same setting twice» can be answered.
    """

    repeats: int = 2
    kv_cache_dtype: list[str] = field(default_factory=lambda: ["auto", "fp8"])
    attention_backend: list[str] = field(default_factory=lambda: [""])
    text: str = "pydoc_data.topics"
    segments: int = 40
    segment_tokens: int = 1024


def expand(config: Config) -> list[ServerPlan]:
    """One server for each dtype and backend, prefix cache off: logprobs of cached tokens are not computed.

    Raises BadValueError for a value that makes no sense.
    """
    workloads.numbers(1, segments=config.segments)
    workloads.numbers(2, segment_tokens=config.segment_tokens)
    if config.segment_tokens > MAX_SEGMENT_TOKENS:
        raise BadValueError("segment_tokens", config.segment_tokens, f"at most {MAX_SEGMENT_TOKENS}")
    if not config.text:
        raise BadValueError("text", config.text, "pydoc_data.topics, wikitext-2, or a UTF-8 text file")
    dtypes = workloads.settings("kv_cache_dtype", config.kv_cache_dtype)
    backends = workloads.settings("attention_backend", config.attention_backend)
    name = f"ppl-s{path_number(config.segments)}-t{path_number(config.segment_tokens)}"
    workload = Workload(
        kind="perplexity",
        input_tokens=config.segment_tokens,
        output_tokens=1,
        requests=config.segments,
        text=config.text,
        segments=config.segments,
        segment_tokens=config.segment_tokens,
        warmup_requests=0,
    )
    return [
        ServerPlan(((name, workload),), options_of(dtype, backend))
        for backend, dtype in product(backends, dtypes)
    ]


def options_of(dtype: str, backend: str) -> dict[str, Option]:
    """Server options of one setting; an empty backend is the server's own choice."""
    options: dict[str, Option] = {"kv_cache_dtype": dtype, "enable_prefix_caching": False}
    return {**options, "attention_backend": backend} if backend else options


DTYPE, BACKEND = "kv_cache_dtype", "attention_backend"
_OWN_CHOICE = "auto"  # the server's own choice of a backend, where its log does not name it
_UNCHANGED: dict[str, Any] = dict.fromkeys(
    ("change_against", "perplexity_change", "perplexity_change_low", "perplexity_change_high")
)
# Findings that hold for one backend, which is named where several were measured; the others name theirs themselves.
_OF_ONE_BACKEND = (
    "perplexity_partial", "perplexity_repeats", "perplexity_repeats_equal",
    "perplexity_dtype_worse", "perplexity_dtype_same", "perplexity_dtype_better",
)  # fmt: skip
COLUMNS = {
    "perplexity": ("1", MEASURED),
    "perplexity_change": ("%", CALCULATED),
    "segments_ok": ("", MEASURED),
    "segments_asked": ("", MEASURED),
    "scored_tokens": ("tokens", MEASURED),
}


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Perplexity of each point; the same setting twice; dtypes on one backend and backends at one dtype.

    Differences are of segments, in pairs. Where the server took another backend for another dtype, both changed.
    Points are compared only if all their segments were scored and their token ids have the same digest; where
    digests differ, nothing is compared and that is said.
    """
    missing = comparison.nothing(data, KIND, name)
    if missing is not None:
        return missing
    rows = comparison.experiment_rows(data, name, (DTYPE, BACKEND, "enable_prefix_caching"))
    points = [_point(data, row) for row in comparison.each_row(data.usable(rows))]
    table_id = f"{name}_points"
    findings = comparison.failed_settings(rows, name, _setting)
    for same in _by(points, comparison.MODEL, comparison.SERVER).values():
        findings += _conclusions(same, name, table_id)
        for point, change in zip(same, _changes(same), strict=True):
            point.update(change)
    frame = pd.DataFrame([{k: v for k, v in point.items() if k != "nll"} for point in points])
    table = Table(table_id, frame, COLUMNS, name, "perplexity")
    return Analysis(KIND, name, tables=[table], findings=comparison.labelled(findings))


def _by(points: list[dict[str, Any]], *names: str) -> dict[tuple[object, ...], list[dict[str, Any]]]:
    """The points by equal values of these names, in order of appearance."""
    found: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for point in points:
        found.setdefault(tuple(point[name] for name in names), []).append(point)
    return found


def _setting(row: Mapping[str, Any]) -> str:
    backend = row[BACKEND]
    return f"kv_cache_dtype={row[DTYPE]}" + (
        f" attention_backend={backend}" if isinstance(backend, str) else ""
    )


def _point(data: StudyData, row: Mapping[str, Any]) -> dict[str, Any]:
    """One point: its settings, perplexity over all scored tokens, and `nll`: per-token loss of each
    segment."""
    record = data.load(row)
    scored = record.requests.filter(record.requests["ok"])
    tokens = int(pc.sum(scored["scored_tokens"]).as_py() or 0)
    return {
        comparison.MODEL: row[comparison.MODEL],
        comparison.SERVER: comparison.present(row[comparison.SERVER]),
        DTYPE: comparison.present(row[DTYPE]),
        BACKEND: comparison.session_fact(record, "backend") or comparison.present(row[BACKEND]),
        "start": int(row["start"]),
        "repeat": int(row["repeat"]),
        "perplexity": math.exp(pc.sum(scored["nll"]).as_py() / tokens) if tokens else None,
        **_UNCHANGED,
        "segments_ok": scored.num_rows,
        "segments_asked": record.requests.num_rows,
        "scored_tokens": tokens,
        "tokens_digest": str(record.meta.extra.get("tokens_digest", "")),
        "text": str(record.meta.extra.get("text", "")),
        "nll": _losses(record.requests),
    }


def _losses(requests: pa.Table) -> np.ndarray:
    """-log p per scored token of each segment, in nats [segments]; NaN where the segment failed."""
    ok = np.asarray(requests["ok"].to_numpy(), dtype=bool)
    nll = np.asarray(requests["nll"].to_numpy(), dtype=float)
    return np.where(ok, nll / np.asarray(requests["scored_tokens"].to_numpy(), dtype=float), np.nan)


def _comparable(points: list[dict[str, Any]]) -> bool:
    """Whether all points were scored on the same token ids."""
    digests = {point["tokens_digest"] for point in points}
    return len(digests) == 1 and digests != {""}


def _whole(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [point for point in points if point["segments_ok"] == point["segments_asked"] > 0]


def _changes(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells of each point: its change in % against the first one on its backend, and that one's dtype.

    Missing for the first itself and for what cannot be compared.
    """
    if not _comparable(points):
        return [_UNCHANGED] * len(points)
    bases = {backend: same[0] for (backend,), same in _by(_whole(points), BACKEND).items()}
    compared = {id(point) for point in _whole(points)} - {id(base) for base in bases.values()}
    found = []
    for point in points:
        cells: dict[str, Any] = dict(_UNCHANGED)
        if id(point) in compared:
            base = bases[point[BACKEND]]
            cells = dict(zip(_UNCHANGED, (base[DTYPE], *_change(base, point)), strict=True))
        found.append(cells)
    return found


def _change(base: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float | None, float | None]:
    """Perplexity of other over base - 1 in %, with a t-interval over segments of the paired difference of losses.

    All segments have the same number of tokens, so the mean of their per-token losses is the log-perplexity.
    """
    differences = other["nll"] - base["nll"]
    interval = stats.mean_interval(differences)
    change = 100 * math.expm1(float(np.mean(differences)))
    if interval is None:
        return change, None, None
    return change, 100 * math.expm1(interval.low), 100 * math.expm1(interval.high)


def _conclusions(points: list[dict[str, Any]], name: str, table: str) -> list[Finding]:
    if not _comparable(points):
        texts = ", ".join(sorted({point["tokens_digest"][:8] or "none" for point in points}))
        values = {key: points[0][key] for key in (comparison.MODEL, comparison.SERVER)} | {"digests": texts}
        return [Finding("perplexity_void", values, NOT_MEASURED, name, (table,), weight=60)]
    whole = _whole(points)
    findings = [
        Finding(
            "perplexity_partial", {**_named(point), **_counts(point)}, MEASURED, name, (table,), weight=30
        )
        for point in points
        if point["segments_ok"] < point["segments_asked"]
    ]
    settings = _by(whole, DTYPE, BACKEND).values()
    findings += [_repeated(same, name, table) for same in settings if len(same) > 1]
    findings += [_against(*pair, name, table) for pair in _pairs([same[0] for same in settings])]
    if len(_by(points, BACKEND)) > 1:
        findings = [_on_backend(one) if one.template in _OF_ONE_BACKEND else one for one in findings]
    return findings


def _pairs(firsts: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(base, other) of the settings' first points, of which one thing differs; both only where it cannot be had.

    On each backend the dtypes against its first one, at each dtype the backends against its first one. A backend
    whose first dtype is on no other one (the server chose it for that dtype) is compared with the first of all.
    """
    on_backend, at_dtype = (
        [(same[0], other) for same in _by(firsts, name).values() for other in same[1:]]
        for name in (BACKEND, DTYPE)
    )
    elsewhere = {id(point) for pair in at_dtype for point in pair}
    bases = [same[0] for same in _by(firsts, BACKEND).values()]
    apart = [(bases[0], other) for other in bases[1:] if id(other) not in elsewhere]
    return on_backend + at_dtype + apart


def _on_backend(finding: Finding) -> Finding:
    """The finding with its backend beside every dtype that its text names: fp8 (FLASHINFER)."""
    backend = finding.values["backend"]
    named = {key: f"{finding.values[key]} ({backend})" for key in ("dtype", "first") if key in finding.values}
    return replace(finding, values={**finding.values, **named})


def _repeated(same: list[dict[str, Any]], name: str, table: str) -> Finding:
    """How far the same setting is from itself, over repeats and starts."""
    found = [point["perplexity"] for point in same]
    values = {**_named(same[0]), "points": len(same), "low": min(found), "high": max(found)}
    values["spread"] = max(found) / min(found) - 1
    template = "perplexity_repeats_equal" if values["spread"] == 0 else "perplexity_repeats"
    return Finding(template, values, MEASURED, name, (table,), weight=20, group="perplexity_repeats")


def _against(base: Mapping[str, Any], other: Mapping[str, Any], name: str, table: str) -> Finding:
    """Another dtype, backend, or both: worse, not to be told apart, or better (of a dtype: unexplained)."""
    change, low, high = _change(base, other)
    quantised, moved = base[DTYPE] != other[DTYPE], base[BACKEND] != other[BACKEND]
    unclear = low is None or high is None or low <= 0 <= high
    outcome = "same" if unclear else "worse" if change > 0 else "better"
    values = {
        **_named(other),
        "first": base[DTYPE],
        "first_backend": base[BACKEND] or _OWN_CHOICE,
        "base": base["perplexity"],
        "other": other["perplexity"],
        "change": change / 100,
        "low": None if low is None else low / 100,
        "high": None if high is None else high / 100,
        "segments": other["segments_ok"],
    }
    what = "both" if quantised and moved else "dtype" if quantised else "backend"
    weight = {"dtype": 50, "both": 40, "backend": 30}[what]
    return Finding(f"perplexity_{what}_{outcome}", values, MEASURED, name, (table,), weight)


def _named(point: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": point[comparison.MODEL],
        comparison.SERVER: point[comparison.SERVER],
        "dtype": point[DTYPE],
        "backend": point[BACKEND] or _OWN_CHOICE,
        "text": point["text"],
    }


def _counts(point: Mapping[str, Any]) -> dict[str, int]:
    return {"segments_ok": point["segments_ok"], "segments_asked": point["segments_asked"]}
