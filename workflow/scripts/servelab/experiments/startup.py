"""E9: where does the time until the server is ready go, on a first start and on a restart?"""

from dataclasses import dataclass, field

import pandas as pd

from servelab.claims import MEASURED, Analysis, Finding, Table
from servelab.config.schema import Experiment
from servelab.experiments import comparison, workloads
from servelab.experiments.base import ServerPlan, StudyData
from servelab.vllm_log import UNACCOUNTED

KIND = "startup"


@dataclass
class Config(Experiment):
    """enforce_eager: false starts with compilation (and CUDA graphs where there are any), true without.

    restarts: starts after the first one, with its compile cache.
    """

    enforce_eager: list[bool] = field(default_factory=lambda: [False, True])
    restarts: int = 1


def expand(config: Config) -> list[ServerPlan]:
    """A first start and the restarts with and without compilation; the starts are the measurement."""
    settings = workloads.settings("enforce_eager", config.enforce_eager)
    return [
        plan
        for eager in settings
        for plan in workloads.boots({"enforce_eager": eager}, config.starts, config.restarts)
    ]


EAGER = "enforce_eager"


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """The phases of every start and the time until ready: first starts against restarts, eager against not.

    Phases come from the server's log, whose stamps have a resolution of one second; what lies between them is
    «unaccounted» and is not given to any phase.
    """
    missing = comparison.nothing(data, KIND, name)
    if missing is not None:
        return missing
    rows = comparison.experiment_rows(data, name, (EAGER,))
    usable = data.usable(rows)
    starts, phases = _starts(rows, name), _phases(data, usable, name)
    findings = comparison.failed_settings(
        rows, name, lambda row: f"enforce_eager={row[EAGER]} {row['point']}"
    )
    for group, same in comparison.groups(usable, (comparison.MODEL, comparison.SERVER)):
        findings += _boots(data, group, same, name, starts.id)
        findings += _eager(data, group, same, name, starts.id)
    findings += _longest(phases, name)
    return Analysis(KIND, name, tables=[starts, phases], findings=comparison.labelled(findings))


def _starts(rows: pd.DataFrame, name: str) -> Table:
    """A row a setting and boot: seconds until ready over its starts."""
    by = (comparison.MODEL, comparison.SERVER, EAGER, "boot_asked")
    made = []
    for group, same in comparison.groups(rows.assign(boot_asked=_asked(rows)), by):
        ready = comparison.level(StudyData.usable(same), "ready_s")
        made.append(
            {**group, **ready.cells("ready_s"), "starts": ready.points, "failed": len(same) - ready.points}
        )
    frame = pd.DataFrame(made).rename(columns={"boot_asked": "boot"})
    columns = {"ready_s": ("s", MEASURED), "starts": ("", MEASURED), "failed": ("", MEASURED)}
    return Table(f"{name}_starts", frame, columns, name, "startup_starts")


def _asked(rows: pd.DataFrame) -> list[str]:
    """first or restart, as the point's name says what was asked for (a failed start has no boot of its
    own)."""
    return [str(point).rsplit("-r", 1)[0] for point in rows["point"]]


def _phases(data: StudyData, usable: pd.DataFrame, name: str) -> Table:
    """A row a start and phase, in order of time; a start's rows add up to its time until ready."""
    made = []
    for row in comparison.each_row(usable):
        found = comparison.session_fact(data.load(row), "phases") or []
        identity = {key: row[key] for key in (comparison.MODEL, comparison.SERVER, EAGER, "boot", "start")}
        made += [
            {**identity, "phase": phase, "start_s": begin, "seconds": end - begin}
            for phase, begin, end in found
        ]
    names = [comparison.MODEL, comparison.SERVER, EAGER, "boot", "start", "phase", "start_s", "seconds"]
    columns = {"start_s": ("s", MEASURED), "seconds": ("s", MEASURED)}
    return Table(f"{name}_phases", pd.DataFrame(made, columns=names), columns, name, "startup_phases")


def _boots(
    data: StudyData, group: comparison.Settings, same: pd.DataFrame, name: str, table: str
) -> list[Finding]:
    findings = []
    for setting, rows in comparison.groups(same, (EAGER,)):
        first, restart = rows[rows["boot"] == "first"], rows[rows["boot"] == "restart"]
        found = comparison.compare(data, first, restart, "ready_s") if len(first) and len(restart) else None
        if found is not None:
            values = {**group, "eager": setting[EAGER], "first": found.base, "restart": found.other}
            values |= {"firsts": len(first), "restarts": len(restart), "difference": found.base - found.other}
            template = "startup_restart_eager" if setting[EAGER] else "startup_restart_compiled"
            findings.append(comparison.compared(template, found, values, name, (table,), 40))
    return findings


def _eager(
    data: StudyData, group: comparison.Settings, same: pd.DataFrame, name: str, table: str
) -> list[Finding]:
    findings = []
    for boot, rows in comparison.groups(same, ("boot",)):
        settings = {setting[EAGER]: part for setting, part in comparison.groups(rows, (EAGER,))}
        if {True, False} <= set(settings):
            found = comparison.compare(data, settings[False], settings[True], "ready_s")
            if found is not None:
                values = {**group, **boot, "compiled": found.base, "eager": found.other}
                values["difference"] = found.base - found.other
                template = f"startup_eager_{'first' if boot['boot'] == 'first' else 'restart'}"
                findings.append(comparison.compared(template, found, values, name, (table,), 35))
    return findings


def _longest(phases: Table, name: str) -> list[Finding]:
    """The longest phase of each setting and boot, and how much of the time no line of the log accounts
    for."""
    findings = []
    for group, same in comparison.groups(phases.frame, (comparison.MODEL, comparison.SERVER, EAGER, "boot")):
        total = float(same["seconds"].sum())
        by_phase = same.groupby("phase")["seconds"].sum()
        known = by_phase.drop(UNACCOUNTED, errors="ignore")
        if not len(known) or total <= 0:
            continue
        count = same["start"].nunique()
        unaccounted = float(by_phase.get(UNACCOUNTED, 0.0))
        values = {
            **group,
            "phase": str(known.idxmax()),
            "seconds": float(known.max()) / count,
            "starts": count,
        }
        values |= {"share": float(known.max()) / total, "unaccounted": unaccounted / count}
        values |= {"unaccounted_share": unaccounted / total, "total": total / count}
        values["setting"] = "eager" if group[EAGER] else "compiled"
        template = f"startup_longest_{'first' if group['boot'] == 'first' else 'restart'}"
        findings.append(Finding(template, values, MEASURED, name, (phases.id,), weight=20))
    return findings
