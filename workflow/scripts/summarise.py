#!/usr/bin/env python3
"""Points → one row each, with its verdict: results/<study>/tables/points.arrow and .csv."""

import argparse
import sys

from servelab import analysis_input, made_of, signals, validity
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
    made_of.note(folder, "summarise", arguments.made_of)
    counts = rows["verdict"].value_counts()
    verdicts = ", ".join(f"{counts.get(name, 0)} {name}" for name in ("valid", "suspect", "invalid"))
    print(f"[summarise] {len(rows)} points: {verdicts}", flush=True)
    if failed := int((rows["status"] == "failed").sum()):
        again = "`--config retry_failed=true` measures them again"
        print(f"[summarise] {failed} of them failed, the report says why; {again}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(signals.job(main))
