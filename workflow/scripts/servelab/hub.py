"""Models and texts from the hub, or from what the hub's own cache has of them.

Token, endpoint and place of the cache are as the hub's own variables say (HF_TOKEN, HF_ENDPOINT, HF_HOME).
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from servelab import redact

# Weights that cannot run code, and what a tokenizer and a chat template are made of.
PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


class HubError(Exception):
    """It is not to be had; the message says why and what helps, in one line."""


def fetch(repository: str, revision: str, output: Path) -> str:
    """Put a model's files (PATTERNS) into the new folder `output`; the commit they are of, 40 hex digits.

    revision: branch, tag or commit; "" for the main branch. They come through the hub's own cache, so that what
    vLLM or an earlier try has there is not fetched again, and without a network what is whole there will do.
    Raises HubError, OSError if `output` cannot be written.
    """
    from huggingface_hub import snapshot_download

    with _told_in_one_line(repository, revision):
        wanted = list(PATTERNS)
        kept = Path(snapshot_download(repository, revision=revision or None, allow_patterns=wanted))
    output.mkdir(parents=True)
    for file in sorted(kept.rglob("*")):
        place = file.relative_to(kept)
        if file.is_file() and any(fnmatch(place.as_posix(), pattern) for pattern in PATTERNS):
            (output / place).parent.mkdir(parents=True, exist_ok=True)
            _share(file.resolve(), output / place)
    return kept.name


def dataset_file(repository: str, name: str, revision: str) -> Path:
    """One file of a data set, in the hub's cache. Raises HubError."""
    from huggingface_hub import hf_hub_download

    with _told_in_one_line(repository, revision):
        return Path(hf_hub_download(repository, name, repo_type="dataset", revision=revision))


@contextmanager
def _told_in_one_line(repository: str, revision: str) -> Iterator[None]:
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of the library that it uses

    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        raise HubError(f"{repository}: {_why(error, revision)}") from error


def _share(file: Path, place: Path) -> None:
    """The same file at a second place, which stays when the first is deleted; a copy on another file system."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


def _why(error: Exception, revision: str) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "its owner asks for an agreement: accept it on its page and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the hub has nothing of that name, or shows it to its owners only: look at the id, or set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the hub has no revision «{revision or 'main'}» of it"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            "the hub cannot be reached and its cache has no whole copy: look at HF_ENDPOINT, HF_HUB_OFFLINE and "
            "HF_HOME, or use what is on this machine (a model's `source: folder`, a text file)"
        )
    return redact.line(f"{type(error).__name__}: {error}")
