"""The server's /metrics: Prometheus text exposition → {name with labels: value}.

Grammar: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4). Histogram buckets
and `_created` stamps are left out: nothing here rests on the server's buckets, and they are nine lines in
ten.
"""

import math
import re
from collections.abc import Iterator, Mapping

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r'\\([\\"n])')
_LEFT_OUT = ("_bucket", "_created")


def parse(text: str | bytes) -> dict[str, float]:
    """Samples by name and labels as the server writes them, e.g. `vllm:num_requests_running{engine="0"}`.

    A line that is no sample (comment, half a line of a cut answer, a value that is no number) is not there;
    NaN and infinities are left out as well, since no JSON can hold them.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _sample(line)
        if sample is not None and not _name(sample[0]).endswith(_LEFT_OUT):
            found[sample[0]] = sample[1]
    return found


def value(metrics: Mapping[str, float], name: str) -> float | None:
    """The metric's value, summed over its label sets (engines, models); None if the server has it not."""
    values = [number for key, number in metrics.items() if _name(key) == name]
    return sum(values) if values else None


def labelled(metrics: Mapping[str, float], name: str) -> Iterator[tuple[dict[str, str], float]]:
    """(labels, value) of every sample of this metric."""
    for key, number in metrics.items():
        if _name(key) == name:
            yield labels(key), number


def labels(sample: str) -> dict[str, str]:
    """Labels of a sample's key, unescaped."""
    _, brace, rest = sample.partition("{")
    if not brace:
        return {}
    found: dict[str, str] = {}
    body, at = rest.removesuffix("}"), 0
    while match := _LABEL.match(body, at):
        found[match[1]] = _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], match[2])
        at = match.end()
    return found


def cache_config(metrics: Mapping[str, float]) -> dict[str, str]:
    """What the engine says about its KV cache (labels of vllm:cache_config_info): block_size, num_gpu_blocks, …

    Of several engines the first is taken; {} if the server does not say.
    """
    for found, _ in labelled(metrics, "vllm:cache_config_info"):
        return found
    return {}


def _name(sample: str) -> str:
    return sample.partition("{")[0]


def _sample(line: str) -> tuple[str, float] | None:
    """(name with labels, value) of one line; a timestamp after the value is dropped."""
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    end = line.rfind("}") + 1
    if end == 0:
        end = len(line.split(None, 1)[0])
    fields = line[end:].split()
    if not fields or len(fields) > 2:
        return None
    try:
        number = float(fields[0])
    except ValueError:
        return None
    return (line[:end], number) if math.isfinite(number) else None
