"""The real vLLM on a CPU, through Snakemake: measured, interrupted, gone on, and nothing measured twice."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from project_folder import REPO, Project, RealServer, Run
from servelab import server_counters

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]

BLOCK_TOKENS = 128
BLOCKS = 25


def server_starts(run: Run) -> int:
    """Server processes started, as measure.py says at the end of each job."""
    return sum(int(found) for found in re.findall(r"(\d+) server starts$", run.output, re.MULTILINE))


def processes_of(project: Project) -> list[int]:
    """Processes whose environment names this project's folder: servers, and whatever they have started."""
    mark = f"={project.root}/".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def real_project(tmp_path: Path, real_server: RealServer) -> Project:
    """A project folder with the repository's own engine, model and resources."""
    project = Project.make(tmp_path / "project")
    (project.root / "resources").symlink_to(REPO / "resources")
    for name in ("engines/vllm-cpu.yaml", "models/smollm2-135m.yaml"):
        shutil.copyfile(REPO / "config" / name, project.root / "config" / name)
    project.study |= {
        "study": "real",
        "engine": {"use": "vllm-cpu", "environment": {"VLLM_CACHE_ROOT": str(real_server.caches)}},
        "models": ["smollm2-135m"],
        "server": {
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 512,
            "num_gpu_blocks_override": BLOCKS,
            "enforce_eager": True,
            "dtype": "float32",
        },
        # Given, so that this machine's limits are not measured first.
        "limits": {"flops": 1e13, "bytes_per_s": 1e12},
    }
    load = {"concurrency": [1, 4], "input_tokens": [100], "output_tokens": [8], "requests_min": 4}
    project.study["experiments"]["load_sweep"] |= {**load, "warmup_requests": 1}
    return project


def interrupt_after_first_point(project: Project) -> None:
    """Ctrl-C at a terminal goes to Snakemake and all its children at once."""
    process = project.begin("all", "--omit-from", "summarise")
    deadline = time.monotonic() + 1200
    try:
        while not project.store_paths():
            assert process.poll() is None, (project.root / "run.log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline, "no point in time"
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=120) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_real_server_is_measured_once_and_leaves_nothing(real_project: Project) -> None:
    """Ctrl-C loses no point and leaves no process; the next run measures the rest; then only changes are measured."""
    project = real_project
    interrupt_after_first_point(project)
    assert processes_of(project) == []
    kept = len(project.store_paths())
    assert kept in (1, 2), "both points may be through before the signal arrives"

    rest = project.measure()
    assert rest.returncode == 0, rest.output
    assert (server_starts(rest), rest.measured, rest.kept) == (2 - kept, 2 - kept, kept)
    assert rest.failed == 0
    records = project.records()
    assert len(records) == 2
    for record in records.values():
        meta = record.meta
        assert (meta.status, meta.session["version"]) == ("ok", "0.31.0")
        rows = [row for row in record.requests.to_pylist() if row["role"] == "measured"]
        assert len(rows) == 4
        for row in rows:
            assert row["ok"], row
            assert (row["input_tokens"], row["output_tokens"], sum(row["chunk_tokens"])) == (100, 8, 8)
        assert server_counters.kv_capacity(meta)[0] == BLOCKS * BLOCK_TOKENS
        assert meta.metrics["after"] and record.series.num_rows > 0

    assert project.measure().measuring_jobs == []
    project.study["report"]["title"] = "Another title"
    assert project.would_run().measuring_jobs == []
    project.study["experiments"]["load_sweep"]["concurrency"] = [1, 2, 4]
    more = project.measure()
    assert more.returncode == 0, more.output
    assert (server_starts(more), more.measured, more.kept, more.failed) == (1, 1, 2, 0)
    assert processes_of(project) == []
