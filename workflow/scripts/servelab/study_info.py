"""What a reader must know to judge a study or to run it again: study.json (its keys: report/tables.py)."""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from servelab import __version__, provenance
from servelab.analysis_input import Source
from servelab.experiments.base import StudyData
from servelab.records import PointMeta
from servelab.report.tables import read_info

_LIBRARIES = ("snakemake", "pandas", "pyarrow", "aiohttp", "altair", "omegaconf", "numpy", "scipy")


def about(source: Source, data: StudyData) -> dict[str, Any]:
    """The study's info, from its config and from what its points say about themselves."""
    metas = [source.read(str(path)).meta for path in data.rows["path"]]
    measured = sorted(meta.provenance["started_at"] for meta in metas if meta.provenance.get("started_at"))
    commits = sorted({str(meta.provenance.get("commit", "")) for meta in metas} - {""})
    return {
        "study": source.study.study,
        "config": dict(source.raw),
        "config_yaml": yaml.safe_dump(dict(source.raw), sort_keys=False, allow_unicode=True),
        "language": source.study.report.language,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "measured": [measured[0], measured[-1]] if measured else [],
        "versions": _versions(metas),
        "commit": provenance.commit(Path(__file__).parent),
        "measured_with": commits,
        "engines": _distinct(meta.start.get("engine", {}) for meta in metas),
        "models": fetched_models(metas),
        "machines": _machines(metas),
        "sessions": _sessions(metas),
        "pins": pins(source.root, metas),
        "commands": _commands(source.study.study),
    }


def _versions(metas: list[PointMeta]) -> dict[str, str]:
    found = {"servelab": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        found[name] = importlib.metadata.version(name)
    servers = sorted({str(meta.session["version"]) for meta in metas if meta.session.get("version")})
    if servers:
        found["server"] = ", ".join(servers)
    return found


def _distinct(values: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for value in values:
        seen.setdefault(json.dumps(value, sort_keys=True), dict(value))
    return list(seen.values())


def fetched_models(metas: list[PointMeta]) -> list[dict[str, Any]]:
    """The models, each with what was fetched for it: more than one commit if a hub's branch moved between points."""
    found = _distinct(meta.start.get("model", {}) for meta in metas)
    for model in found:
        same = [meta.provenance.get("model") or {} for meta in metas if meta.start.get("model") == model]
        model["fetched"] = sorted({f"{kind} {value}" for origin in same for kind, value in origin.items()})
    return found


def _machines(metas: list[PointMeta]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for meta in metas:
        facts = {key: value for key, value in meta.machine.items() if key != "during"}
        seen.setdefault(str(facts.get("id")), {**facts, "limits": meta.limits})
    return list(seen.values())


def _sessions(metas: list[PointMeta]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for meta in metas:
        session = meta.session
        if not session.get("id"):
            continue
        entry = seen.setdefault(
            session["id"],
            {
                "session_id": session["id"],
                "experiments": [],
                "slug": meta.slug,
                "start": meta.spec.get("start", 1),
                "boot": session.get("boot"),
                "ready_s": session.get("ready_s"),
                "argv": session.get("argv", []),
                "environment": session.get("environment", {}),
                "version": session.get("version"),
                "machine_id": meta.machine.get("id"),
                "started_at": meta.provenance.get("started_at"),
                "points": 0,
            },
        )
        entry["points"] += 1
        if meta.experiment not in entry["experiments"]:
            entry["experiments"].append(meta.experiment)
    for entry in seen.values():
        entry["experiment"] = ", ".join(entry.pop("experiments"))
    return list(seen.values())


def pins(root: Path, metas: Iterable[PointMeta]) -> dict[str, str]:
    """Pinned list → digest, where servelab made a server's environment; {} where all servers were somebody's own.

    Of the project; of an archived study those that it was analysed with.
    """
    if not any((meta.start.get("engine") or {}).get("requirements") for meta in metas):
        return {}
    folder = root / "workflow/envs"
    archived = root / "tables"
    if not folder.is_dir() and (archived / "study.json").is_file():
        return dict(read_info(archived).get("pins") or {})
    files = sorted(folder.glob("*.txt")) if folder.is_dir() else []
    return {file.name: "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _commands(study: str) -> list[str]:
    return [
        "python3 -m venv .venv && . .venv/bin/activate && pip install -e .",
        f"snakemake --cores 1 all --configfile {study}.yaml",
    ]
