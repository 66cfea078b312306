"""Files that a load is made from: their content, not their name, is part of what is measured."""

import hashlib
from dataclasses import replace
from pathlib import Path

from servelab import schedule, texts_source
from servelab.config.errors import ConfigError, Problem, nearest
from servelab.spec import Workload

_NOT_FILES = (texts_source.PYDOC_TOPICS, texts_source.WIKITEXT)


def with_content(key: str, workload: Workload, root: Path) -> Workload:
    """The workload with the digest of its trace or text, where it has one (so that a changed file is a new point).

    root: the project's folder, from which relative paths are read. Raises ConfigError naming the experiment's key
    for a file that is missing or cannot be used, and for a text that is too short for its segments.
    """
    if workload.trace:
        try:
            schedule.read_trace(root / workload.trace)
            content = (root / workload.trace).read_bytes()
        except (OSError, ValueError) as error:
            allowed = f"a file with one rising arrival time in seconds a line ({error})"
            raise ConfigError([Problem(f"{key}.traces", workload.trace, allowed)]) from error
        workload = replace(workload, trace_digest=hashlib.sha256(content).hexdigest()[:32])
    if workload.text:
        workload = replace(workload, text_digest=_text_digest(key, workload, root))
    return workload


def _text_digest(key: str, workload: Workload, root: Path) -> str:
    name = workload.text if workload.text in _NOT_FILES else str(root / workload.text)
    try:
        if name == texts_source.WIKITEXT:  # not read here: it may still have to be fetched
            return texts_source.known_digest(name)
        text = texts_source.load(name)
    except texts_source.TextError as error:
        allowed = f"{', '.join(_NOT_FILES)} or a UTF-8 text file ({error})"
        hint = "" if (root / workload.text).exists() else nearest(workload.text, _NOT_FILES)
        raise ConfigError([Problem(f"{key}.text", workload.text, allowed, hint)]) from error
    try:
        texts_source.segments(text.content, workload.segments, workload.segment_tokens)
    except texts_source.TextError as error:
        raise ConfigError([Problem(f"{key}.text", workload.text, f"a longer text ({error})")]) from error
    return text.digest
