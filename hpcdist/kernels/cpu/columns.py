"""Tiles of a plane of results, and what windows see of an image as columns of a matrix, compiled.

A window is (kh, kw, sh, sw, ph, pw, dh, dw): size, stride, padding, dilation; an image is (c, h, w).
"""

from __future__ import annotations

from hpcdist.kernels.cpu.compiled import inline
from hpcdist.kernels.cpu.math import ONE, ZERO
from hpcdist.kernels.cpu.memory import load, shift, store
from hpcdist.kernels.cpu.rows import clear, copy_row
from hpcdist.kernels.cpu.vector import WIDTH

__all__ = ["add_row", "count", "extent", "fold", "scale", "unfold"]


@inline
def _stretch(u, size, n):
    """Return part ``u`` of ``n`` places, ``size`` of them or what is left."""
    return range(u * size, min(n, (u + 1) * size))


@inline
def count(tall, wide, oh, ow):
    """Return how many tiles there are."""
    return (oh + tall - 1) // tall * ((ow + wide - 1) // wide)


@inline
def extent(v, tall, wide, oh, ow):
    """Return the lines of tile ``v``, and its places along them."""
    across = (ow + wide - 1) // wide
    return _stretch(v // across, tall, oh), _stretch(v % across, wide, ow)


@inline
def scale(row, beta, n):
    """Multiply a row by ``beta``; with 0 the old content is not read."""
    if beta == ZERO:
        clear(row, n)
    elif beta != ONE:
        for j in range(0, n, WIDTH):
            store(row, j, n - j, load(row, j, n - j) * beta)


@inline
def _reach(places, n, stride, padding, offset):
    """Return the places of a range at which element ``offset`` of the window is one of the ``n`` elements."""
    first = min(max(places.start, -((offset - padding) // stride)), places.stop)
    return range(first, max(first, min(places.stop, (n - 1 + padding - offset) // stride + 1)))


@inline
def _copy_apart(row, step, out, n):
    for j in range(n):
        out[j] = row[j * step]


@inline
def add_row(row, out, n):
    for j in range(0, n, WIDTH):
        store(out, j, n - j, load(out, j, n - j) + load(row, j, n - j))


@inline
def _add_apart(row, step, out, n):
    for j in range(n):
        out[j * step] += row[j]


@inline
def unfold(image, shape, window, lines, line, columns):
    """Set row (k, i, j) of a tile's columns to what element (i, j) of the window sees of channel k; 0 outside."""
    kh, kw, sh, sw, ph, pw, dh, dw = window
    c, h, w = shape
    wide = len(line)
    size = len(lines) * wide
    for r in range(c * kh * kw):
        k, i, j = r // (kh * kw), r // kw % kh * dh - ph, r % kw * dw - pw
        down, across = _reach(lines, h, sh, 0, i), _reach(line, w, sw, 0, j)
        plane, to = shift(image, k * h * w), shift(columns, r * size)
        before, seen = across.start - line.start, len(across)
        if seen == 0 or len(down) == 0:
            clear(to, size)
            continue
        top = (down.start - lines.start) * wide
        rest = (down.stop - lines.start) * wide
        clear(to, top)
        clear(shift(to, rest), size - rest)
        if sh == sw == 1 and wide == w:
            # all lines at once; what comes from the line before or after is blanked
            source = shift(plane, (down.start + i) * w + across.start + j)
            copy_row(source, shift(to, top + before), (len(down) - 1) * w + seen)
            if seen < wide:
                for y in range(len(down)):
                    clear(shift(to, top + y * wide), before)
                    clear(shift(to, top + y * wide + before + seen), wide - before - seen)
            continue
        for y in range(len(down)):
            source = shift(plane, ((down.start + y) * sh + i) * w + across.start * sw + j)
            out = shift(to, top + y * wide)
            clear(out, before)
            if sw == 1:
                copy_row(source, shift(out, before), seen)
            else:
                _copy_apart(source, sw, shift(out, before), seen)
            clear(shift(out, before + seen), wide - before - seen)


@inline
def fold(columns, shape, window, lines, line, image):
    """Add to each element of an image what a tile's columns hold where it was seen."""
    kh, kw, sh, sw, ph, pw, dh, dw = window
    c, h, w = shape
    wide = len(line)
    size = len(lines) * wide
    for r in range(c * kh * kw):
        k, i, j = r // (kh * kw), r // kw % kh * dh - ph, r % kw * dw - pw
        across = _reach(line, w, sw, 0, j)
        for y in _reach(lines, h, sh, 0, i):
            row = shift(columns, r * size + (y - lines.start) * wide + across.start - line.start)
            out = shift(image, (k * h + y * sh + i) * w + across.start * sw + j)
            if sw == 1:
                add_row(row, out, len(across))
            else:
                _add_apart(row, sw, out, len(across))
