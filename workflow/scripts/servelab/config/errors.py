"""What a person is told when a config cannot be used."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong: where (dotted key), the value written there, what is allowed, the nearest known name."""

    key: str
    value: object
    allowed: str
    nearest: str = ""

    def __str__(self) -> str:
        hint = f" Did you mean «{self.nearest}»?" if self.nearest else ""
        return f"{self.key}: {self.value!r} is not possible here; allowed: {self.allowed}.{hint}"


class ConfigError(Exception):
    """All the problems found in a config, each once; the message has one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple({str(problem): problem for problem in problems}.values())
        super().__init__(
            "\n".join(["the config cannot be used; nothing was started:", *map(str, self.problems)])
        )


class BadValueError(ValueError):
    """A value that an experiment's kind can make no load of. `problem.key` is the key within the experiment.

    hint: the nearest value that is possible, or an empty text.
    """

    def __init__(self, key: str, value: object, allowed: str, hint: str = "") -> None:
        self.problem = Problem(key, value, allowed, hint)
        super().__init__(str(self.problem))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like this one, or an empty text."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def unknown_key(key: str, name: str, known: Iterable[str]) -> Problem:
    """The problem of a key that nobody knows."""
    names = sorted(known)
    shown = ", ".join(names) if len(names) <= 40 else f"one of {len(names)} names, {', '.join(names[:3])}, …"
    return Problem(f"{key}.{name}" if key else name, name, shown, nearest(name, names))
