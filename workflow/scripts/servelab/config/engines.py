"""`engine:` of a study → how a server is had. Either a name in config/engines/ or the keys written out."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servelab import redact
from servelab.canonical import digest
from servelab.config.errors import ConfigError, Problem, nearest
from servelab.config.schema import EngineConfig
from servelab.config.shape import shape
from servelab.config.yaml_file import read_yaml
from servelab.engine import installed_version
from servelab.spec import EngineSpec

KINDS = ("vllm", "attach")
UNKNOWN = "unknown"  # the version of an engine that does not say it
DEVICES = ("cpu", "cuda", "rocm", "tpu", "xpu", "other")
_USER = re.compile(r"^(\w+://)[^/?#]*@")


def named_file(folder: Path, key: str, name: str) -> dict[str, Any]:
    """The mapping in <folder>/<name>.yaml. Raises ConfigError naming the nearest file, or what is wrong in it."""
    path = folder / f"{name}.yaml"
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    if name not in known:
        raise ConfigError([Problem(key, name, ", ".join(known) or "nothing yet", nearest(name, known))])
    return read_yaml(path, key)


def load_engine(value: Any, root: Path) -> tuple[EngineConfig, EngineSpec]:
    """Check an engine and make its spec. With `use: <name>` a mapping overrides single keys of a named engine.

    Raises ConfigError.
    """
    if isinstance(value, Mapping):
        keys = dict(value)
        own = "server" if "url" in keys else "vllm"
        name = str(keys.pop("name", keys.get("use", own)))
        base = (
            named_file(root / "config/engines", "engine.use", str(keys.pop("use"))) if "use" in keys else {}
        )
        value = {**base, **keys, "environment": _environment(base, keys)}
    else:
        name = str(value)
        value = named_file(root / "config/engines", "engine", name)
    config = shape(EngineConfig, value, "engine")
    _check(config)
    return config, _spec(name, config, root)


def _environment(base: Mapping[str, Any], keys: Mapping[str, Any]) -> Any:
    """The variables of a named engine under those written beside its name; what is no mapping `shape` refuses."""
    given = [each["environment"] for each in (base, keys) if "environment" in each]
    wrong = [each for each in given if not isinstance(each, Mapping)]
    return wrong[0] if wrong else {name: value for each in given for name, value in each.items()}


def environment_folder(name: str, version: str, requirements: str) -> str:
    """Where servelab makes an engine's environment (relative to the project), or an empty text if it does not.

    requirements: digest of what it is made of, which names it: another list, or torch, is another environment.
    """
    return f"resources/engines/{file_words(name, version)}-{requirements[:8]}" if requirements else ""


def file_words(*parts: str) -> str:
    """Names as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(parts))


def _check(config: EngineConfig) -> None:
    problems = []
    if config.kind not in KINDS:
        problems.append(Problem("engine.kind", config.kind, ", ".join(KINDS), nearest(config.kind, KINDS)))
    if config.device not in DEVICES:
        problems.append(
            Problem("engine.device", config.device, ", ".join(DEVICES), nearest(config.device, DEVICES))
        )
    ways = [bool(config.requirements), bool(config.python), bool(config.command), bool(config.url)]
    if sum(ways) != 1:
        problems.append(
            Problem(
                "engine", "requirements, python, command, url", "exactly one of these four says where it is"
            )
        )
    if config.kind == "attach" and not config.url:
        problems.append(
            Problem("engine.url", config.url, "the address of the running server, http://host:port")
        )
    if config.url and not config.url.startswith(("http://", "https://")):
        problems.append(Problem("engine.url", config.url, "an address that begins with http:// or https://"))
    if config.requirements and not config.version:
        problems.append(Problem("engine.version", config.version, "the version that the requirements pin"))
    for key in ("startup_timeout_s", "stop_timeout_s"):
        if getattr(config, key) <= 0:
            problems.append(Problem(f"engine.{key}", getattr(config, key), "seconds above 0"))
    if config.max_concurrency < 0:
        problems.append(Problem("engine.max_concurrency", config.max_concurrency, "0 (no limit) or more"))
    if len(config.command) == 1 and " " in config.command[0] and not Path(config.command[0]).exists():
        words = ", ".join(config.command[0].split())
        problems.append(
            Problem(
                "engine.command", redact.text(config.command[0]), redact.text(f"a list of words: [{words}]")
            )
        )
    problems += _secrets(config)
    if problems:
        raise ConfigError(problems)


def _secrets(config: EngineConfig) -> list[Problem]:
    """Secrets written into an engine's keys, not shown: configs end up in results."""
    problems = [
        Problem(f"engine.environment.{name}", redact.HIDDEN, "nothing secret: configs end up in results")
        for name, value in config.environment.items()
        if redact.is_secret_name(name) or redact.text(str(value)) != str(value)
    ]
    shown = redact.argv(config.command)
    if shown != config.command:
        allowed = (
            "nothing secret: configs end up in results. Set the variable in your shell and let the command "
            "pass it on by its name (docker: -e NAME)"
        )
        problems.append(Problem("engine.command", shown, allowed))
    instead = {
        "url": "api_key_env names the variable that holds the server's key",
        "torch_index": "pip reads them from ~/.netrc",
    }
    for key, words in instead.items():
        address = getattr(config, key)
        hidden = redact.text(_USER.sub(rf"\1{redact.HIDDEN}@", address))
        if hidden != address:
            allowed = f"an address without user and password: configs end up in results; {words}"
            problems.append(Problem(f"engine.{key}", hidden, allowed))
    return problems


def _spec(name: str, config: EngineConfig, root: Path) -> EngineSpec:
    python, requirements = config.python, ""
    if config.requirements:
        path = root / config.requirements
        if not path.is_file():
            raise ConfigError([Problem("engine.requirements", config.requirements, "an existing file")])
        requirements = digest(path.read_text(encoding="utf-8") + config.torch, 16)
        python = f"{environment_folder(name, config.version, requirements)}/bin/python"
    version = config.version or (installed_version(python) if python else None) or UNKNOWN
    return EngineSpec(
        name=name,
        kind="attach" if config.url else config.kind,
        version=version,
        device=config.device,
        python=python,
        command=tuple(config.command),
        url=config.url.rstrip("/"),
        requirements=requirements,
        environment={str(k): str(v) for k, v in config.environment.items()},
        preload=tuple(config.preload),
        startup_timeout_s=config.startup_timeout_s,
        stop_timeout_s=config.stop_timeout_s,
        max_concurrency=config.max_concurrency,
        api_key_env=config.api_key_env,
        limits=dict(config.limits),
    )
