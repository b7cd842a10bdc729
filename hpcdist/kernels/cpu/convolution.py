"""Windows to columns and back, compiled."""

from __future__ import annotations

from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline
from hpcdist.kernels.cpu.memory import at, load, shift, store
from hpcdist.kernels.cpu.rows import clear, copy_row, part
from hpcdist.kernels.cpu.vector import WIDTH


@inline
def _reach(count, n, stride, padding, offset):
    # as kernels.window.reach, which is in no digest of what was compiled
    first = max(0, -((offset - padding) // stride))
    return range(first, max(first, min(count, (n - 1 + padding - offset) // stride + 1)))


@inline
def _add_row(row, out, n):
    for j in range(0, n, WIDTH):
        store(out, j, n - j, load(out, j, n - j) + load(row, j, n - j))


@inline
def _seen(x, k, row, start, step, across, n, to):
    """Set ``n`` elements at ``to``: every ``step``-th of a row of x from ``start`` on, at ``across``; 0 elsewhere."""
    first, count = across.start, len(across)
    clear(to, first)
    if step == 1:
        copy_row(shift(at(x, k), row * x.shape[2] + start), shift(to, first), count)
    clear(shift(to, first + count), n - first - count)


@compiled
def im2col(x, window, columns, num_threads):
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    (c, h, w), (rows, oh, ow) = x.shape, columns.shape
    fits(rows == c * kh * kw)
    for t in prange(num_threads):
        for r in part(rows, num_threads, t):
            k, i, j = r // (kh * kw), r // kw % kh, r % kw
            down, across = _reach(oh, h, sh, ph, i * dh), _reach(ow, w, sw, pw, j * dw)
            start = across.start * sw - pw + j * dw
            clear(at(columns, r), down.start * ow)
            for y in down:
                row = y * sh - ph + i * dh
                _seen(x, k, row, start, sw, across, ow, shift(at(columns, r), y * ow))
                if sw != 1:
                    for z in range(len(across)):
                        columns[r, y, across.start + z] = x[k, row, start + z * sw]
            clear(shift(at(columns, r), down.stop * ow), (oh - down.stop) * ow)


@compiled
def col2im(columns, window, x, num_threads):
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    (c, h, w), (rows, oh, ow) = x.shape, columns.shape
    fits(rows == c * kh * kw)
    for t in prange(num_threads):
        for r in range(c * t // num_threads * kh * kw, c * (t + 1) // num_threads * kh * kw):
            k, i, j = r // (kh * kw), r // kw % kh, r % kw
            across = _reach(ow, w, sw, pw, j * dw)
            start = across.start * sw - pw + j * dw
            for y in _reach(oh, h, sh, ph, i * dh):
                row = y * sh - ph + i * dh
                if sw == 1:
                    source = shift(at(columns, r), y * ow + across.start)
                    _add_row(source, shift(at(x, k), row * w + start), len(across))
                else:
                    for z in range(len(across)):
                        x[k, row, start + z * sw] += columns[r, y, across.start + z]
