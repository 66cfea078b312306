"""A model from the hub, or from what the hub's own cache has of it: whole files in a folder, and their commit."""

import os
import shutil
from fnmatch import fnmatch
from pathlib import Path

from servelab import redact

# Weights that cannot run code, and what a tokenizer and a chat template are made of.
PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


class HubError(Exception):
    """The model is not to be had; the message says why and what helps, in one line."""


def fetch(repository: str, revision: str, output: Path) -> str:
    """Put a model's files (PATTERNS) into the new folder `output`; the commit they are of, 40 hex digits.

    revision: branch, tag or commit; "" for the main branch. They come through the hub's own cache, so that what
    vLLM or an earlier try has there is not fetched again, and without a network what is whole there will do. Token,
    endpoint and place of the cache are as the hub's own variables say (HF_TOKEN, HF_ENDPOINT, HF_HOME). Raises
    HubError, OSError if `output` cannot be written.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of the library that it uses

    wanted = list(PATTERNS)
    try:
        kept = Path(snapshot_download(repository, revision=revision or None, allow_patterns=wanted))
    except (HTTPError, OSError, ValueError) as error:
        raise HubError(f"{repository}: {_why(error, revision)}") from error
    output.mkdir(parents=True)
    for file in sorted(kept.rglob("*")):
        place = file.relative_to(kept)
        if file.is_file() and any(fnmatch(place.as_posix(), pattern) for pattern in PATTERNS):
            (output / place).parent.mkdir(parents=True, exist_ok=True)
            _share(file.resolve(), output / place)
    return kept.name


def _share(file: Path, place: Path) -> None:
    """The same file at a second place, which stays when the first is deleted; a copy on another file system."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


def _why(error: Exception, revision: str) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "its owner asks for an agreement: accept it on the model's page and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the hub has no such model, or shows it to its owners only: look at the id, or set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the hub has no revision «{revision or 'main'}» of it"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            "the hub cannot be reached and its cache has no whole copy: look at HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME, "
            "or give a folder that has the model (source: folder)"
        )
    return redact.line(f"{type(error).__name__}: {error}")
