"""servelab: a laboratory for LLM servers that runs itself. The map of the modules is in CONTRIBUTING.md."""

__version__ = "0.1.0"
