"""Parts of an optimizer's state, and the whole that they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcdist.array import namespace
from hpcdist.errors import explain
from hpcdist.parallel.zero_row import Share

__all__ = ["cut_out", "joined"]


def cut_out(rank: int, size: int, shares: Iterable[Share]) -> dict[str, Any]:
    """Return what a state says of the part that it is: whose of how many, and which elements of which parameters."""
    return {"rank": rank, "size": size, "ranges": {share.name: [share.start, share.stop] for share in shares}}


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the whole state, in memory of its own, of which ranks have ``parts``, in any order.

    Raises
    ------
    ValueError
        If a part is missing or comes twice, or a parameter has state in some parts only.
    """
    by_rank = {part["part"]["rank"]: part for part in parts}
    expected = [*range(parts[0]["part"]["size"])]
    if sorted(part["part"]["rank"] for part in parts) != expected:
        what = "the state of an optimizer: parts of ranks"
        raise ValueError(explain(what, got=[part["part"]["rank"] for part in parts], expected=expected))
    groups = [dict(group) for group in parts[0]["param_groups"]]
    pieces = _pieces([by_rank[rank] for rank in expected])
    names = [name for group in groups for name in group["names"] if name in pieces]
    return {"state": {name: _entries(name, pieces[name]) for name in names}, "param_groups": groups}


def _pieces(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any] | None]]:
    """Return what parts keep for each parameter of which any keeps something, in the order of elements."""
    kept: dict[str, list[Mapping[str, Any] | None]] = {}
    for part in parts:
        for name in part["part"]["ranges"]:
            kept.setdefault(name, []).append(part["state"].get(name))
    return {name: pieces for name, pieces in kept.items() if any(piece is not None for piece in pieces)}


def _entries(name: str, pieces: list[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return what is kept for a whole parameter."""
    keys = [None if piece is None else piece.keys() for piece in pieces]
    if any(one != keys[0] for one in keys):
        do = "give every rank the same gradients: replicate the module"
        raise ValueError(explain(f"the state of {name}: ranks keep different things", got=keys, do=do))
    filled = [piece for piece in pieces if piece is not None]
    return {key: _whole([piece[key] for piece in filled]) for key in filled[0]}


def _whole(values: list[Any]) -> Any:
    """Return arrays as one, and of numbers, which are the same on all ranks, the first."""
    first = values[0]
    return namespace(first).concatenate([v.reshape(-1) for v in values]) if getattr(first, "ndim", 0) else first
