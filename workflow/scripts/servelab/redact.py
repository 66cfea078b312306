"""Keeps secrets out of results, logs and reports: one place that knows what a secret looks like."""

import re
from collections.abc import Iterable, Mapping

HIDDEN = "«hidden»"
_SECRET_NAME = re.compile(r"(key|token|secret|passw|credential|authorization|cookie)", re.IGNORECASE)
_NOT_SECRET = re.compile(r"(tokens|token_ids|tokenizer|max[_-]token|keys?_path|monkey)", re.IGNORECASE)
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


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables with the secret ones hidden."""
    return {
        name: HIDDEN if is_secret_name(name) else text(value) for name, value in sorted(variables.items())
    }


def argv(command: Iterable[str]) -> list[str]:
    """A command line with the values of secret options hidden (`--api-key X`, `--api-key=X`)."""
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
            shown.append(text(word))
    return shown
