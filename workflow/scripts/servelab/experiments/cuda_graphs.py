"""E8: what do CUDA graphs (on a CPU: compilation) bring in speed, and what do they cost in time to ready?"""

from dataclasses import dataclass, field

import pandas as pd

from servelab.claims import MEASURED, Analysis, Finding, Table
from servelab.config.schema import Experiment
from servelab.experiments import comparison, load_table, workloads
from servelab.experiments.base import ServerPlan, StudyData

KIND = "cuda_graphs"


@dataclass
class Config(Experiment):
    """enforce_eager: false is the server's default (graphs, compilation), true is without; a server each."""

    repeats: int = 3
    enforce_eager: list[bool] = field(default_factory=lambda: [False, True])
    concurrency: list[int] = field(default_factory=lambda: [1, 32])
    input_tokens: int = 512
    output_tokens: int = 128
    requests_per_slot: int = 4


def expand(config: Config) -> list[ServerPlan]:
    """One server with and one without graphs, each concurrency on each. Raises BadValueError."""
    workloads.numbers(1, concurrency=config.concurrency, requests_per_slot=config.requests_per_slot)
    workloads.numbers(1, input_tokens=config.input_tokens, output_tokens=config.output_tokens)
    loads = tuple(
        workloads.closed(c, config.input_tokens, config.output_tokens, c * config.requests_per_slot)
        for c in sorted(set(config.concurrency))
    )
    settings = workloads.settings("enforce_eager", config.enforce_eager)
    return [ServerPlan(loads, {"enforce_eager": eager}) for eager in settings]


EAGER = "enforce_eager"


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Throughput with graphs over eager for each model and concurrency, and what the graphs cost in time to ready.

    Whether graphs were captured is read from each server's log; where none were (on a CPU), the same
    comparison is of compilation alone and is called so.
    """
    missing = comparison.nothing(data, KIND, name)
    if missing is not None:
        return missing
    rows = comparison.experiment_rows(data, name, (EAGER,))
    usable = data.usable(rows)
    graphs = {group[EAGER]: _captured(data, same) for group, same in comparison.groups(usable, (EAGER,))}
    table = load_table.load_table(data, rows, (EAGER,), name, drop=(*load_table.CAPACITY, "kv_cache_tokens"))
    table = _with_graphs(table, graphs)
    findings = comparison.failed_settings(rows, name, lambda row: f"enforce_eager={row[EAGER]}")
    what = "graphs" if graphs.get(False) else "compiled"
    within = (comparison.MODEL, comparison.SERVER, *load_table.LOAD)
    usable = usable.sort_values(EAGER, ascending=False, kind="stable")  # eager first: the base of the ratio
    for group, _, base, _, other in comparison.against_first(usable, within, EAGER):
        found = comparison.compare(data, base, other, "output_throughput_tok_s")
        if found is not None:
            findings.append(comparison.compared(f"{what}_throughput", found, group, name, (table.id,), 45))
    findings += _ready(usable, what, name, table.id)
    return Analysis(KIND, name, tables=[table], findings=comparison.labelled(findings))


def _captured(data: StudyData, rows: pd.DataFrame) -> bool | None:
    """Whether the servers captured CUDA graphs, as their logs say; None where none says."""
    for row in comparison.each_row(rows.drop_duplicates("session_id")):
        graphs = comparison.session_fact(data.load(row), "graphs")
        if graphs is not None:
            return bool(graphs)
    return None


def _with_graphs(table: Table, graphs: dict[object, bool | None]) -> Table:
    captured: list[object] = [graphs.get(eager) for eager in table.frame[EAGER]]
    frame = table.frame.assign(graphs=pd.Series(captured, index=table.frame.index, dtype=object))
    return Table(
        table.id, frame, {**table.columns, "graphs": ("", MEASURED)}, table.experiment, table.template
    )


def _ready(usable: pd.DataFrame, what: str, name: str, table: str) -> list[Finding]:
    """Seconds until ready, eager and not, with the boots they were (a first start compiles more)."""
    findings = []
    for group, same in comparison.groups(usable, (comparison.MODEL, comparison.SERVER)):
        sessions = {
            settings[EAGER]: rows.drop_duplicates("session_id")
            for settings, rows in comparison.groups(same, (EAGER,))
        }
        if not {True, False} <= set(sessions):
            continue
        eager, default = (comparison.level(sessions[setting], "ready_s").value for setting in (True, False))
        if eager is None or default is None:
            continue
        boots = {key: ", ".join(sorted(set(sessions[key]["boot"]))) for key in (True, False)}
        values = {**group, "eager": eager, "default": default, "difference": default - eager}
        values |= {"eager_boot": boots[True], "default_boot": boots[False]}
        findings.append(Finding(f"{what}_ready", values, experiment=name, tables=(table,), weight=25))
    return findings
