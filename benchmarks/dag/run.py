#!/usr/bin/env python3
"""What servelab's rules cost beside Snakemake itself: nothing-to-do runs of a large study and of a bare DAG.

Both have the same shape (by default 1,250 jobs with 8 points each, all of them inputs of one more job), the same
outputs already there and the same profile. The bare one is what this program writes: a loop over rules with one
parameter each. Times are the least of the repeats, alternating; processor time is the steadier of the two.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

REPO = Path(__file__).resolve().parents[2]
ARROW_MAGIC = b"ARROW1"
LEVELS = 25

BARE = """
import json

STARTS = json.load(open("starts.json"))

rule all:
    default_target: True
    input:
        [path for start in STARTS for path in start["paths"]],
        "results/tables/points.arrow",

for number, start in enumerate(STARTS):

    rule:
        name: f"start_{{number}}"
        output: start["paths"]
        params: start=start["params"]
        priority: len(STARTS) - number
        resources: gpu=1
        shell: "touch {{output}}"

rule summarise:
    input: [path for start in STARTS for path in start["paths"]]
    output: "results/tables/points.arrow"
    shell: "touch {{output}}"
""".replace("{{", "{").replace("}}", "}")


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds on the clock, seconds of processor time, most memory."""

    wall_s: float
    cpu_s: float
    memory_mb: float


def study(starts: int, points: int) -> dict[str, object]:
    """A study of so many server starts with so many points each."""
    assert starts % LEVELS == 0
    sweep = {
        "concurrency": list(range(1, points + 1)),
        "input_tokens": 8,
        "output_tokens": 4,
        "starts": starts // LEVELS,
    }
    return {
        "study": "large",
        "engine": {"version": "0.31.0", "command": ["false"]},
        "models": {"tiny": {"source": "dimensions", "path": "tiny"}},
        "server": {"max_model_len": 64, "max_num_seqs": list(range(1, LEVELS + 1))},
        "experiments": {"load_sweep": sweep},
    }


def make_ours(folder: Path, starts: int, points: int) -> None:
    """A project folder with servelab's own Snakefile and the study."""
    folder.mkdir()
    shutil.copyfile(REPO / "Snakefile", folder / "Snakefile")
    for name in ("workflow", "profiles"):
        (folder / name).symlink_to(REPO / name)
    (folder / "tiny").mkdir()
    model = json.loads((REPO / "config/models/qwen3-0.6b/config.json").read_text(encoding="utf-8"))
    (folder / "tiny/config.json").write_text(json.dumps(model), encoding="utf-8")
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(yaml.safe_dump(study(starts, points)), encoding="utf-8")


def make_bare(folder: Path, like: Path) -> None:
    """The bare DAG with the same paths and parameters as the study in `like`."""
    from servelab import parse_time

    plan = parse_time.plan(yaml.safe_load((like / "config/config.yaml").read_text(encoding="utf-8")), like)
    folder.mkdir()
    (folder / "profiles").symlink_to(REPO / "profiles")
    (folder / "Snakefile").write_text(BARE, encoding="utf-8")
    made = [{"paths": plan.paths(start), "params": plan.start_json(start)} for start in plan.starts]
    (folder / "starts.json").write_text(json.dumps(made), encoding="utf-8")
    for root in (folder, like):
        for path in plan.points:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(ARROW_MAGIC)
    tables = [
        f"results/large/tables/{name}"
        for name in ("points.arrow", "points.csv", "loads.arrow", "analyses.json", "study.json")
    ]
    for root, path in [
        (folder, "results/tables/points.arrow"),
        *((like, path) for path in [*tables, "reports/large.html"]),
    ]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(ARROW_MAGIC)


def snakemake(folder: Path, *words: str) -> tuple[Cost, str]:
    """Run Snakemake in a folder. Raises SystemExit with its output if it fails."""
    with tempfile.TemporaryFile("w+") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--cores", "1", *words],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        output = log.read()
    if process.returncode != 0:
        raise SystemExit(f"{folder.name}: {output[-3000:]}")
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024), output


def least(costs: list[Cost]) -> Cost:
    """The least of each figure."""
    return Cost(min(c.wall_s for c in costs), min(c.cpu_s for c in costs), min(c.memory_mb for c in costs))


def main() -> int:
    """Build both folders, run both, compare. Exit status 1 if ours costs more than `--at-most` times the bare one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=1250, help=f"server starts, a multiple of {LEVELS}")
    parser.add_argument("--points", type=int, default=8, help="points of each")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--at-most", type=float, default=1.5, help="ratio of processor time that still passes"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        ours, bare = Path(name) / "servelab", Path(name) / "bare"
        make_ours(ours, arguments.starts, arguments.points)
        make_bare(bare, ours)
        costs: dict[Path, list[Cost]] = {ours: [], bare: []}
        for folder in costs:
            cost, _ = snakemake(folder, "--touch", "all")
            print(f"{folder.name}: all outputs recorded in {cost.wall_s:.1f} s", flush=True)
        for _ in range(arguments.repeats):
            for folder, list_ in costs.items():
                cost, output = snakemake(folder, "all")
                if "Nothing to be done" not in output:
                    raise SystemExit(f"{folder.name}: there was something to do:\n{output[-3000:]}")
                list_.append(cost)
    found = {folder.name: least(list_) for folder, list_ in costs.items()}
    print(f"{arguments.starts * arguments.points} points on {arguments.starts} server starts, nothing to do:")
    for label, cost in found.items():
        print(f"  {label:9} {cost.wall_s:6.1f} s wall {cost.cpu_s:6.1f} s CPU {cost.memory_mb:6.0f} MB")
    mine, other = found["servelab"], found["bare"]
    ratio = mine.cpu_s / other.cpu_s
    wall, memory = mine.wall_s / other.wall_s, mine.memory_mb / other.memory_mb
    print(f"  ratio     {wall:6.2f}        {ratio:6.2f}       {memory:6.2f}")
    return int(ratio > arguments.at_most)


if __name__ == "__main__":
    sys.exit(main())
