"""One rank of a group of any size, alone: verbs are written down instead of carried out.

It answers what a strategy communicates, how much and in which groups, on a machine that is not there. Nobody else
exists: every other rank is taken to bring and to say what this one does, except that arrays of others are zeros.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpcdist.array import Array, namespace
from hpcdist.comm import arguments
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.pieces import own, span, write
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.work import Done, Work
from hpcdist.errors import explain

__all__ = ["Call", "DryCommunicator"]


class Call(NamedTuple):
    """A verb as it was called.

    Attributes
    ----------
    verb : str
        Its blocking name, also where the non-blocking form was called.
    group, size : str, int
        The group it was called on, and the number of its ranks.
    shape, dtype : tuple of int and str, or None
        Of the array that was brought; the first one of several.
    payload_bytes : int
        Bytes of all arrays, or of the pickled object, that this rank brought.
    sent_bytes : int
        Bytes that leave this rank by the best known algorithm: ``2 (size - 1) / size`` of the payload for all_reduce,
        ``(size - 1) / size`` for reduce, reduce_scatter and broadcast, and of the result for all_gather; the others'
        parts for all_to_all and scatter; the payload for gather, but on the root.
    """

    verb: str
    group: str
    size: int
    shape: tuple[int, ...] | None
    dtype: str | None
    payload_bytes: int
    sent_bytes: int


class DryCommunicator(Communicator):
    """Rank ``rank`` of ``size``, without the others.

    Reductions return the caller's values, as if the others brought neutral elements; gathers and exchanges return
    arrays of the right shape with the caller's part in its place and zeros elsewhere; ``recv`` leaves ``out`` as it is.

    Parameters
    ----------
    size, rank : int
        Size of the group, and the place in it from which it is seen.
    node_size : int, optional
        Ranks on a node, in their order; default: all.

    Attributes
    ----------
    calls : list of Call
        What was called on this group and on all groups made of it, in order.

    Raises
    ------
    ValueError
        If ``rank`` is not in the group, or a size is below one.
    """

    backend = "dry"

    def __init__(self, size: int, rank: int = 0, *, node_size: int | None = None, reproducible: bool = False) -> None:
        node_size = size if node_size is None else node_size
        if size < 1 or node_size < 1 or not 0 <= rank < size:
            got = f"rank {rank} of size {size}, node_size {node_size}"
            raise ValueError(explain("DryCommunicator", got=got, expected="0 <= rank < size, and at least 1 a node"))
        self.rank, self.size, self.name = rank, size, "dry"
        self.timeout_s, self.reproducible = 0.0, reproducible
        self.calls: list[Call] = []
        self.members, self.nodes = tuple(range(size)), tuple(place // node_size for place in range(size))

    def __repr__(self) -> str:
        return f"DryCommunicator({self.name!r}, rank {self.rank} of {self.size})"

    @property
    def counts(self) -> Counter[str]:
        """How often each verb was called, on this group and those made of it."""
        return Counter(call.verb for call in self.calls)

    # ---- the verbs
    def iall_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`all_reduce`: the result is ``x``. Collective over the group."""
        arguments.all_reduce(x, ReduceOp(op), out)
        self._note("all_reduce", self._others(2 * x.nbytes), x)
        return Done(_result(x, out))

    def ireduce(
        self, x: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None
    ) -> Work[Array | None]:
        """Post :meth:`reduce`: the result is the root's ``x``. Collective over the group."""
        arguments.reduce(x, root, ReduceOp(op), out, self.rank, self.size)
        self._note("reduce", self._others(x.nbytes), x)
        return Done(_result(x, out) if self.rank == root else None)

    def iall_gather(
        self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None, out: Array | None = None
    ) -> Work[Array]:
        """Post :meth:`all_gather`: others' parts are zeros. Collective over the group."""
        dim, extents, _ = arguments.all_gather(x, dim, sizes, out, self.rank, self.size)
        shape = (*x.shape[:dim], sum(extents), *x.shape[dim + 1 :])
        whole: Array = namespace(x).zeros(shape, x.dtype)
        whole[span(self.rank, dim, extents)] = x
        self._note("all_gather", self._others(whole.nbytes), x)
        return Done(_result(whole, out))

    def ireduce_scatter(
        self,
        x: Array,
        dim: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        sizes: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Work[Array]:
        """Post :meth:`reduce_scatter`: the result is this rank's slice of ``x``. Collective over the group."""
        dim, extents, _ = arguments.reduce_scatter(x, dim, ReduceOp(op), sizes, out, self.rank, self.size)
        self._note("reduce_scatter", self._others(x.nbytes), x)
        return Done(_result(x[span(self.rank, dim, extents)], out))

    def iall_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], *, out: Sequence[Array] | None = None
    ) -> Work[list[Array]]:
        """Post :meth:`all_to_all`: what others send is zeros. Collective over the group."""
        arguments.all_to_all(parts, shapes, out, self.rank, self.size)
        mine = parts[self.rank]
        self._note("all_to_all", sum(part.nbytes for part in parts) - mine.nbytes, *parts)
        received = [namespace(mine).zeros(tuple(shape), mine.dtype) for shape in shapes]
        received[self.rank] = mine
        return Done([_result(x, None if out is None else out[rank]) for rank, x in enumerate(received)])

    def ibroadcast(self, x: Array, root: int = 0, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`broadcast`: the root's array is taken to be ``x``. Collective over the group."""
        arguments.broadcast(x, root, out, self.size)
        self._note("broadcast", self._others(x.nbytes), x)
        return Done(_result(x, out))

    def igather(self, x: Array, root: int = 0, *, out: Sequence[Array] | None = None) -> Work[list[Array] | None]:
        """Post :meth:`gather`: what others send is zeros. Collective over the group."""
        arguments.gather(x, root, out, self.rank, self.size)
        self._note("gather", 0 if self.rank == root else x.nbytes, x)
        if self.rank != root:
            return Done(None)
        shapes = [x.shape] * self.size if out is None else [o.shape for o in out]
        received = [namespace(x).zeros(shape, x.dtype) for shape in shapes]
        received[self.rank] = x
        return Done([_result(value, None if out is None else out[rank]) for rank, value in enumerate(received)])

    def iscatter(self, parts: Sequence[Array] | None, out: Array, root: int = 0) -> Work[Array]:
        """Post :meth:`scatter`: what another root sends is zeros. Collective over the group."""
        arguments.scatter(parts, out, root, self.rank, self.size)
        self._note("scatter", sum(part.nbytes for part in parts) - out.nbytes if parts else 0, *(parts or (out,)))
        out[...] = parts[self.rank] if parts else 0
        return Done(out)

    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Post :meth:`send`. Point to point."""
        arguments.message("send", "dest", x, dest, self.size)
        arguments.check_tag("send", tag)
        self._note("send", x.nbytes, x)
        return Done(None)

    def irecv(self, out: Array, source: int | None = None, tag: int = 0) -> Work[Array]:
        """Post :meth:`recv`: ``out`` stays as it is. Point to point."""
        arguments.message("recv", "source", out, source, self.size)
        arguments.check_tag("recv", tag)
        self._note("recv", 0, out)
        work = Done(out)
        work.source = source
        return work

    def ibarrier(self) -> Work[None]:
        """Post :meth:`barrier`. Collective over the group."""
        self._note("barrier", 0)
        return Done(None)

    # ---- objects and groups
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return a copy of ``value`` for every rank: all say the same. Collective over the group."""
        data = pickle.dumps(value)
        self.calls.append(self._call("all_gather_object", None, None, len(data), (self.size - 1) * len(data)))
        return [pickle.loads(data)] * self.size

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return a copy of ``value``: the root says the same. Collective over the group."""
        arguments.check_rank("broadcast_object", "root", root, self.size)
        data = pickle.dumps(value)
        self.calls.append(self._call("broadcast_object", None, None, len(data), self._others(len(data))))
        return pickle.loads(data)

    def split(self, color: int | None, key: int = 0) -> DryCommunicator | None:
        """Form a group of all ranks, which are taken to say the same color as this one; None with color None.

        Collective over the group. Where ranks differ, :meth:`split_by` makes the groups that they would make.
        """
        arguments.check_split(color, key)
        self._note("split", 0)
        return None if color is None else self._group(range(self.size), f"{self.name}/{color}")

    def split_by(self, says: Callable[[int], tuple[int | None, int]]) -> DryCommunicator | None:
        """Form one new group a color, as if every rank had split by what ``says`` says. Collective over the group."""
        self._note("split", 0)
        color, _ = says(self.rank)
        if color is None:
            return None
        told = [(*says(rank), rank) for rank in range(self.size)]
        return self._group([rank for c, _, rank in sorted(t for t in told if t[0] == color)], f"{self.name}/{color}")

    def split_node(self) -> DryCommunicator:
        """Return the group of the ``node_size`` ranks on this rank's node. Collective over the group."""
        self._note("split_node", 0)
        node = self.nodes[self.rank]
        here = [rank for rank, other in enumerate(self.nodes) if other == node]
        return self._group(here, f"{self.name}/node")

    def create_group(self, ranks: Sequence[int]) -> DryCommunicator:
        """Return the group of these ``ranks``, in this order. Collective over ``ranks``."""
        arguments.check_members(ranks, self.rank, self.size)
        self._note("create_group", 0)
        return self._group(ranks, f"{self.name}/{list(ranks)}")

    def free(self) -> None:
        """Give back what the group holds. Collective over the group."""
        self._note("free", 0)
        super().free()

    # ---- shared by the verbs
    def _group(self, ranks: Sequence[int], name: str) -> DryCommunicator:
        group = DryCommunicator(len(ranks), ranks.index(self.rank), reproducible=self.reproducible)
        group.name, group.calls = name, self.calls
        group.nodes = tuple(self.nodes[rank] for rank in ranks)
        group.members = tuple(self.members[rank] for rank in ranks)
        return group

    def _others(self, num_bytes: int) -> int:
        return num_bytes * (self.size - 1) // self.size

    def _note(self, verb: str, sent_bytes: int, *payload: Array) -> None:
        self.check_usable(verb)
        shape, dtype = (payload[0].shape, str(payload[0].dtype)) if payload else (None, None)
        self.calls.append(self._call(verb, shape, dtype, sum(x.nbytes for x in payload), sent_bytes))

    def _call(self, verb: str, shape: Any, dtype: str | None, payload_bytes: int, sent_bytes: int) -> Call:
        return Call(verb, self.name, self.size, shape, dtype, payload_bytes, sent_bytes)


def _result(x: Array, out: Array | None) -> Array:
    """Return what a real verb would: memory of its own, or ``out`` if there is one."""
    return out if out is not None and out is x else write(own(x), out)
