"""Convolution, pooling, interpolation and norms as plain loops over planes, in float64: what the layers must give."""

import itertools
import math

import numpy as np


def conv2d(x, w, bias, stride, padding, dilation, groups):
    n, _, *plane = x.shape
    out, each, *size = w.shape
    dims = zip(plane, size, stride, padding, dilation, strict=True)
    places = [(m + 2 * p - d * (k - 1) - 1) // s + 1 for m, k, s, p, d in dims]
    y = np.zeros((n, out, *places))
    for b, o, i, j in np.ndindex(*y.shape):
        first = o // (out // groups) * each
        y[b, o, i, j] = 0 if bias is None else bias[o]
        for k, u, v in np.ndindex(each, *size):
            row, column = i * stride[0] - padding[0] + u * dilation[0], j * stride[1] - padding[1] + v * dilation[1]
            if 0 <= row < plane[0] and 0 <= column < plane[1]:
                y[b, o, i, j] += w[o, k, u, v] * x[b, first + k, row, column]
    return y


def conv_transpose2d(x, w, bias, stride, padding, output_padding, dilation, groups):
    n, c, *plane = x.shape
    _, each, *size = w.shape
    dims = zip(plane, size, stride, padding, output_padding, dilation, strict=True)
    places = [(m - 1) * s - 2 * p + d * (k - 1) + extra + 1 for m, k, s, p, extra, d in dims]
    y = np.zeros((n, each * groups, *places))
    if bias is not None:
        y += bias[:, None, None]
    for b, k, i, j in np.ndindex(*x.shape):
        first = k // (c // groups) * each
        for o, u, v in np.ndindex(each, *size):
            row, column = i * stride[0] - padding[0] + u * dilation[0], j * stride[1] - padding[1] + v * dilation[1]
            if 0 <= row < places[0] and 0 <= column < places[1]:
                y[b, first + o, row, column] += w[k, o, u, v] * x[b, k, i, j]
    return y


def windows(n, size, stride, padding, dilation, ceil_mode):
    """Yield what each window along ``n`` elements sees, padding included."""
    for start in itertools.count(-padding, stride):
        seen = [start + k * dilation for k in range(size)]
        past = seen[-1] >= n + padding
        if past and not (ceil_mode and start < n and (start - stride + (size - 1) * dilation) < n + padding - 1):
            return
        yield seen
        if past:
            return


def pool2d(x, reduce, size, stride, padding, dilation=(1, 1), ceil_mode=False):
    """Apply ``reduce(values seen, how many places of the window are in the padded plane)`` to every window."""
    plane = x.shape[2:]
    down, across = (list(windows(*dim, ceil_mode)) for dim in zip(plane, size, stride, padding, dilation, strict=True))
    y = np.empty((*x.shape[:2], len(down), len(across)))
    for b, c, i, j in np.ndindex(*y.shape):
        rows, columns = ([k for k in seen if 0 <= k < n] for seen, n in ((down[i], plane[0]), (across[j], plane[1])))
        padded = [sum(k < n + p for k in seen) for seen, n, p in zip((down[i], across[j]), plane, padding, strict=True)]
        y[b, c, i, j] = reduce([x[b, c, r, s] for r in rows for s in columns], math.prod(padded))
    return y


def largest(seen, count):
    return max(seen)


def mean_of_seen(seen, count):
    return sum(seen) / len(seen)


def mean_with_padding(seen, count):
    return sum(seen) / count


def adaptive_avg_pool2d(x, output_size):
    y = np.empty((*x.shape[:2], *output_size))
    for b, c, i, j in np.ndindex(*y.shape):
        spans = [
            range(math.floor(k * n / o), math.ceil((k + 1) * n / o))
            for k, n, o in zip((i, j), x.shape[2:], output_size, strict=True)
        ]
        y[b, c, i, j] = np.mean([x[b, c, r, s] for r in spans[0] for s in spans[1]])
    return y


def interpolate2d(x, size, mode, align_corners):
    y = np.zeros((*x.shape[:2], *size))
    for i, j in np.ndindex(*size):
        parts = [_neighbours(k, n, o, mode, align_corners) for k, n, o in zip((i, j), x.shape[2:], size, strict=True)]
        for (r, p), (s, q) in itertools.product(*parts):
            y[:, :, i, j] += p * q * x[:, :, r, s]
    return y


def _neighbours(k, n, o, mode, align_corners):
    if mode == "nearest":
        return [(k * n // o, 1.0)]
    at = k * (n - 1) / max(o - 1, 1) if align_corners else max(0.0, (k + 0.5) * n / o - 0.5)
    low = min(math.floor(at), n - 1)
    return [(low, 1 - (at - low)), (min(low + 1, n - 1), at - low)]


def normalised(x, gain, shift, eps, sets):
    """Return the norm of x (n, c, ...) over each of ``sets`` of (sample, channel) pairs."""
    y = np.empty_like(x)
    for pairs in sets:
        values = np.concatenate([x[b, c].reshape(-1) for b, c in pairs])
        mean, var = sum(values) / len(values), sum((values - sum(values) / len(values)) ** 2) / len(values)
        for b, c in pairs:
            y[b, c] = (x[b, c] - mean) / math.sqrt(var + eps) * gain[c] + shift[c]
    return y
