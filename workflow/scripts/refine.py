#!/usr/bin/env python3
"""Add the concurrencies that would narrow the knee's interval to a study, within its budget, and measure them.

They are kept in results/<study>/refined.json and belong to the study from then on. With nothing worth measuring,
nothing is started.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from servelab import estimate, parse_time, refine, refined, signals
from servelab.canonical import canonical_json
from servelab.config.load import load
from servelab.records import write_atomically
from servelab.report import tables


def main() -> int:
    """Parse the command line, add concurrencies, run `all`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="the study's config as JSON")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the study's tables")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    arguments = parser.parse_args()
    loaded = load(json.loads(arguments.config), arguments.root)
    study = loaded.study
    added = refined.read(arguments.root, study.study)
    spent = sum(len(numbers) for numbers in added.values())
    proposals = refine.propose(tables.read_points(arguments.tables), study)[
        : max(study.refine.max_points - spent, 0)
    ]
    if not proposals:
        budget = f"{spent} of refine.max_points={study.refine.max_points} concurrencies added so far"
        print(
            f"[refine] nothing to add: every knee is narrow enough, or the budget is spent ({budget})",
            flush=True,
        )
        return 0
    for proposal in proposals:
        series = f"{proposal.model}, input {proposal.input_tokens}, output {proposal.output_tokens}"
        print(
            f"[refine] {proposal.experiment}: concurrency {proposal.concurrency} ({proposal.reason}: {series}), "
            f"about {estimate.clock(proposal.seconds)} on all servers and lengths of the experiment",
            flush=True,
        )
        added.setdefault(proposal.experiment, []).append(proposal.concurrency)
    refined.write(arguments.root, study.study, added)
    return _measure(arguments.root, study.study, canonical_json(loaded.raw))


def _measure(root: Path, study: str, config: str) -> int:
    """Run `snakemake all` on the study; it ends with us. JSON is YAML, so the config can be read again."""
    path = root / "results" / study / "refine-config.json"
    write_atomically(path, config.encode())
    environment = {**os.environ, parse_time.HELD_VARIABLE: str(root.resolve())}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "all", "--configfile", str(path)]
    # In our own process group: a terminal's Ctrl-C reaches it as it reaches us.
    with subprocess.Popen(command, env=environment) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise


if __name__ == "__main__":
    sys.exit(signals.job(main))
