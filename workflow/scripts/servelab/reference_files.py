"""Where the reference of a study lies: a CSV file of config/references, or the tables of another study.

An archive carries the reference of its study in a folder of its own, and `rebuild` puts it beside the tables: the
paper is then the same where neither file nor study is.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servelab.config.schema import Report

FOLDER = Path(__file__).resolve().parents[3] / "config" / "references"
CARRIED = "reference"  # a folder of an archive, and of tables that were made from one
# What the paper's comparison shows of another study; when one of these changes, the paper does.
_SHOWN = ("points.arrow", "loads.arrow", "study.json")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def name_of(config: Mapping[str, Any]) -> str:
    """The reference that a config names, the default one where it has no such key; empty for none."""
    return str((config.get("report") or {}).get("reference", Report().reference) or "")


def find(name: str, tables: Path) -> Path | None:
    """The reference of this name: its CSV file, or the folder of the other study's tables; None where there is none.

    tables: the study's own. What an archive brought along comes first, then config/references, then the studies
    beside this one.
    """
    carried = (tables / CARRIED / f"{name}.csv", tables / CARRIED / name)
    return next(_existing(name, *carried, *_own(name, tables)), None)


def watched(name: str, study: str, root: Path) -> list[str]:
    """Files of a project's reference whose change makes the paper another one, as far as they are there.

    Paths relative to the project's folder, absolute ones for what lies elsewhere. What an archive brought along is
    left out: it is removed when the study's tables are made from the project's own points.
    """
    own = _own(name, root / "results" / study / "tables")
    place = next(_existing(name, *own), None) if name != study else None
    if place is None:
        return []
    files = [place] if place.is_file() else [place / file for file in _SHOWN if (place / file).is_file()]
    return [_seen_from(root.resolve(), file.resolve()) for file in files]


def _own(name: str, tables: Path) -> tuple[Path, Path]:
    return FOLDER / f"{name}.csv", tables.parent.parent / name / tables.name


def _existing(name: str, *places: Path) -> Iterator[Path]:
    if _NAME.fullmatch(name):
        yield from (place for place in places if place.is_file() or (place / "points.arrow").is_file())


def _seen_from(root: Path, file: Path) -> str:
    return str(file.relative_to(root) if file.is_relative_to(root) else file)
