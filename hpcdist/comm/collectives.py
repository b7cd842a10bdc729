"""PyTorch's collectives that move values: broadcast, gathers, scatter, exchanges.

They write into the caller's arrays; a blocking call returns None, one with ``async_op=True`` the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from hpcdist.array import Array
from hpcdist.comm.addressing import GroupLike, array, arrays, member, on_root, place, written
from hpcdist.comm.arguments import overlap, whole
from hpcdist.comm.coalescing import Part, collecting
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.future import Pending
from hpcdist.comm.reducing import joinable, layout_of, overlaps
from hpcdist.comm.work import Then
from hpcdist.errors import explain

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "scatter",
]


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: GroupLike = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Pending | None:
    """Write one rank's ``tensor`` into that of all. Collective over ``group``.

    Parameters
    ----------
    tensor : array or Tensor
        Same shape and dtype on every rank; may be strided.
    src, group_src : int
        Global rank of the sender, or its rank in the group.
    group : optional
        Default: the default group.
    async_op : bool
        Return the work instead of waiting.
    """
    comm = member("broadcast", group)
    root = place("broadcast", comm, "src", src, group_src)
    x = (array if comm.rank == root else written)("broadcast", "tensor", tensor)
    out = None if comm.rank == root and not x.flags.writeable else x
    if async_op:
        return Pending(comm.ibroadcast(x, root, out=out), [x], comm.members)
    comm.broadcast(x, root, out=out)
    return None


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: GroupLike = None, async_op: bool = False
) -> Pending | None:
    """Write the ``tensor`` of every rank into a list's arrays. Collective over ``group``.

    Parameters
    ----------
    tensor_list : list of array or Tensor
        One a rank, of the shape of that rank's ``tensor``; shapes may differ, and are the same on every rank.
    tensor : array or Tensor
        Of one dtype on all ranks.
    group, async_op
        As for :func:`broadcast`.
    """
    comm, x = member("all_gather", group), array("all_gather", "tensor", tensor)
    outs = arrays("all_gather", "tensor_list", tensor_list, comm.size, write=True)
    _check_mine("all_gather", "tensor_list", outs[comm.rank], x, comm.rank)
    _check_dtype("all_gather", "tensor_list", outs, x)
    is_flat = not joinable(outs)
    sizes = [out.size if is_flat else out.shape[0] for out in outs]
    mine = x.reshape(-1) if is_flat else x
    if async_op:
        work = Then(comm.iall_gather(mine, sizes=sizes), lambda whole: _deal(whole, sizes, outs))
        return Pending(work, outs, comm.members)
    _deal(comm.all_gather(mine, sizes=sizes), sizes, outs)
    return None


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: GroupLike = None, async_op: bool = False
) -> Pending | None:
    """Write the ``input_tensor`` of every rank into one array. Collective over ``group``.

    Parameters
    ----------
    output_tensor : array or Tensor, shape (size * n, ...) or (size, n, ...)
        Takes the arrays of all ranks, one behind the other or stacked.
    input_tensor : array or Tensor, shape (n, ...)
        Same shape and dtype on every rank; may be part of ``output_tensor``.
    group, async_op
        As for :func:`broadcast`.
    """
    verb = "all_gather_into_tensor"
    comm, out = member(verb, group), written(verb, "output_tensor", output_tensor)
    x = array(verb, "input_tensor", input_tensor)
    layout = layout_of(verb, "output_tensor", out, "input_tensor", x, comm.size)
    batch = collecting(verb, comm, async_op)
    if batch is not None:
        batch.parts.append(Part("all_gather", None, x.reshape(1, -1), out))
        return None
    mine = x[None] if layout == "stacked" else x
    if overlaps(x, out):
        mine = mine.copy()
    if async_op:
        return Pending(comm.iall_gather(mine, out=out), [out], comm.members)
    comm.all_gather(mine, out=out)
    return None


all_gather_single = all_gather_into_tensor


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: GroupLike = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Pending | None:
    """Write the ``tensor`` of every rank into a list's arrays on one rank. Collective over ``group``.

    Parameters
    ----------
    tensor : array or Tensor
        Of one dtype on all ranks; shapes may differ.
    gather_list : list of array or Tensor
        On the receiver: one a rank, of the shape of that rank's ``tensor``. Nothing elsewhere.
    dst, group_dst : int
        Global rank of the receiver (default: 0), or its rank in the group.
    group, async_op
        As for :func:`broadcast`.
    """
    comm = member("gather", group)
    root = place("gather", comm, "dst", dst, group_dst, default=0)
    x = array("gather", "tensor", tensor)
    given = on_root("gather", "gather_list", gather_list, comm, root)
    outs = None if given is None else arrays("gather", "gather_list", given, comm.size, write=True)
    if async_op:
        return Pending(comm.igather(x, root, out=outs), outs or [], comm.members)
    comm.gather(x, root, out=outs)
    return None


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: GroupLike = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Pending | None:
    """Write into ``tensor`` this rank's one of the arrays in one rank's list. Collective over ``group``.

    Parameters
    ----------
    tensor : array or Tensor
        Takes the result.
    scatter_list : list of array or Tensor
        On the sender: one a rank, of the shape and dtype of that rank's ``tensor``. Nothing elsewhere.
    src, group_src : int
        Global rank of the sender (default: 0), or its rank in the group.
    group, async_op
        As for :func:`broadcast`.
    """
    comm = member("scatter", group)
    root = place("scatter", comm, "src", src, group_src, default=0)
    out = written("scatter", "tensor", tensor)
    given = on_root("scatter", "scatter_list", scatter_list, comm, root)
    parts = None if given is None else arrays("scatter", "scatter_list", given, comm.size)
    if async_op:
        return Pending(comm.iscatter(parts, out, root), [out], comm.members)
    comm.scatter(parts, out, root)
    return None


def all_to_all(
    output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], group: GroupLike = None, async_op: bool = False
) -> Pending | None:
    """Send a list's i-th array to rank i, and write what each rank sends into another list. Collective over ``group``.

    Parameters
    ----------
    output_tensor_list, input_tensor_list : list of array or Tensor
        One a rank, of one dtype; any shapes, as long as what is sent to a rank has the shape that it expects. The lists
        may share arrays.
    group, async_op
        As for :func:`broadcast`.
    """
    comm = member("all_to_all", group)
    outs = arrays("all_to_all", "output_tensor_list", output_tensor_list, comm.size, write=True)
    parts = arrays("all_to_all", "input_tensor_list", input_tensor_list, comm.size)
    return _exchange(comm, outs, parts, outs, async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: GroupLike = None,
    async_op: bool = False,
) -> Pending | None:
    """Cut ``input`` along dimension 0, send each rank its part, and join what comes. Collective over ``group``.

    Parameters
    ----------
    output, input : array or Tensor, shapes (n, ...) and (m, ...)
        Of one dtype on all ranks; may be the same array.
    output_split_sizes, input_split_sizes : sequence of int, optional
        Extents along dimension 0 of what comes from each rank, and of what goes to each. None or empty: all equal.
    group, async_op
        As for :func:`broadcast`.
    """
    comm, out = member("all_to_all_single", group), written("all_to_all_single", "output", output)
    x = array("all_to_all_single", "input", input)
    outs = _split("output", out, output_split_sizes, comm.size)
    parts = _split("input", x, input_split_sizes, comm.size)
    return _exchange(comm, outs, parts, [out], async_op)


# ---- shared by the collectives
def _exchange(
    comm: Communicator, outs: Sequence[Array], parts: Sequence[Array], results: Sequence[Array], async_op: bool
) -> Pending | None:
    shapes = [out.shape for out in outs]
    if overlap(outs, parts):
        parts = [part.copy() for part in parts]
    if async_op:
        return Pending(comm.iall_to_all(parts, shapes, out=outs), results, comm.members)
    comm.all_to_all(parts, shapes, out=outs)
    return None


def _check_mine(verb: str, name: str, out: Array, x: Array, rank: int) -> None:
    if out.shape != x.shape:
        raise ValueError(explain(f"{verb}: {name}[{rank}]", got=out.shape, expected=f"{x.shape}, as this rank brings"))


def _check_dtype(verb: str, name: str, outs: Sequence[Array], x: Array) -> None:
    if any(out.dtype != x.dtype for out in outs):
        got = ", ".join(sorted({str(out.dtype) for out in outs}))
        raise ValueError(explain(f"{verb}: dtypes of {name}", got=got, expected=f"{x.dtype}, as this rank brings"))


def _deal(whole: Array, sizes: Sequence[int], outs: Sequence[Array]) -> None:
    """Write the parts of a gathered array where they belong."""
    for n, end, out in zip(sizes, accumulate(sizes), outs, strict=True):
        out[...] = whole[end - n : end].reshape(out.shape)


def _split(name: str, x: Array, sizes: Sequence[int] | None, size: int) -> list[Array]:
    """Return the parts of ``x`` along dimension 0."""
    what, extent = f"all_to_all_single: {name}", x.shape[0] if x.ndim else 0
    if not x.ndim or (not sizes and extent % size):
        do = f"pass {name}_split_sizes, the extent of every rank's part"
        raise ValueError(explain(what, got=x.shape, expected=f"dimension 0 that divides by {size} ranks", do=do))
    parts = [whole("all_to_all_single", f"{name}_split_sizes", n) for n in sizes] if sizes else [extent // size] * size
    if len(parts) != size or min(parts) < 0 or sum(parts) != extent:
        expected = f"{size} extents, none negative, whose sum is {extent}"
        raise ValueError(explain(f"{what}_split_sizes", got=parts, expected=expected))
    return [x[end - n : end] for n, end in zip(parts, accumulate(parts), strict=True)]
