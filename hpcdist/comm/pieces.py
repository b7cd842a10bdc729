"""What verbs do with arrays where messages need no packing: copies, results, and a rank's part."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.array import Array, namespace

__all__ = ["own", "span", "write"]


def own(x: Array) -> Array:
    """Return a C-ordered copy in native byte order, so that the caller may go on with the original."""
    copy: Array = namespace(x).array(x, dtype=x.dtype.newbyteorder("="), order="C")
    return copy


def write(value: Array, out: Array | None) -> Array:
    """Write ``value`` into ``out``, if there is one; return where it is."""
    if out is None:
        return value
    out[...] = value
    return out


def span(rank: int, dim: int, extents: Sequence[int]) -> tuple[slice, ...]:
    """Return where the part of ``rank`` lies in an array that is cut along ``dim``."""
    start = sum(extents[:rank])
    return (*(slice(None),) * dim, slice(start, start + extents[rank]))
