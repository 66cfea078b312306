"""Start the fake server: `python tests/fake_server/__main__.py --model … --port …`."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from fake_server import knobs as knobs_module  # noqa: E402
from fake_server import options as options_module  # noqa: E402
from fake_server.api import Api  # noqa: E402
from fake_server.cache import Blocks  # noqa: E402
from fake_server.faults import WORDS, Faults  # noqa: E402
from fake_server.knobs import Knobs  # noqa: E402
from fake_server.logs import Log, stamp  # noqa: E402
from fake_server.scheduler import Scheduler  # noqa: E402
from fake_server.truth import Truth  # noqa: E402
from fake_server.wire import Connection  # noqa: E402

DAEMON = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


async def main() -> None:
    """Come up the way vLLM does, serve, stop on SIGTERM."""
    knobs = knobs_module.read()
    options = options_module.parse(sys.argv[1:])
    truth = Truth(knobs.truth)
    truth.tell("start", pid=os.getpid(), argv=sys.argv[1:])
    faults = Faults(knobs.faults, truth.start)
    log = Log(knobs)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    scheduler, api = await come_up(knobs, options, faults, truth, log)
    stepping = loop.create_task(scheduler.run())
    stepping.add_done_callback(
        lambda task: task.cancelled() or os._exit(3) if task.cancelled() or task.exception() else None
    )
    try:
        server = await loop.create_server(
            lambda: Connection(api), options.host or "0.0.0.0", options.port or 8000, backlog=1024
        )
    except OSError as error:
        log.plain(f"OSError: {error.args[-1]}")
        sys.exit(1)
    log.plain("INFO:     Application startup complete.")
    boot = api.cache["boot"]
    truth.tell("ready", blocks=scheduler.blocks.total, block_tokens=scheduler.blocks.size, boot=boot)
    while True:
        await stopping.wait()
        stopping.clear()
        if not faults.of_start("ignore_sigterm"):
            break
        log.say("[shutdown] asked to stop, and does not", level="WARNING")
    await asyncio.sleep((faults.of_start("slow_stop") or {}).get("s", 0.0))
    log.say("[shutdown] API server: shutdown triggered", place="launcher.py:128")
    truth.tell("stop", how="SIGTERM", counters=vars(scheduler.counters))
    server.close()
    stepping.cancel()
    os._exit(0)


async def come_up(
    knobs: Knobs, options: "options_module.argparse.Namespace", faults: Faults, truth: Truth, log: Log
) -> tuple[Scheduler, Api]:
    """The start-up with its log lines and its faults."""
    began = time.monotonic()
    log.banner(options.model)
    if faults.of_start("grandchild"):
        subprocess.Popen([sys.executable, "-c", DAEMON], start_new_session=True, env={})
    flood = faults.of_start("log_flood")
    if flood:
        line = ("(EngineCore pid=1) INFO " + "x" * 1000 + "\n") * 64
        for _ in range(int(flood["mb"] * 16)):
            sys.stdout.write(line)
        sys.stdout.flush()
    missing = (
        options.model.startswith("/") and not Path(options.model).exists() and options.load_format != "dummy"
    )
    if missing:
        die(log, WORDS["model_missing"], options.model)
    await asyncio.sleep((faults.of_start("slow_start") or {}).get("s", 0.0))
    if faults.of_start("hang_at_start"):
        truth.tell("fault", fault={"do": "hang_at_start"})
        await asyncio.sleep(3600)
    death = faults.of_start("die_at_start")
    if death:
        truth.tell("fault", fault=death)
        die(log, WORDS[death.get("words", "oom")], options.model)
    log.engine_init(
        options.model, options.dtype or "bfloat16", options.kv_cache_dtype, bool(options.enforce_eager)
    )
    await asyncio.sleep(knobs.boot_ms / 1000)
    log.weights(knobs.boot_ms / 1000)
    restart = compiled_before(bool(options.enforce_eager))
    if not restart and not options.enforce_eager:
        await asyncio.sleep(knobs.compile_ms / 1000)
        log.compiled(knobs.compile_ms / 1000)
    blocks = capacity(knobs, options, restart)
    size = options.block_size or knobs.block_tokens
    if options.max_model_len > (blocks - 1) * size:
        if any(word.startswith("--max-model-len") for word in sys.argv):
            die(log, WORDS["kv_too_small"], options.model)
        options.max_model_len = (blocks - 1) * size
    log.capacity(blocks, size, options.num_gpu_blocks_override, options.max_model_len)
    log.ready(options.host or "0.0.0.0", options.port or 8000, time.monotonic() - began)
    pool = Blocks(blocks, size, bool(options.enable_prefix_caching))
    scheduler = Scheduler(knobs, pool, options.max_num_seqs, options.max_num_batched_tokens)
    if options.enable_logging_iteration_details:
        scheduler.on_step = log.iteration
    cache = {
        "block_size": size, "cache_dtype": options.kv_cache_dtype, "num_gpu_blocks": blocks, "engine": 0,
        "enable_prefix_caching": bool(options.enable_prefix_caching), "kv_cache_size_tokens": blocks * size,
        "num_gpu_blocks_override": options.num_gpu_blocks_override, "boot": "restart" if restart else "first",
    }  # fmt: skip
    key = options.api_key or os.environ.get("VLLM_API_KEY", "")
    return scheduler, Api(knobs, options, scheduler, faults, truth, log, cache, key)


def capacity(knobs: Knobs, options: "options_module.argparse.Namespace", restart: bool) -> int:
    """KV blocks: as overridden; else twice as many for an 8-bit cache, fewer on a first start."""
    if options.num_gpu_blocks_override:
        return int(options.num_gpu_blocks_override)
    blocks = knobs.blocks * (2 if options.kv_cache_dtype.startswith("fp8") else 1)
    return blocks if restart else int(blocks * knobs.first_boot_share)


def compiled_before(eager: bool) -> bool:
    """Whether the compile cache holds an earlier start's work; leaves this one's there."""
    root = os.environ.get("VLLM_CACHE_ROOT")
    if not root:
        return False
    mark = Path(root) / "torch_compile_cache" / ("eager" if eager else "compiled")
    before = mark.exists()
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return before


def die(log: Log, words: list[str], model: str) -> None:
    """Last words, then the end."""
    for line in words:
        log.plain(line.replace("{stamp}", stamp()).replace("/nonexistent/model", model))
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    asyncio.run(main())
