"""A part of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpcdist.comm.contents import Change, Contents
from hpcdist.comm.store import Store

__all__ = ["PrefixStore"]

T = TypeVar("T")


class PrefixStore(Store):
    """A part of another store: keys that begin with ``prefix`` and a slash, without that.

    Parameters
    ----------
    prefix : str
    store : Store
        May be a part itself.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__()
        self.prefix, self.underlying_store, self.timeout = prefix, store, store.timeout
        self._prefix = f"{store._prefix}{prefix}/"

    def __repr__(self) -> str:
        return f"PrefixStore({self.prefix!r}, {self.underlying_store!r})"

    def clone(self) -> PrefixStore:
        """Return another holder of the same keys and values, with a time limit of its own."""
        twin = PrefixStore(self.prefix, self.underlying_store.clone())
        twin.timeout = self.timeout
        return twin

    def _apply(self, change: Change) -> bytes | None:
        return self.underlying_store._apply(change)

    def _await(self, question: Callable[[Contents], T], limit_s: float) -> T | None:
        return self.underlying_store._await(question, limit_s)
