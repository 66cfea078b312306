"""Columns built from buffers are what pyarrow.array builds, and building them does not import pandas."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servelab.arrow_columns import column, lists

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=20),
}


@given(st.data(), st.sampled_from(list(VALUES)))
def test_columns_equal_pyarrows(data: st.DataObject, kind: pa.DataType) -> None:
    """Any values, nulls among them, give the same array and a valid one."""
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=40))
    made = column(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind)) and made.null_count == values.count(None)


def test_lists_equal_pyarrows() -> None:
    """Lists of any length, empty ones too."""
    parts = [np.array([1.0, 2.5]), np.zeros(0), np.array([3.0])]
    made = lists(parts, pa.float64())
    made.validate(full=True)
    assert made.equals(pa.array([part.tolist() for part in parts], pa.list_(pa.float64())))
    assert lists([], pa.int32()).equals(pa.array([], pa.list_(pa.int32())))


def test_other_kinds_are_refused() -> None:
    """A kind that records.py does not use is an error, not a wrong array."""
    with pytest.raises(TypeError, match="timestamp"):
        column([1], pa.timestamp("s"))


def test_a_table_of_requests_is_built_without_pandas() -> None:
    """The first point of a job does not wait for an import that it does not need."""
    code = (
        "import sys; from servelab.request_rows import requests_table, send_lags_s, tokens_received; "
        "from servelab.exchange import Exchange; "
        "made = Exchange('measured', 0, '/v1/completions'); made.finish(1.0, 'connect', 'no'); "
        "table = requests_table([made], 0.0); "
        "assert (table.num_rows, tokens_received(table), len(send_lags_s(table))) == (1, 0, 0); "
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
