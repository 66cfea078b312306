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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if not _is_default(value, f)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    raise TypeError(f"{type(value).__name__} has no canonical form: {value!r}")


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


def _is_default(instance: Any, field: "dataclasses.Field[Any]") -> bool:
    value = getattr(instance, field.name)
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default) and isinstance(value, bool) == isinstance(field.default, bool)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False
