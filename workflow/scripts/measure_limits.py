#!/usr/bin/env python3
"""Measure what this machine can do (FLOP/s, bytes a second) with the server's own environment; write it as JSON.

A machine that cannot be measured gets a file that says so: points are then measured all the same, and noted
as not held against the machine. Waits while something else is measured on the machine. Exit status: 0 a file was
written, 1 it could not be, 130 stopped.
"""

import argparse
import json
import sys
from pathlib import Path

from servelab import limits, signals
from servelab.device_lock import device_lock
from servelab.records import write_atomically


def say(text: str) -> None:
    """One line of progress."""
    print(f"[limits] {text}", flush=True)


def main() -> int:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="interpreter of the server's environment (has torch)")
    parser.add_argument(
        "--device", default="cpu", choices=sorted(limits.DEVICES), help="what the server computes on"
    )
    parser.add_argument(
        "--dtype", action="append", default=[], help="dtype of matrix products; may be repeated"
    )
    parser.add_argument("--output", required=True, type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    try:
        # What is measured beside another study's load is too low, and it is kept for good. With the lock goes that
        # we end when Snakemake has gone.
        with signals.as_interrupt(), device_lock(arguments.device, Path(), say):
            found = limits.measure(arguments.python, arguments.device, arguments.dtype)
        print(f"{found['flops']:.3g} FLOP/s, {found['bytes_per_s']:.3g} B/s")
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except OSError as error:
        print(f"no lock can be had: {error}", file=sys.stderr)
        return 1
    except limits.LimitsError as error:
        found = limits.unknown(str(error))
        print(f"the machine's limits are not known: {error}", file=sys.stderr)
    try:
        write_atomically(arguments.output, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())
    except OSError as error:
        print(f"{arguments.output}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
