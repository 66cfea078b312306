#!/usr/bin/env python3
"""Points → JSON files with the keys of `vllm bench serve --save-result --save-detailed`, one beside each other."""

import argparse
import json
import sys
from pathlib import Path

from servelab.records import BadPointError, read_point
from servelab.vllm_bench_export import export


def main() -> int:
    """Parse the command line and write a JSON file for each point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="+", type=Path, help="points' files (results/<study>/…/*.arrow)")
    parser.add_argument("--to", type=Path, default=Path(), help="folder for the JSON files; default here")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    bad = 0
    for path in arguments.points:
        try:
            record = read_point(path)
        except BadPointError as error:
            print(f"[export] {error}", file=sys.stderr)
            bad += 1
            continue
        meta = record.meta
        start = meta.start.get("start", 1)
        target = arguments.to / f"{meta.study}-{meta.experiment}-{meta.slug}-start{start}-{meta.name}.json"
        target.write_text(json.dumps(export(record), allow_nan=False), encoding="utf-8")
        print(f"[export] {target}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
