"""Python objects as messages: pickled, and gathered by the communicator's own verbs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.comm.communicator import Communicator
from hpcdist.errors import explain

__all__ = ["gather"]


def gather(comm: Communicator, value: Any) -> list[Any]:
    """Return the picklable ``value`` of every rank, in rank order. Collective over ``comm``.

    Raises
    ------
    TypeError
        On every rank, if the value of one cannot be pickled.
    """
    data, refusal = _pickled(value)
    heads = comm.all_gather(np.array([[data.size, refusal]], np.int64))
    sizes = [int(n) for n in heads[:, 0]]
    joined = comm.all_gather(data, sizes=sizes)
    messages = [part.tobytes() for part in np.split(joined, np.cumsum(sizes)[:-1])]
    refused = np.flatnonzero(heads[:, 1])
    if refused.size:
        rank = int(refused[0])
        what = f"all_gather_object: the value of rank {rank} cannot be pickled"
        raise TypeError(explain(what, got=messages[rank].decode(), expected="a picklable object"))
    return [pickle.loads(message) for message in messages]


def _pickled(value: Any) -> tuple[Array, bool]:
    """Return the bytes of ``value`` and False; if it cannot be pickled, those of the reason and True."""
    try:
        text, refusal = pickle.dumps(value), False
    except Exception as e:
        text, refusal = f"{type(value).__name__}: {e}".encode(), True
    return np.frombuffer(text, np.uint8), refusal
