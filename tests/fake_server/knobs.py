"""How the fake server behaves: one JSON value in SERVELAB_FAKE, every key with a default."""

import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Knobs:
    """
    truth: file for what happened, JSON lines; "" for none. Starts are counted in it (see faults).
    step_ms, prefill_us, decode_us: a step of the scheduler takes
        step_ms + prefill_us × prompt tokens in it + decode_us × decoding requests in it; one that has no
        prompt tokens, and one that has them, both include step_ms once.
    blocks: KV blocks where the options do not say (a 16-bit cache; an 8-bit one has twice as many).
    block_tokens: tokens in a block where the options do not say.
    first_boot_share: KV blocks of a first start as a share of a restart's.
    boot_ms, compile_ms: length of the start-up, and of the compiling that only a first start does.
    tokens_per_chunk: so many tokens are merged into one event.
    eos_after: a request without ignore_eos stops after so many tokens; 0: never.
    bytes_per_token: of the KV cache, for the log.
    version, style: vLLM's version, and whether log lines look like a CPU's or a GPU's ("cpu", "cuda").
    faults: see faults.py.
    """

    truth: str = ""
    step_ms: float = 1.0
    prefill_us: float = 2.0
    decode_us: float = 10.0
    blocks: int = 512
    block_tokens: int = 16
    first_boot_share: float = 0.9
    boot_ms: float = 20.0
    compile_ms: float = 40.0
    tokens_per_chunk: int = 1
    eos_after: int = 0
    bytes_per_token: int = 23_040
    version: str = "0.31.0"
    style: str = "cpu"
    faults: list[dict[str, Any]] = field(default_factory=list)

    def step_s(self, prompt_tokens: int, decoding: int) -> float:
        """How long a step takes."""
        return (self.step_ms + (self.prefill_us * prompt_tokens + self.decode_us * decoding) / 1000) / 1000


def read() -> Knobs:
    """The knobs of this process. Raises ValueError for an unknown one."""
    text = os.environ.get("SERVELAB_FAKE", "").strip()
    if text and not text.startswith("{"):
        text = Path(text).read_text(encoding="utf-8")
    given = json.loads(text) if text else {}
    unknown = set(given) - {f.name for f in fields(Knobs)}
    if unknown:
        raise ValueError(f"SERVELAB_FAKE: unknown {sorted(unknown)}")
    return Knobs(**given)
