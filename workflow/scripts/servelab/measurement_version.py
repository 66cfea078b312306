"""The measurement version: part of every point's key.

Raise it when what is measured changes meaning; then, and only then, kept points are measured again. A test holds a
digest of the measuring modules (tests/measuring_modules.json); it fails when one of them changed, until the change
is declared harmless (`python tests/test_measurement_version.py --harmless`) or the version is raised.
"""

MEASUREMENT_VERSION = 1

# What sends, stamps, counts, starts servers and writes the rows: a change here may change what a number means.
MEASURING_MODULES = (
    "aiohttp_wire.py",
    "arrow_columns.py",
    "canonical.py",
    "client.py",
    "client_load.py",
    "drivers.py",
    "engine.py",
    "exchange.py",
    "http_framing.py",
    "iteration_log.py",
    "loadgen.py",
    "machine.py",
    "measure.py",
    "metrics_poll.py",
    "models.py",
    "nvml.py",
    "perplexity.py",
    "prometheus.py",
    "prompts.py",
    "records.py",
    "request_rows.py",
    "schedule.py",
    "sender.py",
    "server.py",
    "spec.py",
    "sse.py",
    "stream_reader.py",
    "texts_source.py",
    "vllm_log.py",
)

# Imported by measuring as well, but no number comes from them: locks, processes, secrets, where files lie.
SUPPORTING_MODULES = (
    "device_lock.py",
    "hub.py",
    "processes.py",
    "provenance.py",
    "redact.py",
    "refused_options.py",
    "server_http.py",
    "signals.py",
    "store.py",
    "supervised.py",
)
