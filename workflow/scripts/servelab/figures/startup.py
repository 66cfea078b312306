"""E9 drawn: the phases of every start as bars of seconds, time that no log line accounts for in grey."""

import altair as alt

from servelab.claims import Analysis, Figure
from servelab.figures import palette
from servelab.figures.series import id_of
from servelab.figures.settings import measured, named
from servelab.figures.style import Style

COLOURS = {
    "imports": "blue", "config": "cyan", "engine_process": "slate", "engine_init": "muted",
    "weights": "orange", "compile": "purple", "profiling": "teal", "kv_allocation": "ochre",
    "graph_capture": "crimson", "api_server": "ink", "unaccounted": "grid",
}  # fmt: skip


def figures(analysis: Analysis, style: Style) -> list[Figure]:
    """One bar a start; none without phases."""
    rows = measured(analysis, "startup_phases", "seconds")
    if not len(rows):
        return []
    rows["setting"] = ["eager" if eager else "compiled" for eager in rows["enforce_eager"]]
    rows["boot"] = [style.words.get(f"boot.{boot}", str(boot)) for boot in rows["boot"]]
    rows["label"] = named(rows, ("setting", "boot", "start"))
    rows["end_s"] = rows["start_s"] + rows["seconds"]
    known = [phase for phase in COLOURS if phase in set(rows["phase"])]
    words = {phase: style.words.get(f"phases.{phase}", phase) for phase in known}
    rows["name"] = [words.get(phase, str(phase)) for phase in rows["phase"]]
    scale = alt.Scale(domain=list(words.values()), range=[palette.light(COLOURS[phase]) for phase in known])
    legend = alt.Legend(orient="bottom", title=None, columns=3 if style.narrow else 6, symbolType="square")
    bars = alt.Chart(rows[["label", "start_s", "end_s", "name", "seconds"]]).mark_bar(size=16)
    chart = bars.encode(
        x=style.x("start_s", "axes.time_s", zero=True),
        x2=alt.X2("end_s"),
        y=alt.Y(**style.category("label", "", list(dict.fromkeys(rows["label"])))),
        color=alt.Color(field="name", type="nominal", scale=scale, legend=legend),
        tooltip=[alt.Tooltip(field="name"), alt.Tooltip(field="seconds", format=".2f")],
    )
    panel = style.panel(
        chart, height=26 * rows["label"].nunique(), width=style.width - (150 if style.narrow else 260)
    )
    table = id_of(analysis, "startup_phases")
    return [Figure(f"{analysis.experiment}-phases", panel, "startup", {}, table, analysis.experiment)]
