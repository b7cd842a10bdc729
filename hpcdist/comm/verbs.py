"""Eleven verbs and their non-blocking forms.

Every implementation (``mpi``, ``local``, ``dry``) fills in the ``i``-verbs; a blocking verb posts the non-blocking form
and waits, so that every wait has a time limit and there is one code path to test. All verbs are pure: they return new
arrays unless ``out`` is given. Arrays may be strided or Fortran-ordered and of any numeric dtype; float16 and bfloat16
are summed in float32, bool is combined logically.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from hpcdist.array import Array
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.work import Work

__all__ = ["Verbs"]


class Verbs(ABC):
    """What the ranks of a group do together."""

    # ---- the verbs, non-blocking
    @abstractmethod
    def iall_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`all_reduce`. Collective over the group."""

    @abstractmethod
    def ireduce(
        self, x: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None
    ) -> Work[Array | None]:
        """Post :meth:`reduce`. Collective over the group."""

    @abstractmethod
    def iall_gather(
        self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None, out: Array | None = None
    ) -> Work[Array]:
        """Post :meth:`all_gather`. Collective over the group."""

    @abstractmethod
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

    @abstractmethod
    def iall_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], *, out: Sequence[Array] | None = None
    ) -> Work[list[Array]]:
        """Post :meth:`all_to_all`. Collective over the group."""

    @abstractmethod
    def ibroadcast(self, x: Array, root: int = 0, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`broadcast`. Collective over the group."""

    @abstractmethod
    def igather(self, x: Array, root: int = 0, *, out: Sequence[Array] | None = None) -> Work[list[Array] | None]:
        """Post :meth:`gather`. Collective over the group."""

    @abstractmethod
    def iscatter(self, parts: Sequence[Array] | None, out: Array, root: int = 0) -> Work[Array]:
        """Post :meth:`scatter`. Collective over the group."""

    @abstractmethod
    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Post :meth:`send`. Point to point."""

    @abstractmethod
    def irecv(self, out: Array, source: int | None = None, tag: int = 0) -> Work[Array]:
        """Post :meth:`recv`. Point to point."""

    @abstractmethod
    def ibarrier(self) -> Work[None]:
        """Post :meth:`barrier`. Collective over the group."""

    # ---- the same, blocking
    def all_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Array:
        """Combine ``x`` of all ranks element by element; everyone gets the result.

        Collective over the group. Moves about ``2 (size - 1) / size * x.nbytes`` bytes per rank.

        Parameters
        ----------
        x : array, any shape
            Same shape and dtype on every rank. Not modified (unless it is ``out``).
        op : ReduceOp
            AVG needs a floating or complex dtype.
        out : array, optional
            Receives the result; may be ``x`` itself, and may be strided.
        """
        return self.iall_reduce(x, op, out=out).wait()

    def reduce(self, x: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Array | None:
        """Combine ``x`` of all ranks element by element; the root gets the result, the others None.

        Collective over the group. Moves ``x.nbytes`` bytes per rank.

        Parameters
        ----------
        x, op, out
            As for :meth:`all_reduce`; ``out`` counts on the root only.
        root : int
            A rank of this group.
        """
        return self.ireduce(x, root, op, out=out).wait()

    def all_gather(
        self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None, out: Array | None = None
    ) -> Array:
        """Join the arrays of all ranks along ``dim``, in rank order.

        Collective over the group. Moves ``(size - 1) / size`` of the result's bytes per rank.

        Parameters
        ----------
        x : array, shape (..., n, ...)
            Extents may differ between ranks along ``dim`` only.
        dim : int
            Dimension that is joined; negative counts from the end.
        sizes : sequence of int, optional
            Extent of every rank along ``dim``; None: all equal this rank's.
        out : array, optional
            Receives the result; may be strided, and must not overlap ``x``.
        """
        return self.iall_gather(x, dim, sizes=sizes, out=out).wait()

    def reduce_scatter(
        self,
        x: Array,
        dim: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        sizes: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Array:
        """Combine ``x`` of all ranks and keep this rank's slice along ``dim``.

        Collective over the group. Moves ``(size - 1) / size * x.nbytes`` bytes per rank.

        Parameters
        ----------
        x : array, shape (..., n, ...)
            Same shape and dtype on every rank. Not modified.
        dim : int
            Dimension that is cut; negative counts from the end.
        sizes : sequence of int, optional
            Extent of every rank's slice; None: ``n / size``, which must divide.
        out : array, optional
            Receives the result; may be strided, and must not overlap ``x``.
        """
        return self.ireduce_scatter(x, dim, op, sizes=sizes, out=out).wait()

    def all_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], *, out: Sequence[Array] | None = None
    ) -> list[Array]:
        """Send ``parts[i]`` to rank i and return what every rank sent to this one, in rank order.

        Collective over the group.

        Parameters
        ----------
        parts : sequence of array
            One an addressee, all of one dtype; zero sizes are legal.
        shapes : sequence of tuple
            Shape of the array that each rank sends to this one.
        out : sequence of array, optional
            Receive what each rank sends; of these shapes, and overlapping no part.
        """
        return self.iall_to_all(parts, shapes, out=out).wait()

    def broadcast(self, x: Array, root: int = 0, *, out: Array | None = None) -> Array:
        """Return the root's ``x`` on every rank.

        Collective over the group. ``root`` is a rank of this group.

        Parameters
        ----------
        x : array
            Same shape and dtype on every rank; its values count on the root only. Not modified (unless it is ``out``).
        out : array, optional
            Receives the result; may be ``x`` itself, and may be strided.
        """
        return self.ibroadcast(x, root, out=out).wait()

    def gather(self, x: Array, root: int = 0, *, out: Sequence[Array] | None = None) -> list[Array] | None:
        """Return the arrays of all ranks, in rank order, on the root, and None elsewhere.

        Collective over the group. ``root`` is a rank of this group.

        Parameters
        ----------
        x : array
            Of one dtype on all ranks.
        out : sequence of array, optional
            On the root: receive the array of each rank, of its shape. Default: new ones of the shape of ``x``.
        """
        return self.igather(x, root, out=out).wait()

    def scatter(self, parts: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Receive into ``out`` this rank's one of the root's ``parts``.

        Collective over the group. ``root`` is a rank of this group.

        Parameters
        ----------
        parts : sequence of array
            On the root: one a rank, of the shape and dtype of that rank's ``out``. None elsewhere.
        out : array
            May be strided.
        """
        return self.iscatter(parts, out, root).wait()

    def send(self, x: Array, dest: int, tag: int = 0) -> None:
        """Send ``x`` to rank ``dest`` of this group. Point to point."""
        self.isend(x, dest, tag).wait()

    def recv(self, out: Array, source: int | None = None, tag: int = 0) -> Array:
        """Receive into ``out`` (shape and dtype as sent, maybe strided) from rank ``source``. Point to point.

        With ``source`` None the first message from any rank is taken; the work of :meth:`irecv` says whose it was.
        """
        return self.irecv(out, source, tag).wait()

    def barrier(self) -> None:
        """Wait until every rank of the group is here. Collective over the group."""
        self.ibarrier().wait()

    # ---- progress while the caller computes
    # Nothing to do where posting a verb leaves nothing to do, as for threads.
    def watch(self, work: Work[Any]) -> None:  # noqa: B027
        """See to it that ``work`` makes progress while the caller computes.

        Where that needs the caller's help, :meth:`poll` gives it.
        """

    def poll(self) -> None:  # noqa: B027
        """Make progress with watched works, if nothing else does. Never blocks; cheap to call between operations."""
