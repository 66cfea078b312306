#!/usr/bin/env python3
"""The study's tables, fits and findings: results/<study>/tables/*.arrow, *.csv, analyses.json, study.json."""

import argparse
import json
from pathlib import Path

from servelab import analysis_input, recommend, study_analysis, study_info
from servelab.records import write_atomically
from servelab.report import tables


def main() -> None:
    """Parse the command line and analyse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", help="the study's config as JSON")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    parser.add_argument("--archive", type=Path, help="an archived study's folder, in place of --config")
    parser.add_argument("--tables", type=Path, help="folder of the tables; default results/<study>/tables")
    arguments = parser.parse_args()
    source = (
        analysis_input.from_archive(arguments.archive)
        if arguments.archive
        else analysis_input.from_project(json.loads(arguments.config), arguments.root)
    )
    folder = arguments.tables or arguments.root / f"results/{source.study.study}/tables"
    data = source.data(tables.read_points(folder))
    analyses = study_analysis.analyse(data, source.experiments)
    tables.write_analyses(folder, analyses, study_info.about(source, data))
    for name, text in recommend.artefacts(data.study.study, data.study.objective, analyses[-1]).items():
        write_atomically(folder / name, text.encode("utf-8"))
    measured = sum(analysis.status != "not_measured" for analysis in analyses)
    print(f"[analyse] {measured} of {len(analyses)} analyses have data", flush=True)


if __name__ == "__main__":
    main()
