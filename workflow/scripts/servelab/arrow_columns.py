"""Arrow arrays from Python lists without `pyarrow.array`, which imports pandas first: half a second for a
job's first point, before anything is measured.

Each function takes a list in which None is null.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NUMPY = {pa.int32(): np.int32, pa.int64(): np.int64, pa.float64(): np.float64}


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values of one of the kinds that records.py uses: int32, float64, bool, string. Raises TypeError for others."""
    valid = np.fromiter((value is not None for value in values), dtype=bool, count=len(values))
    if kind == pa.string():
        return _strings(values, valid)
    if kind == pa.bool_():
        data = np.packbits(np.array([bool(value) for value in values], dtype=bool), bitorder="little")
    elif kind in _NUMPY:
        data = np.array([0 if value is None else value for value in values], dtype=_NUMPY[kind])
    else:
        raise TypeError(f"no column of {kind}")
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid), pa.py_buffer(data)])


def numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A NumPy array without nulls."""
    data = np.ascontiguousarray(values, dtype=_NUMPY[kind])
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def lists(parts: Sequence[npt.NDArray[Any]], kind: pa.DataType) -> pa.Array:
    """A list column, one list of numbers a row. Raises pyarrow.ArrowInvalid above 2³¹ numbers."""
    lengths = [len(part) for part in parts]
    if sum(lengths) >= 2**31:
        raise pa.ArrowInvalid(f"{sum(lengths)} chunks are more than one point can hold")
    offsets = np.zeros(len(parts) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    flat = np.concatenate(parts) if parts else np.zeros(0)
    return pa.ListArray.from_arrays(numbers(offsets, pa.int32()), numbers(flat, kind))


def _strings(values: Sequence[str | None], valid: npt.NDArray[np.bool_]) -> pa.Array:
    encoded = [b"" if value is None else value.encode("utf-8", "replace") for value in values]
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum([len(value) for value in encoded], out=offsets[1:])
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
