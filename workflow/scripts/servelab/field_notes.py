"""What a study has for each id of config/references/field-notes-2026-10-07.csv: one matcher an id.

Most are read from the points; a few from an experiment's own table, where only its analysis knows the
quantity (miss and hit, perplexity). An id without a matcher here would be a hole: a test holds the two
together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import pandas as pd

from servelab.claims import CALCULATED, MEASURED, Analysis, Table
from servelab.references import (
    EIGHT_BIT,
    FULL_PRECISION,
    Condition,
    Counterpart,
    Matcher,
    Reference,
    described,
    kept,
    level,
    load,
    model_like,
    of_model,
    ratio,
    rows_for,
    spread,
    table_of,
)

THROUGHPUT, TTFT50, TTFT95 = "output_throughput_tok_s", "ttft_p50_ms", "ttft_p95_ms"
ON, OFF = (True, "True", "true", None), (False, "False", "false")
GRAPHS, EAGER = (False, "False", "false", None), (True, "True", "true")
LOADED = ("load_sweep", "max_num_seqs", "cuda_graphs", "kv_dtype", "repeatability")


NOTES = "field-notes-2026-10-07"
_STARTS = {"first start": "first", "restart": "restart"}  # a reference's words → the points' boot


def counterpart(id: str, analyses: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
    """The study's own value for an id of the notes, None where it has none. Raises KeyError for an unknown id."""
    return beside(_notes()[id], analyses, points)


@cache
def _notes() -> dict[str, Reference]:
    return {row.id: row for row in load(NOTES)}


def beside(row: Reference, analyses: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
    """The study's own value for a reference's row; None where it has none, or no such id is known.

    Of a study of several models only the row's own counts, and the condition names it: a mean over models is
    nobody's value. Of server starts only the first or the restarts count, where the row's condition says which.
    """
    matcher = MATCHERS.get(row.id)
    if matcher is None:
        return None
    models = [str(model) for model in dict.fromkeys(points["model"].dropna())]
    boot = next((boot for words, boot in _STARTS.items() if words in row.condition), None)
    if boot is not None:
        points = points[(points["workload_kind"] != "boot") | (points["boot"] == boot)]
    if len(models) < 2:
        return matcher(analyses, points)
    model = model_like(row.model, models)
    if model is None:
        return None
    found = matcher(*of_model(analyses, points, model))
    return found and replace(found, condition=f"model={model} {found.condition}".strip())


def _level(column: str, condition: Condition) -> Matcher:
    return lambda _, points: level(points, condition, column)


def _ratio(column: str, base: Condition, other: Condition, percent: bool = False) -> Matcher:
    def match(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
        found = ratio(points, base, other, column)
        if found is None or not percent or found.value is None:
            return found
        return Counterpart(
            100 * (found.value - 1), found.condition, found.status, n=found.n, points=found.points
        )

    return match


def _repeats(concurrency: int) -> Condition:
    return Condition(("repeatability",), concurrency, 512, 128)


def _sweep(concurrency: int, input_tokens: int = 512) -> Condition:
    return Condition(("load_sweep",), concurrency, input_tokens, 128)


def _one_server(column: str) -> Matcher:
    """Repeats on the server that has most of them."""

    def match(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
        rows = rows_for(points, _repeats(32))
        if not len(rows):
            return None
        session = rows["session_id"].value_counts().index[0]
        return level(points[points["session_id"] == session], _repeats(32), column)

    return match


def _starts(concurrency: int, exact: bool = False) -> Matcher:
    """Means of server starts, their range."""

    def match(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
        rows = rows_for(points, _repeats(concurrency))
        means = rows.groupby("session_id")[THROUGHPUT].mean()
        if len(means) < 2 or (exact and set(rows["concurrency"]) != {concurrency}):
            return None
        ends = float(means.min()), float(means.max())
        return Counterpart(float(means.mean()), described(rows), MEASURED, *ends, n=len(means))

    return match


def _boot(dtypes: tuple[object, ...], boot: str) -> Condition:
    return Condition(
        ("kv_capacity", "startup", "load_sweep"),
        workload_kind="boot",
        options={"kv_cache_dtype": dtypes, "boot": (boot,)},
    )


def _bytes_per_token(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
    rows = points[
        (points["status"] == "ok") & points["kv_cache_tokens"].gt(0) & points["kv_cache_bytes"].gt(0)
    ]
    rows = kept(rows, "kv_cache_dtype", FULL_PRECISION)
    if not len(rows):
        return None
    each = rows["kv_cache_bytes"] / rows["kv_cache_tokens"]
    ends = float(each.min()), float(each.max())
    return Counterpart(float(each.median()), described(rows.head(1)), CALCULATED, *ends, n=len(rows))


def _fitting(longest: bool) -> Matcher:
    """Requests that fit, for the shortest or the longest input of the load sweep."""

    def match(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
        rows = points[(points["kind"] == "load_sweep") & points["capacity_requests"].gt(0)]
        lengths = sorted(set(rows["input_tokens"]))
        if not lengths or (longest and len(lengths) < 2):
            return None
        rows = rows[rows["input_tokens"] == lengths[-1 if longest else 0]]
        condition = f"input={lengths[-1 if longest else 0]:g} output={rows['output_tokens'].iloc[0]:g}"
        return Counterpart(float(rows["capacity_requests"].median()), condition, CALCULATED, n=len(rows))

    return match


def _from_table(kind: str, template: str, column: str, where: Mapping[str, object]) -> Matcher:
    """A value of an experiment's table: the rows where each named column has (or is nearest to) a value."""

    def match(analyses: Sequence[Analysis], _: pd.DataFrame) -> Counterpart | None:
        table = table_of(analyses, kind, template)
        if table is None or column not in table.frame:
            return None
        rows, words = _selected(table, where)
        values = rows[column].dropna()
        if not len(values):
            return None
        status = table.columns.get(column, ("", MEASURED))[1]
        low, high = (
            rows[f"{column}{end}"].iloc[0] if f"{column}{end}" in rows else None for end in ("_low", "_high")
        )
        low, high = (None if end is None or pd.isna(end) else float(end) for end in (low, high))
        if len(values) > 1:
            low, high = float(values.min()), float(values.max())
        return Counterpart(float(values.median()), words, status, low, high, n=len(values), table=table.id)

    return match


def _selected(table: Table, where: Mapping[str, object]) -> tuple[pd.DataFrame, str]:
    rows, words = table.frame, []
    for name, wanted in where.items():
        if name not in rows or not len(rows):
            return rows.iloc[0:0], ""
        if isinstance(wanted, (int, float)) and not isinstance(wanted, bool):
            near = min(rows[name].dropna(), key=lambda v: abs(float(v) - wanted), default=None)
            rows = rows[rows[name] == near]
            words.append(f"{name}={near:g}" if near is not None else "")
        else:
            allowed = wanted if isinstance(wanted, tuple) else (wanted,)
            rows = kept(rows, name, allowed)
            words.append(f"{name}={rows[name].iloc[0]}" if len(rows) else "")
    return rows, " ".join(words)


def _relative_error(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
    """Bytes per token of the log against the formula: the measured ratio's distance comes from kv_capacity."""
    return _from_table("kv_capacity", "kv_capacity", "relative_error_pct", {})(_, points)


def _prefill_rate(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
    """Input tokens over TTFT of lone long prompts, tok/s."""
    found = level(points, Condition(("chunked_prefill",), 1, 3500), TTFT50)
    if found is None or not found.value:
        return None
    rows = rows_for(points, Condition(("chunked_prefill",), 1, 3500))
    rate = float(rows["input_tokens"].iloc[0]) / (found.value / 1000)
    return Counterpart(rate, found.condition, CALCULATED, n=found.n, points=found.points)


def _chunk(tokens: int, column: str) -> Matcher:
    condition = Condition(("chunked_prefill",), workload_kind="interference")

    def match(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
        rows = rows_for(points, condition)
        sizes = sorted({float(v) for v in rows["max_num_batched_tokens"].dropna()}) if len(rows) else []
        if not sizes:
            return None
        near = min(sizes, key=lambda size: abs(size - tokens))
        found = level(rows[rows["max_num_batched_tokens"] == near], condition, column)
        return found and Counterpart(
            found.value,
            f"max_num_batched_tokens={near:g}",
            found.status,
            found.low,
            found.high,
            found.n,
            found.points,
        )

    return match


def _preemptions(concurrency: int, input_tokens: int, output_tokens: int | None = 128) -> Condition:
    return Condition(("preemption", "load_sweep"), concurrency, input_tokens, output_tokens)


def _caps(column: str, percent: bool) -> Matcher:
    """The smallest cap on running sequences over the largest."""

    def match(analyses: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
        caps = sorted(set(points[points["kind"] == "max_num_seqs"]["max_num_seqs"].dropna()))
        if len(caps) < 2:
            return None
        small, large = (
            Condition(("max_num_seqs",), options={"max_num_seqs": (cap,)}) for cap in (caps[0], caps[-1])
        )
        return _ratio(column, large, small, percent)(analyses, points)

    return match


def _dtype(dtypes: tuple[object, ...], long: bool = True) -> Condition:
    shape = (16, 2048) if long else (1, 512)
    return Condition(("kv_dtype",), *shape, options={"kv_cache_dtype": dtypes})


def _cache(setting: tuple[object, ...], cost: bool) -> Condition:
    shape = (32, 2048, 16) if cost else (1, 3032, 1)
    return Condition(
        ("prefix_cache",),
        *shape,
        options={"enable_prefix_caching": setting, "shared_prefix_tokens": (0, None)},
    )


def _graphs(setting: tuple[object, ...], concurrency: int) -> Condition:
    return Condition(("cuda_graphs",), concurrency, 512, options={"enforce_eager": setting})


def _ready(setting: tuple[object, ...]) -> Matcher:
    """Seconds until ready; of first starts and restarts together the range alone: their mean is neither's."""
    condition = Condition(("startup",), workload_kind="boot", options={"enforce_eager": setting})

    def match(_: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
        found = level(points, condition, "ready_s")
        mixed = len(set(rows_for(points, condition)["boot"])) > 1
        return replace(found, value=None) if found is not None and mixed else found

    return match


def _request(kind: str) -> Matcher:
    """TTFT of misses or hits, one request at a time, the prefix cache on."""
    where = {"enable_prefix_caching": ON, "request": kind}
    return _from_table("prefix_cache", "prefix_cache_requests", "ttft_p50_ms", where)


def _second_backend(analyses: Sequence[Analysis], points: pd.DataFrame) -> Counterpart | None:
    """Perplexity of the 8-bit cache under the second attention backend; None if the study has one only."""
    table = table_of(analyses, "perplexity", "perplexity")
    backends = list(dict.fromkeys(table.frame["attention_backend"].dropna())) if table is not None else []
    if len(backends) < 2:
        return None
    where = {"kv_cache_dtype": EIGHT_BIT, "attention_backend": backends[1]}
    return _from_table("perplexity", "perplexity", "perplexity", where)(analyses, points)


_SHORT = partial(_dtype, long=False)

MATCHERS: dict[str, Matcher] = {
    "R01": _one_server(THROUGHPUT),
    "R02": _one_server(TTFT50),
    "R03": _one_server(TTFT95),
    "R04": _one_server("itl_p99_ms"),
    "R05": _starts(32),
    "R06": _starts(1, exact=True),
    "R07": _chunk(2048, "itl_max_ms"),
    "R08": lambda _, points: spread(points, _repeats(32), (THROUGHPUT, TTFT50, TTFT95, "itl_p99_ms")),
    "C01": _bytes_per_token,
    "C02": _level("kv_cache_tokens", _boot(FULL_PRECISION, "first")),
    "C03": _level("kv_cache_tokens", _boot(EIGHT_BIT, "first")),
    "C04": _level("kv_cache_tokens", _boot(FULL_PRECISION, "restart")),
    "C05": _relative_error,
    "C06": _fitting(longest=False),
    "C07": _fitting(longest=True),
    "L01": _level(THROUGHPUT, _sweep(1)),
    "L02": _level(THROUGHPUT, _sweep(8)),
    "L03": _level(THROUGHPUT, _sweep(32)),
    "L04": _level(TTFT50, _sweep(32)),
    "L05": _level(TTFT50, _sweep(64)),
    "L06": _level("itl_p50_ms", _sweep(32)),
    "L07": _level("itl_p99_ms", _sweep(32)),
    "L08": _ratio(THROUGHPUT, _sweep(4, 2048), _sweep(16, 2048)),
    "L09": _ratio(TTFT50, _sweep(4, 2048), _sweep(16, 2048)),
    "P01": _level("preemptions", Condition(("repeatability", "load_sweep"), 32, 512, 128)),
    "P02": _level("preemptions", _preemptions(32, 2048)),
    "P03": _level(TTFT50, _preemptions(32, 2048)),
    "P04": _level("preemptions", _preemptions(64, 1500, 256)),
    "P05": _level(TTFT50, _preemptions(64, 1500, 256)),
    "M01": _caps(THROUGHPUT, percent=True),
    "M02": _caps(TTFT50, percent=False),
    "K01": _ratio(THROUGHPUT, _SHORT(FULL_PRECISION), _SHORT(EIGHT_BIT)),
    "K02": _level(TTFT50, _dtype(FULL_PRECISION)),
    "K03": _level(TTFT50, _dtype(EIGHT_BIT)),
    "K04": _from_table("perplexity", "", "perplexity", {"kv_cache_dtype": FULL_PRECISION}),
    "K05": _from_table("perplexity", "", "perplexity", {"kv_cache_dtype": EIGHT_BIT}),
    "K06": _second_backend,
    "X01": _request("miss"),
    "X02": _request("hit"),
    "X03": _level(TTFT50, _cache(ON, cost=False)),
    "X04": _level(TTFT50, _cache(OFF, cost=False)),
    "X05": _level(THROUGHPUT, _cache(ON, cost=True)),
    "X06": _level(THROUGHPUT, _cache(OFF, cost=True)),
    "X07": _level(TTFT50, _cache(ON, cost=True)),
    "X08": _level(TTFT50, _cache(OFF, cost=True)),
    "H01": _chunk(512, "itl_max_ms"),
    "H02": _chunk(1024, "itl_max_ms"),
    "H03": _chunk(2048, "itl_max_ms"),
    "H04": _chunk(4096, "itl_max_ms"),
    "H05": _chunk(8192, "itl_max_ms"),
    "H06": _prefill_rate,
    "H07": _from_table("chunked_prefill", "", "chunk_time_ms", {}),
    "H08": _chunk(512, TTFT50),
    "H09": _chunk(8192, TTFT50),
    "H10": _chunk(1024, TTFT50),
    "H11": _chunk(4096, TTFT50),
    "H12": _chunk(512, "itl_p50_ms"),
    "G01": _level(THROUGHPUT, _graphs(GRAPHS, 1)),
    "G02": _level(THROUGHPUT, _graphs(EAGER, 1)),
    "G03": _level(THROUGHPUT, _graphs(GRAPHS, 1)),
    "G04": _level(THROUGHPUT, _graphs(EAGER, 1)),
    "G05": _level(THROUGHPUT, _graphs(GRAPHS, 32)),
    "G06": _level(THROUGHPUT, _graphs(EAGER, 32)),
    "G07": _ready(GRAPHS),
    "G08": _ready(EAGER),
}
