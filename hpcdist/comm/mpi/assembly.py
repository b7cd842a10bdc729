"""Some ranks of a group find out whether all of them have come to form a group of their own, within a time limit."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from mpi4py import MPI

from hpcdist.comm.mpi.polling import poll
from hpcdist.errors import CollectiveMismatchError, DistTimeoutError, explain

__all__ = ["assemble"]

_SAME, _DIFFERENT = 1, 0


class Parent(Protocol):
    """The group that the ranks are ranks of."""

    handle: MPI.Intracomm
    rank: int
    name: str
    timeout_s: float
    top_tag: int


def assemble(parent: Parent, ranks: Sequence[int]) -> None:
    """Wait until all ``ranks`` of ``parent`` have called this. Collective over ``ranks``.

    The lowest of them hears from each which ranks it means, and answers whether all mean the same.

    Raises
    ------
    DistTimeoutError
        Names the ranks that have not come.
    CollectiveMismatchError
        On every rank, if lists differ.
    """
    host, word = min(ranks), np.array([zlib.crc32(str(list(ranks)).encode())], np.uint32)
    same = _receive(parent, ranks, word) if parent.rank == host else _report(parent, host, ranks, word)
    if not same:
        text, do = f"create_group on group {parent.name!r}: ranks disagree", "give the same list on all of its ranks"
        raise CollectiveMismatchError(
            explain(text, got=f"{list(ranks)} on rank {parent.rank}, others elsewhere", do=do)
        )


def _receive(parent: Parent, ranks: Sequence[int], word: np.ndarray) -> bool:
    others = [rank for rank in ranks if rank != parent.rank]
    told = [np.empty_like(word) for _ in others]
    tag = parent.top_tag + 1
    requests = [parent.handle.Irecv(x, rank, tag) for x, rank in zip(told, others, strict=True)]
    _wait(parent, ranks, others, requests)
    answer = np.array([_SAME if all((x == word).all() for x in told) else _DIFFERENT], np.uint32)
    _wait(parent, ranks, others, [parent.handle.Isend(answer, rank, tag) for rank in others])
    return bool(answer[0] == _SAME)


def _report(parent: Parent, host: int, ranks: Sequence[int], word: np.ndarray) -> bool:
    answer, tag = np.empty_like(word), parent.top_tag + 1
    requests = [parent.handle.Irecv(answer, host, tag), parent.handle.Isend(word, host, tag)]
    _wait(parent, ranks, [host, host], requests)
    return bool(answer[0] == _SAME)


def _wait(parent: Parent, ranks: Sequence[int], peers: Sequence[int], requests: list[MPI.Request]) -> None:
    waiting = dict(enumerate(requests))

    def done() -> bool:
        for place, request in list(waiting.items()):
            if request.Test():
                del waiting[place]
        return not waiting

    if poll(done, parent.timeout_s):
        return
    for request in waiting.values():
        request.Cancel()
        request.Free()
    late = ", ".join(map(str, sorted({peers[place] for place in waiting})))
    raise DistTimeoutError(
        explain(
            f"create_group on group {parent.name!r}: ranks missing on rank {parent.rank} after {parent.timeout_s:g} s",
            got=f"nothing from rank {late}",
            expected=f"ranks {list(ranks)} to call it",
            do="call it on all of its ranks, or allow more time (timeout_s)",
        )
    )
