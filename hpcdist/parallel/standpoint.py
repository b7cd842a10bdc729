"""Where in a forward a call is made, so that backward can make it there again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hpcdist.autograd import is_replaying, random
from hpcdist.parallel.running import current_walk, entered, walking_again

__all__ = ["Standpoint"]


class Standpoint:
    """The state of random numbers, and the sharded units in whose forward this thread is.

    Their whole parameters will be needed in backward, whether or not any operation saves one.
    """

    def __init__(self) -> None:
        self._random = random.get_state()
        self._units = entered()
        self._before = current_walk()
        self._num_left = 0 if self._before is None else self._before.num_left
        self._walk = self._before if self._units else None
        for unit in self._units:
            unit.walk.need(unit)

    def leave(self) -> None:
        """Take note that the call has returned: units that it entered went the way that is there now."""
        self._walk = current_walk()
        if self._walk is not None and not is_replaying():
            self._walk.gather_together(self._num_left if self._walk is self._before else 0)

    @contextmanager
    def again(self, *, random_state: bool) -> Iterator[None]:
        """Stand there again in a block. Collective over the axes of units, on the way back to them.

        Parameters
        ----------
        random_state : bool
            Whether random numbers are those of the first time. Those after the block do not depend on it.
        """
        with ExitStack() as stack:
            if random_state:
                stack.callback(random.set_state, random.get_state())
                random.set_state(self._random)
            stack.enter_context(walking_again(self._walk))
            for unit in self._units:
                assert self._walk is not None
                stack.enter_context(unit.refilled(self._walk))
            yield
