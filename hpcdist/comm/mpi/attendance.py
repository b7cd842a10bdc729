"""What the flight recorder and the watchdog must know of a group: which ranks of the world are in it."""

from __future__ import annotations

from collections import Counter

from mpi4py import MPI

from hpcdist.comm import watchdog
from hpcdist.comm.members import name_members

__all__ = ["attend"]

_groups: Counter[str] = Counter()


def attend(handle: MPI.Intracomm) -> str:
    """Return the members of a group as text, and see to it that somebody watches over its calls.

    All members form their groups in the same order: the second group of the same ranks is the second one on all of
    them, and gets ``#2``.
    """
    world = MPI.COMM_WORLD
    ranks = MPI.Group.Translate_ranks(handle.Get_group(), None, world.Get_group())
    if len(ranks) > 1:
        watchdog.start(world.Get_rank(), world.Get_size())
    # ranks that were spawned are not in the world of those that spawned them
    text = name_members(range(len(ranks)) if MPI.UNDEFINED in ranks else ranks)
    _groups[text] += 1
    return text if _groups[text] == 1 else f"{text}#{_groups[text]}"
