"""Whether the ranks of this node have a core each: decides how a rank waits."""

from __future__ import annotations

import functools
import os

from hpcdist.backends import cpu
from hpcdist.comm.launched import launched

__all__ = ["crowded"]


@functools.cache
def crowded() -> bool:
    """Say whether this node has more ranks than cores for them, as far as the launcher tells."""
    place = launched(os.environ)
    return place is not None and place.local_size > cpu.shared_cores(place.local_size)
