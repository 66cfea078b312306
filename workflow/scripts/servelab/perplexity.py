"""Perplexity of a fixed text through the server itself: prompt_logprobs, one segment a request, one at a time.

Token ids are made by the server's own tokenizer (`/tokenize`) and sent as ids, so that nothing is tokenized
twice; their digest is kept, and points are compared only if it is the same. Perplexity of a set of segments
is exp(sum of -log p ÷ scored tokens), every token of a segment but its first being scored
(https://huggingface.co/docs/transformers/perplexity, without overlap).

A request asks for one segment of at most MAX_SEGMENT_TOKENS tokens: the server holds logits of the whole
vocabulary for every token of a prefill step, so long prompts with prompt_logprobs exhaust its memory.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import pyarrow as pa

from servelab import redact, texts_source
from servelab.canonical import digest
from servelab.records import requests_table
from servelab.spec import Workload
from servelab.sse import WORDS_CHARS, StreamRecord, count, judge
from servelab.texts_source import MAX_SEGMENT_TOKENS

LOG_ZERO = -9999.0  # what the server writes for log 0, which JSON cannot carry


class Target(Protocol):
    """A server that answers: base_url (with or without /v1), the model's served name, its key or ""."""

    @property
    def base_url(self) -> str:
        """Address of the API."""

    @property
    def model(self) -> str:
        """The name under which the model is served."""

    @property
    def api_key(self) -> str:
        """The server's key, "" without one."""


@dataclass(frozen=True)
class Limits:
    """request_timeout_s: the longest one segment may take; timeout_s: all of them."""

    timeout_s: float = 900.0
    request_timeout_s: float = 120.0


@dataclass(frozen=True)
class Scored:
    """requests: rows by records.REQUESTS, one a segment. clock_zero: UTC seconds of the rows' zero.

    facts: text, text_digest, tokens_digest (of all segments' ids), segments, segment_tokens.
    """

    requests: pa.Table
    clock_zero: float
    facts: dict[str, Any] = field(default_factory=dict)


class PerplexityError(Exception):
    """The server or the text cannot do what the point needs. cause: one of records.POINT_CAUSES."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


async def run(target: Target, workload: Workload, limits: Limits, alive: Callable[[], bool]) -> Scored:
    """Score the text's segments one after the other.

    alive: whether the server's process still lives; a segment that fails is a row with its cause, and after
    the server's death or at the time limit the remaining segments are rows that were never sent.
    Raises PerplexityError before the first segment: no text, too short a text, a server without /tokenize;
    ChangedInputError: the text is not the one of `text_digest`.
    """
    if not 2 <= workload.segment_tokens <= MAX_SEGMENT_TOKENS:
        raise PerplexityError(
            "not_supported", f"segment_tokens: {workload.segment_tokens} is not in 2..{MAX_SEGMENT_TOKENS}"
        )
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    timeout = aiohttp.ClientTimeout(total=limits.request_timeout_s)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        ids, facts = await tokenized(session, target, workload)
        return Scored(*await _score_all(session, target, ids, limits, alive), facts)


async def tokenized(
    session: aiohttp.ClientSession, target: Target, workload: Workload
) -> tuple[list[list[int]], dict[str, Any]]:
    """Token ids of every segment, each exactly `segment_tokens` long, and the facts that name them.

    Special tokens that the tokenizer puts before a text (BOS) stay. Raises PerplexityError, ChangedInputError.
    """
    try:
        text = texts_source.load(workload.text, workload.text_digest)
        parts = texts_source.segments(text.content, workload.segments, workload.segment_tokens)
    except texts_source.TextError as error:
        raise PerplexityError("not_supported", str(error)) from error
    ids = [await _tokenize(session, target, part, workload.segment_tokens) for part in parts]
    facts = {
        "text": text.name,
        "text_digest": text.digest,
        "tokens_digest": digest(ids),
        "segments": workload.segments,
        "segment_tokens": workload.segment_tokens,
    }
    return ids, facts


def negative_log_likelihood(
    prompt_logprobs: Sequence[Mapping[str, Any] | None], ids: Sequence[int]
) -> tuple[float, int]:
    """(sum of -log p in nats, number of scored tokens) of one segment.

    prompt_logprobs: the server's answer: an entry a prompt token, null for the first, else {token id:
    {"logprob"}} in which the prompt's own token is always present. Raises ValueError where that does not
    hold, and for a token of probability zero (the sum would be infinite).
    """
    if len(prompt_logprobs) != len(ids):
        raise ValueError(f"{len(prompt_logprobs)} prompt_logprobs for {len(ids)} tokens")
    total = 0.0
    for place in range(1, len(ids)):
        entry = (prompt_logprobs[place] or {}).get(str(ids[place]))
        if entry is None:
            raise ValueError(f"no logprob for the prompt's token {ids[place]} at place {place}")
        logprob = float(entry["logprob"])
        if not math.isfinite(logprob) or logprob <= LOG_ZERO:
            raise ValueError(f"the prompt's token {ids[place]} at place {place} has probability zero")
        total -= logprob
    return total, len(ids) - 1


def _root(target: Target) -> str:
    """The server's address without `/v1`."""
    return target.base_url.rstrip("/").removesuffix("/v1")


async def _tokenize(session: aiohttp.ClientSession, target: Target, part: str, tokens: int) -> list[int]:
    body = {"model": target.model, "prompt": part}
    try:
        async with session.post(f"{_root(target)}/tokenize", json=body) as answer:
            if answer.status != 200:
                words = (await answer.text(errors="replace"))[:WORDS_CHARS]
                raise PerplexityError("not_supported", f"/tokenize answered {answer.status}: {words}")
            ids = [count(token) for token in (await answer.json())["tokens"]]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise PerplexityError("not_supported", f"/tokenize: {type(error).__name__} {error}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise PerplexityError("not_supported", f"/tokenize gave no token ids ({error})") from error
    if len(ids) < tokens:
        raise PerplexityError(
            "not_supported", f"a segment of {len(part)} characters has {len(ids)} tokens, {tokens} are needed"
        )
    return ids[:tokens]


async def _score_all(
    session: aiohttp.ClientSession,
    target: Target,
    ids: list[list[int]],
    limits: Limits,
    alive: Callable[[], bool],
) -> tuple[pa.Table, float]:
    clock_zero, zero = time.time(), time.perf_counter()
    rows = []
    for index, segment in enumerate(ids):
        now = time.perf_counter() - zero
        row = {
            "index": index, "role": "measured", "slot": 0, "intended_s": now,
            "chunk_s": [], "chunk_tokens": [],
            "input_tokens_asked": len(segment), "output_tokens_asked": 1, "ok": False,
        }  # fmt: skip
        if not alive():
            row |= {"cause": "server_died", "end_s": now}
        elif now > limits.timeout_s:
            row |= {"cause": "timeout", "end_s": now}
        else:
            row |= await _score(session, target, segment, zero)
        if row.get("detail"):
            row["detail"] = redact.line(str(row["detail"]), target.api_key)
        rows.append(row)
    return requests_table(rows), clock_zero


async def _score(
    session: aiohttp.ClientSession, target: Target, ids: list[int], zero: float
) -> dict[str, Any]:
    """The columns of one segment's row that its request decides."""
    body = {"model": target.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    row: dict[str, Any] = {"sent_s": time.perf_counter() - zero}
    try:
        async with session.post(f"{_root(target)}/v1/completions", json=body) as answer:
            row |= {"first_byte_s": time.perf_counter() - zero, "http_status": answer.status}
            if answer.status != 200:
                return row | _failed(zero, "http_error", await answer.text(errors="replace"))
            row |= _scored(await answer.json(), ids)
            row["end_s"] = time.perf_counter() - zero
            if row["ok"]:
                row |= {"chunk_s": [row["end_s"]], "chunk_tokens": [row["output_tokens"]]}
            return row
    except TimeoutError:
        return row | _failed(zero, "stalled", "no whole answer within the limit of one request")
    except aiohttp.ClientConnectorError as error:
        return row | _failed(zero, "connect", str(error))
    except aiohttp.ClientError as error:
        return row | _failed(zero, "reset", f"{type(error).__name__} {error}")
    except (ValueError, RecursionError) as error:
        return row | _failed(zero, "bad_stream", f"no JSON ({error})")


def _scored(answer: Mapping[str, Any], ids: list[int]) -> dict[str, Any]:
    """What a whole answer says: usage, finish reason, negative log-likelihood, or the cause why it does not
    count."""
    said, logprobs = _said(answer)
    cause, detail = judge(said, len(ids), 1)
    row = {
        "input_tokens": said.input_tokens,
        "output_tokens": said.output_tokens,
        "cached_tokens": said.cached_tokens,
        "finish_reason": said.finish_reason,
    }
    if cause is not None:
        return {**row, "ok": False, "cause": cause, "detail": detail}
    if not logprobs:
        return {**row, "ok": False, "cause": "bad_stream", "detail": "the answer carries no prompt_logprobs"}
    try:
        nll, scored = negative_log_likelihood(logprobs, ids)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        return {**row, "ok": False, "cause": "bad_stream", "detail": str(error)}
    return {**row, "ok": True, "nll": nll, "scored_tokens": scored}


def _said(answer: Mapping[str, Any]) -> tuple[StreamRecord, Any]:
    """(usage and finish reason as the record of a stream of one chunk, prompt_logprobs) of a whole answer."""
    said = StreamRecord()
    try:
        usage, choice = answer["usage"], answer["choices"][0]
        said.take_usage(usage)
        said.take_finish_reason(choice.get("finish_reason"))
        if said.output_tokens is not None:
            said.chunk_tokens.append(said.output_tokens)
        return said, choice.get("prompt_logprobs")
    except (LookupError, TypeError, AttributeError) as error:
        said.cause, said.detail = "usage_missing", f"no usage or choice in the answer ({error})"
    except (ValueError, RecursionError) as error:
        said.cause, said.detail = "bad_stream", str(error)
    return said, None


def _failed(zero: float, cause: str, detail: str) -> dict[str, Any]:
    return {
        "ok": False,
        "cause": cause,
        "detail": detail[:WORDS_CHARS],
        "end_s": time.perf_counter() - zero,
    }
