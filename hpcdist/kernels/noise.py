"""Random bits by the counter-based generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, section 3.3)."""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.kernels.registry import kernel

__all__ = ["MULTIPLIERS", "ROUNDS", "WEYL", "philox", "philox_at"]

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
_MASK, _HALF = 0xFFFFFFFF, 32


@kernel("noise")
def philox(words: Array, key0: int, key1: int, counter2: int, counter3: int, start: int) -> None:
    """Set row ``i`` of ``words`` to the block of counter ``(low, high of start + i, counter2, counter3)``.

    Parameters
    ----------
    words : array
        (n, 4), uint32.
    key0, key1, counter2, counter3 : int
        32-bit words.
    start : int
        64 bits; ``start + i`` wraps around.
    """
    xp = namespace(words)
    index = xp.arange(len(words), dtype=xp.uint64) + xp.uint64(start)
    philox_at.reference(words, key0, key1, counter2, counter3, index)


@kernel("noise")
def philox_at(words: Array, key0: int, key1: int, counter2: int, counter3: int, index: Array) -> None:
    """Set row ``i`` of ``words`` (n, 4), uint32, to the block of ``index[i]`` (uint64), as ``philox`` does."""
    xp = namespace(words)
    mask, half = xp.uint64(_MASK), xp.uint64(_HALF)
    c0, c1 = index & mask, index >> half
    c2, c3 = xp.full_like(c0, counter2), xp.full_like(c0, counter3)
    for turn in range(ROUNDS):
        k0, k1 = (xp.uint64((key + turn * w) & _MASK) for key, w in zip((key0, key1), WEYL, strict=True))
        low: Any = c0 * xp.uint64(MULTIPLIERS[0])  # 64-bit products of 32-bit words
        high: Any = c2 * xp.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (high >> half) ^ c1 ^ k0, high & mask, (low >> half) ^ c3 ^ k1, low & mask
    for column, word in enumerate((c0, c1, c2, c3)):
        words[:, column] = word
