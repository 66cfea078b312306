"""How to cite a study: BibTeX and CITATION.cff, made from its provenance."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from servelab import __version__


def bibtex(study: str, title: str, authors: Sequence[str], date: str, versions: Mapping[str, Any]) -> str:
    """A @misc entry. date: ISO 8601; versions: what measured it, named in the note."""
    key = re.sub(r"[^A-Za-z0-9]+", "", study) or "study"
    fields = {
        "title": title,
        "author": " and ".join(authors) or "{servelab study}",
        "year": date[:4],
        "month": date[5:7],
        "howpublished": f"servelab {versions.get('servelab', __version__)} study «{study}»",
        "note": "; ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    }
    lines = ",\n".join(f"  {name} = {{{_tex(value)}}}" for name, value in fields.items() if value)
    return f"@misc{{servelab:{key}{date[:4]},\n{lines}\n}}"


def cff(study: str, title: str, authors: Sequence[str], date: str, versions: Mapping[str, Any]) -> str:
    """A CITATION.cff (1.2.0) of type dataset."""
    value: dict[str, Any] = {
        "cff-version": "1.2.0",
        "message": "If you use these measurements, please cite them.",
        "type": "dataset",
        "title": title,
        "authors": [{"name": author} for author in authors] or [{"name": "servelab study"}],
        "abstract": f"servelab study «{study}», measured with "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    }
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", date[:10]):
        value["date-released"] = date[:10]
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    plain = (
        text
        if text.startswith("{")
        else re.sub(r"[&%$#_{}~^\\]", lambda m: special.get(m[0], "\\" + m[0]), text)
    )
    return plain.replace("«", "``").replace("»", "''")
