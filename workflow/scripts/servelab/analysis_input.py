"""Where an analysis finds a study's points: in the project's results, or in an archived study's folder.

An archive is a folder with `config.json`, `points/<experiment>/<server>/start-<n>/<point>.arrow` and
`models/<name>/config.json`. It is read by schema, not by key: a later servelab may have other keys. What the plan
called each point is in its `plan.json` (see `archived`); an archive without one goes by what the points say.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from servelab import model_card, summary
from servelab.config.load import for_analysis, load
from servelab.config.schema import Experiment, Study
from servelab.experiments.base import StudyData
from servelab.grid import server_starts
from servelab.models import config_folder
from servelab.records import BadPointError, PointRecord, read_point


@dataclass(frozen=True)
class Names:
    """What the plan calls a point. Names are no part of a key, so a kept point may say others of itself."""

    experiment: str
    slug: str
    point: str
    model: str
    model_path: str


@dataclass(frozen=True)
class Source:
    """A study's points: path of each (relative to root) → its key, or None where the key is not asked for.

    names: path → what the plan calls that point. engine_limits: what the study's engine says its machine can do.
    """

    root: Path
    raw: Mapping[str, Any]
    study: Study
    experiments: Mapping[str, Experiment]
    points: Mapping[str, str | None]
    model_folders: Mapping[str, Path]
    names: Mapping[str, Names] = field(default_factory=dict)
    engine_limits: Mapping[str, float] = field(default_factory=dict)

    def read(self, path: str) -> PointRecord:
        """One point, under the names that it has in this study. Raises BadPointError."""
        record = read_point(self.root / path, self.points.get(path))
        meta = replace(record.meta, study=self.study.study)
        if (names := self.names.get(path)) is not None:
            recorded = meta.start.get("model")
            model = {
                **(recorded if isinstance(recorded, Mapping) else {}),
                "name": names.model,
                "path": names.model_path,
            }
            meta = replace(
                meta,
                experiment=names.experiment,
                slug=names.slug,
                name=names.point,
                start={**meta.start, "model": model},
            )
        return PointRecord(meta, record.requests, record.series)

    def load_row(self, row: Mapping[str, Any]) -> PointRecord:
        """The record of a row of the points table."""
        return self.read(str(row["path"]))

    def model_cards(self) -> dict[str, model_card.ModelCard | None]:
        """Model → card, None where no config.json is there."""
        found = {
            name: folder for name, folder in self.model_folders.items() if (folder / "config.json").is_file()
        }
        return {
            name: model_card.from_folder(found[name]) if name in found else None
            for name in self.model_folders
        }

    def data(self, rows: pd.DataFrame) -> StudyData:
        """What the experiments analyse."""
        return StudyData(self.study, rows, self.load_row, self.model_cards())

    def kind(self, experiment: str) -> str:
        """An experiment's kind; its name where the config does not know it any more."""
        config = self.experiments.get(experiment)
        return config.kind if config is not None else experiment


class DamagedPointsError(Exception):
    """Points that cannot be believed: path → why (they have been taken out of the way); and those not there."""

    def __init__(self, damaged: Mapping[str, str], missing: Sequence[str] = ()) -> None:
        self.damaged, self.missing = dict(damaged), tuple(missing)
        lines = []
        if damaged:
            lines.append(f"{len(damaged)} points are damaged and were set aside; run again to measure them:")
            lines += damaged.values()
        if missing:
            lines.append(
                f"{len(missing)} points are not there: a file under config/ changed while the study ran, and what was "
                "measured before is kept under its own key; run again, with the file as it was or as it is now:"
            )
            lines += missing
        super().__init__("\n  ".join(lines))


def from_project(raw: Mapping[str, Any], root: Path) -> Source:
    """The points that a config asks for, in the project's results."""
    loaded = load(raw, root)
    points: dict[str, str | None] = {}
    names: dict[str, Names] = {}
    for start in server_starts(loaded):
        model = start.model
        for point in start.points:
            path = start.path(point)
            points[path] = start.key(point)
            experiment = point.experiment or start.experiment
            names[path] = Names(experiment, start.slug, point.name, model.name, model.path)
    folders = {name: config_folder(spec, root) for name, spec in loaded.models.items()}
    return Source(
        root, loaded.raw, loaded.study, loaded.experiments, points, folders, names, loaded.engine.limits
    )


def archive_path(source: Source, path: str) -> str:
    """Where one of the project's points lies in the study's archive."""
    return f"points/{Path(path).relative_to(f'results/{source.study.study}').as_posix()}"


def archived(source: Source) -> dict[str, Any]:
    """What an archive's `plan.json` holds: the names of its points by their path there, and the engine's limits."""
    names = {archive_path(source, path): asdict(names) for path, names in source.names.items()}
    return {"names": names, "engine_limits": dict(source.engine_limits)}


def from_archive(folder: Path) -> Source:
    """All points of an archived study. Raises FileNotFoundError if the folder is no archive."""
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    study, experiments = for_analysis(raw)
    paths = sorted(path.relative_to(folder).as_posix() for path in (folder / "points").rglob("*.arrow"))
    order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
    ranked = {path: rank for rank, path in enumerate(order)}
    points: dict[str, str | None] = dict.fromkeys(
        sorted(paths, key=lambda path: (ranked.get(path, len(ranked)), path))
    )
    models = folder / "models"
    folders = {path.name: path for path in sorted(models.iterdir())} if models.is_dir() else {}
    names, limits = _planned(folder / "plan.json", raw)
    return Source(folder, raw, study, experiments, points, folders, names, limits)


def _planned(file: Path, raw: Mapping[str, Any]) -> tuple[dict[str, Names], Mapping[str, float]]:
    """(names, engine's limits) of an archive; without the file the limits written in the config itself."""
    if not file.is_file():
        engine = raw.get("engine")
        return {}, (engine.get("limits") or {}) if isinstance(engine, Mapping) else {}
    plan = json.loads(file.read_text(encoding="utf-8"))
    keys = [each.name for each in fields(Names)]
    names = {str(path): Names(*(str(value[key]) for key in keys)) for path, value in plan["names"].items()}
    return names, plan["engine_limits"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options by which a script is told where a study's points and tables are."""
    parser.add_argument("--config", help="the study's config as JSON")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    parser.add_argument("--archive", type=Path, help="an archived study's folder, in place of --config")
    parser.add_argument("--tables", type=Path, help="folder of the tables; default results/<study>/tables")
    parser.add_argument("--made-of", default="", help="digest of what this run depends on, to be noted")


def from_arguments(arguments: argparse.Namespace) -> tuple[Source, Path]:
    """(the points, the folder of the tables) that these options name."""
    source = (
        from_archive(arguments.archive)
        if arguments.archive
        else from_project(json.loads(arguments.config), arguments.root)
    )
    return source, arguments.tables or arguments.root / f"results/{source.study.study}/tables"


def rows(source: Source, set_aside: bool) -> pd.DataFrame:
    """One row per point, without verdicts.

    Raises DamagedPointsError if points are damaged or not there; with `set_aside` the files of damaged ones are
    removed, so that the next run takes them from the store or measures them again.
    """
    made = []
    damaged: dict[str, str] = {}
    missing = []
    for path in source.points:
        if not (source.root / path).exists():
            missing.append(path)
            continue
        try:
            record = source.read(path)
        except BadPointError as error:
            damaged[path] = str(error)
            continue
        made.append(summary.row(record, source.kind(record.meta.experiment), path, source.study.objective))
    if damaged or missing:
        for path in damaged if set_aside else ():
            (source.root / path).unlink(missing_ok=True)
        raise DamagedPointsError(damaged, missing)
    return summary.frame(made)
