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
    first = min(max(0, -((offset - padding) // stride)), count)
    return range(first, max(first, min(count, (n - 1 + padding - offset) // stride + 1)))


@inline
def _add_row(row, out, n):
    for j in range(0, n, WIDTH):
        store(out, j, n - j, load(out, j, n - j) + load(row, j, n - j))


@inline
def _blank(to, row, down, across):
    """Set to 0 what lies outside, of rows of ``row`` elements: all before and after ``down`` and ``across``."""
    for y in down:
        clear(shift(to, y * row), across.start)
        clear(shift(to, y * row + across.stop), row - across.stop)


@compiled
def im2col(x, window, columns, num_threads):
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    (c, h, w), (rows, oh, ow) = x.shape, columns.shape
    fits(rows == c * kh * kw)
    for t in prange(num_threads):
        for r in part(rows, num_threads, t):
            k, i, j = r // (kh * kw), r // kw % kh, r % kw
            down, across = _reach(oh, h, sh, ph, i * dh), _reach(ow, w, sw, pw, j * dw)
            first, start = down.start * sh - ph + i * dh, across.start * sw - pw + j * dw
            plane, to, count = at(x, k), at(columns, r), len(across)
            clear(to, down.start * ow)
            if sh == sw == 1 and ow == w and len(down) and count:
                # all rows at once; what comes from the row before or after is blanked below
                place = down.start * ow + across.start
                copy_row(shift(plane, first * w + start), shift(to, place), (len(down) - 1) * w + count)
            elif sw == 1:
                for y in range(len(down)):
                    place = (down.start + y) * ow + across.start
                    copy_row(shift(plane, (first + y * sh) * w + start), shift(to, place), count)
            else:
                for y in range(len(down)):
                    for z in range(count):
                        columns[r, down.start + y, across.start + z] = x[k, first + y * sh, start + z * sw]
            _blank(to, ow, down, across)
            clear(shift(to, down.stop * ow), (oh - down.stop) * ow)


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
