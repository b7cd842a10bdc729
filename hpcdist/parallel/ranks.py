"""The ranks that are meant."""

from __future__ import annotations

from hpcdist.comm import Communicator

__all__ = ["ranks_of"]


def ranks_of(process_group: Communicator | None) -> Communicator:
    """Return the group that is named, or the default one, which is made then if there is none."""
    if process_group is not None:
        return process_group
    from hpcdist.comm.init import get_default

    return get_default()
