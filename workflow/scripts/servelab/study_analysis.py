"""Every analysis of a study in the order of the report: each experiment, then what concerns the study as a whole."""

from collections.abc import Mapping

from servelab import experiments, recommend
from servelab.claims import NOT_MEASURED, Analysis
from servelab.config.schema import Experiment
from servelab.experiments.base import StudyData


def analyse(data: StudyData, configs: Mapping[str, Experiment]) -> list[Analysis]:
    """One Analysis per experiment of the config, «not measured» where no point succeeded; then recommendations."""
    found = [_one(data, name, configs[name]) for name in _in_order(configs)]
    return [*found, recommend.analyse(data, found)]


def _one(data: StudyData, name: str, config: Experiment) -> Analysis:
    rows = data.rows_of(name)
    if rows.empty or not (rows["status"] == "ok").any():
        detail = "; ".join(str(value) for value in rows["detail"].dropna().unique()[:1])
        values = {"points": len(rows), "detail": detail}
        return Analysis(config.kind, name, NOT_MEASURED, "experiment_all_failed", values)
    analysis: Analysis = experiments.KINDS[config.kind].analyse(data, name, config)
    return analysis


def _in_order(configs: Mapping[str, Experiment]) -> list[str]:
    kinds = list(experiments.KINDS)
    return sorted(configs, key=lambda name: kinds.index(configs[name].kind))
