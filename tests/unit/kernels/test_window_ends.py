"""Windows of which some elements see nothing but padding."""

import math

import numpy as np
import pytest

from hpcdist.kernels import convolution
from hpcdist.kernels.window import extent, reach


@pytest.mark.parametrize(
    ("window", "shape"),
    [(((3, 1), (1, 1), (20, 0), (20, 1)), (1, 1)), (((3, 3), (1, 1), (4, 9), (4, 9)), (2, 3)),
     (((3, 2), (2, 1), (9, 1), (7, 1)), (2, 3))],
)  # fmt: skip
def test_they_add_nothing(window, shape, monkeypatch):
    places = [extent(n, *dim) for n, *dim in zip(shape, *window, strict=True)]
    random = np.random.default_rng(0)
    x, weight, y = (
        random.standard_normal(s).astype(np.float32) for s in ((2, 2, *shape), (3, 2, *window[0]), (2, 3, *places))
    )
    fill, empty = np.full, np.empty
    for compute, args, out in (
        (convolution.correlate, (x, weight), y),
        (convolution.correlate_back, (y, weight), x),
        (convolution.correlate_weight, (x, y), weight),
    ):
        want = out.astype(float)
        compute.reference(*(a.astype(float) for a in args), window, 1, want, 0.0)
        guarded = []

        def beside(shape, dtype, guarded=guarded):
            """Return room with some after it that nothing may write to."""
            memory = fill(math.prod(shape) + 256, 7, dtype)
            guarded.append(memory[-256:])
            return memory[:-256].reshape(shape)

        for _ in range(20):  # rows that are written by another thread, too
            found = beside(out.shape, np.float32)
            with monkeypatch.context() as patch:
                patch.setattr(np, "empty", lambda s, d=float: beside(s, d) if d is np.float32 else empty(s, d))
                compute(*args, window, 1, found, 0.0)
            np.testing.assert_allclose(found, want, atol=1e-4)
        assert len(guarded) >= 40
        assert all((room == 7).all() for room in guarded)


def test_places_are_below_their_count():
    for count, n, stride, padding, offset in np.ndindex(3, 3, 3, 5, 5):
        found = reach(count, n, stride + 1, padding, offset)
        assert list(found) == [i for i in range(count) if 0 <= i * (stride + 1) - padding + offset < n]
        assert found.start <= count
