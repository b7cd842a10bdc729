"""PyTorch's collectives that combine values: all_reduce, reduce, reduce_scatter and their kin.

They work in place, as PyTorch's do; a blocking call returns None, one with ``async_op=True`` the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.comm.addressing import GroupLike, array, arrays, member, place, written
from hpcdist.comm.coalescing import Part, carry_out, collecting
from hpcdist.comm.future import Pending
from hpcdist.comm.reduce_op import PremulSum, ReduceOp
from hpcdist.comm.reduction import BITWISE, accumulator
from hpcdist.comm.work import Then, Work
from hpcdist.errors import explain

__all__ = [
    "all_reduce",
    "all_reduce_coalesced",
    "combination",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "supports_complex",
]

Op = ReduceOp | PremulSum | str


def all_reduce(tensor: Any, op: Op = ReduceOp.SUM, group: GroupLike = None, async_op: bool = False) -> Pending | None:
    """Combine ``tensor`` of all ranks in place. Collective over ``group``.

    Parameters
    ----------
    tensor : array or Tensor
        Same shape and dtype on every rank; may be strided.
    op : ReduceOp, str or ``ReduceOp.PREMUL_SUM(factor)``
        AVG and PREMUL_SUM need a floating or complex dtype.
    group : optional
        Default: the default group.
    async_op : bool
        Return the work instead of waiting.
    """
    comm, x = member("all_reduce", group), written("all_reduce", "tensor", tensor)
    terms, how = _terms("all_reduce", x, op)
    batch = collecting("all_reduce", comm, async_op)
    if batch is not None:
        batch.parts.append(Part("all_reduce", how, terms.reshape(1, -1), x))
        return None
    if async_op:
        return Pending(comm.iall_reduce(terms, how, out=x), [x], comm.members)
    comm.all_reduce(terms, how, out=x)
    return None


def all_reduce_coalesced(
    tensors: Sequence[Any], op: Op = ReduceOp.SUM, group: GroupLike = None, async_op: bool = False
) -> Pending | None:
    """Combine each of several arrays in place, in one message a dtype. Collective over ``group``."""
    comm = member("all_reduce_coalesced", group)
    xs = [written("all_reduce_coalesced", f"tensors[{i}]", x) for i, x in enumerate(tensors)]
    terms = [_terms("all_reduce_coalesced", x, op) for x in xs]
    parts = [Part("all_reduce", how, t.reshape(1, -1), x) for (t, how), x in zip(terms, xs, strict=True)]
    works = carry_out(comm, parts, async_op)
    return Pending(All(works), xs, comm.members) if async_op else None


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: GroupLike = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Pending | None:
    """Combine ``tensor`` of all ranks in place on one; the others' stay as they are. Collective over ``group``.

    Parameters
    ----------
    tensor, op, group, async_op
        As for :func:`all_reduce`.
    dst, group_dst : int
        Global rank of the receiver, or its rank in the group.
    """
    comm = member("reduce", group)
    root = place("reduce", comm, "dst", dst, group_dst)
    x = (written if comm.rank == root else array)("reduce", "tensor", tensor)
    terms, how = _terms("reduce", x, op)
    out = x if comm.rank == root else None
    if async_op:
        return Pending(comm.ireduce(terms, root, how, out=out), [x], comm.members)
    comm.reduce(terms, root, how, out=out)
    return None


def reduce_scatter(
    output: Any, input_list: Sequence[Any], op: Op = ReduceOp.SUM, group: GroupLike = None, async_op: bool = False
) -> Pending | None:
    """Combine each of a list's arrays over all ranks; rank i gets the i-th. Collective over ``group``.

    Parameters
    ----------
    output : array or Tensor
        Takes the result; of the shape of this rank's array in the list.
    input_list : list of array or Tensor
        One a rank, of one dtype; shapes may differ, and are the same on every rank.
    op, group, async_op
        As for :func:`all_reduce`.
    """
    comm, out = member("reduce_scatter", group), written("reduce_scatter", "output", output)
    parts = arrays("reduce_scatter", "input_list", input_list, comm.size)
    if parts[comm.rank].shape != out.shape:
        text, expected = "reduce_scatter: output", f"{parts[comm.rank].shape}, as input_list[{comm.rank}]"
        raise ValueError(explain(text, got=out.shape, expected=expected))
    if any(x.dtype != out.dtype for x in parts):
        got = ", ".join(sorted({str(x.dtype) for x in parts}))
        raise ValueError(explain("reduce_scatter: dtypes of input_list", got=got, expected=f"{out.dtype}, as output"))
    rows = parts if joinable(parts) else [x.reshape(-1) for x in parts]
    terms, how = _terms("reduce_scatter", namespace(*rows).concatenate(rows), op)
    sizes = [x.shape[0] for x in rows]
    if async_op:
        work = comm.ireduce_scatter(terms, 0, how, sizes=sizes)
        return Pending(Then(work, lambda total: _write(out, total)), [out], comm.members)
    _write(out, comm.reduce_scatter(terms, 0, how, sizes=sizes))
    return None


def reduce_scatter_tensor(
    output: Any, input: Any, op: Op = ReduceOp.SUM, group: GroupLike = None, async_op: bool = False
) -> Pending | None:
    """Combine ``input`` of all ranks; rank i gets its i-th part. Collective over ``group``.

    Parameters
    ----------
    output : array or Tensor, shape (n, ...)
        Takes the result; may be part of ``input``.
    input : array or Tensor, shape (size * n, ...) or (size, n, ...)
        The parts of all ranks, one behind the other or stacked; same shape and dtype on every rank.
    op, group, async_op
        As for :func:`all_reduce`.
    """
    comm, out = member("reduce_scatter_tensor", group), written("reduce_scatter_tensor", "output", output)
    x = array("reduce_scatter_tensor", "input", input)
    layout = layout_of("reduce_scatter_tensor", "input", x, "output", out, comm.size)
    terms, how = _terms("reduce_scatter_tensor", x, op)
    batch = collecting("reduce_scatter_tensor", comm, async_op)
    if batch is not None:
        batch.parts.append(Part("reduce_scatter", how, terms.reshape(comm.size, -1), out))
        return None
    part = out[None] if layout == "stacked" else out
    if overlaps(terms, out):
        terms = terms.copy()
    if async_op:
        return Pending(comm.ireduce_scatter(terms, 0, how, out=part), [out], comm.members)
    comm.reduce_scatter(terms, 0, how, out=part)
    return None


reduce_scatter_single = reduce_scatter_tensor


def supports_complex(op: Op) -> bool:
    """Say whether a reduction takes complex numbers: all but MIN, MAX and the bitwise ones do."""
    return isinstance(op, PremulSum) or combination("supports_complex", op) not in (
        ReduceOp.MIN,
        ReduceOp.MAX,
        *BITWISE,
    )


# ---- shared by the collectives
class All(Work[list[Any]]):
    """Several works as one."""

    def __init__(self, works: Sequence[Work[Any]]) -> None:
        self._works = works

    def test(self) -> bool:
        """Make progress; say whether all are done. Never blocks."""
        return all([work.test() for work in self._works])

    def wait(self, timeout_s: float | None = None) -> list[Any]:
        """Block until all are done and return their results."""
        return [work.wait(timeout_s) for work in self._works]


def layout_of(verb: str, name: str, whole: Array, part_name: str, part: Array, size: int) -> str:
    """Return whether a whole of ``size`` parts is "stacked" or "joined" along dimension 0; ValueError if neither."""
    if whole.dtype == part.dtype and whole.shape == (size, *part.shape):
        return "stacked"
    if whole.dtype == part.dtype and part.ndim and whole.shape == (size * part.shape[0], *part.shape[1:]):
        return "joined"
    joined = f"{(size * part.shape[0], *part.shape[1:])} or " if part.ndim else ""
    got = f"{whole.shape} {whole.dtype}, {part_name} {part.shape} {part.dtype}"
    do = f"for parts that differ in size use {verb.removesuffix('_tensor').removesuffix('_into')}"
    expected = f"{joined}{(size, *part.shape)} {part.dtype}"
    raise ValueError(explain(f"{verb}: {name}", got=got, expected=expected, do=do))


def joinable(xs: Sequence[Array]) -> bool:
    """Say whether arrays differ in the extent of dimension 0 only, so that their shapes are compared as they travel."""
    return all(x.ndim and x.ndim == xs[0].ndim and x.shape[1:] == xs[0].shape[1:] for x in xs)


def overlaps(x: Array, out: Array) -> bool:
    """Say whether two arrays may lie in the same memory."""
    return isinstance(x, np.ndarray) and isinstance(out, np.ndarray) and np.may_share_memory(x, out)


def _write(out: Array, flat: Array) -> Array:
    out[...] = flat.reshape(out.shape)
    return out


def _terms(verb: str, x: Array, op: Op) -> tuple[Array, ReduceOp]:
    """Return what is combined, and how: where values are multiplied first, a new array."""
    if not isinstance(op, PremulSum):
        return x, combination(verb, op)
    if x.dtype.kind in "biu":
        do = "multiply, and reduce with ReduceOp.SUM"
        raise ValueError(explain(f"{verb}: premul_sum", got=x.dtype, expected="a floating or complex dtype", do=do))
    return (x.astype(accumulator(x.dtype)) * op.factor).astype(x.dtype), ReduceOp.SUM


def combination(verb: str, op: ReduceOp | str) -> ReduceOp:
    """Return the combination of that name; ValueError if there is none."""
    if isinstance(op, ReduceOp):
        return op
    try:
        return ReduceOp(op.lower())
    except (ValueError, AttributeError):
        expected = ", ".join(ReduceOp) + " or ReduceOp.PREMUL_SUM(factor)"
        raise ValueError(explain(f"{verb}: op", got=repr(op), expected=expected)) from None
