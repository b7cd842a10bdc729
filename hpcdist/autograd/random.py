"""Random numbers that depend on a seed and on where they are used, never on who draws them.

Element i of a draw is a function of (seed, stream, step, part, call, i): Philox4x32-10 (Salmon et al. 2011,
doi:10.1145/2063384.2063405) with one counter an element. A rank that holds a part of an array draws that part by
passing the global index of its elements, so weights and dropout masks are the same on every mesh.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.autograd.pool import empty
from hpcdist.kernels.noise import philox, philox_at

__all__ = [
    "Key",
    "at",
    "box_index",
    "get_state",
    "key",
    "manual_seed",
    "next_key",
    "normal",
    "set_state",
    "uniform",
    "words",
]

Key: TypeAlias = tuple[int, int, int, int]
"""The words of Philox that stay the same for a whole draw: two of the key, two of the counter."""


class _State(threading.local):
    """Where this thread is: a rank that is a thread has its own."""

    seed = 0
    step = 0
    part = 0
    calls = 0


_state = _State()


def manual_seed(seed: int) -> None:
    """Set the seed, and start counting draws anew."""
    set_state({"seed": int(seed), "step": 0, "part": 0, "calls": 0})


def get_state() -> dict[str, int]:
    """Return all there is to know: seed, step, part of the step and number of draws in it."""
    return {name: getattr(_state, name) for name in ("seed", "step", "part", "calls")}


def set_state(state: dict[str, int]) -> None:
    """Continue from what :func:`get_state` returned."""
    for name in ("seed", "step", "part", "calls"):
        setattr(_state, name, int(state[name]))


@contextmanager
def at(*, step: int, part: int = 0) -> Iterator[None]:
    """Draw as the given step, and part of it (a micro-batch), wherever and whenever it is computed."""
    before = get_state()
    set_state({"seed": _state.seed, "step": step, "part": part, "calls": 0})
    try:
        yield
    finally:
        set_state(before)


def key(seed: int, stream: str, *position: int) -> Key:
    """Derive the key of a draw from a seed, the name of its purpose and integers that say where it happens."""
    digest = hashlib.blake2b(repr((int(seed), stream, *map(int, position))).encode(), digest_size=16).digest()
    a, b, c, d = np.frombuffer(digest, "<u4").tolist()
    return a, b, c, d


def next_key(stream: str) -> Key:
    """Return the key of the next draw at the current seed, step and part."""
    _state.calls += 1
    return key(_state.seed, stream, _state.step, _state.part, _state.calls)


def words(key: Key, shape: tuple[int, ...], index: Array | None = None) -> Array:
    """Return four random uint32 an element, shape (*shape, 4).

    Parameters
    ----------
    key : Key
        See :func:`key`.
    shape : tuple
        Of the part that is drawn.
    index : array of uint64, shape ``shape``, optional
        Global flat index of each element; None: 0, 1, 2, ...
    """
    out = empty((int(np.prod(shape)), 4), np.uint32)
    if index is None:
        philox(out, *key, 0)
    else:
        philox_at(out, *key, np.ascontiguousarray(index, np.uint64).reshape(-1))
    return out.reshape(*shape, 4)


def uniform(key: Key, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32, index: Array | None = None) -> Array:
    """Return numbers in [0, 1), multiples of 2**-24."""
    bits, numbers = empty(shape, np.uint32), empty(shape, np.float32)
    np.right_shift(words(key, shape, index)[..., 0], 8, out=bits)
    np.multiply(bits, np.float32(2**-24), out=numbers)
    return numbers.astype(dtype, copy=False)


def normal(key: Key, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32, index: Array | None = None) -> Array:
    """Return standard normal numbers, by the method of Box and Muller (1958) in float64 and without rejection."""
    w = words(key, shape, index)
    first = (_fraction(w[..., 0], w[..., 1]) + 2.0**-54).astype(np.float64)
    angle = _fraction(w[..., 2], w[..., 3])
    return (np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * angle)).astype(dtype, copy=False)


def _fraction(high: Array, low: Array) -> Array:
    """Return 53 random bits as a float64 in [0, 1)."""
    bits = (high.astype(np.uint64) << np.uint64(21)) ^ (low.astype(np.uint64) >> np.uint64(11))
    return bits * 2.0**-53


def box_index(global_shape: tuple[int, ...], start: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return the global flat index of every element of a box: uint64, shape ``shape``."""
    total: Any = np.zeros(shape, np.uint64)
    stride = 1
    for dim in reversed(range(len(global_shape))):
        line = (np.arange(shape[dim], dtype=np.uint64) + np.uint64(start[dim])) * np.uint64(stride)
        total = total + line.reshape([-1 if i == dim else 1 for i in range(len(shape))])
        stride *= global_shape[dim]
    box: Array = total
    return box
