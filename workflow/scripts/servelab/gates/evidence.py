"""What a gate sees of a point, and what it may answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from servelab.model_card import ModelCard
from servelab.option_names import underscored
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

    @cached_property
    def read_in(self) -> RequestTimes:
        """Successful requests whose prompts make the load: measured ones, of an interference the inserted ones."""
        return self._of_role("inserted")

    @cached_property
    def decoding(self) -> RequestTimes:
        """Successful requests whose output makes the load: measured ones, of an interference the victim."""
        return self._of_role("victim")

    def _of_role(self, role: str) -> RequestTimes:
        if self.workload.kind != "interference":
            return self.times
        return request_times(self.record.requests, (role,), open_loop=False)

    @cached_property
    def served(self) -> ModelCard | None:
        """The model's card in the dtype and quantisation that this server runs it in, None if it is unknown."""
        if self.card is None:
            return None
        options = self.record.meta.spec.get("server", {}).get("options", {})
        named = underscored(options)
        return self.card.as_served(named, (self.record.meta.session.get("log") or {}).get("dtype"))

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
