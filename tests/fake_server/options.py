"""vLLM's command line, as far as studies use it: unknown options die the way argparse makes vLLM die."""

import argparse

_FLAGS = (
    "enable-prefix-caching", "enforce-eager", "enable-chunked-prefill", "trust-remote-code",
    "async-scheduling",
    "disable-uvicorn-access-log", "enable-prompt-tokens-details", "disable-log-stats", "enable-log-requests",
    "enable-force-include-usage", "enable-logging-iteration-details",
)  # fmt: skip
_NUMBERS = (
    "max-model-len", "max-num-seqs", "max-num-batched-tokens", "num-gpu-blocks-override", "block-size",
    "port", "seed",
    "tensor-parallel-size", "pipeline-parallel-size", "stream-interval", "swap-space", "max-logprobs",
    "max-num-partial-prefills", "long-prefill-token-threshold", "kv-cache-memory-bytes", "cpu-offload-gb",
)  # fmt: skip
_TEXTS = (
    "model", "host", "served-model-name", "api-key", "dtype", "load-format", "tokenizer", "attention-backend",
    "compilation-config", "speculative-config", "hf-overrides", "scheduling-policy", "optimization-level",
    "uvicorn-log-level", "chat-template",
)  # fmt: skip
KV_DTYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


def parse(words: list[str]) -> argparse.Namespace:
    """Options as vLLM names them. Exits with status 2 and argparse's words for one it does not know."""
    parser = argparse.ArgumentParser(prog="api_server.py")
    for name in _FLAGS:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    for name in _NUMBERS:
        parser.add_argument(f"--{name}", type=int)
    for name in _TEXTS:
        parser.add_argument(f"--{name}")
    parser.add_argument("--kv-cache-dtype", choices=KV_DTYPES, default="auto")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    parser.add_argument("model_tag", nargs="?")
    options = parser.parse_args(words)
    options.model = options.model or options.model_tag or "fake-model"
    options.served_model_name = options.served_model_name or options.model
    options.max_model_len = options.max_model_len or 4096
    options.max_num_seqs = options.max_num_seqs or 128
    options.max_num_batched_tokens = options.max_num_batched_tokens or 2048
    if options.enable_prefix_caching is None:
        options.enable_prefix_caching = True
    return options
