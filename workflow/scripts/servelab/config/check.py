"""What no type can say: ranges, impossible combinations, option names and values, requests that cannot fit."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import resources
from itertools import product
from typing import TYPE_CHECKING, Any

from servelab import redact
from servelab.canonical import canonical_json
from servelab.config.errors import ConfigError, Problem, nearest, unknown_key
from servelab.config.schema import Experiment, Study
from servelab.models import MARKER
from servelab.refused_options import OURS, SAFE_LOAD_FORMATS
from servelab.spec import ModelSpec, Workload
from servelab.texts import LANGUAGES

if TYPE_CHECKING:
    from servelab.config.load import LoadedStudy

MOST_POINTS_A_START = 500
_STARTS_ARE_MEASURED = ("kv_capacity", "startup")
LIMITS = ("flops", "bytes_per_s", "cache_bytes")
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_LENGTH_UNITS = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}


def study(config: Study) -> None:
    """Ranges of the study's own keys. Raises ConfigError."""
    problems = []
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,59}", config.study):
        problems.append(
            Problem("study", config.study, "a name of lower-case letters, digits and - (at most 60)")
        )
    if config.study == "store":
        problems.append(
            Problem("study", config.study, "another name: results/store/ holds the points of all studies")
        )
    if config.seed < 0:
        problems.append(Problem("seed", config.seed, "0 or more"))
    if config.report.language not in LANGUAGES:
        hint = nearest(config.report.language, LANGUAGES)
        problems.append(Problem("report.language", config.report.language, ", ".join(LANGUAGES), hint))
    if not 0 < config.tolerance < 1:
        problems.append(Problem("tolerance", config.tolerance, "a ratio between 0 and 1 (0.005 is 0.5 %)"))
    for key in ("point_timeout_s", "stall_s", "poll_s"):
        if getattr(config, key) <= 0:
            problems.append(Problem(key, getattr(config, key), "seconds above 0"))
    for key, least in (("max_points", 0), ("max_minutes", 0)):
        if getattr(config.refine, key) < least:
            problems.append(Problem(f"refine.{key}", getattr(config.refine, key), f"{least} or more"))
    for key in ("ttft_p95_ms", "itl_p99_ms"):
        if getattr(config.objective, key) < 0:
            problems.append(
                Problem(f"objective.{key}", getattr(config.objective, key), "milliseconds, 0 for no bound")
            )
    problems += limits("limits", config.limits)
    if not config.models:
        problems.append(Problem("models", config.models, "at least one model"))
    if not config.experiments:
        problems.append(Problem("experiments", config.experiments, "at least one experiment"))
    if problems:
        raise ConfigError(problems)


def limits(key: str, values: Mapping[str, float]) -> list[Problem]:
    """Names and values of what a machine can do at most."""
    problems = [unknown_key(key, name, LIMITS) for name in values if name not in LIMITS]
    below = [name for name, value in values.items() if value <= 0]
    return problems + [Problem(f"{key}.{name}", values[name], "a number above 0") for name in below]


def model_entries(value: Any) -> list[tuple[str, Any]]:
    """`models` as (name, mapping or None): a name, a list of names and {name: …} mappings, or one mapping."""
    if isinstance(value, str):
        return [(value, None)]
    if isinstance(value, Mapping):
        return [(str(name), keys) for name, keys in value.items()]
    if not isinstance(value, (list, tuple)):
        raise ConfigError([Problem("models", value, "a list of names, or a mapping of names to keys")])
    entries: list[tuple[str, Any]] = []
    for entry in value:
        if isinstance(entry, Mapping) and len(entry) == 1:
            entries += [(str(name), keys) for name, keys in entry.items()]
        elif isinstance(entry, str):
            entries.append((entry, None))
        else:
            raise ConfigError([Problem("models", entry, "a name, or {name: {source: …}}")])
    return entries


def unique(key: str, names: Iterable[str]) -> None:
    """Raise ConfigError for a name that stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError([Problem(key, name, "each name once")])
        seen.add(name)


def different(models: Mapping[str, ModelSpec]) -> None:
    """Raise ConfigError for two names of the same model with the same options: its points would be one's alone."""
    seen: dict[str, str] = {}
    for name, spec in models.items():
        other = seen.setdefault(canonical_json(spec.identity()), name)
        if other != name:
            raise ConfigError([Problem("models", name, f"each model once; it is the same as {other}")])


def sources(loaded: "LoadedStudy") -> None:
    """Raise ConfigError for a model that is not there and that nobody here can unpack.

    A package's GGUF is read by the server's own libraries.
    """
    allowed = (
        "folder, hub, dimensions or served: a package's GGUF is unpacked by the server's own interpreter, and this "
        "engine has none here (only engine.requirements and engine.python name one)"
    )
    problems = [
        Problem(f"models.{name}.source", config.source, allowed)
        for name, config in loaded.model_configs.items()
        if config.source == "pypi" and not loaded.engine.python
        if not (loaded.root / loaded.models[name].path / MARKER).is_file()
    ]
    if loaded.engine.kind != "attach":
        allowed = (
            "folder, hub, pypi or dimensions: `served` is a name on a server that runs already (engine.url)"
        )
        problems += [
            Problem(f"models.{name}.source", config.source, allowed)
            for name, config in loaded.model_configs.items()
            if config.source == "served"
        ]
    if problems:
        raise ConfigError(problems)


def experiment(key: str, config: Experiment, models: Mapping[str, ModelSpec | None]) -> None:
    """Ranges and names of the keys that every experiment has. Raises ConfigError."""
    problems = []
    for name in ("starts", "repeats"):
        if not 1 <= getattr(config, name) <= 1000:
            problems.append(Problem(f"{key}.{name}", getattr(config, name), "1 to 1000"))
    if config.kind in _STARTS_ARE_MEASURED and config.repeats != 1:
        allowed = "1: the starts are what is measured; starts and restarts say how many"
        problems.append(Problem(f"{key}.repeats", config.repeats, allowed))
    for name in config.models:
        if name not in models:
            problems.append(Problem(f"{key}.models", name, ", ".join(models), nearest(name, models)))
    for field in fields(config) if is_dataclass(config) else ():
        value = getattr(config, field.name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, (int, float)) and not isinstance(item, bool) and item < -1:
                least = "-1 (servelab chooses) or more" if field.default == -1 else "0 or more"
                problems.append(Problem(f"{key}.{field.name}", item, least))
            if isinstance(item, int) and item > 10**9:
                problems.append(Problem(f"{key}.{field.name}", item, "at most 1,000,000,000"))
    if problems:
        raise ConfigError(problems)


@cache
def known_options(version: str) -> Mapping[str, Any]:
    """Option name → type or {type, choices} of this vLLM release, or of all the releases known together."""
    text = resources.files("servelab.data").joinpath("vllm_options.json").read_text(encoding="utf-8")
    releases: dict[str, dict[str, Any]] = json.loads(text)
    if version in releases:
        return releases[version]
    merged: dict[str, Any] = {}
    for release in releases.values():
        merged |= dict.fromkeys(release, "any")
    return merged


def options(loaded: "LoadedStudy") -> None:
    """Check every server option that the study asks for. Raises ConfigError."""
    problems = limits("engine.limits", loaded.engine_config.limits)
    groups = [("server", loaded.study.server)]
    groups += [(f"models.{name}.options", dict(spec.options)) for name, spec in loaded.models.items()]
    groups += [(f"experiments.{name}.server", config.server) for name, config in loaded.experiments.items()]
    if loaded.engine.kind == "attach":
        allowed = "no server options: an attached server is as it is"
        problems += [
            Problem(f"{key}.{name}", redact.HIDDEN if _is_secret(name, value) else value, allowed)
            for key, values in groups
            for name, value in values.items()
            if not (key.startswith("models.") and name == "load_format")
        ]
    else:
        for key, values in groups:
            for name, value in values.items():
                problems += option_problems(loaded, key, name, value)
    if problems:
        raise ConfigError(problems)


def option_problems(loaded: "LoadedStudy", key: str, name: str, value: Any) -> list[Problem]:
    """What is wrong with one option, whose value may be a list (a grid). A secret is not shown."""
    path = f"{key}.{name}"
    values = value if isinstance(value, list) else [value]
    secret = any(_is_secret(name, item) for item in values)
    shown = redact.HIDDEN if secret else value
    if "-" in name or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return [
            Problem(
                path,
                name,
                "the option's name with underscores",
                nearest(name.replace("-", "_"), known_options(loaded.engine.version)),
            )
        ]
    if name in OURS:
        return [Problem(path, shown, f"nothing: {OURS[name]}")]
    if secret:
        allowed = (
            "nothing secret: options end up in results. A token of your shell (HF_TOKEN) reaches the server of a "
            "model that is no folder; `source: hub` fetches with it"
        )
        return [Problem(path, shown, allowed)]
    known = known_options(loaded.engine.version)
    if name not in known and not loaded.engine_config.allow_unknown_options:
        return [unknown_key(key, name, known)]
    if not values:
        return [Problem(path, value, "at least one value")]
    return [p for item in values for p in _value_problems(path, name, item, known.get(name, "any"))]


def _is_secret(name: str, value: Any) -> bool:
    """Whether an option holds a secret: by its name (a switch holds none) or by the form of its value."""
    if value is None or isinstance(value, bool):
        return False
    return redact.is_secret_name(name) or redact.text(str(value)) != str(value)


def _value_problems(path: str, name: str, value: Any, known: Any) -> list[Problem]:
    kind = known["type"] if isinstance(known, Mapping) else known
    choices = known.get("choices", []) if isinstance(known, Mapping) else []
    if value is None:
        return []
    if isinstance(value, (list, dict)):
        return [Problem(path, value, "a text, a number, true or false, or a list of those")]
    if name == "load_format" and value not in SAFE_LOAD_FORMATS:
        allowed = ", ".join(SAFE_LOAD_FORMATS) + "; others can run code when they are read"
        return [Problem(path, value, allowed, nearest(str(value), SAFE_LOAD_FORMATS))]
    if choices and str(value) not in choices:
        return [Problem(path, value, ", ".join(choices), nearest(str(value), choices))]
    if kind == "flag" and not isinstance(value, bool):
        return [Problem(path, value, "true or false")]
    if kind == "int" and (isinstance(value, bool) or not isinstance(value, int)):
        return [Problem(path, value, "a whole number")]
    if kind == "float" and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return [Problem(path, value, "a number")]
    at_least_1 = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "num_gpu_blocks_override",
        "block_size",
    )
    if name in at_least_1 and isinstance(value, (int, float)) and value < 1:
        return [Problem(path, value, "1 or more")]
    if name == "max_model_len" and length(value) < 1 and str(value).lower() != "auto":
        return [Problem(path, value, "auto, or tokens: 2048, 2k for 2,000, 2K for 2,048")]
    if name == "gpu_memory_utilization" and isinstance(value, (int, float)) and not 0 < value <= 1:
        return [Problem(path, value, "a share above 0, at most 1")]
    return []


def length(value: Any) -> int:
    """A max_model_len as vLLM reads it (2048, "4k" is 4,000, "4K" 4,096) in tokens; 0 if it is not known."""
    if isinstance(value, bool) or value is None:
        return 0
    found = _LENGTH.fullmatch(str(value))
    return int(float(found.group(1)) * _LENGTH_UNITS[found.group(2)]) if found else 0


def fits(key: str, workload: Workload, model: ModelSpec, server_options: Mapping[str, Any]) -> list[Problem]:
    """Whether each request of a workload fits the model's limit, where it is known."""
    limit = length(server_options.get("max_model_len")) or model.max_tokens
    if not limit:
        return []
    lengths = (
        ("input_tokens + output_tokens", workload.input_tokens + workload.output_tokens),
        (
            "victim_input_tokens + victim_output_tokens",
            workload.victim_input_tokens + workload.victim_output_tokens,
        ),
        ("segment_tokens", workload.segment_tokens + (1 if workload.segment_tokens else 0)),
    )
    allowed = f"at most {limit} tokens a request (max_model_len of this server)"
    return [Problem(f"{key}: {name}", total, allowed) for name, total in lengths if total > limit]


def grid(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Options with lists → every combination of scalars, in order."""
    names = list(values)
    lists = [values[name] if isinstance(values[name], list) else [values[name]] for name in names]
    return [dict(zip(names, combination, strict=True)) for combination in product(*lists)]
