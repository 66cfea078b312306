"""The measurement version: part of every point's key.

Raise it when what is measured changes meaning; then, and only then, kept points are measured again. A test holds a
digest of the measuring modules (tests/measuring_modules.json); it fails when one of them changed, until the change
is declared harmless (`python tests/test_measurement_version.py --harmless`) or the version is raised.
"""

MEASUREMENT_VERSION = 1

MEASURING_MODULES = (
    "client.py",
    "engine.py",
    "loadgen.py",
    "measure.py",
    "perplexity.py",
    "prometheus.py",
    "prompts.py",
    "records.py",
    "schedule.py",
    "server.py",
    "spec.py",
    "sse.py",
)
