"""Checks of what callers pass to the verbs, made before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcdist.array import Array
from hpcdist.errors import explain

__all__ = ["check_array", "check_out", "check_parts", "check_rank", "check_split", "dimension", "extents", "slices"]

_LARGEST = 2**31 - 1


def check_array(verb: str, name: str, x: object) -> None:
    """Refuse what is not an array with a plain element type."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or not hasattr(x, "strides"):
        raise ValueError(explain(f"{verb}: {name}", got=type(x).__name__, expected="an array"))
    if dtype.hasobject:
        do = "send Python objects with all_gather_object or broadcast_object"
        raise ValueError(explain(f"{verb}: dtype of {name}", got=dtype, expected="plain elements", do=do))


def check_out(verb: str, x: Array, out: Array | None) -> None:
    """Refuse an ``out`` that cannot hold what has the shape and dtype of ``x``."""
    if out is None:
        return
    check_array(verb, "out", out)
    if (out.shape, out.dtype) != (x.shape, x.dtype):
        got, expected = f"{out.shape} {out.dtype}", f"{x.shape} {x.dtype}, as x"
        raise ValueError(explain(f"{verb}: out", got=got, expected=expected))


def check_rank(verb: str, argument: str, rank: int, size: int) -> None:
    """Refuse a rank outside a group of ``size``."""
    if not 0 <= rank < size:
        expected = f"a rank of the group, 0 to {size - 1}"
        raise ValueError(explain(f"{verb}: {argument}", got=rank, expected=expected))


def check_split(color: int | None, key: int) -> None:
    """Refuse what MPI cannot take, before other ranks wait where no time limit helps."""
    for name, value, least in (("color", color, 0), ("key", key, -_LARGEST)):
        if value is not None and not (isinstance(value, (int, np.integer)) and least <= value <= _LARGEST):
            expected = f"an integer, {least} to {_LARGEST}" + (", or None" if name == "color" else "")
            raise ValueError(explain(f"split: {name}", got=value, expected=expected))


def check_parts(parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], size: int) -> None:
    """Refuse arguments of all_to_all that are not one array and one shape a rank, of one dtype."""
    if len(parts) != size or len(shapes) != size:
        got, expected = f"{len(parts)} parts and {len(shapes)} shapes", f"{size} of each, one a rank"
        raise ValueError(explain("all_to_all: parts and shapes", got=got, expected=expected))
    for rank, part in enumerate(parts):
        check_array("all_to_all", f"part {rank}", part)
    dtypes = sorted({str(part.dtype) for part in parts})
    if len(dtypes) > 1:
        raise TypeError(explain("all_to_all: dtype of parts", got=", ".join(dtypes), expected="one for all"))


def dimension(verb: str, dim: int, ndim: int) -> int:
    """Return ``dim`` counted from the front."""
    if not -ndim <= dim < ndim:
        raise ValueError(explain(f"{verb}: dim", got=dim, expected=f"a dimension of an array with {ndim}"))
    return dim % ndim


def extents(verb: str, sizes: Sequence[int] | None, default: int, size: int) -> tuple[int, ...]:
    """Return the extent of every rank's part: ``sizes``, or ``default`` for all."""
    parts = (default,) * size if sizes is None else tuple(int(n) for n in sizes)
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
    if sum(parts) != extent:
        got = f"their sum {sum(parts)}"
        raise ValueError(explain(f"reduce_scatter: sizes {list(parts)} of dim {dim}", got=got, expected=extent))
    return parts
