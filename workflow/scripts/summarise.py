#!/usr/bin/env python3
"""Points → one row each, with its verdict: results/<study>/tables/points.arrow and .csv."""

import argparse
import sys

from servelab import analysis_input, validity
from servelab.report import tables
from servelab.summary import COLUMNS


def main() -> int:
    """Parse the command line and write the table of points."""
    parser = argparse.ArgumentParser(description=__doc__)
    analysis_input.add_arguments(parser)
    arguments = parser.parse_args()
    source, folder = analysis_input.from_arguments(arguments)
    try:
        rows = analysis_input.rows(source, set_aside=not arguments.archive)
    except analysis_input.DamagedPointsError as error:
        print(f"[summarise] {error}", flush=True)
        return 1
    rows = validity.judge(rows, source.load_row, source.model_cards(), source.study, source.engine_limits)
    tables.write_points(folder, rows, COLUMNS)
    counts = rows["verdict"].value_counts()
    verdicts = ", ".join(f"{counts.get(name, 0)} {name}" for name in ("valid", "suspect", "invalid"))
    print(f"[summarise] {len(rows)} points: {verdicts}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
