"""Soak: 1,000 points over 100 server starts, faults drawn at random, the run itself killed ten times.

    python benchmarks/soak                # in a temporary folder, minutes
    python benchmarks/soak --folder DIR   # there; an interrupted soak goes on where it was

Whole Snakemake runs measure the fake server of the tests. Servers die at start, hang, die in the middle,
stall, answer with errors, lie, ignore SIGTERM and leave daemons; Snakemake, its job, or the whole group is
killed or interrupted. At the end every point must be there exactly once, and every row must be what the fake
server's own notes say. Prints how many server starts were made in vain, and exits with 1 if anything is
wrong.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

from check import check  # noqa: E402

from project_folder import Project  # noqa: E402

SEED = 20261129
KILLS = ("SIGKILL snakemake", "SIGINT group", "SIGKILL job", "SIGTERM snakemake")
FAULTS = [
    {"do": "die_at_start", "words": "oom", "chance": 0.05},
    {"do": "hang_at_start", "chance": 0.01},
    {"do": "slow_start", "s": 0.3, "chance": 0.05},
    {"do": "ignore_sigterm", "chance": 0.03},
    {"do": "grandchild", "chance": 0.05},
    {"do": "log_flood", "mb": 2, "chance": 0.02},
    {"do": "die", "after": 3, "chance": 0.0010},
    {"do": "die_engine", "after": 3, "chance": 0.0005},
    {"do": "stall", "after": 2, "chance": 0.0004},
    {"do": "http", "status": 500, "chance": 0.003},
    {"do": "error_event", "after": 4, "chance": 0.003},
    {"do": "close", "after": 4, "chance": 0.003},
    {"do": "reset", "after": 4, "chance": 0.003},
    {"do": "usage", "completion": 1, "chance": 0.003},
    {"do": "split", "chance": 0.01},
]


def study() -> dict[str, object]:
    """10 server configurations × 10 starts × 10 concurrencies."""
    return {
        "study": "soak",
        "engine": "fake",
        "models": ["tiny"],
        "server": {"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 41},
        "experiments": {
            "load_sweep": {
                "server": {"max_num_seqs": list(range(1, 11))},
                "starts": 10,
                "concurrency": list(range(1, 11)),
                "input_tokens": [8],
                "output_tokens": [6],
                "requests_per_slot": 1,
                "requests_min": 4,
                "warmup_requests": 0,
            }
        },
        "poll_s": 0.5,
        "stall_s": 2.0,
        "point_timeout_s": 30.0,
    }


def prepare(folder: Path) -> Project:
    """The project; one that an earlier soak left is taken up."""
    if (folder / "Snakefile").exists():
        project = Project(folder)
    else:
        project = Project.make(folder)
        engine = {
            "version": "0.31.0",
            "command": [sys.executable, str(REPO / "tests/fake_server/__main__.py")],
            "stop_timeout_s": 1.0,
            "startup_timeout_s": 6.0,
        }
        project.write("config/engines/fake.yaml", engine)
    project.study = study()
    project.fake.update(
        step_ms=0.5, boot_ms=1, compile_ms=1, faults=[{**fault, "seed": SEED} for fault in FAULTS]
    )
    return project


def kill(project: Project, pid: int, how: str) -> None:
    """End a run the hard way."""
    if how == "SIGINT group":
        os.killpg(pid, signal.SIGINT)
    elif how == "SIGTERM snakemake":
        os.kill(pid, signal.SIGTERM)
    elif how == "SIGKILL job":
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _is_job(entry, project.root):
                os.kill(int(entry.name), signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)


def _is_job(entry: Path, root: Path) -> bool:
    try:
        words = (entry / "cmdline").read_bytes()
        return (
            b"scripts/measure.py" in words
            and words.startswith(sys.executable.encode())
            and (entry / "cwd").readlink() == root
        )
    except OSError:
        return False


def run(project: Project, kills_left: int, draw: random.Random) -> tuple[bool, str | None]:
    """One Snakemake run, killed after a random number of further points if kills are left: (ended well, how killed)."""
    process = project.begin("all", "--omit-from", "summarise", "--config", "retry_failed=true")
    before, patience = _noted(project), draw.randint(30, 90)
    how = None
    while process.poll() is None:
        time.sleep(0.1)
        if how is None and kills_left and _noted(project) - before >= patience:
            how = KILLS[kills_left % len(KILLS)]
            kill(project, process.pid, how)
            if how == "SIGKILL job":  # Snakemake keeps going with the other jobs; it is to start anew
                os.killpg(process.pid, signal.SIGINT)
            process.wait(180)
    return process.returncode == 0, how


def _noted(project: Project) -> int:
    return (
        sum(1 for _ in (project.root / "results/store").rglob("*.arrow"))
        if (project.root / "results/store").exists()
        else 0
    )


def failed_points(project: Project) -> int:
    """Points in place whose status is failed."""
    return sum(1 for record in project.records().values() if record.meta.status != "ok")


def main() -> int:
    """Soak, check, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--kills", type=int, default=10, help="how often the run is killed")
    arguments = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job would ignore it, and so the runs
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="servelab-soak-")) / "project"
    os.environ["SERVELAB_LOCKS"] = str(folder.with_name("soak-locks"))
    project = prepare(folder)
    draw, note = random.Random(SEED), folder / "soak.json"
    state = json.loads(note.read_text()) if note.exists() else {"kills": [], "runs": 0, "wall_s": 0.0}
    while True:
        began = time.monotonic()
        well, how = run(project, arguments.kills - len(state["kills"]), draw)
        state["runs"] += 1
        state["wall_s"] += time.monotonic() - began
        if how:
            state["kills"].append(how)
        note.write_text(json.dumps(state))
        left = project.servers_alive() if how is None else []
        ended = how or ("ended well" if well else "failed")
        points, starts = _noted(project), project.server_starts()
        print(f"run {state['runs']}: {ended}, {points} points, {starts} starts", flush=True)
        if left:
            print(f"servers left: {left}")
            return 1
        if well and how is None and len(state["kills"]) >= arguments.kills and failed_points(project) == 0:
            break
        if state["runs"] > 60:
            print("no end in sight")
            return 1
    problems, figures = check(project)
    print(
        json.dumps(
            {
                "runs": state["runs"],
                "killed": dict(Counter(state["kills"])),
                "wall_s": round(state["wall_s"]),
                **figures,
            },
            indent=1,
        )
    )
    for problem in problems[:20]:
        print("WRONG:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
