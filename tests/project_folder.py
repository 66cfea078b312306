"""A project folder of a test: Snakemake runs in it for real, with the fake server in vLLM's place.

The Snakefile is a copy and workflow/ and profiles/ are links, so that the project's own code runs while config,
results, store and `.snakemake/` are the test's. What happened is counted from the fake server's own notes (its
starts) and from what measure.py says at the end of each job (its points).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from servelab.records import PointRecord, read_point

REPO = Path(__file__).resolve().parents[1]
FAKE_SERVER = REPO / "tests/fake_server/__main__.py"

_DONE = re.compile(r"\] done in .*: (\d+) measured, (\d+) from the store, (\d+) failed, (\d+) server starts")
_STATS = re.compile(r"^Job stats:\njob +count\n-+ +-+\n(.*?)^total ", re.MULTILINE | re.DOTALL)

# 4 tokens a block and 40 usable blocks: room for 10 requests of 8 + 8 tokens.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def small_study() -> dict[str, Any]:
    """Two concurrencies on one server of the fake engine: two points of a few milliseconds each."""
    return {
        "study": "small",
        "engine": "fake",
        "models": ["tiny"],
        "server": {"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 41, "max_num_seqs": 8},
        "experiments": {
            "load_sweep": {
                "concurrency": [1, 2],
                "input_tokens": [8],
                "output_tokens": [4],
                "requests_per_slot": 1,
                "requests_min": 2,
                "warmup_requests": 0,
            }
        },
        "tolerance": 0.05,
        "poll_s": 0.2,
        "report": {"title": "A small study"},
    }


@dataclass(frozen=True)
class Run:
    """One Snakemake run. jobs: rules that Snakemake said it would run. measured, kept, failed: points as measure.py
    reported them; starts: server processes that the fake server noted during the run."""

    returncode: int
    output: str
    starts: int
    jobs: tuple[str, ...] = field(default=())

    def _sum(self, group: int) -> int:
        return sum(int(found.group(group)) for found in _DONE.finditer(self.output))

    @property
    def measured(self) -> int:
        return self._sum(1)

    @property
    def kept(self) -> int:
        return self._sum(2)

    @property
    def failed(self) -> int:
        return self._sum(3)

    @property
    def nothing_to_do(self) -> bool:
        return self.returncode == 0 and "Nothing to be done" in self.output

    @property
    def measuring_jobs(self) -> list[str]:
        return [job for job in self.jobs if job.startswith("measure_")]

    @property
    def other_jobs(self) -> list[str]:
        return sorted({job for job in self.jobs if not job.startswith("measure_") and job != "all"})


@dataclass(frozen=True)
class RealServer:
    """Where the real server's environment and model lie, as the project's own rules make them.

    caches: VLLM_CACHE_ROOT for all servers of a test run: with an empty one a start takes 16 s longer.
    """

    python: Path
    environment: Path
    model: Path
    caches: Path


def _jobs(output: str) -> tuple[str, ...]:
    """Rules in Snakemake's table of what it is going to run, or would run; empty where there is nothing to do."""
    table = _STATS.search(output)
    return tuple(line.split()[0] for line in table[1].splitlines() if line.strip()) if table else ()


class Project:
    """The folder and what can be done in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.study: dict[str, Any] = small_study()
        self.fake: dict[str, Any] = {"truth": str(root / "truth.jsonl"), "boot_ms": 5, "compile_ms": 5}

    @classmethod
    def make(cls, root: Path, copied_workflow: bool = False) -> "Project":
        """A new project; with `copied_workflow` the code is a copy that the test may edit."""
        root.mkdir(parents=True)
        shutil.copyfile(REPO / "Snakefile", root / "Snakefile")
        (root / "profiles").symlink_to(REPO / "profiles")
        if copied_workflow:
            shutil.copytree(
                REPO / "workflow",
                root / "workflow",
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
            )
        else:
            (root / "workflow").symlink_to(REPO / "workflow")
        model = root / "models/tiny"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        project = cls(root)
        engine = {
            "version": "0.31.0",
            "command": [sys.executable, str(FAKE_SERVER)],
            "stop_timeout_s": 10,
            "startup_timeout_s": 30,
        }
        project.write("config/engines/fake.yaml", engine)
        project.write("config/models/tiny.yaml", {"source": "dimensions", "path": "models/tiny"})
        return project

    def write(self, path: str, value: Any) -> None:
        """A YAML file of the project."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")

    def environment(self) -> dict[str, str]:
        """The environment of a run: the fake server's behaviour travels in it."""
        return {**os.environ, "SERVELAB_FAKE": json.dumps(self.fake)}

    def command(self, *words: str) -> list[str]:
        """The command line of a run."""
        return [sys.executable, "-m", "snakemake", "--cores", "1", *(words or ("all",))]

    def run(self, *words: str, timeout_s: float = 400) -> Run:
        """Write the study to config/config.yaml and run `snakemake --cores 1 <words>` (default: all)."""
        self.write("config/config.yaml", self.study)
        return self.run_as_is(*words, timeout_s=timeout_s)

    def run_as_is(self, *words: str, timeout_s: float = 400) -> Run:
        """Run Snakemake with the config that is there."""
        before = self.server_starts()
        done = subprocess.run(
            self.command(*words),
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        return Run(done.returncode, done.stdout, self.server_starts() - before, _jobs(done.stdout))

    def measure(self, *words: str) -> Run:
        """Run everything up to the points and nothing after them: what makes tables and report costs seconds."""
        return self.run("all", *words, "--omit-from", "summarise")

    def would_run(self, *words: str) -> Run:
        """The jobs that `all` would run, without running them."""
        return self.run("all", "--dry-run", *words)

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        """Start a run and return while it goes on; its output goes to run.log."""
        self.write("config/config.yaml", self.study)
        with (self.root / "run.log").open("w", encoding="utf-8") as log:
            return subprocess.Popen(
                self.command(*words),
                cwd=self.root,
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def truth(self, what: str) -> list[dict[str, Any]]:
        """Notes of the fake server of one kind."""
        path = Path(self.fake["truth"])
        if not path.exists():
            return []
        lines = [
            json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")
        ]
        return [line for line in lines if line["what"] == what]

    def server_starts(self) -> int:
        """Server processes started so far."""
        return len(self.truth("start"))

    def point_paths(self) -> list[Path]:
        """Files of points as a person sees them, sorted."""
        folder = self.root / "results" / self.study["study"]
        return sorted(path for path in folder.rglob("*.arrow") if path.parent.name.startswith("start-"))

    def store_paths(self) -> list[Path]:
        """Files of the store, sorted."""
        return sorted((self.root / "results/store").rglob("*.arrow"))

    def records(self) -> dict[str, PointRecord]:
        """Points by their path under results/<study>/."""
        folder = self.root / "results" / self.study["study"]
        return {str(path.relative_to(folder)): read_point(path) for path in self.point_paths()}

    def tables(self) -> Path:
        """Folder of the tables."""
        return self.root / "results" / self.study["study"] / "tables"

    def servers_alive(self) -> list[int]:
        """Pids of fake servers of this project that still run."""
        mark = self.fake["truth"].encode()
        alive = []
        for note in self.truth("start"):
            try:
                environment = Path(f"/proc/{note['pid']}/environ").read_bytes()
            except OSError:
                continue
            if mark in environment:
                alive.append(int(note["pid"]))
        return alive

    def end_leftovers(self) -> None:
        """Kill what a failed test left; a passing one leaves nothing."""
        for pid in self.servers_alive():
            os.kill(pid, signal.SIGKILL)


def content(paths: Mapping[str, Path] | list[Path]) -> dict[str, tuple[int, int]]:
    """Path → (inode, modification time in ns): whether files are the very same as before."""
    files = list(paths.values()) if isinstance(paths, Mapping) else paths
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
