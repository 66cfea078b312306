#!/usr/bin/env python3
"""Measure one server start: its points come from the store, or a server is started for those that are missing.

Exit status: 0 points are in place (failed ones are points too), 1 a result could not be written or a trace or text
has changed since the config was read, 130 stopped.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from servelab import estimate, measure
from servelab.made_of import digest, note
from servelab.records import PointRecord
from servelab.spec import ChangedInputError, ServerStart
from servelab.summary_line import summary_line


class Progress:
    """Prints what a person can follow: which server, which point of how many, what it gave, time left."""

    def __init__(self, start: ServerStart, timings: Path, later_s: float) -> None:
        self.start, self.timings, self.later_s = start, timings, later_s
        self.past = estimate.read(timings)
        self.left = 0
        self.done = 0
        self.total = 0
        self.by_name = {point.name: point for point in start.points}

    def say(self, text: str) -> None:
        """One line, marked with the server it is about."""
        print(
            f"[{self.start.experiment or 'shared'}/{self.start.slug} start {self.start.start}] {text}",
            flush=True,
        )

    def starting(self, missing: int, total: int) -> None:
        """Before the server is started."""
        self.total = missing
        expected = estimate.seconds(self.past, self.start, self.start.points[-missing:])
        self.left = missing
        now = "asking the server" if self.start.engine.kind == "attach" else "starting the server"
        self.say(f"{missing} of {total} points to measure, about {estimate.clock(expected)}; {now}")

    def point_done(self, record: PointRecord, seconds: float) -> None:
        """After a point was kept."""
        self.done += 1
        self.left -= 1
        point = self.by_name[record.meta.name]
        if record.meta.status == "ok":
            ready_s = float(record.meta.session.get("ready_s") or 0.0)
            estimate.record(self.timings, self.start, point, seconds, ready_s)
        names = list(self.by_name)
        rest = [self.by_name[name] for name in names[len(names) - self.left :]] if self.left else []
        here = sum(estimate.point_seconds(self.past, self.start, p) for p in rest)
        self.say(
            f"point {self.done} of {self.total}: {summary_line(record)} "
            f"({seconds:.0f} s; left: {estimate.clock(here + self.later_s)})"
        )


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", required=True, help="the server start as JSON (spec.ServerStart)")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder")
    parser.add_argument("--limits", type=Path, help="JSON file with what the machine can do")
    parser.add_argument("--retry-failed", action="store_true", help="measure points again that failed before")
    parser.add_argument(
        "--later-seconds", type=float, default=0.0, help="estimate for the starts after this one"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    start = ServerStart.from_json(json.loads(arguments.start))
    given = dict(start.engine.limits)
    limits = json.loads(arguments.limits.read_text(encoding="utf-8")) if arguments.limits else given
    progress = Progress(start, arguments.root / "results/timings.jsonl", arguments.later_seconds)
    watcher = measure.Watcher(progress.say, progress.point_done, progress.starting)
    began = time.monotonic()
    try:
        outcome = measure.measure_start(
            start, measure.Places.of(arguments.root), watcher, limits, arguments.retry_failed
        )
    except KeyboardInterrupt:
        progress.say("stopped; points measured so far are kept, the next run goes on from there")
        return 130
    except ChangedInputError as error:
        progress.say(f"{error}: nothing is kept for the points made from it; run again")
        return 1
    except OSError as error:
        progress.say(
            f"results cannot be written: {error}. Points kept before are intact; free the disk and run again"
        )
        return 1
    note(arguments.root / start.log_directory(), "measure", digest(arguments.start))
    progress.say(
        f"done in {estimate.clock(time.monotonic() - began)}: {outcome.measured} measured, {outcome.kept} from the "
        f"store, {outcome.failed} failed, {outcome.starts} server starts"
    )
    return 0


def _stop(signum: int, frame: FrameType | None) -> None:
    # As Ctrl-C does: the way out leads through every `finally`, so the server is stopped.
    del signum, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
