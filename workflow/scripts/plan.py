#!/usr/bin/env python3
"""Print what a study would run: server starts, points, how many are missing, how long it may take. Starts nothing."""

import argparse
import json
from pathlib import Path

from servelab import estimate
from servelab.config.load import load
from servelab.grid import server_starts
from servelab.spec import Point, ServerStart
from servelab.store import Store


def lines(config: dict[str, object], root: Path) -> list[str]:
    """The plan as lines of text."""
    loaded = load(config, root)
    starts = server_starts(loaded)
    timings = estimate.read(root / "results/timings.jsonl")
    store = Store(root / "results/store")
    out = [f"study {loaded.study.study}: engine {loaded.engine.name} {loaded.engine.version}, models {', '.join(loaded.models)}"]
    total_points = total_missing = needed = 0
    total_s = 0.0
    experiment = ""
    for start in starts:
        missing = [point for point in start.points if not _kept(store, start, point)]
        seconds = estimate.seconds(timings, start, missing)
        if start.experiment != experiment:
            experiment = start.experiment
            out.append(f"  {experiment or 'shared servers'}")
        state = f"{len(missing)} of {len(start.points)} points to measure, about {estimate.clock(seconds)}" if missing else f"{len(start.points)} points, all there"
        boot = "" if start.boot == "any" else f" ({start.boot} boot)"
        out.append(f"    {start.slug} start {start.start}{boot}: {state}")
        if missing:
            out.append(f"      {_names(missing)}")
        total_points += len(start.points)
        total_missing += len(missing)
        needed += bool(missing)
        total_s += seconds
    out.append(
        f"{len(starts)} server starts with {total_points} points; to do: {needed} starts, {total_missing} points, "
        f"about {estimate.clock(total_s)}" + ("" if timings.points else " (assumed: nothing was measured here yet)")
    )
    out.append("nothing was started" if total_missing else "nothing to measure")
    return out


def _kept(store: Store, start: ServerStart, point: Point) -> bool:
    return store.find(start.key(point))[0] is not None


def _names(points: list[Point], most: int = 8) -> str:
    names = [point.name for point in points]
    return ", ".join(names[:most]) + (f", … ({len(names) - most} more)" if len(names) > most else "")


def main() -> None:
    """Parse the command line and print the plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="the study's config as JSON")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    arguments = parser.parse_args()
    print("\n".join(lines(json.loads(arguments.config), arguments.root)))


if __name__ == "__main__":
    main()
