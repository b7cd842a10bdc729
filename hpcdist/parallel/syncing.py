"""When gradients are reduced: with which backward, and which micro-batches a rank works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcdist.comm import Communicator
from hpcdist.data.plan import assign
from hpcdist.errors import explain

__all__ = ["Syncing"]


class Syncing:
    """Something that reduces gradients in backward, unless a training loop says that there is more to come."""

    comm: Communicator
    _sync = True

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Say whether the next backward reduces gradients, or only adds to them."""
        self._sync = requires_gradient_sync

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add to gradients in a block: the next backward outside reduces the sum.

        Take no optimizer step in between: gradients are those of each rank alone, and parameters would differ from
        then on. Hooks of parameters wait for the reduction.
        """
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def turns(self, of: int) -> range:
        """Return which of ``of`` micro-batches this rank works on, in order: neighbouring ones."""
        return assign(of, self.comm.size, self.comm.rank)

    @contextmanager
    def micro_batch(self, index: int, *, of: int) -> Iterator[None]:
        """Run the forward and the backward of one of :meth:`turns` in a block: the last one reduces the sum."""
        turns = self._checked_turns(index, of)
        before, self._sync = self._sync, self._sync and index == turns[-1]
        try:
            yield
        finally:
            self._sync = before

    def _checked_turns(self, index: int, of: int) -> range:
        turns = self.turns(of)
        if index not in turns:
            raise ValueError(explain("micro_batch: index", got=index, expected=f"one of {[*turns]}"))
        return turns
