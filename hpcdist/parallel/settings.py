"""What a training loop may change about sharded units from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcdist.array import Array
from hpcdist.parallel.walk import Round

if TYPE_CHECKING:
    from hpcdist.parallel.sharded import ShardedUnit

__all__ = ["Settings"]


@dataclass
class Settings:
    """Those of one unit.

    Attributes
    ----------
    reshards_after_forward : bool, int or None
        Whether whole parameters are let go of between forward and backward; None: unless the unit is the root; a
        number: so many neighbours keep them together.
    reshards_after_backward : bool
        Whether they are after backward.
    unshards_in_backward : bool
        Whether they are gathered on the way back, and not only where backward asks for one.
    syncs, all_reduces : bool
        Whether backward reduces gradients at all, and over replicas, too.
    factor : float, optional
        What sums of gradients are divided by; None: the number of ranks, or 1 in reproducible runs.
    round : Round, optional
        The micro-batches that are worked on.
    all_reduce_hook : function ``(array)``, optional
        Sees, and may change, what this rank has received of reduced gradients, one flat array a message.
    prefetches : bool
        Whether the unit that is expected next is gathered while this one computes.
    ahead, ahead_in_backward : sequence of ShardedUnit, optional
        The units that are gathered ahead instead.
    """

    reshards_after_forward: bool | int | None = None
    reshards_after_backward: bool = True
    unshards_in_backward: bool = True
    syncs: bool = True
    all_reduces: bool = True
    factor: float | None = None
    round: Round | None = None
    all_reduce_hook: Callable[[Array], object] | None = None
    prefetches: bool = False
    ahead: Sequence[ShardedUnit] | None = None
    ahead_in_backward: Sequence[ShardedUnit] | None = None

    @property
    def keeps_near(self) -> bool:
        """Whether neighbours keep whole parameters together between forward and backward."""
        return type(self.reshards_after_forward) is int
