"""What the flight recorder and the watchdog must know of a group: which ranks of the world are in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mpi4py import MPI

from hpcdist.comm import watchdog
from hpcdist.comm.members import name_members

__all__ = ["attend", "places"]

_groups: Counter[str] = Counter()


def attend(handle: MPI.Intracomm) -> str:
    """Return the members of a group as text, and see to it that somebody watches over its calls.

    All members form their groups in the same order: the second group of the same ranks is the second one on all of
    them, and gets ``#2``.
    """
    if handle.Get_size() > 1:
        watchdog.start(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
    text = places(handle)
    _groups[text] += 1
    return text if _groups[text] == 1 else f"{text}#{_groups[text]}"


def places(handle: MPI.Intracomm, some: Sequence[int] | None = None) -> str:
    """Return as text which ranks of the world the ranks of a group are, or ``some`` of them."""
    ranks = MPI.Group.Translate_ranks(handle.Get_group(), some, MPI.COMM_WORLD.Get_group())
    # ranks that were spawned are not in the world of those that spawned them
    return name_members(range(len(ranks)) if MPI.UNDEFINED in ranks else ranks)
