"""Invariant leaves lent to ranks that use them each in its own way: their gradients are added up in one message.

Moving a parameter from Invariant to Replicate costs nothing; the gradient comes back as a sum over ranks. A model has
many small ones (norms, biases), so the sums are collected and finished together when backward ends.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor, apply, define, queue_callback
from hpcdist.autograd.replay import Leaf, Replay
from hpcdist.autograd.tape import TAPE
from hpcdist.comm.communicator import Communicator

__all__ = ["LEND", "lend"]


class _Lent(NamedTuple):
    leaf: Leaf
    comms: tuple[Communicator, ...]
    partial: Array


class _Pending(threading.local):
    """What each backward of this thread has to finish, by leaf: one may run inside another, or fail."""

    def __init__(self) -> None:
        self.lent: WeakKeyDictionary[Replay, dict[tuple[int, tuple[Communicator, ...]], _Lent]] = WeakKeyDictionary()


_pending = _Pending()


def _forward(x: Array, *, comms: tuple[Communicator, ...]) -> Any:  # noqa: ARG001 (backward needs them)
    return x, ()


def _vjp(into: Any, grads: Any, _saved: Any, *, comms: tuple[Communicator, ...]) -> None:
    target = into[0]
    if not isinstance(target, Leaf):
        target.give(_summed(grads[0], comms))
        return
    queue_callback(_finish)
    lent, key = _pending.lent.setdefault(TAPE.replays[-1], {}), (id(target.tensor), comms)
    if key in lent:
        lent[key].partial[...] += grads[0]
    else:
        lent[key] = _Lent(target, comms, grads[0].copy())


def _finish() -> None:
    """Add up over ranks, one message a dtype and group. Collective over the groups."""
    together: dict[Any, list[_Lent]] = {}
    for one in _pending.lent.pop(TAPE.replays[-1]).values():
        together.setdefault((one.comms, one.partial.dtype), []).append(one)
    for (comms, _), group in together.items():
        xp = namespace(group[0].partial)
        flat = _summed(xp.concatenate([one.partial.reshape(-1) for one in group]), comms)
        start = 0
        for one in group:
            part = flat[start : start + one.partial.size]
            one.leaf.give(part.reshape(one.partial.shape))
            start += one.partial.size


def _summed(x: Array, comms: tuple[Communicator, ...]) -> Array:
    for comm in comms:
        x = comm.all_reduce(x) if comm.size > 1 else x
    return x


LEND = define("lend", _forward, _vjp)


def lend(x: Tensor, comms: tuple[Communicator, ...]) -> Tensor:
    """Let ranks of ``comms`` use an Invariant tensor each in its own way.

    In backward: Collective over each of ``comms``, once for all leaves.
    """
    lent: Tensor = apply(LEND, x, comms=comms)
    return lent
