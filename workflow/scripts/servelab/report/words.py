"""The report's words in its language: texts by id, missing ones made visible and counted, code set apart."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from servelab.texts import Catalogue, catalogue, number

_CODE = re.compile(r"`([^`]+)`")
_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|ms|s|tok/s|MiB|GiB|bytes|tokens|requests)(?![\w]))")


@dataclass
class Words:
    """Texts of one language for one report.

    missing: ids that were asked for and are not in the catalogue; each stands in the report as «id», so that
    nothing is silently left out.
    """

    catalogue: Catalogue
    missing: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, language: str) -> "Words":
        """Words of a language. Raises ValueError for a language there is no catalogue of."""
        return cls(catalogue(language))

    @property
    def language(self) -> str:
        """The catalogue's language code."""
        return self.catalogue.language

    def has(self, key: str) -> bool:
        """Whether the catalogue has this id."""
        return key in self.catalogue.texts

    def __call__(self, key: str, values: Mapping[str, object] | None = None, /, **more: object) -> str:
        """The text with this id and its values; «id» (and noted as missing) if it or a value is not there."""
        try:
            return self.catalogue.text(key, {**(values or {}), **more})
        except (KeyError, ValueError, TypeError):
            self.missing.add(key)
            return f"«{key}»"

    def optional(self, key: str, default: str = "", values: Mapping[str, object] | None = None) -> str:
        """The text with this id, or the default where the catalogue has none."""
        return self(key, values) if self.has(key) else default

    def listed(self, key: str) -> list[str]:
        """The texts of a list: key.0, key.1, … or the single text `key`."""
        if self.has(key):
            return [self(key)]
        out: list[str] = []
        while self.has(f"{key}.{len(out)}"):
            out.append(self(f"{key}.{len(out)}"))
        return out

    def children(self, key: str) -> list[str]:
        """The names below an id, in the order of the catalogue."""
        start = key + "."
        return list(
            dict.fromkeys(
                i[len(start) :].split(".", 1)[0] for i in self.catalogue.texts if i.startswith(start)
            )
        )

    def number(self, value: object, spec: str = "") -> str:
        """A value for people; «not measured» for a missing one."""
        return number(value, spec, self("status.not_measured"))


def rich(text: str) -> Markup:
    """A text safe for HTML whatever it holds; what stands between backticks becomes code.

    A number stays on one line with its unit.
    """
    out = Markup()
    for i, part in enumerate(_CODE.split(text)):
        out += Markup("<code>{}</code>").format(part) if i % 2 else escape(_UNIT.sub("\u00a0", part))
    return out


def unbroken(text: str) -> Markup:
    """A title safe for HTML whose short hyphenated words (names of models) stay on one line."""
    words = [
        Markup('<span class="nb">{}</span>').format(word) if "-" in word and len(word) < 24 else escape(word)
        for word in text.split(" ")
    ]
    return Markup(" ").join(words)
