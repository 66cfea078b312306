"""A model's own words, read when it is there: vocabulary and length from its config.json."""

import json
from dataclasses import replace
from pathlib import Path

from servelab.spec import ModelSpec


def with_dimensions(model: ModelSpec, root: Path) -> ModelSpec:
    """The model with vocab_size and max_tokens filled from its folder, where they were not known before.

    Raises ValueError if the vocabulary is known neither from the config nor from the folder: without it no
    prompt can be drawn.
    """
    path = root / model.path / "config.json"
    vocab_size, max_tokens = model.vocab_size, model.max_tokens
    if path.is_file() and not (vocab_size and max_tokens):
        values = json.loads(path.read_text(encoding="utf-8"))
        values = values.get("text_config", values)
        vocab_size = vocab_size or int(values.get("vocab_size", 0))
        max_tokens = max_tokens or int(values.get("max_position_embeddings", 0) or 0)
    if not vocab_size:
        raise ValueError(f"models.{model.name}.vocab_size: not in the config and no {path} to read it from")
    return replace(model, vocab_size=vocab_size, max_tokens=max_tokens)
