"""Keeps secrets out of results, logs and reports: one place that knows what a secret looks like."""

import re
from collections.abc import Iterable, Mapping

HIDDEN = "«hidden»"
SHORTEST_SECRET = 6  # a shorter key is none, and to hide it everywhere would make words unreadable
LINE_CHARS = 500
_SECRET_NAME = re.compile(r"(key|token|secret|passw|credential|authorization|cookie)", re.IGNORECASE)
_NOT_SECRET = re.compile(
    r"(tokens|token_ids|tokenizer|token[_-]threshold|max[_-]token|keys?_path|monkey)", re.IGNORECASE
)
_ASSIGNED = re.compile(r"([A-Za-z_][\w-]*)=(?!(?:yes|no|true|false|on|off|\d)$)(?=.)", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|(?<=Bearer )[A-Za-z0-9._~+/=-]{8,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|AKIA[0-9A-Z]{16})"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of this name holds something to hide (API_KEY, HF_TOKEN; not max_tokens)."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def text(value: str) -> str:
    """A line of text without what looks like a key, whatever stands around it."""
    return _SECRET_VALUE.sub(HIDDEN, value)


def line(words: str, *secrets: str, limit: int = LINE_CHARS) -> str:
    """A stranger's words as one plain line: without these secrets and what looks like a key, control characters
    as spaces, cut to `limit` characters.

    Whoever cuts words before this keeps several times `limit`, so that no secret is cut in half and shown.
    """
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            words = words.replace(secret, HIDDEN)
    shown = text("".join(char if char.isprintable() else " " for char in words)).strip()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables with the secret ones hidden."""
    return {
        name: HIDDEN if is_secret_name(name) else text(value) for name, value in sorted(variables.items())
    }


def argv(command: Iterable[str]) -> list[str]:
    """A command line with the values of secret options and variables hidden (`--api-key X`, `-e API_KEY=X`)."""
    shown: list[str] = []
    hide_next = False
    for word in command:
        if hide_next:
            shown.append(HIDDEN)
            hide_next = False
        elif word.startswith("-") and is_secret_name(word.split("=", 1)[0]):
            shown.append(word.split("=", 1)[0] + ("=" + HIDDEN if "=" in word else ""))
            hide_next = "=" not in word
        else:
            shown.append(_assigned(text(word)))
    return shown


def _assigned(word: str) -> str:
    """A word that gives a secret variable its value (`API_KEY=X`, `--env=API_KEY=X`), without the value."""
    found = next((match for match in _ASSIGNED.finditer(word) if is_secret_name(match[1])), None)
    return word if found is None else word[: found.end()] + HIDDEN
