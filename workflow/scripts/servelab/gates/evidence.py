"""What a gate sees of a point, and what it may answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from servelab.model_card import ModelCard
from servelab.records import PointRecord
from servelab.request_times import RequestTimes, request_times
from servelab.spec import Workload

INVALID = "invalid"  # kept out of fits, comparisons and recommendations
SUSPECT = "suspect"  # used, and marked wherever it is used
NOTE = "note"  # a fact a reader should know; no fault
VALID = "valid"
SEVERITIES = (NOTE, SUSPECT, INVALID)


@dataclass(frozen=True)
class Reason:
    """Why a point is doubted. Texts: validity.<reason>.cause and .remedy, filled with values."""

    reason: str
    severity: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """A point as the gates see it.

    row: its row (summary.COLUMNS). card: of its model, None if unknown. limits: what the machine can do,
    {"flops": FLOP/s, "bytes_per_s": B/s, "cache_bytes": B}, {} if unknown. main_machine: id of the machine
    that most points of the study were measured on.
    """

    row: Mapping[str, Any]
    record: PointRecord
    card: ModelCard | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    main_machine: str | None = None

    @cached_property
    def workload(self) -> Workload:
        """The load that was asked for."""
        return Workload.from_json(self.record.meta.spec.get("workload", {}))

    @cached_property
    def times(self) -> RequestTimes:
        """Successful measured requests."""
        return request_times(self.record.requests, ("measured",), self.workload.kind == "open")

    @property
    def during(self) -> Mapping[str, Any]:
        """What else the machine did during the point (machine.Watch), {} if not watched."""
        found = self.record.meta.machine.get("during")
        return found if isinstance(found, Mapping) else {}

    def number(self, column: str) -> float | None:
        """A figure of the row; None where it was not measured (None, NaN or pandas' NA)."""
        value = self.row.get(column)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None
        return number if number == number else None
