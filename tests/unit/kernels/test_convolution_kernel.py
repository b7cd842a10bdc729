"""Compiled convolution: tiles of any size give the same, and a long line takes little memory."""

import tracemalloc

import numpy as np
import pytest

from hpcdist.backends import cpu
from hpcdist.kernels.convolution import correlate, correlate_back, correlate_weight
from hpcdist.kernels.cpu import convolution, slide
from hpcdist.kernels.window import extent

# images and channels, plane, results' channels, groups; size, stride, padding, dilation
SHAPES = [
    ((2, 4), (13, 21), 6, 2, ((3, 2), (1, 1), (1, 1), (2, 1))),
    ((3, 2), (13, 21), 5, 1, ((3, 4), (2, 1), (0, 2), (1, 2))),
    ((2, 3), (9, 40), 5, 1, ((2, 3), (1, 3), (1, 0), (1, 1))),
    ((1, 2), (1, 300), 3, 1, ((1, 5), (1, 1), (0, 2), (1, 2))),
    ((2, 3), (9, 17), 4, 1, ((1, 1), (1, 1), (0, 0), (1, 1))),
]


def draw(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def run(case, monkeypatch, tile=None, num_threads=1):
    """Return results, and gradients of images and weights."""
    leading, plane, o, groups, window = case
    places = (extent(n, *dim) for n, *dim in zip(plane, *window, strict=True))
    x, weight = draw(*leading, *plane), draw(o, leading[1] // groups, *window[0])
    y, gx, gw = np.empty((leading[0], o, *places), np.float32), np.empty_like(x), np.empty_like(weight)
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "num_threads", lambda: num_threads)
        for module in (convolution, slide) if tile else ():
            patch.setattr(module, "_TILE", tile)
        correlate(x, weight, window, groups, y, 0.0)
        correlate_back(y, weight, window, groups, gx, 0.0)
        correlate_weight(x, y, window, groups, gw, 0.0)
    return y, gx, gw


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("tile", [1, 100, 700])
def test_tiles_give_the_same(case, tile, monkeypatch):
    for small, whole in zip(run(case, monkeypatch, tile), run(case, monkeypatch), strict=True):
        np.testing.assert_allclose(small, whole, rtol=1e-5, atol=1e-5 * np.abs(whole).max())


def test_a_window_that_moves_one_by_one_gives_the_same_bits_in_all_tiles_threads_and_batches(monkeypatch):
    y, gx, _ = run(SHAPES[0], monkeypatch)
    for tile, num_threads in ((1, 1), (700, 2), (None, 2)):
        other, back, _ = run(SHAPES[0], monkeypatch, tile, num_threads)
        np.testing.assert_array_equal(other, y)
        np.testing.assert_array_equal(back, gx)


@pytest.mark.parametrize("stride", [1, 2])
def test_columns_of_a_long_line_are_never_all_there(stride, monkeypatch):
    n, window = 400_000, ((1, 9), (1, stride), (0, 4), (1, 1))
    x, weight, y = draw(1, 4, 1, n), draw(4, 4, 1, 9), np.empty((1, 4, 1, -(-n // stride)), np.float32)
    gx, gw = np.empty_like(x), np.empty_like(weight)

    def all_three():
        correlate(x, weight, window, 1, y, 0.0)
        correlate_back(y, weight, window, 1, gx, 0.0)
        correlate_weight(x, y, window, 1, gw, 0.0)

    monkeypatch.setattr(cpu, "num_threads", lambda: 1)
    all_three()  # what is compiled is not what is measured
    tracemalloc.start()
    try:
        all_three()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes / 2
