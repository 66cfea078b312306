"""A model's own words, read when it is there: vocabulary and length from its config.json, and what was fetched."""

import json
from dataclasses import replace
from pathlib import Path

from servelab.records import write_atomically
from servelab.spec import ModelSpec

CONFIG = "config.json"
MARKER = "ready.json"  # written last by make_environment.py and make_model.py


def with_dimensions(model: ModelSpec, root: Path) -> ModelSpec:
    """The model with vocab_size and max_tokens filled from its folder, where they were not known before.

    Raises ValueError if the vocabulary is known neither from the config nor from the folder: without it no
    prompt can be drawn.
    """
    path = root / model.path / CONFIG
    vocab_size, max_tokens = model.vocab_size, model.max_tokens
    if path.is_file() and not (vocab_size and max_tokens):
        values = json.loads(path.read_text(encoding="utf-8"))
        values = values.get("text_config", values)
        vocab_size = vocab_size or int(values.get("vocab_size", 0))
        max_tokens = max_tokens or int(values.get("max_position_embeddings", 0) or 0)
    if not vocab_size:
        raise ValueError(f"models.{model.name}.vocab_size: not in the config and no {path} to read it from")
    return replace(model, vocab_size=vocab_size, max_tokens=max_tokens)


def config_folder(model: ModelSpec, root: Path) -> Path:
    """The folder whose config.json tells of a model: its own, or where that was kept if its own has gone."""
    own = root / model.path
    return own if (own / CONFIG).is_file() else _kept_folder(model, root)


def _kept_folder(model: ModelSpec, root: Path) -> Path:
    return root / "results/store/models" / model.fingerprint


def keep_config(model: ModelSpec, root: Path) -> None:
    """Keep what the analysis reads of a model: what was measured can be judged without its weights."""
    config, kept = root / model.path / CONFIG, _kept_folder(model, root) / CONFIG
    if config.is_file() and not kept.exists():
        write_atomically(kept, config.read_bytes())


def origin(model: ModelSpec, root: Path) -> dict[str, str]:
    """What was fetched when servelab made the model's folder: {revision: the hub's commit} or {sha256: of the package}.

    Empty for a folder that servelab did not make. A hub's branch moves, and no key of the config says to where.
    """
    marker = root / model.path / MARKER
    if not marker.is_file():
        return {}
    try:
        said = json.loads(marker.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return {key: str(said[key]) for key in ("revision", "sha256") if isinstance(said, dict) and said.get(key)}
