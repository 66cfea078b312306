"""Asking a server about itself: its models, its metrics. Not for load; that is the load generator's."""

import http.client
import json
import socket
import urllib.parse

from servelab import prometheus
from servelab.engine import HOST
from servelab.loadgen import Target

READ_LIMIT_BYTES = 4 << 20
WORDS_BYTES = 2000  # quoted of an answer: enough for redact.line to hide the key in it before cutting


def served_names(target: Target, timeout_s: float) -> list[str]:
    """Names of the models a server offers. Raises OSError, HTTPException or ValueError otherwise."""
    status, body = get(target, "/v1/models", timeout_s)
    if status != 200:
        words = body[:WORDS_BYTES].decode(errors="replace")
        raise ValueError(f"/v1/models answered with status {status}: {words}")
    try:
        return [str(entry["id"]) for entry in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("/v1/models answered with no list of models") from error


def metrics(target: Target, timeout_s: float = 10.0) -> dict[str, float]:
    """The server's /metrics now; {} if it has none. Raises OSError or HTTPException if it does not answer."""
    status, body = get(target, "/metrics", timeout_s)
    return prometheus.parse(body) if status == 200 else {}


def get(target: Target, path: str, timeout_s: float) -> tuple[int, bytes]:
    """(status, body) of a GET, no redirects, no proxy, at most READ_LIMIT_BYTES."""
    parts = urllib.parse.urlsplit(target.base_url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        connection.request("GET", parts.path + path, headers={**headers, **target.headers})
        answer = connection.getresponse()
        return answer.status, answer.read(READ_LIMIT_BYTES)
    finally:
        connection.close()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
