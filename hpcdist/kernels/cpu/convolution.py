"""Convolution, compiled: by products of matrices, or by sliding windows over an image where they move one by one.

A tile of results is as large as the columns of its windows stay in a cache. Threads share the tiles, or the images
where windows of tiles overlap.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from hpcdist.backends import cpu
from hpcdist.kernels.cpu.columns import add_row, count, extent, fold, scale, unfold
from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.math import ONE, ZERO
from hpcdist.kernels.cpu.memory import at, shift
from hpcdist.kernels.cpu.product import of_one_thread, product
from hpcdist.kernels.cpu.rows import part
from hpcdist.kernels.cpu.slide import slide
from hpcdist.kernels.cpu.vector import WIDTH

_TILE = 1 << 18  # elements of a tile's columns


def _tile(weight, y):
    """Return height and width of tiles, whole lines or some of one; and room for their columns, one row a thread."""
    rows, (oh, ow) = weight[:1].size, y.shape[2:]
    if rows * ow > _TILE:
        tall, wide = 1, min(ow, max(_TILE // rows, WIDTH))
    else:
        tall, wide = min(oh, _TILE // max(1, rows * ow)), ow
    return tall, wide, np.empty((cpu.num_threads(), rows * tall * wide), np.float32)


@inline
def _fit(x, weight, window, groups, y, tall, wide, scratch, num_threads):
    (n, c, _, _), (o, inner, kh, kw) = x.shape, weight.shape
    fits(y.shape[0] == n and y.shape[1] == o and kh == window[0] and kw == window[1])
    fits(groups > 0 and inner * groups == c and o // groups * groups == o)
    fits(len(scratch) >= num_threads and scratch.shape[1] >= inner * kh * kw * tall * wide)


@inline
def _is_point(window):
    kh, kw, sh, sw, ph, pw, _, _ = window
    return kh == kw == sh == sw == 1 and ph == pw == 0


@inline
def _seen(image, shape, window, lines, line, place, scratch):
    """Return the columns of a tile, and the elements from row to row; those of a window of one element are there."""
    if _is_point(window):
        return shift(image, place), shape[1] * shape[2]
    unfold(image, shape, window, lines, line, scratch)
    return scratch, len(lines) * len(line)


@compiled
def _correlate(x, weight, window, groups, y, beta, tall, wide, scratch, num_threads):
    (n, _, h, w), (o, c, kh, kw), (_, _, oh, ow) = x.shape, weight.shape, y.shape
    _fit(x, weight, window, groups, y, tall, wide, scratch, num_threads)
    rows, outer, tiles = c * kh * kw, o // groups, count(tall, wide, oh, ow)
    for t in prange(num_threads):
        for u in part(n * groups * tiles, num_threads, t):
            k = u // tiles  # of groups of channels, image after image
            lines, line = extent(u % tiles, tall, wide, oh, ow)
            size, place = len(lines) * len(line), lines.start * ow + line.start
            image, out = shift(at(x, 0), k * c * h * w), shift(at(y, 0), k * outer * oh * ow + place)
            columns, lead = _seen(image, (c, h, w), window, lines, line, place, at(scratch, t))
            matrix = shift(at(weight, 0), k % groups * outer * rows)
            product(0, 0, outer, size, rows, ONE, matrix, rows, columns, lead, beta, out, oh * ow)


@compiled
def _correlate_back(y, weight, window, groups, x, beta, tall, wide, scratch, num_threads):
    (n, _, h, w), (o, c, kh, kw), (_, _, oh, ow) = x.shape, weight.shape, y.shape
    _fit(x, weight, window, groups, y, tall, wide, scratch, num_threads)
    rows, outer, tiles = c * kh * kw, o // groups, count(tall, wide, oh, ow)
    for t in prange(num_threads):
        columns = at(scratch, t)
        for k in part(n * groups, num_threads, t):
            image, matrix = shift(at(x, 0), k * c * h * w), shift(at(weight, 0), k % groups * outer * rows)
            scale(image, beta, c * h * w)
            for v in range(tiles):
                lines, line = extent(v, tall, wide, oh, ow)
                size, place = len(lines) * len(line), lines.start * ow + line.start
                source = shift(at(y, 0), k * outer * oh * ow + place)
                product(1, 0, rows, size, outer, ONE, matrix, rows, source, oh * ow, ZERO, columns, size)
                fold(columns, (c, h, w), window, lines, line, image)


@compiled
def _correlate_weight(x, y, window, groups, weight, beta, sums, tall, wide, scratch, num_threads):
    (n, _, h, w), (o, c, kh, kw), (_, _, oh, ow) = x.shape, weight.shape, y.shape
    _fit(x, weight, window, groups, y, tall, wide, scratch, num_threads)
    fits(len(sums) >= num_threads and (num_threads == 1 or sums.shape[1] == weight.size))
    rows, outer, tiles = c * kh * kw, o // groups, count(tall, wide, oh, ow)
    for t in prange(num_threads):
        # the first thread adds to what is there, the others to zeros
        total = at(sums, t) if t else at(weight, 0)
        scale(total, ZERO if t else beta, o * rows)
        for u in part(n * groups * tiles, num_threads, t):
            k = u // tiles
            lines, line = extent(u % tiles, tall, wide, oh, ow)
            size, place = len(lines) * len(line), lines.start * ow + line.start
            image, source = shift(at(x, 0), k * c * h * w), shift(at(y, 0), k * outer * oh * ow + place)
            columns, lead = _seen(image, (c, h, w), window, lines, line, place, at(scratch, t))
            out = shift(total, k % groups * outer * rows)
            product(0, 1, outer, rows, size, ONE, source, oh * ow, columns, lead, ONE, out, rows)
    for t in range(1, num_threads):
        add_row(at(sums, t), at(weight, 0), o * rows)


def correlate(x, weight, window, groups, y, beta):
    flat = sum(window, ())
    if window[1] == (1, 1) and window[0] != (1, 1):
        slide(x, weight, flat, groups, y, beta)
        return
    with of_one_thread():
        _correlate(x, weight, flat, groups, y, single(beta), *_tile(weight, y))


def correlate_back(y, weight, window, groups, x, beta):
    (kh, kw), stride, (ph, pw), (dh, dw) = window
    padding = dh * (kh - 1) - ph, dw * (kw - 1) - pw
    o, c, *size = weight.shape
    if stride == (1, 1) and min(padding) >= 0 and o % groups == 0:  # the correlation with turned weights
        turned = weight.reshape(groups, o // groups, c, *size)[..., ::-1, ::-1].swapaxes(1, 2)
        turned = np.ascontiguousarray(turned).reshape(groups * c, o // groups, *size)
        correlate(y, turned, (window[0], stride, padding, window[3]), groups, x, beta)
        return
    with of_one_thread():
        _correlate_back(y, weight, sum(window, ()), groups, x, single(beta), *_tile(weight, y))


def correlate_weight(x, y, window, groups, weight, beta):
    n = cpu.num_threads()
    sums = np.empty((n, weight.size if n > 1 else 0), np.float32)
    with of_one_thread():
        _correlate_weight(x, y, sum(window, ()), groups, weight, single(beta), sums, *_tile(weight, y))
