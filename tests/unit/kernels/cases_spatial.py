"""Arguments for kernels of lines and planes: channels are the rows of ``Draw``, lines as wide as it is."""

import numpy as np

from hpcdist.kernels import channels, convolution, pooling, resample
from hpcdist.kernels.window import extent

MODULES = channels, convolution, pooling, resample
HEIGHT = 5
WINDOWS = [  # size, stride, padding, dilation: lines side by side, elements apart, one by one, far outside
    ((2, 3), (2, 1), (1, 1), (1, 1)),
    ((3, 2), (1, 2), (1, 1), (1, 2)),
    ((3, 3), (1, 1), (0, 1), (1, 1)),
    ((1, 2), (1, 1), (0, 3), (1, 1)),
]
POINT = (1, 1), (1, 1), (0, 0), (1, 1)
BAND = np.array([0, 1, 1, 3]), np.array([2, 2, 4, 5]), np.random.default_rng(0).standard_normal((4, 3))


def places(d, window):
    return tuple(extent(n, *dim) for n, *dim in zip((HEIGHT, d.n), *window, strict=True))


def image(d):
    return d.array(d.m, HEIGHT, d.n)


def _convolution(d, window, groups):
    """Return images, weights and results: ``d.m`` images, that rows are what is counted."""
    size, *_ = window
    return (
        d.array(d.m, 2 * groups, HEIGHT, d.n),
        d.array(3 * groups, 2, *size),
        d.array(d.m, 3 * groups, *places(d, window)),
    )


def _correlate(window, groups, beta):
    def make(d):
        x, weight, y = _convolution(d, window, groups)
        return x, weight, window, groups, y if beta else d.out(*y.shape), beta

    return make


def _correlate_back(window, groups, beta):
    def make(d):
        x, weight, y = _convolution(d, window, groups)
        return y, weight, window, groups, x if beta else d.out(*x.shape), beta

    return make


def _correlate_weight(window, groups, beta):
    def make(d):
        x, weight, y = _convolution(d, window, groups)
        return x, y, window, groups, weight if beta else d.out(*weight.shape), beta

    return make


def _convolutions(make):
    return [make(w, groups, beta) for w in WINDOWS for groups, beta in ((1, 0.0), (2, 0.5))] + [make(POINT, 1, 1.0)]


def _max_pool(window, dtype):
    return lambda d: (
        image(d), window, d.out(d.m, *places(d, window)), np.full((d.m, *places(d, window)), -7, dtype)
    )  # fmt: skip


def _max_pool_grad(d):
    return d.array(), d.random.integers(0, 3 * d.n, (d.m, d.n)), d.array(d.m, 3 * d.n)


def _resample(width, beta):
    start, stop, weights = BAND

    def make(d):
        w = d.n if width is None else width
        y = d.array(d.m, len(start), w) if beta else d.out(d.m, len(start), w)
        return d.array(d.m, HEIGHT, w), start, stop, weights.astype(np.float32), y, beta

    return make


def _batch(d):
    return d.array(2, d.m, d.n)


CASES = {
    "correlate": _convolutions(_correlate),
    "correlate_back": _convolutions(_correlate_back),
    "correlate_weight": _convolutions(_correlate_weight),
    "max_pool": [_max_pool(WINDOWS[0], np.int32), _max_pool(WINDOWS[1], np.int64)],
    "max_pool_grad": [_max_pool_grad],
    "resample": [_resample(None, 0.0), _resample(None, 0.5), _resample(1, 0.0), _resample(1, 0.5)],
    "channel_moments": [lambda d: (_batch(d), d.out(d.m), d.out(d.m))],
    "channel_norm": [lambda d: (_batch(d), d.array(d.m), d.array(d.m), d.array(d.m), d.out(2, d.m, d.n))],
    "channel_sums": [lambda d: (_batch(d), _batch(d), d.array(d.m), d.out(d.m), d.out(d.m))],
    "channel_norm_grad": [
        lambda d: (_batch(d), _batch(d), *(d.array(d.m) for _ in range(4)), d.out(2, d.m, d.n)),
    ],
}
ANY_LENGTH = {("channel_moments", 0)}
