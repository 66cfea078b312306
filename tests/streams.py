"""Recorded streams for tests: what servers send, as bytes on the wire."""

import json
from collections.abc import Iterable
from typing import Any

from servelab.exchange import Exchange, Packed
from servelab.http_framing import parse_head

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    value: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if cached is not None:
        value["prompt_tokens_details"] = {"cached_tokens": cached}
    return value


def event(value: Any, end: bytes = b"\n\n", ascii_only: bool = True) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only).encode() + end


def vllm_chunk(
    text: str, counts: dict[str, Any] | None, reason: str | None = None, ident: str = "cmpl-1"
) -> bytes:
    """A completion chunk with the keys, their order and spacing of vLLM 0.31."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    choice |= {"prompt_token_ids": None, "token_ids": None}
    value: dict[str, Any] = {"id": ident, "object": "text_completion", "created": 1764400000, "model": "m"}
    value["choices"] = [choice]
    if counts is not None:
        value["usage"] = counts
    return event(value, ascii_only=False)


def vllm_events(texts: Iterable[str], prompt: int = 5, per_chunk: Iterable[int] | None = None) -> list[bytes]:
    """A whole answer of vLLM with running usage figures, an event an entry."""
    words = list(texts)
    tokens = list(per_chunk) if per_chunk is not None else [1] * len(words)
    out, total = [], 0
    for number, (text, count) in enumerate(zip(words, tokens, strict=True)):
        total += count
        out.append(vllm_chunk(text, usage(prompt, total), "length" if number == len(words) - 1 else None))
    final = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": []}
    return [*out, event({**final, "usage": usage(prompt, total, 0)}), DONE]


def framed(events: Iterable[bytes], end: bool = True) -> bytes:
    """Events as uvicorn sends them: one HTTP chunk each, after a head."""
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events) + (b"0\r\n\r\n" if end else b"")


def exchange_of(
    reads: list[bytes],
    input_tokens: int = 5,
    output_tokens: int = 3,
    path: str = "/v1/completions",
    framing: bool = True,
) -> Exchange:
    """A finished exchange whose n-th read came at second n."""
    made = Exchange("measured", 0, path)
    made.input_tokens, made.output_tokens, made.framed = input_tokens, output_tokens, framing
    made.packed = Packed.of([float(n) for n in range(len(reads))], reads)
    made.sent_s, made.end_s = -1.0, float(len(reads))
    made.head = parse_head(b"".join(reads) if framing else HEAD)
    if made.head is not None and not framing:
        made.head = type(made.head)(200, False, None, False, "text/event-stream", 0)
    return made
