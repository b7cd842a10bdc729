"""The verbs on a group of MPI ranks, and nothing but the verbs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from mpi4py import MPI

from hpcdist import config
from hpcdist.array import Array
from hpcdist.comm import arguments, objects
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.mpi import assembly, chunks, progress, verbs
from hpcdist.comm.mpi.calls import Calls
from hpcdist.comm.mpi.device import Cuda
from hpcdist.comm.mpi.handle import duplicate
from hpcdist.comm.mpi.polling import Late
from hpcdist.comm.mpi.work import MpiWork
from hpcdist.comm.operation import Operation, call_site
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.work import Work

__all__ = ["PlainCommunicator"]

T = TypeVar("T")

_LEAST_TOP_TAG = 32767
"""MPI guarantees tags up to here."""


class PlainCommunicator(Communicator, observed=False):
    """A group of MPI ranks that exchanges messages by non-blocking calls.

    Parameters
    ----------
    handle : MPI.Intracomm
        Used for nothing else.
    name : str
        Shown in messages.
    timeout_s : float
        Limit of every wait.
    reproducible : bool
        Read by strategies and optimizers.
    max_count : int, optional
        Elements in one message; larger ones are cut. Default: HPCDIST_MAX_COUNT.
    cuda : Cuda
        How device arrays are treated, alike on all ranks.
    """

    backend = "mpi"
    check = False

    def __init__(
        self,
        handle: MPI.Intracomm,
        *,
        name: str = "world",
        timeout_s: float = 1800.0,
        reproducible: bool = False,
        max_count: int | None = None,
        cuda: Cuda = Cuda(),  # noqa: B008 (a tuple)
    ) -> None:
        self.cuda = cuda
        self.handle, self.name = handle, name
        self.rank, self.size = handle.Get_rank(), handle.Get_size()
        self.members: Sequence[int] = range(self.size)
        self.timeout_s, self.reproducible = timeout_s, reproducible
        self.max_count = config.environment().max_count if max_count is None else max_count
        self.top_tag = int(handle.Get_attr(MPI.TAG_UB) or _LEAST_TOP_TAG) - 1  # assembly takes the last one
        self._posting = Calls(handle, blocking=False)
        self._numbers = {True: 0, False: 0}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, rank {self.rank} of {self.size})"

    # ---- the verbs, non-blocking
    def iall_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`all_reduce`. Collective over the group."""
        return self._start(verbs.all_reduce(self, x, ReduceOp(op), out))

    def ireduce(
        self, x: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None
    ) -> Work[Array | None]:
        """Post :meth:`reduce`. Collective over the group."""
        return self._start(verbs.reduce(self, x, root, ReduceOp(op), out))

    def ireduce_scatter(
        self,
        x: Array,
        dim: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        sizes: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Work[Array]:
        """Post :meth:`reduce_scatter`. Collective over the group."""
        return self._start(verbs.reduce_scatter(self, x, dim, ReduceOp(op), sizes, out))

    def iall_gather(
        self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None, out: Array | None = None
    ) -> Work[Array]:
        """Post :meth:`all_gather`. Collective over the group."""
        return self._start(verbs.all_gather(self, x, dim, sizes, out))

    def iall_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], *, out: Sequence[Array] | None = None
    ) -> Work[list[Array]]:
        """Post :meth:`all_to_all`. Collective over the group."""
        return self._start(verbs.all_to_all(self, parts, shapes, out))

    def ibroadcast(self, x: Array, root: int = 0, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`broadcast`. Collective over the group."""
        return self._start(verbs.broadcast(self, x, root, out))

    def igather(self, x: Array, root: int = 0, *, out: Sequence[Array] | None = None) -> Work[list[Array] | None]:
        """Post :meth:`gather`. Collective over the group."""
        return self._start(verbs.gather(self, x, root, out))

    def iscatter(self, parts: Sequence[Array] | None, out: Array, root: int = 0) -> Work[Array]:
        """Post :meth:`scatter`. Collective over the group."""
        return self._start(verbs.scatter(self, parts, out, root))

    def ibarrier(self) -> Work[None]:
        """Post :meth:`barrier`. Collective over the group."""
        return self._start(verbs.barrier(self))

    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Post :meth:`send`. Point to point."""
        return self._start(verbs.send(self, x, dest, tag))

    def irecv(self, out: Array, source: int | None = None, tag: int = 0) -> Work[Array]:
        """Post :meth:`recv`. Point to point."""
        return self._start(verbs.recv(self, out, source, tag))

    # ---- progress
    def watch(self, work: Work[Any]) -> None:
        """See to it that ``work`` makes progress while the caller computes."""
        if isinstance(work, progress.Watched):
            progress.watch(work)

    def poll(self) -> None:
        """Make progress with watched works, if no thread does. Never blocks."""
        progress.poll()

    # ---- objects and groups
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the picklable ``value`` of every rank, in rank order. Collective over the group.

        Raises
        ------
        TypeError
            On every rank, if the value of one cannot be pickled.
        """
        return objects.all_gather(self, value)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the root's picklable ``value``. Collective over the group.

        Raises
        ------
        TypeError
            On every rank, if it cannot be pickled.
        """
        arguments.check_rank("broadcast_object", "root", root, self.size)
        return objects.broadcast(self, value, root)

    def split(self, color: int | None, key: int = 0) -> Self | None:
        """Form one new group a color (0 or more), ordered by ``key``, then rank; None with color None.

        Collective over the group: ranks that want no part call it with ``color=None``.
        """
        arguments.check_split(color, key)
        self._convene("split")  # has a time limit, which MPI_Comm_split has not
        handle = self.handle.Split(MPI.UNDEFINED if color is None else color, key)
        return None if handle == MPI.COMM_NULL else self._derived(handle, f"{self.name}/{color}")

    def create_group(self, ranks: Sequence[int]) -> Self:
        """Return the group of these ``ranks``, in this order. Collective over ``ranks``."""
        self.check_usable("create_group")
        arguments.check_members(ranks, self.rank, self.size)
        return self._derived(self._create(ranks, None), f"{self.name}/{list(ranks)}")

    def split_node(self) -> Self:
        """Return the group of ranks that share this rank's memory. Collective over the group."""
        self._convene("split_node")
        return self._derived(self.handle.Split_type(MPI.COMM_TYPE_SHARED, self.rank), f"{self.name}/node")

    def dup(self, *, check: bool | None = None) -> Self:  # noqa: ARG002 (subclasses can)
        """Return the same ranks with a message space of their own; see the base class. Collective over the group."""
        self.check_usable("dup")
        return self._derived(duplicate(self.handle, self.timeout_s), self.name)

    def free(self) -> None:
        """Give back the message space; it cannot be used any more. Collective over the group."""
        if not self.freed:
            self.handle.Free()
            super().free()

    # ---- what the verbs are made of
    def _derived(self, handle: MPI.Comm, name: str) -> Self:
        assert isinstance(handle, MPI.Intracomm)
        part = type(self)(handle, name=name, **self._options(handle))
        part.members = [self.members[place] for place in self._places(handle)]
        return part

    def _places(self, handle: MPI.Intracomm) -> Sequence[int]:
        """Return the ranks in this group of all members of another."""
        return MPI.Group.Translate_ranks(handle.Get_group(), None, self.handle.Get_group())

    def _options(self, handle: MPI.Intracomm) -> dict[str, Any]:  # noqa: ARG002 (subclasses need it)
        """Return what groups made of this one inherit."""
        inherited = ("timeout_s", "reproducible", "max_count", "cuda")
        return {name: getattr(self, name) for name in inherited}

    def _create(self, ranks: Sequence[int], late: Late | None) -> MPI.Intracomm:
        """Return a handle on these ranks. Collective over ``ranks``."""
        assembly.assemble(self, ranks, late)  # has a time limit, which MPI_Comm_create_group has not
        return self.handle.Create_group(self.handle.Get_group().Incl(list(ranks)))

    def _convene(self, verb: str) -> None:
        """Wait until all ranks are about to do ``verb``, and none has given up.

        A rank that comes late finds that the others have come, although they may be gone: they do not come again.
        """
        self._meet(verb)
        self._meet(verb)

    def _meet(self, verb: str) -> None:
        """Wait until all ranks have come to ``verb``."""
        self._start(verbs.meeting(self, verb, ())).wait()

    def _start(self, plan: verbs.Plan[T]) -> Work[T]:
        """Post a verb."""
        return self._post(plan, self._operation(plan))

    def _operation(self, plan: verbs.Plan[Any]) -> Operation:
        """Say what is about to be posted; count it, messages by themselves, as ranks have different numbers of them."""
        self.check_usable(plan.verb)
        is_message = plan.peers is not None
        self._numbers[is_message] += 1
        shape, dtype = (None, None) if plan.x is None else (plan.x.shape, plan.x.dtype)
        peers = plan.peers or f"all {self.size} ranks of the group"
        place = (self.rank, self.size, self.name, self._numbers[is_message])
        return Operation(plan.verb, *place, shape, dtype, plan.terms, peers, call_site())

    def _post(self, plan: verbs.Plan[T], operation: Operation) -> MpiWork[T]:
        """Make the calls that do not block."""
        return self._work(plan, operation, plan.post(self._posting))

    def _work(self, plan: verbs.Plan[T], operation: Operation, posted: chunks.Posted, **options: Any) -> MpiWork[T]:
        requests = [request for request in posted if request is not None]
        options |= {"buffers": plan.buffers, "lengths": plan.lengths, "arrived": plan.arrived}
        options |= {"timeout_s": self.timeout_s, "header": plan.header}
        return MpiWork(operation, requests, plan.finish, **options)
