#!/usr/bin/env python3
"""The paper of a study, reports/<study>.html, from its folder of tables; figures and tables as files beside it."""

import argparse
import sys
from pathlib import Path

from servelab import made_of, signals
from servelab.report import build
from servelab.report.tables import BadTablesError
from servelab.texts import LANGUAGES


def main() -> int:
    """Parse the command line, build the report, and say what was made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tables", type=Path, required=True, help="the study's tables, results/<study>/tables"
    )
    parser.add_argument("--output", type=Path, required=True, help="the HTML file to write")
    parser.add_argument(
        "--figures",
        type=Path,
        help="folder for figures and tables as files; default: the HTML's name without .html",
    )
    parser.add_argument("--made-of", default="", help="digest of what this run depends on, to be noted")
    parser.add_argument("--language", choices=LANGUAGES, help="default: what the study's config says")
    arguments = parser.parse_args()
    figures = arguments.figures or arguments.output.with_suffix("")
    try:
        report = build.build(arguments.tables, arguments.output, figures, arguments.language)
    except (BadTablesError, ValueError) as error:
        print(f"[report] {error}", file=sys.stderr)
        return 1
    made_of.note(arguments.tables, "report", arguments.made_of)
    for key in report.missing_texts:
        print(f"[report] no text «{key}»: the paper shows the id instead", file=sys.stderr)
    size_mb = arguments.output.stat().st_size / 1e6
    print(f"[report] {arguments.output} ({size_mb:.2f} MB), its figures and tables in {figures}/")
    return 0


if __name__ == "__main__":
    sys.exit(signals.job(main))
