"""vLLM's routes: models, version, health, metrics, tokenize, completions (streamed or whole), chat completions."""

import asyncio
import itertools
import json
import math
import os
import signal
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from fake_server import metrics
from fake_server.faults import STREAM_FAULTS, Faults
from fake_server.knobs import Knobs
from fake_server.logs import Log
from fake_server.scheduler import Request, Scheduler
from fake_server.truth import Truth, prompt_digest
from fake_server.wire import Call


def logprob(before: int, token: int, kv_dtype: str = "auto") -> float:
    """Log-probability of a token after another: made up, never changing; an 8-bit cache is a little worse."""
    value = zlib.crc32(f"{before},{token}".encode()) / 2**32
    return -0.05 - 6.0 * value**2 - (0.01 if kv_dtype.startswith("fp8") else 0.0)


@dataclass
class Api:
    """Answers calls from the scheduler's work and the faults of this start."""

    knobs: Knobs
    options: Any
    scheduler: Scheduler
    faults: Faults
    truth: Truth
    log: Log
    cache: dict[str, Any]
    api_key: str = ""
    requests: int = 0
    engine_dead: bool = False
    streams: set["Stream"] = field(default_factory=set)

    async def __call__(self, call: Call) -> None:
        """Route one call."""
        route = f"{call.method} {call.path}"
        out = call.connection
        if (
            call.path.startswith("/v1")
            and self.api_key
            and call.headers.get("authorization") != f"Bearer {self.api_key}"
        ):
            out.answer(401, {"error": "Unauthorized"})
        elif route == "GET /v1/models":
            entry = {
                "id": self.options.served_model_name,
                "object": "model",
                "owned_by": "vllm",
                "root": self.options.model,
            }
            out.answer(
                200, {"object": "list", "data": [{**entry, "max_model_len": self.options.max_model_len}]}
            )
        elif route == "GET /version":
            out.answer(200, {"version": self.knobs.version})
        elif route == "GET /health":
            out.answer(503 if self.engine_dead else 200, "")
        elif route == "GET /metrics":
            text = metrics.text(self.scheduler, self.options.served_model_name, self.cache)
            out.answer(200, text, "text/plain; version=0.0.4")
        elif route == "POST /tokenize":
            tokens = list(json.loads(call.body)["prompt"].encode())
            out.answer(
                200, {"count": len(tokens), "max_model_len": self.options.max_model_len, "tokens": tokens}
            )
        elif route in ("POST /v1/completions", "POST /v1/chat/completions"):
            await self.complete(call, chat="chat" in call.path)
        else:
            out.answer(404, {"detail": "Not Found"})

    async def complete(self, call: Call, chat: bool) -> None:
        """One completion."""
        self.requests += 1
        faults = self.faults.of_request(self.requests)
        for fault in faults:
            self.truth.tell("fault", fault=fault, request=self.requests)
        if self.engine_dead:
            call.connection.answer(500, _error(500, "EngineCore encountered an issue."))
            return
        refusal = next((fault for fault in faults if fault["do"] == "http"), None)
        body = json.loads(call.body)
        if refusal is not None:
            status = refusal.get("status", 500)
            call.connection.answer(status, _error(status, refusal.get("message", "asked to fail")))
            return
        prompt = _prompt(body, chat)
        max_tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        if body.get("model") != self.options.served_model_name:
            call.connection.answer(404, _error(404, f"The model `{body.get('model')}` does not exist."))
            return
        if not prompt or len(prompt) + max_tokens > self.options.max_model_len:
            limit = self.options.max_model_len
            words = f"{len(prompt)} prompt tokens and max_tokens={max_tokens} exceed max_model_len={limit}"
            call.connection.answer(400, _error(400, words))
            return
        if not body.get("ignore_eos") and self.knobs.eos_after:
            max_tokens = min(max_tokens, self.knobs.eos_after)
        stream = Stream(self, call, body, chat, prompt, max_tokens, faults)
        self.streams.add(stream)
        stream.begin()

    def die(self) -> None:
        """As if the kernel's out-of-memory killer had come."""
        os.kill(os.getpid(), signal.SIGKILL)

    def die_engine(self) -> None:
        """The engine process is gone: streams get an error event; the API server lives on for two seconds."""
        self.log.say("AsyncLLM output_handler failed.", level="ERROR", place="async_llm.py:871")
        self.log.say(
            "RuntimeError: worker ran into an illegal memory access", "EngineCore", "ERROR", "core.py:1300"
        )
        dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
        self.log.say(dead, level="ERROR", place="async_llm.py:871")
        for stream in list(self.streams):
            stream.fail("EngineCore encountered an issue. See stack trace (above) for the root cause.", 500)
        self.engine_dead = True
        asyncio.get_running_loop().call_later(2.0, os._exit, 1)


class Stream:
    """The answer to one completion, as its tokens come."""

    def __init__(
        self,
        api: Api,
        call: Call,
        body: dict[str, Any],
        chat: bool,
        prompt: list[int],
        max_tokens: int,
        faults: list[dict[str, Any]],
    ) -> None:
        self.api, self.call, self.body, self.chat, self.faults = api, call, body, chat, faults
        self.max_tokens = max_tokens
        asked = body.get("stream_options") or {}
        self.continuous = bool(asked.get("continuous_usage_stats"))
        self.usage = bool(asked.get("include_usage")) and not self._has("no_usage")
        self.streaming = bool(body.get("stream"))
        self.request = Request(
            prompt, max_tokens, self.token, time.monotonic(), use_cache=body.get("prompt_logprobs") is None
        )
        self.sent = 0
        self.over = False
        self.id = f"cmpl-{api.requests:08x}"

    def begin(self) -> None:
        """Hand the request to the scheduler."""
        self.call.on_close = self.client_left
        if self.streaming:
            self.call.connection.open_stream()
        self.api.scheduler.add(self.request)
        self._strike(0)

    def token(self, count: int, finished: bool) -> None:
        """The scheduler's word: so many output tokens by now."""
        if self.over:
            return
        if self.streaming and (finished or count - self.sent >= self.api.knobs.tokens_per_chunk):
            self._chunk(count, finished)
        if self._strike(count):
            return
        if finished:
            self._finish()

    def client_left(self) -> None:
        """The client closed the connection."""
        if not self.over:
            self.over = True
            self.api.streams.discard(self)
            self.api.scheduler.abort(self.request)
            self._tell("client_left")

    def fail(self, message: str, code: int) -> None:
        """An error event (or answer), and the end."""
        self._end("error")
        if self.streaming:
            self.call.connection.event(json.dumps(_error(code, message)))
            self.call.connection.event("[DONE]")
            self.call.connection.end_stream()
        else:
            self.call.connection.answer(code, _error(code, message))

    def _chunk(self, count: int, finished: bool) -> None:
        text = "".join(f" w{n}" for n in range(self.sent, count))
        self.sent = count
        reason = "length" if finished and not self._has("no_finish") else None
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "stop_reason": None, "logprobs": None}
        choice.update({"delta": {"content": text}} if self.chat else {"text": text})
        event: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "created": int(time.time()),
            "model": self.api.options.served_model_name,
            "choices": [choice],
        }
        if self.continuous and self.usage:
            event["usage"] = self._usage(count)
        split = self._has("split")
        self.call.connection.event(json.dumps(event, separators=(",", ":")), 3 if split else 1)

    def _usage(self, count: int) -> dict[str, Any]:
        lie = next((fault for fault in self.faults if fault["do"] == "usage"), {})
        prompt = len(self.request.prompt) + lie.get("prompt", 0)
        count += lie.get("completion", 0)
        return {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count}

    def _final_usage(self) -> dict[str, Any]:
        value = self._usage(self.request.output)
        if self.api.options.enable_prompt_tokens_details:
            value["prompt_tokens_details"] = {"cached_tokens": self.request.cached}
        return value

    def _finish(self) -> None:
        self._end("finished")
        out = self.call.connection
        head = {
            "id": self.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.api.options.served_model_name,
        }
        if not self.streaming:
            out.answer(200, {**head, "choices": [self._whole()], "usage": self._final_usage()})
            return
        if self.usage:
            out.event(
                json.dumps({**head, "choices": [], "usage": self._final_usage()}, separators=(",", ":"))
            )
        out.event("[DONE]")
        out.end_stream()

    def _whole(self) -> dict[str, Any]:
        text = "".join(f" w{n}" for n in range(self.request.output))
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "finish_reason": "length",
            "stop_reason": None,
            "logprobs": None,
        }
        if self.body.get("prompt_logprobs") is not None:
            dtype = self.api.options.kv_cache_dtype
            pairs = zip(self.request.prompt, self.request.prompt[1:], strict=False)
            choice["prompt_logprobs"] = [None] + [
                {
                    str(token): {
                        "logprob": logprob(before, token, dtype),
                        "rank": 1 + token % 7,
                        "decoded_token": "x",
                    }
                }
                for before, token in pairs
            ]
        return choice

    def _strike(self, count: int) -> bool:
        """Do the fault that is due after this many tokens. True if the stream ends (or hangs) with it."""
        for fault in self.faults:
            if fault["do"] not in STREAM_FAULTS or count != min(fault.get("after", 1), self.max_tokens):
                continue
            return bool(getattr(self, "_" + fault["do"])() or True)
        return False

    def _die(self) -> None:
        self.api.die()

    def _die_engine(self) -> None:
        self.api.die_engine()

    def _stall(self) -> None:
        self.request.stalled = True

    def _halt(self) -> None:
        self.api.scheduler.halted = True

    def _error_event(self) -> None:
        self.api.scheduler.abort(self.request)
        self.fail("the engine ran into an error in the middle of this request", 500)

    def _close(self) -> None:
        self.api.scheduler.abort(self.request)
        self._end("closed")
        self.call.connection.close()

    def _reset(self) -> None:
        self.api.scheduler.abort(self.request)
        self._end("reset")
        self.call.connection.reset()

    def _garbage(self) -> None:
        self.call.connection.event('{"id": "cmpl-broken", "choices": [')

    def _has(self, name: str) -> bool:
        return any(fault["do"] == name for fault in self.faults)

    def _end(self, how: str) -> None:
        self.over = True
        self.api.streams.discard(self)
        self._tell(how)

    def _tell(self, how: str) -> None:
        request = self.request
        self.api.truth.tell(
            "request",
            how=how,
            prompt=prompt_digest(request.prompt),
            prompt_tokens=len(request.prompt),
            max_tokens=self.max_tokens,
            output_tokens=request.output,
            arrived_s=request.arrived_s,
            scheduled_s=request.scheduled_s,
            token_s=[round(value, 6) for value in request.token_s],
            cached_tokens=request.cached,
            resumed_cached=request.resumed_cached,
            preemptions=request.preemptions,
            faults=[fault["do"] for fault in self.faults],
        )


def nll(tokens: list[int], kv_dtype: str = "auto") -> float:
    """Sum of −log p over a prompt's scored tokens: what a perplexity measurement must find."""
    return -math.fsum(logprob(before, token, kv_dtype) for before, token in itertools.pairwise(tokens))


def _prompt(body: dict[str, Any], chat: bool) -> list[int]:
    if chat:
        return list("\n".join(str(message.get("content", "")) for message in body["messages"]).encode())
    prompt = body["prompt"]
    return list(prompt.encode()) if isinstance(prompt, str) else list(prompt)


def _error(code: int, message: str) -> dict[str, Any]:
    kind = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}.get(
        code, "InternalServerError"
    )
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
