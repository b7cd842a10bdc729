"""Windows of which some elements see nothing but padding."""

import numpy as np
import pytest

from hpcdist.kernels import convolution
from hpcdist.kernels.window import reach


@pytest.mark.parametrize(
    ("window", "shape"),
    [(((3, 1), (1, 1), (20, 0), (20, 1)), (1, 1)), (((3, 3), (1, 1), (4, 9), (4, 9)), (2, 3)),
     (((3, 2), (2, 1), (9, 1), (7, 1)), (2, 3))],
)  # fmt: skip
def test_columns_are_written_up_to_their_end(window, shape):
    size, *_ = window
    places = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(shape, *window, strict=True)]
    count = 2 * size[0] * size[1]
    x = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    memory = np.full(count * places[0] * places[1] + 256, 7, np.float32)
    columns, beyond = np.split(memory, [-256])
    want = np.empty((count, *places), np.float32)
    convolution.im2col.reference(x, window, want)
    for _ in range(20):  # rows that are written by another thread, too
        convolution.im2col(x, window, columns.reshape(want.shape))
        np.testing.assert_array_equal(columns.reshape(want.shape), want)
        np.testing.assert_array_equal(beyond, 7)


def test_places_are_below_their_count():
    for count, n, stride, padding, offset in np.ndindex(3, 3, 3, 5, 5):
        found = reach(count, n, stride + 1, padding, offset)
        assert list(found) == [i for i in range(count) if 0 <= i * (stride + 1) - padding + offset < n]
        assert found.start <= count
