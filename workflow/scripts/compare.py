#!/usr/bin/env python3
"""Two studies side by side: what changed in settings and versions, and which differences both could see."""

import argparse
import sys
from pathlib import Path

from servelab import signals
from servelab.report import compare_page
from servelab.report.tables import BadTablesError
from servelab.texts import LANGUAGES


def main() -> int:
    """Parse the command line, build the page, and say what was made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "tables", type=Path, nargs=2, metavar="TABLES", help="a study's tables, results/<study>/tables"
    )
    parser.add_argument("--output", type=Path, required=True, help="the HTML file to write")
    parser.add_argument(
        "--figures", type=Path, help="folder for figures and tables as files; default: beside the HTML"
    )
    parser.add_argument("--language", choices=LANGUAGES, help="default: what the first study's config says")
    arguments = parser.parse_args()
    figures = arguments.figures or arguments.output.with_suffix("")
    try:
        report = compare_page.build(tuple(arguments.tables), arguments.output, figures, arguments.language)
    except (BadTablesError, ValueError) as error:
        print(f"[compare] {error}", file=sys.stderr)
        return 1
    for key in report.missing_texts:
        print(f"[compare] no text «{key}»: the page shows the id instead", file=sys.stderr)
    print(f"[compare] {arguments.output}, its figures and tables in {figures}/")
    return 0


if __name__ == "__main__":
    sys.exit(signals.job(main))
