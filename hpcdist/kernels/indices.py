"""Whether indices lie inside what they index; compiled loops do not look."""

from __future__ import annotations

from hpcdist.array import Array
from hpcdist.errors import explain

__all__ = ["check_indices"]


def check_indices(what: str, indices: Array, limit: int, ignore: int | None = None) -> None:
    """Check that integer ``indices`` are in ``[0, limit)`` or equal to ``ignore``.

    Raises
    ------
    ValueError
        If one is not; ``what`` names them in the message.
    """
    if not indices.size or (indices.min() >= 0 and indices.max() < limit):
        return
    wrong = (indices < 0) | (indices >= limit)
    if ignore is not None:
        wrong &= indices != ignore
    if wrong.any():
        expected = f"0 to {limit - 1}" + ("" if ignore is None else f", or {ignore} (ignored)")
        raise ValueError(explain(f"{what} are out of range", got=int(indices[wrong][0]), expected=expected))
