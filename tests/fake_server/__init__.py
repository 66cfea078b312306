"""A server that speaks vLLM's HTTP, /metrics and log lines, with a scripted scheduler in real time.

Its truth is known: what it did and when is written to a file as it happens (truth.py), so that tests can
compare what servelab reports with what took place. It enters where vLLM would: as an engine's command.

    command: [python, tests/fake_server/__main__.py]

It takes vLLM's options; how it behaves beyond them is one JSON value in the environment variable
SERVELAB_FAKE (or a file's path there), see knobs.py; what goes wrong on demand is in faults.py.
"""
