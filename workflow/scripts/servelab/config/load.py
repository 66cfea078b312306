"""YAML values → a checked study: `load(raw, root)`. Reads config files; starts nothing and writes nothing."""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from servelab import experiments
from servelab.canonical import canonical_json, plain
from servelab.config import check
from servelab.config.engines import load_engine
from servelab.config.errors import ConfigError, Problem, nearest, unknown_key
from servelab.config.models import load_model
from servelab.config.schema import EngineConfig, Experiment, ModelConfig, Study
from servelab.config.shape import shape
from servelab.config.yaml_file import wrong
from servelab.spec import EngineSpec, ModelSpec

# Keys that people give on the command line and that are no part of a study.
COMMAND_KEYS = ("set", "retry_failed", "studies", "archive", "as_root")


@dataclass(frozen=True)
class LoadedStudy:
    """A study that can be measured: the checked config and what its names stand for.

    experiments: name → its kind's Config, enabled ones only, in the order of the config. raw: the config as JSON
    values, without command keys, from which `load` makes the same study again. root: the project's folder.
    """

    study: Study
    engine: EngineSpec
    engine_config: EngineConfig
    models: Mapping[str, ModelSpec]
    model_configs: Mapping[str, ModelConfig]
    experiments: Mapping[str, Experiment]
    raw: Mapping[str, Any] = field(default_factory=dict)
    root: Path = Path()

    def canonical(self) -> str:
        """The raw config as canonical JSON: what travels to the scripts."""
        return canonical_json(self.raw)


def load(raw: Mapping[str, Any], root: Path) -> LoadedStudy:
    """Check a config and resolve its engine and models. `root`: the project's folder.

    Raises ConfigError with every problem that can be seen before a server is started.
    """
    values = _overridden(raw)
    study = shape(Study, values)
    check.study(study)
    engine_config, engine = load_engine(study.engine, root)
    models = [load_model(entry, root) for entry in check.model_entries(study.models)]
    check.unique("models", [name for name, _, _ in models])
    configs = {name: config for name, config, _ in models}
    specs = {name: spec for name, _, spec in models}
    check.different(specs)
    kinds = _experiments(study, specs)
    if not kinds:
        raise ConfigError([Problem("experiments", list(study.experiments), "at least one that is enabled")])
    loaded = LoadedStudy(study, engine, engine_config, specs, configs, kinds, _jsonable(values), root)
    check.sources(loaded)
    check.options(loaded)
    return loaded


def for_analysis(raw: Mapping[str, Any]) -> tuple[Study, dict[str, Experiment]]:
    """The study and its experiments, without engine and models: all that tables and report need.

    So an archived study is read where its engine and models are not, and by a servelab that knows other ones.
    Raises ConfigError.
    """
    study = shape(Study, {key: value for key, value in raw.items() if key not in COMMAND_KEYS})
    names = [name for name, _ in check.model_entries(study.models)]
    return study, _experiments(study, dict.fromkeys(names))


def _overridden(raw: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in raw.items() if key not in COMMAND_KEYS}
    overrides = raw.get("set") or []
    if not overrides:
        return _jsonable(values)
    form = "key.path=value, as in set=[experiments.load_sweep.starts=2]"
    if not isinstance(overrides, (str, list, tuple)):
        raise ConfigError([Problem("set", overrides, form)])
    words = _override_words(overrides) if isinstance(overrides, str) else [str(word) for word in overrides]
    for word in words:
        if "=" not in word:
            raise ConfigError([Problem("set", word, form)])
    plain_values = _jsonable(values)
    try:
        # Values are read as YAML, so that 2 is a number and [1,2] a list.
        changes = OmegaConf.from_dotlist(words)
        merged = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(plain_values), changes))
    except yaml.YAMLError as error:
        allowed = f"{form}, the value in valid YAML ({wrong(error)})"
        raise ConfigError([Problem("set", overrides, allowed)]) from error
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        words_of_it = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError([Problem("set", overrides, f"{form} ({words_of_it})")]) from error
    assert isinstance(merged, dict)
    return {str(key): value for key, value in merged.items()}


def _override_words(text: str) -> list[str]:
    """[a.b=1,c.d=[1,2]] as its words: no YAML for a list within a text, so Snakemake hands it over as it is."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    words, depth = [""], 0
    for letter in inner:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words]


def _jsonable(values: Mapping[str, Any]) -> dict[str, Any]:
    endless = [Problem(key, value, "a number that is finite") for key, value in _not_finite("", values)]
    if endless:
        raise ConfigError(endless)
    try:
        made = json.loads(json.dumps(plain(values), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            [Problem("config", str(error), "texts, numbers, true/false, lists and mappings")]
        ) from error
    assert isinstance(made, dict)
    return made


def _not_finite(key: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _not_finite(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _not_finite(f"{key}[{place}]", item)


def _experiments(study: Study, models: Mapping[str, ModelSpec | None]) -> dict[str, Experiment]:
    configs: dict[str, Experiment] = {}
    for name, value in study.experiments.items():
        key = f"experiments.{name}"
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}", str(name)):
            raise ConfigError([Problem(key, name, "letters, digits, - and _ (at most 60)")])
        if not isinstance(value, Mapping) and value is not None:
            raise ConfigError([Problem(key, value, "a mapping of the experiment's keys")])
        kind = str((value or {}).get("kind") or name)
        if kind not in experiments.KINDS:
            if (value or {}).get("kind"):
                known = ", ".join(experiments.KINDS)
                raise ConfigError([Problem(f"{key}.kind", kind, known, nearest(kind, experiments.KINDS))])
            raise ConfigError([unknown_key("experiments", str(name), experiments.KINDS)])
        config = shape(experiments.KINDS[kind].Config, {**(value or {}), "kind": kind}, key)
        if config.enabled:
            check.experiment(key, config, models)
            configs[str(name)] = config
    return configs


def study_defaults() -> dict[str, Any]:
    """Every key of a study with its default, for the documentation's test."""
    return dataclasses.asdict(Study())
