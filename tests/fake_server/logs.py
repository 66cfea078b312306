"""Log lines in vLLM's form: 0.31 on a CPU, and 0.25 on a GPU (KV size and concurrency on two lines)."""

import os
import sys
import time

from fake_server.knobs import Knobs


class Log:
    """Writes to standard output, as vLLM does."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.pid = os.getpid()

    def say(self, text: str, who: str = "APIServer", level: str = "INFO", place: str = "fake.py:1") -> None:
        """A stamped line."""
        sys.stdout.write(f"({who} pid={self.pid}) {level} {stamp()} [{place}] {text}\n")
        sys.stdout.flush()

    def plain(self, text: str) -> None:
        """A line as it is."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def banner(self, model: str) -> None:
        """Who is speaking."""
        self.say("", place="api_utils.py:347")
        self.say(f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {self.knobs.version}", place="api_utils.py:347")
        self.say(f"   █▄█▀ █     █     █     █  model   {model}", place="api_utils.py:347")

    def engine_init(self, model: str, dtype: str, kv_dtype: str, eager: bool) -> None:
        """The engine process's first line."""
        self.say(
            f"Initializing a V1 LLM engine (v{self.knobs.version}) with config: model='{model}', "
            f"trust_remote_code=False, dtype=torch.{dtype}, kv_cache_dtype={kv_dtype}, enforce_eager={eager}",
            "EngineCore",
            place="core.py:129",
        )

    def weights(self, seconds: float) -> None:
        """The model is there."""
        if self.knobs.style == "cuda":
            self.say("Loading model from scratch...", "EngineCore", place="model_runner.py:281")
            self.say(
                "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].", "EngineCore"
            )
            self.say(f"Model loading took 0.25 GiB and {seconds:.6f} seconds", "EngineCore")
        else:
            self.say("Starting to load model fake...", "Worker", place="cpu_model_runner.py:69")
            self.say(f"Loading weights took {seconds:.2f} seconds", "Worker", place="default_loader.py:484")

    def compiled(self, seconds: float) -> None:
        """torch.compile's sum."""
        verb = "takes" if self.knobs.version.startswith("0.2") else "took"
        self.say(f"torch.compile {verb} {seconds:.2f} s in total", "EngineCore", place="monitor.py:53")

    def iteration(self, number: int, work: list[tuple[int, bool]]) -> None:
        """A step of the scheduler; a request counts as context until it has output."""
        context = [count for count, first in work if first]
        rest = [count for count, first in work if not first]
        self.say(
            f"Engine 000: Iteration({number}): {len(context)} context requests, {sum(context)} context tokens, "
            f"{len(rest)} generation requests, {sum(rest)} generation tokens, iteration elapsed time: 1.00 ms, "
            "CPU KV cache usage: 50.0%",
            place="loggers.py:197",
        )

    def capacity(self, blocks: int, block_tokens: int, override: int | None, max_model_len: int) -> None:
        """Memory for the KV cache and what fits into it."""
        tokens = blocks * block_tokens
        gib = blocks * block_tokens * self.knobs.bytes_per_token / (1 << 30)
        if override is not None:
            profiled = 4 * override
            gib = 4 * gib
        if self.knobs.style == "cuda":
            self.say(f"Available KV cache memory: {gib:.2f} GiB", "EngineCore", place="gpu_worker.py:538")
        else:
            self.say(
                f"Explicitly set ({gib:.2f}/15.09) GiB for KV cache on node 0.",
                "Worker",
                place="cpu_worker.py:260",
            )
        if override is not None:
            self.say(
                f"Overriding num_gpu_blocks={profiled} with num_gpu_blocks_override={override}", "EngineCore"
            )
        device = "GPU" if self.knobs.style == "cuda" else "CPU"
        size = f"{device} KV cache size: {tokens:,} tokens"
        most = f"Maximum concurrency for {max_model_len:,} tokens per request: {tokens / max_model_len:.2f}x"
        if self.knobs.version.startswith("0.2"):
            self.say(size, "EngineCore", place="kv_cache_utils.py:2146")
            self.say(most, "EngineCore", place="kv_cache_utils.py:2147")
        else:
            self.say(f"{size}, {most}", "EngineCore", place="kv_cache_utils.py:2464")

    def ready(self, host: str, port: int, seconds: float) -> None:
        """The engine is there, the API server listens."""
        if self.knobs.style == "cuda":
            self.say(
                "Graph capturing finished in 0 secs, took 0.19 GiB", "EngineCore", place="model_runner.py:722"
            )
        self.say(f"init engine (profile, create kv cache, warmup model) took {seconds:.2f} s", "EngineCore")
        self.say("Supported tasks: ['generate']")
        self.say(f"Starting vLLM server on http://{host}:{port}", place="entry.py:136")
        for line in (
            f"Started server process [{self.pid}]",
            "Waiting for application startup.",
            "Application startup complete.",
        ):
            self.plain(f"INFO:     {line}")


def stamp() -> str:
    """Local time as vLLM writes it."""
    return time.strftime("%m-%d %H:%M:%S")
