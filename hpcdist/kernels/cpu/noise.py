"""Philox4x32-10, compiled."""

from __future__ import annotations

import numpy as np
from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline
from hpcdist.kernels.cpu.rows import part
from hpcdist.kernels.noise import MULTIPLIERS, ROUNDS, WEYL

_M0, _M1 = (np.uint64(m) for m in MULTIPLIERS)
_W0, _W1 = (np.uint32(w) for w in WEYL)
_HALF, _ONE, _TWO, _THREE, _FOUR = (np.uint64(n) for n in (32, 1, 2, 3, 4))


@inline
def _block(index, words):
    """Return the block of an index, under the words (key0, key1, counter2, counter3)."""
    k0, k1, c2, c3 = words
    c0, c1 = np.uint32(index), np.uint32(index >> _HALF)
    for _ in range(ROUNDS):
        low, high = _M0 * np.uint64(c0), _M1 * np.uint64(c2)
        c0, c1 = np.uint32(high >> _HALF) ^ c1 ^ k0, np.uint32(high)
        c2, c3 = np.uint32(low >> _HALF) ^ c3 ^ k1, np.uint32(low)
        k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@inline
def _put(flat, i, block):
    # unsigned indices: a signed one may count from the end, and the loop around this takes six times as long
    place = i * _FOUR
    flat[place], flat[place + _ONE], flat[place + _TWO], flat[place + _THREE] = block


@inline
def _count_up(flat, first, last, start, words):
    for i in range(np.uint64(first), np.uint64(last)):
        _put(flat, i, _block(start + i, words))


@inline
def _look_up(flat, first, last, index, words):
    for i in range(np.uint64(first), np.uint64(last)):
        _put(flat, i, _block(index[i], words))


@compiled
def _philox(flat, start, words, num_threads):
    n = flat.size // 4
    for t in prange(num_threads):
        run = part(n, num_threads, t)
        _count_up(flat, run.start, run.stop, start, words)


@compiled
def _philox_at(flat, index, words, num_threads):
    fits(index.size * 4 == flat.size)
    for t in prange(num_threads):
        run = part(index.size, num_threads, t)
        _look_up(flat, run.start, run.stop, index, words)


def philox(words, key0, key1, counter2, counter3, start):
    _philox(words.reshape(-1), np.uint64(start), _words(key0, key1, counter2, counter3))


def philox_at(words, key0, key1, counter2, counter3, index):
    _philox_at(words.reshape(-1), index, _words(key0, key1, counter2, counter3))


def _words(*words):
    return tuple(np.uint32(w) for w in words)
