"""What is measured, as plain values: engine, model, server start, workload, point. Everything here goes into a key.

`ServerStart` is what one job gets (as JSON): one life of one server process and the points to measure on it.
A point's key is the digest of everything that affects that measurement; it names the file in the store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from servelab.canonical import digest, plain

Option = str | int | float | bool | None


class ChangedInputError(Exception):
    """A file that a load is made from is not what it was when the config was read, so not what the key says.

    The message names the file; nothing may be kept under that key.
    """


@dataclass(frozen=True)
class EngineSpec:
    """How a server is had. `python` says where it is; the rest says what it is.

    kind: "vllm" (started by us) or "attach" (already running at `url`, never started, stopped or restarted).
    version: what is known when the config is read; the server's own word is recorded beside it.
    command: words that start it in place of `python`; they may pin it to cores, choose GPUs, name an image.
    requirements: digest of the pinned requirements of an environment that servelab makes.
    device: one of config.engines.DEVICES; decides which limits and telemetry are looked for.
    environment: variables set for the server, and so part of what is measured.
    """

    name: str
    kind: str = "vllm"
    version: str = "unknown"
    device: str = "cpu"
    python: str = ""
    command: tuple[str, ...] = ()
    url: str = ""
    requirements: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    startup_timeout_s: float = 600.0
    stop_timeout_s: float = 30.0
    max_concurrency: int = 0
    api_key_env: str = ""
    limits: dict[str, float] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """What the measurement depends on: not where the interpreter lies, nor how long we are ready to wait."""
        keep = ("kind", "version", "device", "command", "url", "requirements", "environment", "preload")
        return {name: plain(getattr(self, name)) for name in keep if getattr(self, name)}


@dataclass(frozen=True)
class ModelSpec:
    """A model as the server is given it.

    path: local folder or hub id passed to the server. fingerprint: digest of what it is (see config/models.py).
    vocab_size: token ids of prompts are drawn below it. max_tokens: the model's own limit, 0 if not known.
    """

    name: str
    path: str
    fingerprint: str
    vocab_size: int = 0
    max_tokens: int = 0
    options: dict[str, Option] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """Name in the report and place on the disk do not change what is measured."""
        return {"fingerprint": self.fingerprint, "options": plain(self.options)}


@dataclass(frozen=True)
class Workload:
    """One load, put on one server once. A field that holds its default is not part of the key.

    kind
      closed        `concurrency` slots, each sends its next request when its last one ended
      open          arrivals on a schedule (`arrival`, `rate_rps`), whatever the server does
      interference  one victim decodes while `inserted` long prompts arrive (E7)
      perplexity    prompt_logprobs of a fixed text (E5q)
      boot          nothing is sent: the server's start is the measurement (E2, E9)

    Stop: after `requests` requests, or after `duration_s` seconds of sending if that is above zero.
    shared_prefix_tokens: the first so many tokens are the same within a prefix group; `prefix_groups` groups,
      requests take turns. same_prompt: every request is the same prompt (the trap of E11).
    arrival: poisson, constant, gamma (`burstiness` = shape; 1 is poisson), ramp (`rate_rps` to `rate_end_rps`),
      trace (`trace`: file with one arrival time in seconds a line; `trace_digest` its content).
    interference: victim_input_tokens/victim_output_tokens, `inserted` prompts of `input_tokens`, the first after
      the victim's `insert_after_tokens`-th token, the next when the previous one has its first token.
    perplexity: `segments` segments of `segment_tokens` of `text` (a file, or `pydoc_data.topics`).
    warmup_requests: requests of the same shape, disjoint prompts, before the measured ones; -1 lets servelab
      choose (see loadgen.py).
    """

    kind: str = "closed"
    input_tokens: int = 0
    output_tokens: int = 0
    concurrency: int = 1
    requests: int = 0
    duration_s: float = 0.0
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1
    same_prompt: bool = False
    arrival: str = "poisson"
    rate_rps: float = 0.0
    rate_end_rps: float = 0.0
    burstiness: float = 1.0
    trace: str = ""
    trace_digest: str = ""
    victim_input_tokens: int = 0
    victim_output_tokens: int = 0
    inserted: int = 0
    insert_after_tokens: int = 0
    text: str = ""
    text_digest: str = ""
    segments: int = 0
    segment_tokens: int = 0
    warmup_requests: int = -1
    api: str = "completions"

    def to_json(self) -> dict[str, Any]:
        """Fields that differ from their default."""
        value = plain(self)
        assert isinstance(value, dict)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of to_json. Raises TypeError for an unknown field."""
        return cls(**{**value})


@dataclass(frozen=True)
class Point:
    """One workload on one server start: `name` is its file name without the ending; `repeat` counts from 1."""

    name: str
    workload: Workload
    repeat: int = 1
    experiment: str = ""


@dataclass(frozen=True)
class ServerStart:
    """One job: one server process and the points it is for.

    boot: "any" (compile cache as it is), "first" (empty compile cache), "restart" (cache left by an earlier start).
    start: counts the starts of one server configuration from 1. slug: the server's folder name.
    """

    study: str
    experiment: str
    slug: str
    engine: EngineSpec
    model: ModelSpec
    options: dict[str, Option]
    points: tuple[Point, ...]
    measurement_version: int
    seed: int = 1
    start: int = 1
    boot: str = "any"
    timeout_s: float = 900.0
    stall_s: float = 120.0
    poll_s: float = 1.0

    def directory(self, point: Point | None = None) -> str:
        """Folder of the points that a person sees, relative to the project."""
        experiment = point.experiment if point is not None and point.experiment else self.experiment
        return f"results/{self.study}/{experiment}/{self.slug}/start-{self.start}"

    def log_directory(self) -> str:
        """Folder of the logs of this start, relative to the project."""
        return f"results/{self.study}/{self.experiment or 'shared'}/{self.slug}/start-{self.start}"

    def path(self, point: Point) -> str:
        """A point's file as a person and the DAG know it."""
        return f"{self.directory(point)}/{point.name}.arrow"

    def server_identity(self) -> dict[str, Any]:
        """What makes two server configurations the same."""
        return {
            "engine": self.engine.identity(),
            "model": self.model.identity(),
            "options": plain(self.options),
        }

    def point_spec(self, point: Point) -> dict[str, Any]:
        """Everything that affects one measurement: the content that its key is made from."""
        spec: dict[str, Any] = {
            "measurement_version": self.measurement_version,
            "server": self.server_identity(),
            # On a shared server two experiments that ask for the same load measure it once each.
            "experiment": self.experiment or f"shared/{point.experiment}",
            "seed": self.seed,
            "start": self.start,
            "boot": self.boot,
            "repeat": point.repeat,
            "workload": point.workload.to_json(),
        }
        if self.engine.kind == "attach":
            # An address does not say what answers there: another study is about another server, or may be.
            spec["study"] = self.study
        if self.engine.max_concurrency and point.workload.kind == "open":
            spec["max_concurrency"] = self.engine.max_concurrency  # holds requests back
        return spec

    def key(self, point: Point) -> str:
        """32 hex digits that name the point in the store."""
        return digest(self.point_spec(point))

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which from_json makes the same start."""
        value = plain(self)
        assert isinstance(value, dict)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of to_json. Raises TypeError or KeyError for a value that is none."""
        points = tuple(
            Point(**{**point, "workload": Workload.from_json(point.get("workload", {}))})
            for point in value["points"]
        )
        engine = dict(value["engine"])
        for name in ("command", "preload"):
            engine[name] = tuple(engine.get(name, ()))
        known = {f.name for f in fields(cls)}
        rest = {k: v for k, v in value.items() if k in known and k not in ("engine", "model", "points")}
        return cls(engine=EngineSpec(**engine), model=ModelSpec(**value["model"]), points=points, **rest)
