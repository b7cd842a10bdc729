"""Elements picked by indices along a dimension that is cut: each rank picks from what it holds; the result is a sum."""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcdist.array import Array, namespace
from hpcdist.autograd import Op, define
from hpcdist.autograd.ops.indexing import INDEX_SELECT, SCATTER_ADD, TAKE_ALONG_DIM, addresses
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.dtensor.choice import Choice, Placed, best
from hpcdist.dtensor.cut import Runs
from hpcdist.dtensor.dispatch import rule
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.signature import Group, parse
from hpcdist.kernels.indices import check_indices

__all__ = ["Stretch"]

_PICKED = "picked"
"""The letter of the dimension that is picked from, or added to."""


class Stretch(NamedTuple):
    """What a rank holds of a dimension.

    Attributes
    ----------
    runs : Runs
    extent : int
        Of the whole.
    """

    runs: Runs
    extent: int

    def places(self, index: Array) -> tuple[Array, Array]:
        """Return where each index lies in what is held, 0 if it does not, and whether it does.

        Raises
        ------
        ValueError, TypeError
            If it lies outside the whole, or is no integer.
        """
        if index.dtype.kind not in "iu":
            raise TypeError(f"expected integer indices, not {index.dtype}")
        check_indices("indices", index, self.extent)
        xp = namespace(index)
        places, mine, before = xp.zeros(index.shape, xp.int64), xp.zeros(index.shape, bool), 0
        for start, stop in self.runs:
            inside = (index >= start) & (index < stop)
            places = xp.where(inside, index.astype(xp.int64) - (start - before), places)
            mine |= inside
            before += stop - start
        return places, mine


# ---------------------------------------------------------------- on what one rank holds
def _select(a: Array, index: Array, *, dim: int, held: Stretch) -> tuple[Array, tuple[Array, Array]]:
    """Return ``index_select`` of the elements that are held, 0 for others."""
    (dim,) = reduced(a.ndim, dim)
    places, mine = held.places(index)
    mine = mine.reshape(-1, *(1,) * (a.ndim - 1 - dim))
    if not held.runs:
        return _nothing(a, (*a.shape[:dim], len(index), *a.shape[dim + 1 :])), (places, mine)
    picked, _ = INDEX_SELECT.forward(a, places, dim=dim)
    return _kept(picked, mine), (places, mine)


def _select_vjp(into: Any, grads: Any, saved: Any, *, dim: int, held: Stretch) -> None:
    places, mine = saved
    if held.runs:
        INDEX_SELECT.vjp(into, [_kept(grads[0], mine)], (places,), dim=dim)
    else:
        into[0].give(_nothing(grads[0], into[0].shape))


def _take(a: Array, index: Array, *, dim: int, held: Stretch) -> tuple[Array, tuple[Array, ...]]:
    """Return ``take_along_dim`` of the elements that are held, 0 for others."""
    (dim,) = reduced(a.ndim, dim)
    places, mine = held.places(index)
    if not held.runs:
        a = _nothing(a, (*a.shape[:dim], 1, *a.shape[dim + 1 :]))
    picked, (wide,) = TAKE_ALONG_DIM.forward(a, places, dim=dim)
    return _kept(picked, mine), (wide, mine)


def _take_vjp(into: Any, grads: Any, saved: Any, *, dim: int, held: Stretch) -> None:
    places, mine = saved
    if held.runs:
        TAKE_ALONG_DIM.vjp(into, [_kept(grads[0], mine)], (places,), dim=dim)
    else:
        into[0].give(_nothing(grads[0], into[0].shape))


def _scatter(a: Array, index: Array, src: Array, *, dim: int, held: Stretch) -> tuple[Array, tuple[Array, Array]]:
    """Return ``scatter_add`` of what goes to elements that are held."""
    (dim,) = reduced(a.ndim, dim)
    places, mine = held.places(index)
    if not held.runs:
        return a.copy(), (places, mine)
    added, _ = SCATTER_ADD.forward(a, places, _kept(src, mine), dim=dim)
    return added, (places, mine)


def _scatter_vjp(into: Any, grads: Any, saved: Any, *, dim: int, held: Stretch) -> None:
    (places, mine), (dim,) = saved, reduced(saved[0].ndim, dim)
    if into[0] is not None:
        into[0].give(grads[0])
    if into[2] is not None:
        picked = grads[0][addresses(places, dim)] if held.runs else _nothing(grads[0], into[2].shape)
        into[2].give(_kept(picked, mine))


def _kept(a: Array, mine: Array) -> Array:
    kept: Array = namespace(a).where(mine, a, a.dtype.type(0))
    return kept


def _nothing(like: Array, shape: tuple[int, ...]) -> Array:
    zeros: Array = namespace(like).zeros(shape, like.dtype)
    return zeros


# ---------------------------------------------------------------- on a mesh
_ON_A_RANK = {
    "index_select": define("held_index_select", _select, _select_vjp),
    "take_along_dim": define("held_take_along_dim", _take, _take_vjp),
    "scatter_add": define("held_scatter_add", _scatter, _scatter_vjp),
}


@rule(*_ON_A_RANK)
def _picked(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    x, (dim,) = layouts[0], reduced(len(layouts[0].shape), attrs["dim"])
    if not x.cutters(dim):
        return None
    terms = parse(op.signature_for([layout.shape for layout in layouts], attrs))
    outputs = (_named(terms.outputs[0], dim),) if op.name == "scatter_add" else terms.outputs
    terms = terms._replace(inputs=(_named(terms.inputs[0], dim), *terms.inputs[1:]), outputs=outputs)
    found = best(Choice.by(terms, op.linear, layouts))
    if found is None:
        return None
    held = Stretch(found.inputs[0].runs[dim], x.shape[dim])
    return found._replace(op=_ON_A_RANK[op.name], attrs={"held": held})


def _named(group: Group, dim: int) -> Group:
    """Let ``dim`` be cut."""
    return (*group[:dim], _PICKED, *group[dim + 1 :])
