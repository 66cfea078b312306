"""Every text exists in every language, with the same fields, and every text that the templates name exists."""

import re
import string
from importlib import resources

import numpy as np
import pytest

from servelab.texts import LANGUAGES, catalogue, number

ENGLISH = catalogue("en").texts


def fields(text: str) -> list[tuple[str, str]]:
    return sorted(
        {(name, spec or "") for _, name, spec, _ in string.Formatter().parse(text) if name is not None}
    )


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "en"])
def test_languages_have_the_same_texts_with_the_same_fields(language: str) -> None:
    """No text is missing in either language; numbers in them are the same and written the same way."""
    other = catalogue(language).texts
    assert sorted(ENGLISH.keys() ^ other.keys()) == []
    differing = {key: (fields(text), fields(other[key])) for key, text in ENGLISH.items()
                 if fields(text) != fields(other[key])}  # fmt: skip
    assert differing == {}
    assert len(ENGLISH) > 300


def test_korean_is_korean() -> None:
    """Sentences of the Korean catalogue hold Korean letters: none was left in English."""
    words = catalogue("ko").texts
    long = {
        key: text for key, text in words.items() if len(text) > 40 and not key.endswith((".kinds", ".shown"))
    }
    left = [key for key, text in long.items() if not re.search("[가-힣]", text)]
    assert left == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_specifications_are_known(language: str) -> None:
    """Every field of every text can be written: with a number, or with words where it has no specification."""
    for key, text in catalogue(language).texts.items():
        for _name, spec in fields(text):
            assert number(12.5 if spec else "words", spec), key


@pytest.mark.parametrize(
    ("value", "spec", "written"),
    [
        (0.125, "pct1", "12.5 %"),
        (-0.0154, "pct2", "−1.54 %"),
        (1.4448, "pct1", "144 %"),
        (0.9996, "pct1", "100 %"),
        (-0.0001, "pct0", "0 %"),
        (np.float32(-1.5), "sig2", "−1.5"),
        (10.326, "pct1", "1,030 %"),
        (-1.23, "sig3", "−1.23"),
        ("-1", "", "-1"),
        (None, "pct1", "not measured"),
    ],
)
def test_numbers_are_written_as_precisely_as_they_are_known(value: object, spec: str, written: str) -> None:
    """Percents from 100 on have three digits and no more; negative numbers a minus sign; words stay."""
    assert number(value, spec) == written


def test_texts_named_in_templates_exist() -> None:
    """A template asks only for texts that the catalogue has."""
    folder = resources.files("servelab.report") / "templates"
    named = set()
    for file in folder.iterdir():
        if file.name.endswith(".j2"):
            named |= set(re.findall(r't\("([a-z_0-9.]+)"[,)]', file.read_text(encoding="utf-8")))
    assert len(named) > 60
    assert sorted(named - ENGLISH.keys()) == []
