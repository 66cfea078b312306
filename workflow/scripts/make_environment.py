#!/usr/bin/env python3
"""Make the server's own environment: a virtual environment with torch and a list of files pinned by their hashes.

It is apart from servelab's: vLLM and Snakemake want different numpy releases. `ready.json` in it is written last.
Exit status: 0 it is there, 1 it could not be made, 130 stopped, and what was started with it.
"""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

from servelab import processes, signals
from servelab.models import MARKER


def say(text: str) -> None:
    """One line of progress."""
    print(f"[environment] {text}", flush=True)


def pip(python: Path, *words: str) -> bool:
    """Run pip in the new environment; whether it succeeded. Its output goes to ours."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *words]
    return processes.run(command).returncode == 0


def make(requirements: Path, torch: str, torch_index: str, output: Path) -> None:
    """Build the environment at `output`. Raises SystemExit with the cause and what to do."""
    if (output / "pyvenv.cfg").exists():
        say(f"{output} was begun but not finished: removed and made again")
    shutil.rmtree(output, ignore_errors=True)
    say(f"making {output} with Python {sys.version.split()[0]}; this happens once and takes a few minutes")
    processes.run([sys.executable, "-m", "venv", str(output)]).check_returncode()
    python = output / "bin/python"
    if torch:
        # The build for CPUs lies on PyTorch's own index, unless pip here is set up to find one elsewhere.
        local = ["install", "--quiet", "--no-deps", "--no-compile", "--retries", "1"]
        say(f"installing {torch}+cpu")
        if not pip(python, *local, f"{torch}+cpu") and not (
            torch_index and pip(python, *local, "--extra-index-url", torch_index, f"{torch}+cpu")
        ):
            raise SystemExit(
                f"[environment] {torch}+cpu was found neither by pip nor on {torch_index}; see above"
            )
    say(f"installing the {_pins(requirements)} packages of {requirements}")
    if not pip(
        python, "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes", "-r", str(requirements)
    ):
        raise SystemExit(f"[environment] {requirements} could not be installed; the lines above say why")
    versions = _versions(python)
    marker = {"made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "versions": versions}
    (output / MARKER).write_text(json.dumps(marker, indent=1, sort_keys=True), encoding="utf-8")
    say(f"ready: vllm {versions['vllm']}, torch {versions['torch']}, Python {versions['python']}")


def _pins(requirements: Path) -> int:
    return sum("==" in line for line in requirements.read_text(encoding="utf-8").splitlines())


def _versions(python: Path) -> dict[str, str]:
    # Imports what a server imports, so that the byte code of just that is compiled here and not in a measured start.
    program = (
        "import json, platform, torch, vllm; from importlib.metadata import distributions as d; "
        "import vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.executor.multiproc_executor; "
        "import vllm.v1.worker.cpu_worker, vllm.model_executor.models.llama, vllm.v1.attention.backends.cpu_attn; "
        "print(json.dumps({**{x.metadata['Name']: x.version for x in d()}, 'vllm': vllm.__version__, "
        "'torch': torch.__version__, 'python': platform.python_version()}))"
    )
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [str(python), "-c", program]
    done = processes.run(command, capture=True, environment=variables)
    if done.returncode != 0:
        raise SystemExit(f"[environment] the server cannot be imported:\n{done.stderr[-2000:]}")
    versions: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return versions


def main() -> int:
    """Parse the command line and make the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requirements", type=Path, required=True, help="pinned list with hashes")
    parser.add_argument("--torch", default="", help="torch==VERSION, installed first as its build for CPUs")
    parser.add_argument("--torch-index", default="", help="index that has it where pip's own has not")
    parser.add_argument("--output", type=Path, required=True, help="folder of the environment")
    arguments = parser.parse_args()
    try:
        with signals.as_interrupt(), signals.ending_with_snakemake():
            make(arguments.requirements, arguments.torch, arguments.torch_index, arguments.output)
    except KeyboardInterrupt:
        say("stopped; the next run begins anew")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
