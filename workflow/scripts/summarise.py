#!/usr/bin/env python3
"""Points → one row each, with its verdict: results/<study>/tables/points.arrow and .csv."""

import argparse
import json
import sys
from pathlib import Path

from servelab import analysis_input, validity
from servelab.report import tables
from servelab.summary import COLUMNS


def main() -> int:
    """Parse the command line and write the table of points."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", help="the study's config as JSON")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    parser.add_argument("--archive", type=Path, help="an archived study's folder, in place of --config")
    parser.add_argument("--tables", type=Path, help="folder for the tables; default results/<study>/tables")
    arguments = parser.parse_args()
    source = (
        analysis_input.from_archive(arguments.archive)
        if arguments.archive
        else analysis_input.from_project(json.loads(arguments.config), arguments.root)
    )
    try:
        rows = analysis_input.rows(source, set_aside=not arguments.archive)
    except analysis_input.DamagedPointsError as error:
        print(f"[summarise] {error}", flush=True)
        return 1
    rows = validity.judge(rows, source.load_row, source.model_cards(), source.study)
    folder = arguments.tables or arguments.root / f"results/{source.study.study}/tables"
    tables.write_points(folder, rows, COLUMNS)
    counts = rows["verdict"].value_counts()
    verdicts = ", ".join(f"{counts.get(name, 0)} {name}" for name in ("valid", "suspect", "invalid"))
    print(f"[summarise] {len(rows)} points: {verdicts}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
