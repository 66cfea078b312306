"""What servelab reads out of vLLM's log, from real logs of two releases on CPU and GPU."""

import time
from datetime import datetime
from pathlib import Path

import pytest

from servelab import server, vllm_log

LOGS = Path(__file__).parent / "data" / "logs"
CUDA = "vllm-0.25.1-cuda-h200-first-start-bf16"
COMPILED = "vllm-0.31.0-cpu-compiled"
EAGER = "vllm-0.31.0-cpu-eager"


def lines(name: str) -> list[str]:
    return (LOGS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def spans(boot: vllm_log.BootLog) -> dict[str, float]:
    found: dict[str, float] = {}
    for phase in boot.phases:
        found[phase.name] = found.get(phase.name, 0.0) + phase.end_s - phase.start_s
    return found


def test_capacity_of_a_gpu_server_whose_blocks_are_overridden() -> None:
    """Tokens, concurrency and bytes of the KV cache agree with the formula although the memory line is larger."""
    boot = vllm_log.parse(lines(CUDA))
    assert (boot.version, boot.kv_cache_tokens, boot.max_concurrency) == ("0.25.1", 22_048, 5.07)
    assert boot.max_concurrency_tokens == 4352
    assert boot.kv_available_bytes == round(65.86 * vllm_log.GIB)
    assert boot.kv_cache_bytes is not None
    # Qwen3-1.7B in bf16: 2 × 28 layers × 8 KV heads × 128 × 2 bytes
    assert boot.kv_cache_bytes / boot.kv_cache_tokens == pytest.approx(114_688, rel=2e-4)


def test_capacity_of_a_cpu_server_in_the_later_spelling() -> None:
    """One line holds size and concurrency in 0.31; SmolLM2-135M takes 2 × 30 × 3 × 64 × 2 bytes a token."""
    boot = vllm_log.parse(lines(EAGER))
    assert (boot.version, boot.kv_cache_tokens, boot.max_concurrency) == ("0.31.0", 3200, 1.56)
    assert boot.kv_cache_bytes is not None
    assert boot.kv_cache_bytes / boot.kv_cache_tokens == pytest.approx(23_040, rel=5e-4)


@pytest.mark.parametrize(
    ("name", "eager", "graphs", "backend", "compile_s"),
    [
        (CUDA, False, True, "FLASH_ATTN", 30.16),
        (COMPILED, False, False, None, None),
        (EAGER, True, False, None, None),
    ],
)
def test_how_the_server_runs(
    name: str, eager: bool, graphs: bool, backend: str | None, compile_s: float | None
) -> None:
    """Eager or compiled, graphs or none, backend and dtype are the server's own words; what it does not say is None."""
    boot = vllm_log.parse(lines(name))
    assert (boot.enforce_eager, boot.graphs, boot.backend, boot.compile_s) == (
        eager,
        graphs,
        backend,
        compile_s,
    )
    assert (boot.dtype, boot.kv_cache_dtype) == ("bfloat16", "auto")


@pytest.mark.parametrize("name", [CUDA, COMPILED, EAGER])
def test_phases_cover_the_start_up_without_gap_or_overlap(name: str) -> None:
    """From the process's start to the first answer every second belongs to one phase or is shown as unaccounted."""
    first = vllm_log._STAMPED.match(next(line for line in lines(name) if "█  version 0" in line))
    assert first is not None
    start = datetime.strptime(f"2026-{first['stamp']}", "%Y-%m-%d %H:%M:%S").timestamp() - 5.0
    boot = vllm_log.parse(lines(name), start, start + 120.0)
    assert boot.phases[0].start_s == 0.0
    assert boot.phases[-1].end_s == pytest.approx(120.0)
    for before, after in zip(boot.phases, boot.phases[1:], strict=False):
        assert before.end_s == after.start_s
    assert {phase.name for phase in boot.phases} <= set(vllm_log.PHASES)
    assert spans(boot)["imports"] == pytest.approx(5.0)


def test_phases_of_a_first_start_on_a_gpu() -> None:
    """Compiling, profiling and graphs have their time; twenty seconds no line accounts for stay unaccounted."""
    found = spans(vllm_log.parse(lines(CUDA)))
    assert found["engine_process"] == 24
    assert found["compile"] == 31
    assert found["graph_capture"] == 2
    assert found["unaccounted"] == 21


def test_compiling_on_a_cpu_is_not_taken_for_weights() -> None:
    """The CPU runner's warm-up is the compile phase."""
    found = spans(vllm_log.parse(lines(COMPILED)))
    assert found["compile"] == 31
    assert "weights" not in found


def test_a_start_up_across_midnight_and_new_year() -> None:
    """Stamps have no year: those after midnight of 31 December are later, not a year earlier."""
    text = [
        "(APIServer pid=1) INFO 12-31 23:59:58 [a.py:1]  version 0.31.0",
        "(APIServer pid=1) INFO 12-31 23:59:59 [a.py:1] Using max model len 4096",
        "(EngineCore pid=2) INFO 01-01 00:00:03 [core.py:129] Initializing a V1 LLM engine (v0.31.0) with config: x",
        "(APIServer pid=1) INFO 01-01 00:00:05 [a.py:1] Starting vLLM server on http://127.0.0.1:1",
    ]
    start = datetime(2026, 12, 31, 23, 59, 57).timestamp()
    boot = vllm_log.parse(text, start, start + 8.5)
    assert [(p.name, p.start_s, p.end_s) for p in boot.phases] == [
        ("imports", 0.0, 1.0),
        ("config", 1.0, 2.0),
        ("engine_process", 2.0, 6.0),
        ("unaccounted", 6.0, 8.5),
    ]


def test_a_log_of_another_server_yields_nothing_instead_of_guesses() -> None:
    """Lines of an unknown form leave every field empty and the whole time unaccounted."""
    boot = vllm_log.parse(["hello", "listening"], 100.0, 107.0)
    assert boot.version is None and boot.kv_cache_tokens is None and boot.graphs is None
    assert [(p.name, p.end_s) for p in boot.phases] == [("unaccounted", 7.0)]


def test_compilation_during_a_measurement_is_an_event() -> None:
    """JIT and compile lines, warnings and errors of a measurement are told, repeated ones once with their count."""
    jit = "(EngineCore pid=1) WARNING 11-29 17:00:00 [jit_monitor.py:137] Triton JIT compilation during inference: f."
    found = vllm_log.events(
        [
            jit,
            jit,
            "(EngineCore pid=1) INFO 11-29 17:00:01 [backends.py:1] Compiling a graph for range (1, 8) takes 2 s",
            "(APIServer pid=1) INFO 11-29 17:00:02 [loggers.py:273] Engine 000: Avg prompt throughput: 1 tokens/s",
            "(APIServer pid=1) ERROR 11-29 17:00:03 [a.py:1] token hf_abcdefghijklmnopqrst refused",
        ]
    )
    assert [(event["kind"], event["count"]) for event in found] == [("jit", 2), ("compile", 1), ("error", 1)]
    assert "hf_abcdefgh" not in str(found)


def test_an_event_tells_in_which_seconds_it_came() -> None:
    """Stamps have no year: read after New Year, one of 31 December is of the year before; no stamp, no second."""
    jit = "(EngineCore pid=1) WARNING {} [jit_monitor.py:137] Triton JIT compilation during inference: f."
    stamps = ("12-31 23:59:58", "12-31 23:59:58", "01-01 00:00:02")
    lines = [*(jit.format(stamp) for stamp in stamps), "JIT compilation without a stamp"]
    stamped, bare = vllm_log.events(lines, datetime(2027, 1, 1, 0, 0, 5).timestamp())
    moments = (datetime(2026, 12, 31, 23, 59, 58), datetime(2027, 1, 1, 0, 0, 2))
    assert (stamped["count"], stamped["utc_s"]) == (3, [int(moment.timestamp()) for moment in moments])
    assert (bare["count"], bare["utc_s"]) == (1, [])


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("died-unknown-option", "error: unrecognized arguments: --bogus-option"),
        ("died-bad-choice", "error: argument --kv-cache-dtype"),
        ("died-model-missing", "OSError: Repo id must"),
        ("died-kv-too-small", "ValueError: To serve at least one request with the model's max seq len"),
        ("died-hub-offline", "LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"),
    ],
)
def test_last_words_are_the_cause_and_not_its_consequence(file: str, words: str) -> None:
    """Of a real server that died the cause is quoted, not the API server's reference to a stack trace above."""
    said = vllm_log.last_words(lines(file))
    assert words in said
    assert "Engine core initialization failed" not in said
    assert len(said) <= vllm_log.MAX_LINE


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("RuntimeError: Cannot find any model weights with `/srv/m`", "model_missing"),
        (
            "ValueError: Available memory on node 0 (19.47/23.54 GiB) on startup is less than desired",
            "out_of_memory",
        ),
        ("ValueError: something else", "died"),
    ],
)
def test_last_words_of_a_worker_of_its_own_process(reason: str, cause: str) -> None:
    """The worker says why, the engine after it only that; a warning above with the word «error» is no cause."""
    consequence = "Exception: WorkerProc initialization failed due to an exception in a background process."
    said = vllm_log.last_words(
        [
            "(APIServer pid=1) WARNING 11-30 10:01:20 [system_utils.py:249] Found ulimit of 20000 and failed to "
            "automatically increase with error current limit exceeds maximum limit.",
            "(Worker pid=3) ERROR 11-30 10:01:50 [multiproc_executor.py:948] WorkerProc failed to start.",
            "(Worker pid=3) ERROR 11-30 10:01:50 [multiproc_executor.py:948] Traceback (most recent call last):",
            f"(Worker pid=3) ERROR 11-30 10:01:50 [multiproc_executor.py:948] {reason}",
            "(EngineCore pid=2) ERROR 11-30 10:01:52 [core.py:1433] EngineCore failed to start.",
            f"(EngineCore pid=2) ERROR 11-30 10:01:52 [core.py:1433] {consequence}",
            consequence,
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ]
    )
    assert said == reason
    assert next((name for name, pattern in server._CAUSES if pattern.search(said)), "died") == cause


def test_last_words_of_a_gpu_without_memory() -> None:
    """Out of memory is named although other exceptions follow it."""
    said = vllm_log.last_words(
        [
            "(EngineCore pid=9) ERROR 11-29 17:00:00 [core.py:1] Traceback (most recent call last):",
            "(EngineCore pid=9) ERROR 11-29 17:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. 2 GiB.",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ]
    )
    assert said == "torch.OutOfMemoryError: CUDA out of memory. 2 GiB."


def test_last_words_are_found_at_once_in_a_flood() -> None:
    """Megabytes of lines of any shape take no time to search: the last ones are read, each up to a length."""
    flood = ["x" * 1000, "a." * 500, "A" * 5000, "(" * 1000] * 2500
    began = time.monotonic()
    assert vllm_log.last_words([*flood, "ValueError: the end"]) == "ValueError: the end"
    assert time.monotonic() - began < 5


def test_last_words_of_a_silent_server() -> None:
    """A server that said nothing has no last words."""
    assert vllm_log.last_words([]) == ""
    assert vllm_log.last_words(["", "just a line"]) == "just a line"
