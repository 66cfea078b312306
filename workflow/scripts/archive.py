#!/usr/bin/env python3
"""Put a study into one folder from which its tables and report are rebuilt anywhere, without a server."""

import argparse
import json
import shutil
from pathlib import Path

from servelab import __version__, analysis_input, reference_files
from servelab.canonical import canonical_json
from servelab.report.tables import LOADS, POINTS, read_analyses

README = """# {study}, archived by servelab {version}

Points (Arrow), tables, report, config and provenance of one study, and the reference it is compared with. On a clone
of servelab, without any server:

    snakemake --cores 1 rebuild --config archive=PATH/TO/THIS/FOLDER

writes reports/{study}.html and results/{study}/tables/ again from points/. To measure it again instead:

    snakemake --cores 1 all --configfile PATH/TO/THIS/FOLDER/config.json
"""


def main() -> None:
    """Parse the command line and archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="the study's config as JSON")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of the archive; made new each time"
    )
    arguments = parser.parse_args()
    source = analysis_input.from_project(json.loads(arguments.config), arguments.root)
    study = source.study.study
    making = arguments.output.with_name(f".{arguments.output.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    order = []
    for path in source.points:
        target = Path(analysis_input.archive_path(source, path))
        (making / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(arguments.root / path, making / target)
        order.append(target.as_posix())
    (making / "order.json").write_text(json.dumps(order, indent=0), encoding="utf-8")
    (making / "config.json").write_text(canonical_json(source.raw), encoding="utf-8")
    plan = json.dumps(analysis_input.archived(source), indent=0, sort_keys=True)
    (making / "plan.json").write_text(plan, encoding="utf-8")
    for name, folder in source.model_folders.items():
        if (folder / "config.json").is_file():
            (making / "models" / name).mkdir(parents=True)
            shutil.copyfile(folder / "config.json", making / "models" / name / "config.json")
    tables = arguments.root / f"results/{study}/tables"
    shutil.copytree(tables, making / "tables", ignore=shutil.ignore_patterns(".*"))
    _copy_reference(source.study.report.reference, tables, making / reference_files.CARRIED)
    report = arguments.root / f"reports/{study}.html"
    shutil.copyfile(report, making / report.name)
    _copy_logs(arguments.root / f"results/{study}", making / "logs")
    (making / "README.md").write_text(README.format(study=study, version=__version__), encoding="utf-8")
    shutil.rmtree(arguments.output, ignore_errors=True)
    making.rename(arguments.output)
    size = sum(file.stat().st_size for file in arguments.output.rglob("*") if file.is_file())
    print(f"[archive] {arguments.output}: {len(order)} points, {size / 1e6:.1f} MB", flush=True)


def _copy_reference(name: str, tables: Path, target: Path) -> None:
    """What the study is compared with: <name>.csv, or in <name>/ what a comparison reads of the other study."""
    place = reference_files.find(name, tables)
    if place is None:
        return
    if place.is_file():
        target.mkdir()
        shutil.copyfile(place, target / place.name)
        return
    files = [f"{POINTS}.arrow"]
    if (place / f"{LOADS}.arrow").is_file():
        named = [f"{table.id}.arrow" for analysis in read_analyses(place)[0] for table in analysis.tables]
        files += [f"{LOADS}.arrow", "analyses.json", "study.json", *named]
    (target / name).mkdir(parents=True)
    for file in files:
        shutil.copyfile(place / file, target / name / file)


def _copy_logs(results: Path, target: Path) -> None:
    for log in sorted(results.rglob("*.log")):
        place = target / log.relative_to(results)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, place)


if __name__ == "__main__":
    main()
