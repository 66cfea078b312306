"""Whole experiments made by hand for tests: points of several settings and servers as a study's data."""

from collections.abc import Mapping, Sequence
from typing import Any

from made_points import point
from servelab import summary
from servelab.config.schema import Study
from servelab.experiments.base import StudyData
from servelab.model_card import ModelCard
from servelab.records import PointRecord
from servelab.spec import Workload
from servelab.texts import LANGUAGES, catalogue

SESSION = {"boot": "restart", "ready_s": 5.0, "version": "0.31.0"}


def placed(
    rows: Sequence[Mapping[str, Any]],
    workload: Workload,
    options: Mapping[str, Any],
    at: str = "s1",
    name: str = "p-r1",
    repeat: int = 1,
    start: int = 1,
    experiment: str = "e",
    **meta: Any,
) -> PointRecord:
    """A point of an experiment: rows by records.REQUESTS, on a server with these options in this session."""
    spec = {
        "measurement_version": 1,
        "server": {"engine": {"version": "0.31.0"}, "model": {}, "options": dict(options)},
        "experiment": experiment,
        "seed": 1,
        "start": start,
        "repeat": repeat,
        "workload": workload.to_json(),
    }
    said = {**SESSION, "id": at, "order": 0, **meta.pop("session", {})}
    return point(
        [dict(row) for row in rows],
        workload,
        name=name,
        experiment=experiment,
        spec=spec,
        session=said,
        **meta,
    )


def study(
    kind: str, records: Sequence[PointRecord], cards: Mapping[str, ModelCard] | None = None, **verdicts: str
) -> StudyData:
    """The records as a study of one experiment `e` of this kind; all points valid unless a verdict is given
    by name."""
    paths = {f"points/{i}.arrow": record for i, record in enumerate(records)}
    frame = summary.frame([summary.row(record, kind, path, None) for path, record in paths.items()])
    frame["verdict"] = [verdicts.get(str(name).replace("-", "_"), "valid") for name in frame["point"]]
    return StudyData(Study(study="test"), frame, lambda row: paths[row["path"]], dict(cards or {}))


def said(analysis: Any) -> dict[str, Any]:
    """Template → values of each finding (the last one of a template); every text of it exists in every
    language."""
    for finding in analysis.findings:
        for language in LANGUAGES:
            words = catalogue(language).text(f"findings.{finding.template}", finding.values)
            assert "{" not in words
    for language in LANGUAGES:
        known = catalogue(language)
        for table in analysis.tables:
            assert known.text(f"tables.{table.template}.title")
            for column in table.frame.columns:
                plain = str(column).removesuffix("_low").removesuffix("_high")
                key = f"tables.{table.template}.columns.{plain}"
                assert key in known.texts or f"columns.{plain}" in known.texts, key
        for part in ("title", "question", "method", "says_not"):
            assert known.text(f"experiments.{analysis.kind}.{part}")
    return {finding.template: finding.values for finding in analysis.findings}
