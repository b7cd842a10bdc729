"""Arguments of verbs: wrong ones are refused, right ones become the terms that all ranks must agree on."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hpcdist.array import Array, is_device, namespace
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.reduction import check_reduction
from hpcdist.errors import explain

__all__ = [
    "Terms",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "check_array",
    "check_members",
    "check_rank",
    "check_split",
    "check_tag",
    "dimension",
    "extents",
    "gather",
    "message",
    "overlap",
    "owner",
    "reduce",
    "reduce_scatter",
    "scatter",
    "slices",
    "whole",
]

Terms: TypeAlias = tuple[Hashable, ...]
"""What must be equal on all ranks that take part in one collective, besides the verb."""

_LARGEST = 2**31 - 1


# ---- verbs
def all_reduce(x: Array, op: ReduceOp, out: Array | None) -> Terms:
    """Check the arguments of all_reduce; return its terms: shape, dtype, op."""
    check_array("all_reduce", "x", x)
    check_reduction(op, x.dtype)
    if out is not None and out is not x:
        check_fits("all_reduce", "out", out, x.shape, x.dtype)
    return x.shape, x.dtype, op


def reduce(x: Array, root: int, op: ReduceOp, out: Array | None, rank: int, size: int) -> Terms:
    """Check the arguments of reduce; return its terms: shape, dtype, op, root."""
    check_array("reduce", "x", x)
    check_reduction(op, x.dtype)
    check_rank("reduce", "root", root, size)
    if out is not None and rank == root:
        check_fits("reduce", "out", out, x.shape, x.dtype)
    return x.shape, x.dtype, op, root


def all_gather(
    x: Array, dim: int, sizes: Sequence[int] | None, out: Array | None, rank: int, size: int
) -> tuple[int, tuple[int, ...], Terms]:
    """Check the arguments of all_gather; return dim from the front, every rank's extent, and the terms."""
    check_array("all_gather", "x", x)
    dim = dimension("all_gather", dim, x.ndim)
    parts = extents("all_gather", sizes, x.shape[dim], size)
    if parts[rank] != x.shape[dim]:
        text = f"all_gather: extent of dim {dim} on rank {rank}"
        raise ValueError(explain(text, got=x.shape[dim], expected=f"{parts[rank]}, as sizes says"))
    before, after = x.shape[:dim], x.shape[dim + 1 :]
    if out is not None:
        check_fits("all_gather", "out", out, (*before, sum(parts), *after), x.dtype)
        check_apart("all_gather", out, x)
    return dim, parts, (dim, before + after, x.dtype, parts)


def reduce_scatter(
    x: Array, dim: int, op: ReduceOp, sizes: Sequence[int] | None, out: Array | None, rank: int, size: int
) -> tuple[int, tuple[int, ...], Terms]:
    """Check the arguments of reduce_scatter; return dim from the front, every rank's extent, and the terms."""
    check_array("reduce_scatter", "x", x)
    check_reduction(op, x.dtype)
    dim = dimension("reduce_scatter", dim, x.ndim)
    parts = slices(x.shape[dim], sizes, dim, size)
    if out is not None:
        check_fits("reduce_scatter", "out", out, (*x.shape[:dim], parts[rank], *x.shape[dim + 1 :]), x.dtype)
        check_apart("reduce_scatter", out, x)
    return dim, parts, (x.shape, dim, x.dtype, op, parts)


def all_to_all(
    parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], out: Sequence[Array] | None, rank: int, size: int
) -> Terms:
    """Check the arguments of all_to_all: one array and one shape a rank, of one dtype; return its terms: dtype."""
    if len(parts) != size or len(shapes) != size:
        got, expected = f"{len(parts)} parts and {len(shapes)} shapes", f"{size} of each, one a rank"
        raise ValueError(explain("all_to_all: parts and shapes", got=got, expected=expected))
    _check_list("all_to_all", "part", parts)
    if parts[rank].shape != tuple(shapes[rank]):
        text, expected = "all_to_all: part of this rank for itself", f"{tuple(shapes[rank])}, as shapes says"
        raise ValueError(explain(text, got=parts[rank].shape, expected=expected))
    if out is not None:
        _check_outs("all_to_all", out, shapes, parts[0].dtype)
        if overlap(out, parts):
            raise ValueError(explain("all_to_all: out", got="memory of a part", expected="arrays of their own"))
    return (parts[0].dtype,)


def broadcast(x: Array, root: int, out: Array | None, size: int) -> Terms:
    """Check the arguments of broadcast; return its terms: shape, dtype, root."""
    check_array("broadcast", "x", x)
    check_rank("broadcast", "root", root, size)
    if out is not None and out is not x:
        check_fits("broadcast", "out", out, x.shape, x.dtype)
    return x.shape, x.dtype, root


def gather(x: Array, root: int, out: Sequence[Array] | None, rank: int, size: int) -> Terms:
    """Check the arguments of gather; return its terms: dtype, root."""
    check_array("gather", "x", x)
    check_rank("gather", "root", root, size)
    if out is not None and rank == root:
        _check_count("gather", "out", out, size)
        _check_outs("gather", out, [x.shape if i == rank else o.shape for i, o in enumerate(out)], x.dtype)
    return x.dtype, root


def scatter(parts: Sequence[Array] | None, out: Array, root: int, rank: int, size: int) -> Terms:
    """Check the arguments of scatter; return its terms: dtype, root."""
    check_array("scatter", "out", out)
    check_rank("scatter", "root", root, size)
    if (parts is not None) != (rank == root):
        got, expected = "None" if parts is None else "a list", "a list on the root, None elsewhere"
        raise ValueError(explain(f"scatter: parts on rank {rank}, root {root}", got=got, expected=expected))
    if parts is not None:
        _check_count("scatter", "parts", parts, size)
        _check_list("scatter", "part", parts)
        check_fits("scatter", f"part {rank}", parts[rank], out.shape, out.dtype)
    return out.dtype, root


def message(verb: str, argument: str, x: Array, peer: int | None, size: int) -> None:
    """Check the array and the peer of a message; no peer is any."""
    check_array(verb, "out" if verb == "recv" else "x", x)
    if peer is not None:
        check_rank(verb, argument, peer, size)


# ---- single arguments
def check_array(verb: str, name: str, x: object) -> None:
    """Refuse what is not an array with a plain element type."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or not hasattr(x, "strides"):
        raise TypeError(explain(f"{verb}: {name}", got=type(x).__name__, expected="an array"))
    if dtype.hasobject:
        do = "send Python objects with all_gather_object or broadcast_object"
        raise TypeError(explain(f"{verb}: dtype of {name}", got=dtype, expected="plain elements", do=do))


def check_fits(verb: str, name: str, x: Array, shape: Sequence[int], dtype: np.dtype) -> None:
    """Refuse an array of another shape or dtype."""
    check_array(verb, name, x)
    if (x.shape, x.dtype) != (tuple(shape), dtype):
        got, expected = f"{x.shape} {x.dtype}", f"{tuple(shape)} {dtype}"
        raise ValueError(explain(f"{verb}: {name}", got=got, expected=expected))


def check_apart(verb: str, out: Array, x: Array) -> None:
    """Refuse a result that lies in the argument's memory."""
    on_host = isinstance(out, np.ndarray) and isinstance(x, np.ndarray)
    if np.may_share_memory(out, x) if on_host else is_device(out) and namespace(out, x).may_share_memory(out, x):
        raise ValueError(explain(f"{verb}: out", got="memory of x", expected="an array of its own"))


def overlap(xs: Sequence[Array], ys: Sequence[Array]) -> bool:
    """Say whether an array of one list may lie in the memory of one of the other. Cheap where owners differ."""
    owners = {id(owner(x)) for x in xs}
    if not any(id(owner(y)) in owners for y in ys):
        return False
    if any(map(is_device, (*xs, *ys))):
        return any(namespace(x, y).may_share_memory(x, y) for x in xs for y in ys)
    spans = sorted((*byte_bounds(x), kind) for kind, arrays in enumerate((xs, ys)) for x in arrays if x.size)
    ends = [0, 0]
    for start, end, kind in spans:
        if start < ends[1 - kind]:
            return True
        ends[kind] = max(ends[kind], end)
    return False


def owner(x: Array) -> object:
    """Return what the memory of ``x`` belongs to."""
    base = getattr(x, "base", None)
    return x if base is None else base


def whole(verb: str, name: str, value: Any) -> int:
    """Return an integer, of whatever type; TypeError for what is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(explain(f"{verb}: {name}", got=repr(value), expected="an integer")) from None


def check_tag(verb: str, tag: int, top: int = _LARGEST) -> None:
    """Refuse what is no tag below ``top``."""
    if not 0 <= whole(verb, "tag", tag) < top:
        raise ValueError(explain(f"{verb}: tag", got=tag, expected=f"0 to {top - 1}"))


def check_rank(verb: str, argument: str, rank: int, size: int) -> None:
    """Refuse a rank outside a group of ``size``."""
    if not 0 <= whole(verb, argument, rank) < size:
        expected = f"a rank of the group, 0 to {size - 1}"
        raise ValueError(explain(f"{verb}: {argument}", got=rank, expected=expected))


def check_split(color: int | None, key: int) -> None:
    """Refuse what MPI cannot take, before other ranks wait where no time limit helps."""
    for name, value, least in (("color", color, 0), ("key", key, -_LARGEST)):
        if value is not None and not (isinstance(value, (int, np.integer)) and least <= value <= _LARGEST):
            expected = f"an integer, {least} to {_LARGEST}" + (", or None" if name == "color" else "")
            raise ValueError(explain(f"split: {name}", got=value, expected=expected))


def check_members(ranks: Sequence[int], rank: int, size: int) -> None:
    """Refuse a list of ranks that names no group with the caller in it."""
    if len(set(ranks)) != len(ranks) or not all(0 <= member < size for member in ranks):
        expected = f"ranks of the group, 0 to {size - 1}, each once"
        raise ValueError(explain("create_group: ranks", got=list(ranks), expected=expected))
    if rank not in ranks:
        do = "call it on these ranks only"
        raise ValueError(explain(f"create_group: rank {rank} is not among the ranks", got=list(ranks), do=do))


def dimension(verb: str, dim: int, ndim: int) -> int:
    """Return ``dim`` counted from the front."""
    if not -ndim <= dim < ndim:
        raise ValueError(explain(f"{verb}: dim", got=dim, expected=f"a dimension of an array with {ndim}"))
    return dim % ndim


def extents(verb: str, sizes: Sequence[int] | None, default: int, size: int) -> tuple[int, ...]:
    """Return the extent of every rank's part: ``sizes``, or ``default`` for all."""
    if sizes is None:
        return (default,) * size
    parts = tuple(whole(verb, "sizes", n) for n in sizes)
    if len(parts) != size or min(parts) < 0:
        expected = f"{size} extents, none negative"
        raise ValueError(explain(f"{verb}: sizes", got=list(parts), expected=expected))
    return parts


def slices(extent: int, sizes: Sequence[int] | None, dim: int, size: int) -> tuple[int, ...]:
    """Return the extents of the slices that reduce_scatter cuts ``extent`` elements of ``dim`` into."""
    if sizes is None and extent % size:
        do = "pass sizes, the extent of every rank's slice"
        raise ValueError(explain(f"reduce_scatter: dim {dim} does not divide by {size} ranks", got=extent, do=do))
    parts = extents("reduce_scatter", sizes, extent // size, size)
    if sizes is not None and sum(parts) != extent:
        got = f"their sum {sum(parts)}"
        raise ValueError(explain(f"reduce_scatter: sizes {list(parts)} of dim {dim}", got=got, expected=extent))
    return parts


# ---- lists of arrays
def _check_count(verb: str, name: str, arrays: Sequence[Array], size: int) -> None:
    if len(arrays) != size:
        raise ValueError(explain(f"{verb}: {name}", got=f"{len(arrays)} arrays", expected=f"{size}, one a rank"))


def _check_list(verb: str, name: str, arrays: Sequence[Array]) -> None:
    for rank, x in enumerate(arrays):
        check_array(verb, f"{name} {rank}", x)
    if any(x.dtype != arrays[0].dtype for x in arrays):
        dtypes = sorted({str(x.dtype) for x in arrays})
        raise TypeError(explain(f"{verb}: dtype of {name}s", got=", ".join(dtypes), expected="one for all"))


def _check_outs(verb: str, out: Sequence[Array], shapes: Sequence[Sequence[int]], dtype: np.dtype) -> None:
    _check_count(verb, "out", out, len(shapes))
    for rank, (x, shape) in enumerate(zip(out, shapes, strict=True)):
        check_fits(verb, f"out {rank}", x, shape, dtype)
