"""E6 drawn: TTFT of misses, hits and unshared prompts, prefix cache on and off."""

from servelab.claims import Analysis, Figure
from servelab.figures.series import id_of
from servelab.figures.settings import dots, measured, named
from servelab.figures.style import Style


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """A row a kind of request and setting, on a logarithmic axis; none without a request."""
    rows = measured(analysis, "prefix_cache_requests", "ttft_p50_ms")
    if not len(rows):
        return []
    state = {True: style.text("figures.prefix_cache.on"), False: style.text("figures.prefix_cache.off")}
    rows["cache"] = [state[bool(on)] for on in rows["enable_prefix_caching"]]
    words: dict[object, str] = {kind: style.text(f"request_kinds.{kind}") for kind in set(rows["request"])}
    rows["label"] = named(rows, ("request", "cache"), words)
    width = style.width - (170 if style.narrow else 260)
    chart = dots(rows, style, "ttft_p50_ms", "axes.ttft", log=True)
    panel = style.panel(chart, height=26 * rows["label"].nunique(), width=width)
    table = id_of(analysis, "prefix_cache_requests")
    return [Figure(f"{analysis.experiment}-requests", panel, "prefix_cache", {}, table, analysis.experiment)]
