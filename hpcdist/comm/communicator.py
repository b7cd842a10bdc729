"""The communicator: a group of ranks, what they do together, and the groups made of it."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from hpcdist.comm import observing
from hpcdist.comm.agreement import portable, raise_first
from hpcdist.comm.verbs import Verbs
from hpcdist.errors import DistError, explain

__all__ = ["Communicator"]


class Communicator(Verbs):
    """A group of ranks, seen from one of them.

    Attributes
    ----------
    rank, size : int
        Position in the group and number of ranks in it.
    name : str
        Shown in messages.
    timeout_s : float
        Limit of every wait.
    reproducible : bool
        Read by strategies and optimizers.
    members : sequence of int
        For every rank of this group its global rank: that in the group which all its ancestors come from.
    nodes : sequence of int
        For every rank a number that ranks of its node share; empty where nobody has asked.
    check : bool
        Check mode: whether ranks compare their calls, and plain arrays that count as the same on all of them.
    freed : bool
        Whether :meth:`free` has been called.
    backend : str
        What carries the messages: "mpi", "threads" or "dry".
    """

    rank: int
    size: int
    name: str
    timeout_s: float
    reproducible: bool
    members: Sequence[int]
    nodes: Sequence[int] = ()
    check: bool = False
    freed: bool = False
    backend: ClassVar[str]

    def __init_subclass__(cls, *, observed: bool = True) -> None:
        """Say whether observers see calls on groups of this class, and not of one that groups use themselves."""
        super().__init_subclass__()
        if observed:
            observing.include(cls)

    @functools.cached_property
    def memo(self) -> dict[Any, Any]:
        """What others have made of this group and want to find again: it lives as long as the group."""
        return {}

    # ---- small Python objects, for control
    @abstractmethod
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the picklable ``value`` of every rank, in rank order. Collective over the group."""

    @abstractmethod
    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the root's picklable ``value``; those of the others are not looked at. Collective over the group."""

    # ---- groups
    @abstractmethod
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Form one new group a color, ordered by ``key``, then rank; None with color None.

        Collective over the group: ranks that want no part call it with ``color=None``.
        """

    def split_by(self, says: Callable[[int], tuple[int | None, int]]) -> Communicator | None:
        """Split where every rank knows what all say: ``says(rank)`` is the color and key that ``rank`` gives.

        Collective over the group.
        """
        return self.split(*says(self.rank))

    @abstractmethod
    def create_group(self, ranks: Sequence[int]) -> Communicator:
        """Return the group of these ``ranks`` of this one, in this order.

        Collective over ``ranks``: only they call it, with the same list.

        Raises
        ------
        ValueError
            If a rank is no rank of this group, or comes twice, or the caller is not among them.
        CollectiveMismatchError
            On each of them, if they do not give the same list.
        """

    @abstractmethod
    def split_node(self) -> Communicator:
        """Return the group of ranks that share this rank's memory. Collective over the group."""

    def dup(self, *, check: bool | None = None) -> Communicator:  # noqa: ARG002 (groups of threads always compare)
        """Return the same ranks with a message space of their own. Collective over the group.

        Parameters
        ----------
        check : bool, optional
            Whether ranks compare their calls. Default: as in this group.
        """
        twin = self.split(0, self.rank)
        assert twin is not None
        return twin

    def free(self) -> None:
        """Give back what the group holds; it cannot be used any more. Collective over the group.

        A second time there is nothing to do.
        """
        self.freed = True

    def check_usable(self, verb: str) -> None:
        """Refuse to go on with a group that has been freed; DistError then."""
        if self.freed:
            do = "destroy a group, or the default one, after its last use"
            raise DistError(explain(f"{verb} on group {self.name!r}: the group has been freed", do=do))

    # ---- errors
    def agree(self, error: Exception | None) -> None:
        """Raise on every rank if any rank has an error: the same one, that of the lowest rank that has one.

        Collective over the group. Where ranks differ the message says which ranks failed.
        """
        raise_first(self.rank, self.all_gather_object(portable(error)), error)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Run a block whose failure on one rank becomes the same error on all.

        Collective over the group, at the end of the block.
        """
        error = None
        try:
            yield
        except Exception as e:
            error = e
        self.agree(error)
