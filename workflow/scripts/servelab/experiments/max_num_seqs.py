"""E4: what does the cap on concurrently running sequences do under a fixed load?"""

from dataclasses import dataclass, field

import pandas as pd

from servelab.claims import Analysis, Finding
from servelab.config.schema import Experiment
from servelab.experiments import comparison, load_table, workloads
from servelab.experiments.base import ServerPlan, StudyData

KIND = "max_num_seqs"


@dataclass
class Config(Experiment):
    """max_num_seqs: the caps, a server each. The load is the same for all: closed loop at `concurrency`."""

    max_num_seqs: list[int] = field(default_factory=lambda: [16, 32, 64])
    concurrency: int = 64
    input_tokens: int = 512
    output_tokens: int = 128
    requests_per_slot: int = 2


def expand(config: Config) -> list[ServerPlan]:
    """One server for each cap, the same load on each. Raises BadValueError."""
    workloads.numbers(1, max_num_seqs=config.max_num_seqs, requests_per_slot=config.requests_per_slot)
    workloads.numbers(1, concurrency=config.concurrency, input_tokens=config.input_tokens)
    workloads.numbers(1, output_tokens=config.output_tokens)
    requests = config.concurrency * config.requests_per_slot
    load = workloads.closed(config.concurrency, config.input_tokens, config.output_tokens, requests)
    caps = workloads.settings("max_num_seqs", config.max_num_seqs)
    return [ServerPlan((load,), {"max_num_seqs": cap}) for cap in caps]


def analyse(data: StudyData, name: str, config: Config) -> Analysis:
    """Throughput, TTFT and where requests stand (running, waiting) for each cap; the smallest against the largest.

    Each cap is compared with the largest one. Nothing is concluded about a cap that was not measured.
    """
    missing = comparison.nothing(data, KIND, name)
    if missing is not None:
        return missing
    rows = comparison.experiment_rows(data, name, (KIND,)).sort_values(KIND, ascending=False, kind="stable")
    table = load_table.load_table(data, rows, (KIND,), name, drop=("ready_s", "itl_p50_ms"))
    findings = comparison.failed_settings(rows, name, lambda row: f"max_num_seqs={row[KIND]}")
    usable = data.usable(rows)
    within = (comparison.MODEL, comparison.SERVER, *load_table.LOAD)
    for group, most, base, cap, other in comparison.against_first(usable, within, KIND):
        findings += _compared(data, group, (most, base), (cap, other), name, table.id)
    for group, same in comparison.groups(usable, (*within, KIND)):
        findings += _queue(group, same, name, table.id)
    return Analysis(KIND, name, tables=[table], findings=comparison.labelled(findings))


def _compared(
    data: StudyData,
    group: comparison.Settings,
    most: tuple[int, pd.DataFrame],
    cap: tuple[int, pd.DataFrame],
    name: str,
    table: str,
) -> list[Finding]:
    findings = []
    for column, template, weight in (
        ("output_throughput_tok_s", "max_num_seqs_throughput", 45),
        ("ttft_p50_ms", "max_num_seqs_ttft", 40),
    ):
        found = comparison.compare(data, most[1], cap[1], column)
        if found is not None:
            values = {**group, "cap": cap[0], "most": most[0]}
            findings.append(comparison.compared(template, found, values, name, (table,), weight))
    return findings


def _queue(group: comparison.Settings, rows: pd.DataFrame, name: str, table: str) -> list[Finding]:
    """Where the requests stand: at a cap below the concurrency the rest waits in the server's queue."""
    running, waiting = (comparison.level(rows, column).value for column in ("running_mean", "waiting_mean"))
    if running is None or waiting is None or group[KIND] is None:
        return []
    values = {**group, "cap": group[KIND], "running": running, "waiting": waiting}
    return [Finding("max_num_seqs_queue", values, experiment=name, tables=(table,), weight=20, group="queue")]
