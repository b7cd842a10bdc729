"""Every row of the table of operations, on arrays of any shape, dtype and strides, no elements included."""

from pathlib import Path

import pytest
import rows_layers
import rows_plain
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.autograd import OPS

ROWS = {**rows_plain.ROWS, **rows_layers.ROWS}
ELSEWHERE = {
    "test_ops_shapes": "abs broadcast_to clamp complex cos cumsum einsum index_select irfft max maximum min minimum "
    "norm pad rfft scatter_add sin sort stack std take_along_dim topk var",
    "test_convolutions": "adaptive_avg_pool avg_pool conv conv_transpose interpolate max_pool",
}


@settings(deadline=None, max_examples=30)
@given(st.data())
@pytest.mark.parametrize("name", sorted(ROWS))
def test_row(name, data):
    ROWS[name](data.draw, name)


def test_every_row_is_here_or_elsewhere():
    elsewhere = {name: file for file, names in ELSEWHERE.items() for name in names.split()}
    # what other layers define on top has tests there
    assert {
        n for n, op in OPS.items() if op.vjp.__module__.startswith("hpcdist.autograd.")
    } == ROWS.keys() | elsewhere.keys()
    assert not ROWS.keys() & elsewhere.keys()
    for name, file in elsewhere.items():
        assert name in Path(__file__).with_name(f"{file}.py").read_text(encoding="utf-8")
