"""One way to write a value down: canonical JSON, digests, and numbers in file names."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Turn dataclasses, tuples and mappings into what JSON knows; refuse anything else.

    A dataclass loses the fields that hold their default, so that an option added later changes no digest.
    Raises TypeError for a value JSON cannot carry (a set, a path, a numpy scalar).
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if dataclasses.is_dataclass(kind):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else float(value)
    for base in (str, int):
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"{kind.__name__} has no canonical form: {value!r}")


def canonical_json(value: Any) -> str:
    """Write a value so that equal values give equal text: sorted keys, no spaces, defaults dropped."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Any, length: int = 32) -> str:
    """Hex digest (SHA-256, the first `length` digits) of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def path_number(value: float) -> str:
    """Write a number for a file name: 1 and 1.0 are the same, 0.5 is 0.5, no exponent."""
    if float(value).is_integer():
        return str(int(value))
    return f"{float(value):.6f}".rstrip("0")


# Class → (name, default) of each field, MISSING where there is none; a default that is made anew is made once.
_defaults: dict[type, tuple[tuple[str, Any], ...]] = {}


def _fields(instance: Any) -> dict[str, Any]:
    kind = type(instance)
    if kind not in _defaults:
        _defaults[kind] = tuple(
            (f.name, f.default if f.default_factory is dataclasses.MISSING else f.default_factory())
            for f in dataclasses.fields(instance)
        )
    found: dict[str, Any] = {}
    for name, default in _defaults[kind]:
        value = getattr(instance, name)
        # A bool that equals a number is not that number: True is no 1.
        if (
            default is dataclasses.MISSING
            or value != default
            or isinstance(value, bool) != isinstance(default, bool)
        ):
            found[name] = plain(value)
    return found
