"""Check plain YAML values against a dataclass: unknown keys with the nearest name, then types through OmegaConf."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from servelab.config.errors import ConfigError, Problem, unknown_key

T = TypeVar("T")
_made: dict[type, DictConfig] = {}
_ALLOWED: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list[int]: "a list of whole numbers",
    list[float]: "a list of numbers",
    list[bool]: "a list of true and false",
    list[str]: "a list of texts",
}


def shape(cls: type[T], value: Any, key: str = "") -> T:
    """Make a `cls` from a mapping. A scalar where a list is wanted is a list of one.

    Raises ConfigError naming the dotted key, the value, what is allowed and the nearest name.
    """
    if not isinstance(value, Mapping):
        raise ConfigError([Problem(key or "config", value, "a mapping of keys to values")])
    problems = [*_unknown(cls, value, key), *_no_mapping(cls, value, key)]
    if problems:
        raise ConfigError(problems)
    try:
        merged = OmegaConf.merge(_structured(cls), OmegaConf.create(_lists(cls, value)))
        made = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError([_type_problem(cls, value, key, error)]) from error
    assert isinstance(made, cls)
    return made


def _structured(cls: type) -> DictConfig:
    """OmegaConf's form of a dataclass with its defaults, made once; a merge copies it."""
    if cls not in _made:
        _made[cls] = OmegaConf.structured(cls)
    return _made[cls]


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _unknown(cls: type, value: Mapping[str, Any], key: str) -> list[Problem]:
    known = {f.name for f in dataclasses.fields(cls)}
    problems = [unknown_key(key, str(name), known) for name in value if name not in known]
    for name, hint in _hints(cls).items():
        item = value.get(name)
        path = f"{key}.{name}" if key else name
        if dataclasses.is_dataclass(hint) and isinstance(item, Mapping):
            problems += _unknown(typing.cast(type, hint), item, path)
        elif typing.get_origin(hint) is list and isinstance(item, list):
            (inner,) = typing.get_args(hint)
            if dataclasses.is_dataclass(inner):
                for i, entry in enumerate(item):
                    if isinstance(entry, Mapping):
                        problems += _unknown(typing.cast(type, inner), entry, f"{path}[{i}]")
    return problems


def _no_mapping(cls: type, value: Mapping[str, Any], key: str) -> list[Problem]:
    """Problems of a text, number or list where keys and values are wanted."""
    wanted = [
        n
        for n, hint in _hints(cls).items()
        if typing.get_origin(hint) is dict or dataclasses.is_dataclass(hint)
    ]
    return [
        Problem(f"{key}.{name}" if key else name, value[name], "a mapping of keys to values")
        for name in wanted
        if name in value and not isinstance(value[name], Mapping)
    ]


def _lists(cls: type, value: Mapping[str, Any]) -> dict[str, Any]:
    hints = _hints(cls)

    def one(name: str, item: Any) -> Any:
        wants_list = typing.get_origin(hints.get(name)) is list
        return [item] if wants_list and not isinstance(item, (list, tuple)) and item is not None else item

    return {name: one(name, item) for name, item in value.items()}


def _type_problem(cls: type, value: Mapping[str, Any], key: str, error: Exception) -> Problem:
    full_key = str(getattr(error, "full_key", "") or "")
    item: Any = value
    for part in full_key.replace("]", "").replace("[", ".").split("."):
        if isinstance(item, Mapping):
            item = item.get(part)
        elif isinstance(item, list) and part.isdigit() and int(part) < len(item):
            item = item[int(part)]
    allowed = _ALLOWED.get(_hint_at(cls, full_key), "") or str(error).splitlines()[0]
    return Problem(".".join(filter(None, (key, full_key))), item, allowed)


def _hint_at(cls: Any, full_key: str) -> Any:
    """The type wanted at a dotted key with [places]: inside dataclasses, lists and mappings."""
    hint = cls
    for part in full_key.replace("]", "").replace("[", ".").split("."):
        if dataclasses.is_dataclass(hint):
            hint = _hints(typing.cast(type, hint)).get(part)
        elif typing.get_origin(hint) in (list, dict):
            hint = typing.get_args(hint)[-1]
    return hint
