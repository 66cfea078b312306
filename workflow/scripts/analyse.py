#!/usr/bin/env python3
"""The study's tables, fits and findings: results/<study>/tables/*.arrow, *.csv, analyses.json, study.json."""

import argparse
import shutil
import sys
from pathlib import Path

from servelab import (
    analysis_input,
    made_of,
    pooled,
    recommend,
    reference_files,
    signals,
    study_analysis,
    study_info,
)
from servelab.records import write_atomically
from servelab.report import tables


def main() -> int:
    """Parse the command line and analyse."""
    parser = argparse.ArgumentParser(description=__doc__)
    analysis_input.add_arguments(parser)
    arguments = parser.parse_args()
    source, folder = analysis_input.from_arguments(arguments)
    data = source.data(tables.read_points(folder))
    analyses = study_analysis.analyse(data, source.experiments)
    tables.write_loads(folder, pooled.loads(data))
    tables.write_analyses(folder, analyses, study_info.about(source, data))
    for name, text in recommend.artefacts(data.study.study, data.study.objective, analyses[-1]).items():
        write_atomically(folder / name, text.encode("utf-8"))
    _bring_reference(arguments.archive, folder)
    made_of.note(folder, "analyse", arguments.made_of)
    measured = sum(analysis.status != "not_measured" for analysis in analyses)
    print(f"[analyse] {measured} of {len(analyses)} analyses have data", flush=True)
    return 0


def _bring_reference(archive: Path | None, folder: Path) -> None:
    """Put the reference that an archive carries beside the tables; one of an earlier archive goes."""
    if archive is not None and archive.resolve() == folder.resolve():
        return
    if (folder / reference_files.CARRIED).is_dir():
        shutil.rmtree(folder / reference_files.CARRIED)
    if archive is not None and (archive / reference_files.CARRIED).is_dir():
        shutil.copytree(archive / reference_files.CARRIED, folder / reference_files.CARRIED, symlinks=True)


if __name__ == "__main__":
    sys.exit(signals.job(main))
