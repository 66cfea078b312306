"""E7: how long does a decoding request stall while long prompts are read in; is it the chunk size?"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import scipy  # as a whole: scipy.stats is loaded at its first use, not each time that a config is read

from servelab.claims import CALCULATED, MEASURED, Analysis, Finding, Table
from servelab.config.errors import BadValueError
from servelab.config.schema import Experiment
from servelab.experiments import comparison, workloads
from servelab.experiments.base import ServerPlan, StudyData
from servelab.request_times import gaps_within, request_times
from servelab.stats import LEVEL

KIND = "chunked_prefill"


@dataclass
class Config(Experiment):
    """max_num_batched_tokens: the chunk sizes, a server each. On each server, for every repeat:

    prefill: prefill_requests prompts of input_tokens one after the other (the prefill rate);
    interference: a victim (victim_*) decodes while `inserted` prompts of input_tokens arrive one by one, the
      first after its insert_after_tokens-th token.
    """

    repeats: int = 3
    max_num_batched_tokens: list[int] = field(default_factory=lambda: [512, 1024, 2048, 4096, 8192])
    victim_input_tokens: int = 300
    victim_output_tokens: int = 256
    inserted: int = 3
    input_tokens: int = 3500
    insert_after_tokens: int = 32
    prefill_requests: int = 3


def expand(config: Config) -> list[ServerPlan]:
    """One server for each chunk size: prefill alone, then interference.

    Raises BadValueError for a value that makes no sense.
    """
    workloads.numbers(1, max_num_batched_tokens=config.max_num_batched_tokens, inserted=config.inserted)
    workloads.numbers(1, victim_input_tokens=config.victim_input_tokens, input_tokens=config.input_tokens)
    workloads.numbers(1, insert_after_tokens=config.insert_after_tokens)
    workloads.numbers(1, prefill_requests=config.prefill_requests)
    if config.victim_output_tokens <= config.insert_after_tokens:
        allowed = f"more than insert_after_tokens ({config.insert_after_tokens}): the victim decodes on"
        raise BadValueError("victim_output_tokens", config.victim_output_tokens, allowed)
    loads = (
        workloads.closed(1, config.input_tokens, 1, config.prefill_requests),
        workloads.interference(
            config.victim_input_tokens,
            config.victim_output_tokens,
            config.inserted,
            config.input_tokens,
            config.insert_after_tokens,
        ),
    )
    chunks = workloads.settings("max_num_batched_tokens", config.max_num_batched_tokens)
    return [ServerPlan(loads, {"max_num_batched_tokens": chunk}) for chunk in chunks]


CHUNK, SESSION = "max_num_batched_tokens", "session_id"
COLUMNS = {
    "chunk_tokens": ("tokens", CALCULATED),
    "itl_max_ms": ("ms", MEASURED),
    "itl_p50_ms": ("ms", MEASURED),
    "itl_alone_p50_ms": ("ms", MEASURED),
    "gaps": ("", MEASURED),
    "prefill_rate_tok_s": ("tok/s", MEASURED),
    "chunk_time_ms": ("ms", CALCULATED),
    "measured_over_calculated": ("1", CALCULATED),
    "long_ttft_min_ms": ("ms", MEASURED),
    "long_ttft_max_ms": ("ms", MEASURED),
}


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """The victim's gaps while prompts are read in, beside the calculated time of one chunk; the fit of the
    two."""
    missing = comparison.nothing(data, KIND, name)
    if missing is not None:
        return missing
    rows = comparison.experiment_rows(data, name, (CHUNK,)).sort_values(CHUNK, kind="stable")
    usable = data.usable(rows)
    made = []
    for group, same in comparison.groups(usable, (comparison.MODEL, comparison.SERVER, CHUNK, SESSION)):
        rate = _prefill_rate(data, same[same["workload_kind"] == "closed"], config.input_tokens)
        victims = comparison.each_row(same[same["workload_kind"] == "interference"])
        made += [_run(data, group, row, rate, config) for row in victims]
    runs = _frame(made)
    table = Table(f"{name}_runs", runs.drop(columns=SESSION), COLUMNS, name, "chunked_prefill")
    findings = comparison.failed_settings(rows, name, lambda row: f"{CHUNK}={row[CHUNK]}")
    fits = []
    for group, same in comparison.groups(runs, (comparison.MODEL, comparison.SERVER)):
        fit = _fit(same)
        fits.append({**group, **fit})
        findings += _conclusions(group, same, fit, name, table.id)
    return Analysis(
        KIND, name, tables=[table, _fit_table(fits, name)], findings=comparison.labelled(findings)
    )


def _frame(made: list[dict[str, Any]]) -> pd.DataFrame:
    names = [comparison.MODEL, comparison.SERVER, CHUNK, SESSION, "start", "repeat", *COLUMNS]
    return pd.DataFrame(made, columns=names)


def _prefill_rate(data: StudyData, rows: pd.DataFrame, input_tokens: int) -> float | None:
    """Input tokens ÷ median TTFT of prompts read in alone on this server, tok/s."""
    ttft_ms = comparison.ttft_level(data, rows).value
    return 1000 * input_tokens / ttft_ms if ttft_ms else None


def _run(
    data: StudyData, group: comparison.Settings, row: dict[str, Any], rate: float | None, config: Config
) -> dict[str, Any]:
    """One run: gaps of the victim that overlap the window from the first insertion's sending to the last
    one's
    first token."""
    requests = data.load(row).requests
    inserted = request_times(requests, ("inserted",), open_loop=False)
    victim = request_times(requests, ("victim",), open_loop=False)
    chunk = min(group[CHUNK], config.input_tokens) if group[CHUNK] is not None else None
    cells: dict[str, Any] = {
        comparison.MODEL: group[comparison.MODEL],
        comparison.SERVER: group[comparison.SERVER],
        CHUNK: group[CHUNK],
        SESSION: group[SESSION],
        "start": int(row["start"]),
        "repeat": int(row["repeat"]),
        "chunk_tokens": chunk,
        "prefill_rate_tok_s": rate,
        "chunk_time_ms": 1000 * chunk / rate if chunk and rate else None,
    }
    if not inserted.start_s.size or not victim.start_s.size:
        return cells
    opened, closed = float(inserted.sent_s.min()), float(inserted.first_s.max())
    gaps_ms = 1000 * gaps_within(victim, opened, closed)[0]
    before = victim.chunk_s[victim.chunk_s <= opened]
    if gaps_ms.size:
        cells |= {"itl_max_ms": float(gaps_ms.max()), "itl_p50_ms": float(np.median(gaps_ms))}
    if before.size > 1:
        cells["itl_alone_p50_ms"] = 1000 * float(np.median(np.diff(before)))
    ttft_ms = 1000 * inserted.ttft_s
    cells |= {
        "gaps": int(gaps_ms.size),
        "long_ttft_min_ms": float(ttft_ms.min()),
        "long_ttft_max_ms": float(ttft_ms.max()),
    }
    if cells.get("itl_max_ms") and cells["chunk_time_ms"]:
        cells["measured_over_calculated"] = cells["itl_max_ms"] / cells["chunk_time_ms"]
    return cells


def _fit(runs: pd.DataFrame) -> dict[str, Any]:
    """Least squares of max ITL on min(chunk, input): slope in ms a token with its t-interval, None under 3 sizes.

    One value a server start, the mean over its repeats: they share the server, so that each of them alone would
    make the interval too narrow. A mean of largest values averages no percentile.
    """
    known = runs.dropna(subset=["itl_max_ms", "chunk_tokens"])
    starts = known.astype({"itl_max_ms": float, "chunk_tokens": float}).groupby([CHUNK, SESSION], sort=False)
    values = starts[["chunk_tokens", "itl_max_ms"]].mean()
    x, y = values["chunk_tokens"].to_numpy(), values["itl_max_ms"].to_numpy()
    rates = runs["prefill_rate_tok_s"].dropna().astype(float)
    rate = float(rates.median()) if len(rates) else None
    counts = {"sizes": len(set(x)), "starts": len(x), "runs": len(known), "rate": rate}
    if len(set(x)) < 3:
        return {"slope_ms_per_token": None, **counts}
    fit = scipy.stats.linregress(x, y)
    half = float(scipy.stats.t.ppf((1 + LEVEL) / 2, len(x) - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    return {
        "slope_ms_per_token": slope,
        "slope_ms_per_token_low": slope - half,
        "slope_ms_per_token_high": slope + half,
        "intercept_ms": float(fit.intercept),
        "r2": float(fit.rvalue) ** 2,
        "expected_ms_per_token": 1000 / rate if rate else None,
        **counts,
    }


def _fit_table(fits: list[dict[str, Any]], name: str) -> Table:
    columns = {
        "slope_ms_per_token": ("ms/token", CALCULATED),
        "expected_ms_per_token": ("ms/token", CALCULATED),
        "intercept_ms": ("ms", CALCULATED),
        "r2": ("1", CALCULATED),
        "rate": ("tok/s", MEASURED),
        "sizes": ("", MEASURED),
        "starts": ("", MEASURED),
        "runs": ("", MEASURED),
    }
    ends = ("slope_ms_per_token_low", "slope_ms_per_token_high")
    frame = pd.DataFrame(fits, columns=[comparison.MODEL, comparison.SERVER, *columns, *ends])
    return Table(f"{name}_fit", frame, columns, name, "chunked_prefill_fit")


def _conclusions(
    group: comparison.Settings, runs: pd.DataFrame, fit: dict[str, Any], name: str, table: str
) -> list[Finding]:
    known = runs.dropna(subset=["itl_max_ms"])
    if not len(known):
        return []
    worst = known.groupby(CHUNK)["itl_max_ms"].max().astype(float)
    long_ttft = known.groupby(CHUNK)["long_ttft_max_ms"].max().astype(float)
    values: dict[str, Any] = {**group, "smallest": int(worst.index.min()), "largest": int(worst.index.max())}
    values |= {
        "itl_smallest": float(worst.loc[worst.index.min()]),
        "itl_largest": float(worst.loc[worst.index.max()]),
    }
    values |= {"ttft_smallest": float(long_ttft.loc[worst.index.min()])}
    values |= {"ttft_largest": float(long_ttft.loc[worst.index.max()])}
    findings = []
    if len(worst) > 1:
        findings.append(Finding("chunked_prefill_range", values, MEASURED, name, (table,), weight=50))
    ratios = known["measured_over_calculated"].dropna().astype(float)
    if len(ratios):
        more = {**group, "low": float(ratios.min()), "high": float(ratios.max()), "runs": len(ratios)}
        findings.append(Finding("chunked_prefill_calculated", more, CALCULATED, name, (table,), weight=30))
    slope = fit["slope_ms_per_token"]
    if slope is not None:
        low, expected = fit["slope_ms_per_token_low"], fit["expected_ms_per_token"]
        outcome = "none" if low <= 0 else "unknown" if expected is None else "linear"
        more = {**group, **fit, "relative": slope / expected if expected else None}
        findings.append(
            Finding(f"chunked_prefill_fit_{outcome}", more, CALCULATED, name, (table,), weight=35)
        )
    return findings
