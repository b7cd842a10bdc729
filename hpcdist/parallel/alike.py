"""Ranks that are alike: what they hold is compared, or sent to all by the first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hpcdist.array import namespace
from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator
from hpcdist.errors import explain

__all__ = ["check_same", "check_told", "described", "send_first", "send_first_together"]


def described(name: str, tensor: Any) -> tuple[Any, ...]:
    """Return what has to be the same of a parameter or buffer."""
    return name, tensor.shape, str(tensor.dtype), tensor.requires_grad


def check_same(comm: Communicator, what: str, mine: Sequence[Any]) -> None:
    """Make sure that all ranks have the same, before the first message that would not fit. Collective over ``comm``.

    Raises
    ------
    ValueError
        See :func:`check_told`.
    """
    check_told(what, comm.all_gather_object(mine))


def check_told(what: str, everyone: Sequence[Sequence[Any]]) -> None:
    """Make sure that every rank has told the same as rank 0.

    Raises
    ------
    ValueError
        The same on every rank, also on those that agree with rank 0: names the first thing that differs.
    """
    for rank, theirs in enumerate(everyone):
        pairs = itertools.zip_longest(theirs, everyone[0], fillvalue="nothing more")
        got, expected = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
        if got != expected:
            do = "build the same model, and say the same of it, on every rank"
            raise ValueError(explain(f"{what} of rank {rank} and rank 0 differ", got=got, expected=expected, do=do))


def send_first(comm: Communicator, tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of rank 0, one by one. Collective over ``comm``."""
    for tensor in tensors:
        tensor.data[...] = comm.broadcast(tensor.data)


def send_first_together(comm: Communicator, tensors: Iterable[Tensor]) -> None:
    """Overwrite small tensors with those of rank 0, in one message a dtype. Collective over ``comm``."""
    together: dict[np.dtype[Any], list[Tensor]] = {}
    for tensor in tensors:
        together.setdefault(tensor.dtype, []).append(tensor)
    for group in together.values():
        sent = namespace(group[0].data).concatenate([t.data.reshape(-1) for t in group])
        received, start = comm.broadcast(sent), 0
        for tensor in group:
            tensor.data[...] = received[start : start + tensor.size].reshape(tensor.shape)
            start += tensor.size
