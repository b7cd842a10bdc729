"""Rules of operations on packed features: heads stay whole, and a gate stays beside what it multiplies."""

from __future__ import annotations

from typing import Any

from hpcdist.autograd import Op
from hpcdist.dtensor.carry import coordinates, pieces, rescaled
from hpcdist.dtensor.choice import Choice, Placed, best
from hpcdist.dtensor.dispatch import rule
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Shard
from hpcdist.dtensor.rules import impossible
from hpcdist.dtensor.signature import Row, Terms, parse

__all__: list[str] = []

_FEATURES = "features"
"""The letter of a last dimension that is cut."""


@rule("attention")
def _attention(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    return _by_heads(op, layouts[0], attrs, 3, 1, attrs["num_heads"])


@rule("rotary")
def _rotary(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    return _by_heads(op, layouts[0], attrs, 3, 3, attrs["num_heads"])


@rule("ungroup")
def _ungroup(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    groups = attrs["num_kv_heads"]
    if groups < 1 or attrs["num_heads"] % groups:
        return None
    each = attrs["num_heads"] // groups
    return _by_heads(op, layouts[0], attrs, each + 2, 3 * each, groups)


def _by_heads(op: Op, x: Layout, attrs: dict[str, Any], before: int, after: int, num: int) -> Placed | None:
    """Let ranks compute with whole heads, ``num`` in all, that consist of ``before`` parts and become ``after``."""
    dim = len(x.shape) - 1
    if dim < 0 or not x.cutters(dim) or num < 1 or x.shape[dim] % (num * before):
        return None
    unit, shape = x.shape[dim] // num, (*x.shape[:dim], x.shape[dim] // before * after)
    bounds = (bound for c in coordinates(x, x.cutters(dim)) for run in x.runs_at(dim, c) for bound in run)
    cuts = rescaled(x, dim, before, shape, after)
    if cuts is None or any(bound % unit for bound in bounds):
        do = f"cut it by Shard({dim}, unit={unit}), as ColwiseParallel(heads={num}) does"
        dims = sorted({dim, *_uncut(op, x, attrs)})
        raise impossible(op.name, x, dims, f"ranks must hold whole heads, of {unit} elements each", do)
    found = _placed(op, x, attrs, shape, cuts)
    if found is None:
        return None
    held = found.inputs[0].local_shape[dim] // unit
    counts: dict[str, Any] = {
        name: attrs[name] // num * held for name in ("num_heads", "num_kv_heads") if name in attrs
    }
    return found._replace(attrs=counts)


def _uncut(op: Op, x: Layout, attrs: dict[str, Any]) -> list[int]:
    """Return the dimensions that are cut and that the signature wants whole."""
    (letters,) = parse(op.signature_for([x.shape], attrs)).inputs
    return [dim for dim, letter in enumerate(letters) if not letter and x.cutters(dim)]


@rule("swiglu")
def _swiglu(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    """Need gate and up cut alike, which is Shard(-1, sections=(n, n))."""
    (x,) = layouts
    dim = len(x.shape) - 1
    if dim < 0 or not x.cutters(dim) or x.shape[dim] % 2:
        return None
    n = x.shape[dim] // 2
    halves = pieces(x, dim, (n, n))
    if halves is None or halves[0] is not halves[1]:
        do = f"cut it by Shard({dim}, sections=({n}, {n})), the weights before it alike"
        raise impossible(op.name, x, [dim], "ranks must hold the same part of [gate | up] of both", do)
    cuts = {axis: p for axis in x.cutters(dim) if isinstance(p := halves[0].placements[axis], Shard)}
    return _placed(op, x, attrs, halves[0].shape, cuts)


def _placed(op: Op, x: Layout, attrs: dict[str, Any], shape: tuple[int, ...], cuts: dict[int, Shard]) -> Placed | None:
    """Choose for the other axes; those of ``cuts`` cut the last dimension, and so that of the result."""
    terms = parse(op.signature_for([x.shape], attrs))
    last = Terms(((*terms.inputs[0][:-1], _FEATURES),), ((*terms.outputs[0][:-1], _FEATURES),))
    fixed = {axis: Row((x.placements[axis],), (shard,), _FEATURES) for axis, shard in cuts.items()}
    found = best(Choice.by(last, op.linear, [x], fixed=fixed))
    if found is None or found.way is None:
        return None
    _, way = found.way
    return found._replace(outputs=[Layout.of(x.mesh, [row.outputs[0] for row in way.rows], shape, way.order)])
