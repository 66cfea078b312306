"""Files that a load is made from: their content, not their name, is part of what is measured."""

import hashlib
from dataclasses import replace
from pathlib import Path

from servelab import schedule, texts_source
from servelab.config.errors import ConfigError, Problem
from servelab.spec import Workload

_NOT_FILES = (texts_source.PYDOC_TOPICS, texts_source.WIKITEXT)


def with_content(key: str, workload: Workload, root: Path) -> Workload:
    """The workload with the digest of its trace or text, where it has one (so that a changed file is a new point).

    root: the project's folder, from which relative paths are read. Raises ConfigError naming the experiment's key
    for a file that is missing or cannot be used.
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
        name = workload.text if workload.text in _NOT_FILES else str(root / workload.text)
        try:
            workload = replace(workload, text_digest=texts_source.known_digest(name))
        except texts_source.TextError as error:
            allowed = f"{', '.join(_NOT_FILES)} or a UTF-8 text file ({error})"
            raise ConfigError([Problem(f"{key}.text", workload.text, allowed)]) from error
    return workload
