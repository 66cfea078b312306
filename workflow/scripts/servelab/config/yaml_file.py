"""A YAML file of a person's as plain values, or an error that says which file and which line."""

from pathlib import Path
from typing import Any

import yaml

from servelab.config.errors import ConfigError, Problem


def read_yaml(path: Path, key: str = "config") -> dict[str, Any]:
    """The mapping in a YAML file. key: what named the file.

    Raises ConfigError if the file is missing, cannot be read, is no YAML or no mapping.
    """
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError([Problem(key, str(path), "an existing YAML file")]) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(key, str(path), f"a file of UTF-8 text ({error})")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        allowed = f"a file of valid YAML ({line}{wrong(error)})"
        raise ConfigError([Problem(key, str(path), allowed)]) from error
    if not isinstance(value, dict):
        raise ConfigError([Problem(f"{key} ({path})", value, "a mapping of keys to values")])
    return value


def wrong(error: yaml.YAMLError) -> str:
    """What is wrong with a text that is no YAML, in one line."""
    return str(getattr(error, "problem", None) or error).splitlines()[0]
