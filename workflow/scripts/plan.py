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


def lines(config: dict[str, object], root: Path, retry_failed: bool = False) -> list[str]:
    """The plan as lines of text. retry_failed: points that failed before are to be measured again."""
    loaded = load(config, root)
    starts = server_starts(loaded)
    timings = estimate.read(root / "results/timings.jsonl")
    store = Store(root / "results/store")
    models = ", ".join(loaded.models)
    out = [
        f"study {loaded.study.study}: engine {loaded.engine.name} {loaded.engine.version}, models {models}"
    ]
    points = sum(len(start.points) for start in starts)
    todo: list[list[Point]] = []
    failed = 0
    total_s = 0.0
    experiment = ""
    for start in starts:
        found = {point: store.glance(start.key(point), root / start.path(point)) for point in start.points}
        failures = [point for point, meta in found.items() if meta is not None and meta.status == "failed"]
        missing = [p for p, meta in found.items() if meta is None or (retry_failed and p in failures)]
        seconds = estimate.seconds(timings, start, missing)
        if start.experiment != experiment:
            experiment = start.experiment
            out.append(f"  {experiment or 'shared servers'}")
        out += _start_lines(start, missing, seconds)
        todo.append(missing)
        failed += len(failures)
        total_s += seconds
    assumed = "" if timings.points else " (assumed: nothing was measured here yet)"
    out.append(
        f"{len(starts)} server starts with {points} points; to do: {sum(map(bool, todo))} starts, "
        f"{sum(map(len, todo))} points, about {estimate.clock(total_s)}{assumed}"
    )
    if failed and not retry_failed:
        out.append(
            f"{failed} points failed before and are kept as they are; --config retry_failed=true measures them again"
        )
    out.append("nothing was started" if any(todo) else "nothing to measure")
    return out


def _start_lines(start: ServerStart, missing: list[Point], seconds: float) -> list[str]:
    boot = "" if start.boot == "any" else f" ({start.boot} boot)"
    label = f"    {start.slug} start {start.start}{boot}: "
    if not missing:
        return [f"{label}{len(start.points)} points, all there"]
    to_do = f"{len(missing)} of {len(start.points)} points to measure, about {estimate.clock(seconds)}"
    return [label + to_do, f"      {_names(missing)}"]


def _names(points: list[Point], most: int = 8) -> str:
    names = [point.name for point in points]
    return ", ".join(names[:most]) + (f", … ({len(names) - most} more)" if len(names) > most else "")


def main() -> None:
    """Parse the command line and print the plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="the study's config as JSON")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    parser.add_argument(
        "--retry-failed", action="store_true", help="points that failed before are to be measured again"
    )
    arguments = parser.parse_args()
    print("\n".join(lines(json.loads(arguments.config), arguments.root, arguments.retry_failed)))


if __name__ == "__main__":
    main()
