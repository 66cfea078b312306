"""A study's results as a folder of tables: what the analysis writes and the report (or a person) reads.

    <id>.arrow, <id>.csv   one claims.Table; the Arrow file's metadata says what the columns are
    points.arrow, .csv     one row per point (summary.COLUMNS), written before the analysis
    loads.arrow, .csv      one row per load, percentiles of all its requests (pooled.loads): what compares two studies
    analyses.json          the analyses in order: status, reason, ids of their tables, findings
    study.json             the study's info: config, versions, machines, server starts (made by study_info.py)

`study.json` holds one object. Every key may be missing; the report then leaves that part out and says so:

    study        str, the study's name
    config       the checked config as JSON          config_yaml  the same, canonical YAML
    language     "en" or "ko" (default: config.report.language)
    created      UTC time of the analysis, ISO 8601  measured     [first, last] start of a point, ISO 8601
    versions     {name: version} of servelab, python, server engines, libraries
    commit       git commit (with "+changes" if the tree was not clean)
    engines      [{name, kind, version, device, ...}]           models  [{name, path, fingerprint, fetched, ...}]
    machines     [{id, cpu, cores, memory_bytes, os, accelerators, limits, ...}]
    sessions     [{session_id, experiment, slug, start, boot, ready_s, argv, environment, version, machine_id,
                 started_at, points}]
    measured_with  [git commits that the points were measured with]
    pins         {name: text or digest of what fixes the environment}
    commands     [command lines from which the study can be run again]
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from servelab.claims import MEASURED, Analysis, Finding, Table
from servelab.records import write_atomically

SCHEMA_VERSION = 1
POINTS, LOADS = "points", "loads"
LISTINGS = ("serve.sh", "alerts.yaml")  # what recommend.artefacts makes of the analyses
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_INFINITE = "servelab.infinite"


class BadTablesError(Exception):
    """A tables folder that cannot be read; the message says which file and why in one line."""


def write_table(folder: Path, table: Table) -> list[Path]:
    """Write one table as <id>.arrow and <id>.csv and return both paths.

    Raises ValueError for an id that is no plain file name, OSError if the disk refuses.
    """
    if not _ID.fullmatch(table.id):
        raise ValueError(f"table id {table.id!r} is no file name (letters, digits, . _ -)")
    frame = _storable(table.frame)
    about = {
        "id": table.id,
        "experiment": table.experiment,
        "template": table.template,
        "columns": {name: list(unit_status) for name, unit_status in table.columns.items()},
    }
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    arrow = arrow.replace_schema_metadata(
        {"servelab.tables": str(SCHEMA_VERSION), "servelab.table": json.dumps(about, sort_keys=True)}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    paths = [folder / f"{table.id}.arrow", folder / f"{table.id}.csv"]
    write_atomically(paths[0], sink.getvalue())
    write_atomically(paths[1], csv(frame))
    return paths


def csv(frame: pd.DataFrame) -> bytes:
    """The frame as CSV; a text that a spreadsheet would run as a formula gets an apostrophe before it (CWE-1236)."""
    safe = frame.copy()
    for name in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[name]):
            safe[name] = [f"'{v}" if isinstance(v, str) and v[:1] in _FORMULA else v for v in safe[name]]
    return safe.to_csv(index=False).encode("utf-8")


def read_table(path: Path) -> Table:
    """Read one <id>.arrow. Raises BadTablesError: missing, damaged, or of another schema."""
    try:
        with pa.memory_map(str(path)) as source:
            arrow = pa.ipc.open_file(source).read_all()
        metadata: Mapping[bytes, bytes] = arrow.schema.metadata or {}
        version = metadata.get(b"servelab.tables", b"none").decode()
        if version != str(SCHEMA_VERSION):
            raise BadTablesError(f"{path}: tables schema {version}, this servelab reads {SCHEMA_VERSION}")
        about = json.loads(metadata[b"servelab.table"])
        columns = {name: (str(unit), str(status)) for name, (unit, status) in about["columns"].items()}
        frame = arrow.replace_schema_metadata(None).to_pandas()
        return Table(about["id"], frame, columns, about["experiment"], about["template"])
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise BadTablesError(f"{path}: unreadable ({str(error).splitlines()[0]})") from error


def write_points(folder: Path, rows: pd.DataFrame, columns: Mapping[str, str]) -> list[Path]:
    """Write the table of points: `columns` maps each column to its unit (summary.COLUMNS)."""
    units = {name: (unit, MEASURED) for name, unit in columns.items() if name in rows and unit}
    return write_table(folder, Table(POINTS, rows, units))


def read_points(folder: Path) -> pd.DataFrame:
    """One row per point. Raises BadTablesError."""
    return read_table(folder / f"{POINTS}.arrow").frame


def write_loads(folder: Path, rows: pd.DataFrame) -> list[Path]:
    """Write the table of loads (pooled.loads)."""
    units = {str(name): ("ms", MEASURED) for name in rows if str(name).endswith("_ms")}
    return write_table(folder, Table(LOADS, rows, units))


def read_loads(folder: Path) -> pd.DataFrame:
    """One row per load. Raises BadTablesError."""
    return read_table(folder / f"{LOADS}.arrow").frame


def write_analyses(folder: Path, analyses: Sequence[Analysis], study_info: Mapping[str, Any]) -> list[Path]:
    """Write every table of the analyses, analyses.json and study.json; return the paths written.

    What an earlier analysis left and this one does not write goes: tables, and LISTINGS, which are written
    afterwards. The tables of points and loads and files of other kinds stay.
    Raises ValueError if two tables share an id or an id is no file name, OSError if the disk refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    seen: set[str] = {POINTS, LOADS}
    for analysis in analyses:
        for table in analysis.tables:
            if table.id in seen:
                raise ValueError(f"two tables have the id {table.id!r}")
            seen.add(table.id)
            paths += write_table(folder, table)
    listed = [
        {
            "kind": a.kind,
            "experiment": a.experiment,
            "status": a.status,
            "reason": a.reason,
            "reason_values": a.reason_values,
            "tables": [table.id for table in a.tables],
            "findings": [asdict(finding) for finding in a.findings],
        }
        for a in analyses
    ]
    for name, value in (("analyses", {"schema": SCHEMA_VERSION, "analyses": listed}), ("study", study_info)):
        path = folder / f"{name}.json"
        text = json.dumps(_json(value), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(path, (text + "\n").encode("utf-8"))
        paths.append(path)
    _remove_earlier(folder, seen)
    return paths


def _remove_earlier(folder: Path, kept: set[str]) -> None:
    for path in sorted(folder.glob("*.arrow")):
        if path.stem not in kept and _is_table(path):
            path.with_suffix(".csv").unlink(missing_ok=True)
            path.unlink()
    for name in LISTINGS:
        (folder / name).unlink(missing_ok=True)


def _is_table(path: Path) -> bool:
    """Whether a file is a table that some servelab wrote: nobody else's file is removed."""
    try:
        with pa.memory_map(str(path)) as source:
            return b"servelab.tables" in (pa.ipc.open_file(source).schema.metadata or {})
    except (pa.ArrowException, OSError):
        return False


def read_analyses(folder: Path) -> tuple[list[Analysis], dict[str, Any]]:
    """The analyses with their tables, and the study's info. Raises BadTablesError."""
    listed = _read_json(folder / "analyses.json")
    if listed.get("schema") != SCHEMA_VERSION:
        schema = listed.get("schema")
        raise BadTablesError(f"{folder}: analyses schema {schema}, this servelab reads {SCHEMA_VERSION}")
    analyses = []
    for item in listed["analyses"]:
        findings = [Finding(**{**f, "tables": tuple(f["tables"])}) for f in item["findings"]]
        tables = [read_table(folder / f"{name}.arrow") for name in item["tables"]]
        rest = {key: item[key] for key in ("kind", "experiment", "status", "reason", "reason_values")}
        analyses.append(Analysis(**rest, tables=tables, findings=findings))
    return analyses, read_info(folder)


def read_info(folder: Path) -> dict[str, Any]:
    """The study's info alone. Raises BadTablesError."""
    return _read_json(folder / "study.json")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_hook=_revive)
    except (OSError, ValueError) as error:
        raise BadTablesError(f"{path}: unreadable ({str(error).splitlines()[0]})") from error
    if not isinstance(value, dict):
        raise BadTablesError(f"{path}: holds no object")
    return value


def _storable(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy that Arrow takes: a column of mixed kinds becomes text, lists and mappings become JSON text."""
    out = frame.copy()
    for name in out.columns:
        if out[name].dtype != object:
            continue
        kinds = {type(value) for value in out[name] if not _missing(value)}
        if kinds <= {str} or kinds <= {bool, np.bool_} or kinds <= {int, float, np.int64, np.float64}:
            continue
        out[name] = [None if _missing(value) else _as_text(value) for value in out[name]]
    out.columns = [str(name) for name in out.columns]
    return out


def _missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _as_text(value: object) -> str:
    if isinstance(value, (list, tuple, Mapping)):
        return json.dumps(_json(value), ensure_ascii=False)
    return str(value)


def _json(value: object) -> object:
    """A value as JSON knows it: numpy and pandas scalars made plain, NaN null, infinity tagged."""
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, np.ndarray)):
        return [_json(item) for item in (sorted(value) if isinstance(value, set) else value)]
    if _missing(value):
        return None
    if isinstance(value, np.generic):
        return _json(value.item())
    if isinstance(value, float) and math.isinf(value):
        return {_INFINITE: 1 if value > 0 else -1}
    if isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _revive(value: dict[str, Any]) -> object:
    return math.inf * value[_INFINITE] if set(value) == {_INFINITE} else value
