"""A store in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from hpcdist.comm.contents import Change, Contents
from hpcdist.comm.store import Store

__all__ = ["HashStore"]

T = TypeVar("T")


class HashStore(Store):
    """A store that the threads of one process share."""

    def __init__(self) -> None:
        super().__init__()
        self._contents, self._changed = Contents(), threading.Condition()

    def __repr__(self) -> str:
        return "HashStore()"

    def clone(self) -> HashStore:
        """Return another holder of the same keys and values, with a time limit of its own."""
        twin = HashStore()
        twin.timeout, twin._contents, twin._changed = self.timeout, self._contents, self._changed
        return twin

    def _apply(self, change: Change) -> bytes | None:
        with self._changed:
            value = self._contents.apply(change)
            self._changed.notify_all()
        return value

    def _await(self, question: Callable[[Contents], T], limit_s: float) -> T | None:
        with self._changed:
            return self._changed.wait_for(lambda: question(self._contents), limit_s) or None
