"""Verdicts: every point is valid, suspect or invalid, with named reasons. A note does not change the verdict.

    verdict = invalid if any reason is, else suspect if any is, else valid

Invalid points are shown and kept out of fits, comparisons and recommendations. Texts of a reason:
`validity.<reason>.cause` and `.remedy`. The gates themselves: gates/.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from servelab.config.schema import Study
from servelab.gates import client, machine, prefix, requests, server, stability
from servelab.gates.evidence import INVALID, NOTE, SUSPECT, VALID, Evidence, Reason
from servelab.model_card import ModelCard
from servelab.records import PointRecord

Gate = Callable[[Evidence], Reason | None]

GATES: tuple[Gate, ...] = (
    requests.tokens_not_as_asked,
    requests.requests_failed,
    requests.fewer_requests_than_asked,
    prefix.same_prompt,
    prefix.prefix_hits,
    machine.prefill_rate,
    machine.decode_rate,
    client.client_busy,
    client.client_late,
    client.sent_late,
    server.compiled,
    server.other_version,
    server.errors_logged,
    stability.drifting,
    stability.bimodal,
    machine.slowed_down,
    machine.shared_machine,
    machine.other_machine,
    server.preempted,
    requests.too_few_requests,
    requests.too_few_gaps,
    machine.limits_unknown,
)

# Every reason that a gate can give; each has its two texts in every language.
REASONS = (
    "point_failed", "tokens_not_as_asked", "requests_failed", "fewer_requests_than_asked",
    "same_prompt", "prefix_hits", "prefix_hits_resumed", "prefill_rate", "decode_rate", "client_busy",
    "client_late", "sent_late", "compiled_measured", "compiled_within", "compiled_at_begin",
    "compiled_logged", "slow_first_wave", "other_version", "errors_logged", "drifting", "unsettled",
    "bimodal", "slowed_down", "shared_machine", "other_machine", "preempted",
    "too_few_requests", "too_few_gaps", "limits_unknown",
)  # fmt: skip


def judge(
    rows: pd.DataFrame,
    load: Callable[[Mapping[str, Any]], PointRecord],
    model_cards: Mapping[str, ModelCard | None],
    study: Study,
    engine_limits: Mapping[str, float],
) -> pd.DataFrame:
    """The same rows with `verdict` and `reasons` filled.

    rows: summary.frame. load: from a row to its record. Machine limits are the study's own where the config
    gives them, else its engine's (`engine_limits`: as the config gives them now), else those recorded with the
    point, times the number of devices that the options spread a server over.
    """
    configured = {**engine_limits, **study.limits}
    main = main_machine(rows)
    verdicts, reasons = [], []
    for row in rows.to_dict("records"):
        named: dict[str, Any] = {str(name): value for name, value in row.items()}
        record = load(named)
        known = limits_of(named, record.meta.limits, configured)
        found = judge_point(Evidence(named, record, model_cards.get(str(named["model"])), known, main))
        verdicts.append(verdict(found))
        reasons.append(to_json(found))
    judged = rows.copy()
    judged["verdict"] = pd.Series(verdicts, index=rows.index, dtype=object)
    judged["reasons"] = pd.Series(reasons, index=rows.index, dtype=object)
    return judged


def judge_point(evidence: Evidence) -> list[Reason]:
    """All reasons to doubt a point, the gravest first. A failed point has that one reason: nothing else is asked."""
    failed = requests.point_failed(evidence)
    if failed is not None:
        return [failed]
    found = [reason for gate in GATES if (reason := gate(evidence)) is not None]
    return sorted(found, key=lambda reason: (INVALID, SUSPECT, NOTE).index(reason.severity))


def verdict(reasons: list[Reason]) -> str:
    """invalid, suspect or valid: the gravest reason's severity; notes do not count."""
    for severity in (INVALID, SUSPECT):
        if any(reason.severity == severity for reason in reasons):
            return severity
    return VALID


def main_machine(rows: pd.DataFrame) -> str | None:
    """The machine that most points were measured on (the first of those with equally many); None if unknown."""
    counts = Counter(str(value) for value in rows["machine_id"].dropna())
    return counts.most_common(1)[0][0] if counts else None


def limits_of(
    row: Mapping[str, Any], recorded: Mapping[str, Any], configured: Mapping[str, float]
) -> dict[str, float]:
    """Numbers of the machine's limits for one server: config before record, rates times its devices."""
    known = {**recorded, **configured}
    limits = {
        name: float(value)
        for name, value in known.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    }
    devices = 1
    options = json.loads(row["options"]) if isinstance(row.get("options"), str) else {}
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        value = options.get(name, options.get(name.replace("_", "-"), 1))
        devices *= value if isinstance(value, int) and value > 0 else 1
    for name in ("flops", "bytes_per_s", "cache_bytes"):
        if name in limits:
            limits[name] *= devices
    return limits


def to_json(reasons: list[Reason]) -> str:
    """Reasons as the column `reasons` holds them."""
    plain = [{"reason": r.reason, "severity": r.severity, "values": dict(r.values)} for r in reasons]
    return json.dumps(plain, ensure_ascii=False)


def from_json(text: object) -> list[Reason]:
    """Inverse of to_json; [] for a point that was not judged."""
    if not isinstance(text, str):
        return []
    return [Reason(item["reason"], item["severity"], item["values"]) for item in json.loads(text)]
