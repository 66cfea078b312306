"""E5 drawn: capacity, throughput at short context and TTFT at long input, a row a KV dtype."""

from servelab.claims import Analysis, Figure
from servelab.figures.series import id_of
from servelab.figures.settings import dots, measured, named
from servelab.figures.style import Style


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """A panel for each quantity; none with fewer than two dtypes measured."""
    rows = measured(analysis, "loads", "output_throughput_tok_s")
    if not len(rows) or rows["kv_cache_dtype"].nunique() < 2:
        return []
    rows["label"] = named(rows, ("kv_cache_dtype",))
    size = rows["input_tokens"] * rows["concurrency"]
    short, long = rows[size == size.min()], rows[size == size.max()]
    width = style.panel_width(2)
    chosen = [
        (long, "kv_cache_tokens", "columns.kv_cache_tokens"),
        (short, "output_throughput_tok_s", "axes.throughput"),
        (long, "ttft_p50_ms", "axes.ttft"),
    ]
    panels = [
        style.panel(
            dots(part, style, column, title),
            height=26 * part["label"].nunique(),
            width=width,
            title=_load(part),
        )
        for part, column, title in chosen
        if part[column].notna().any()
    ]
    table = id_of(analysis, "loads")
    return [
        Figure(
            f"{analysis.experiment}-dtypes", style.grid(panels), "kv_dtype", {}, table, analysis.experiment
        )
    ]


def _load(rows: object) -> str:
    row = rows.iloc[0]  # type: ignore[attr-defined]
    return f"c{row['concurrency']:g} i{row['input_tokens']:g} o{row['output_tokens']:g}"
