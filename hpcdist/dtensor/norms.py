"""Norms of layers whose features are cut: statistics of rows by one small message an axis that cuts them.

========================== ================================ =======================
operation                  messages forward                 messages backward
========================== ================================ =======================
layer_norm, add_layer_norm all_gather of 2 float64 numbers  all_reduce of 2 numbers
rms_norm, add_rms_norm     all_reduce of 1 number           all_reduce of 1 number
========================== ================================ =======================

Numbers are those of one row. Weights are cut as the features, or whole. float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcdist.autograd import Tensor, apply
from hpcdist.autograd.op import OPS
from hpcdist.autograd.ops.elementwise import check_floating
from hpcdist.dtensor.block import cutting, reduced_layout
from hpcdist.dtensor.dispatch import computed
from hpcdist.dtensor.placements import Partial, Placement, Replicate, Shard
from hpcdist.dtensor.reductions import SCALED_SUM, finished, lent, moments, widened
from hpcdist.dtensor.steps import is_implicit, steps
from hpcdist.dtensor.tensor import DTensor, relaid

__all__: list[str] = []


def _fit(name: str, x: DTensor, *weights: DTensor) -> bool:
    """Check the inputs of a norm of the last dimension; say whether weights are where ``x`` needs them, or may be."""
    check_floating(x.data, *[w.data for w in weights])
    if any(w.shape != x.shape[-1:] for w in weights):
        raise ValueError(f"{name}: weights {[w.shape for w in weights]} for x {x.shape}: expected {x.shape[-1:]}")
    for w in weights:
        wanted = w.layout.placed(
            [_of_weight(p, q, x.ndim - 1) for p, q in zip(x.placements, w.placements, strict=True)]
        )
        if not all(map(is_implicit, steps(w.layout, wanted))):
            return False
    return True


def _of_weight(p: Placement, q: Placement, last: int) -> Placement:
    """Return how a weight must be placed on an axis for features placed as ``p``; it is ``q`` now."""
    if not isinstance(p, Shard):
        return q
    return replace(p, dim=0) if p.dim == last else Replicate()


def _affine(y: Tensor, x: DTensor, gain: DTensor, shift: DTensor | None, dtype: Any) -> Any:
    scaled = DTensor(y, x.layout) * gain
    return (scaled if shift is None else scaled + shift).to(dtype)


@computed("layer_norm")
def _layer_norm(x: DTensor, gain: DTensor, shift: DTensor, *, eps: float) -> Any:
    wider, dims = finished(widened(x)), (x.ndim - 1,)
    if not _fit("layer_norm", wider, gain, shift):
        return NotImplemented
    both = lent(moments(wider, dims).to(wider.dtype), wider, dims)
    rstd = (both[1] * (1 / x.shape[-1]) + eps) ** -0.5
    return _affine((wider.local - both[0]) * rstd, wider, widened(gain), widened(shift), x.dtype)


@computed("rms_norm")
def _rms_norm(x: DTensor, gain: DTensor, *, eps: float) -> Any:
    wider, dims = finished(widened(x)), (x.ndim - 1,)
    if not _fit("rms_norm", wider, gain):
        return NotImplemented
    cut = cutting(wider.layout, dims)
    squares = apply(SCALED_SUM, wider.local * wider.local, dim=dims, keepdim=True, count=x.shape[-1])
    layout = reduced_layout(wider.layout, dims, keepdim=True)
    pending: list[Placement] = [Partial() if axis in cut else p for axis, p in enumerate(layout.placements)]
    wanted: list[Placement] = [Replicate() if axis in cut else p for axis, p in enumerate(layout.placements)]
    total = relaid(DTensor(squares, layout.placed(pending)), layout.placed(wanted)).local
    return _affine(wider.local * (total + eps) ** -0.5, wider, widened(gain), None, x.dtype)


@computed("add_layer_norm")
def _add_layer_norm(x: DTensor, h: DTensor, gain: DTensor, shift: DTensor, *, eps: float) -> Any:
    total = finished(x + h)
    if not _fit("add_layer_norm", total, gain, shift):
        return NotImplemented
    return total, apply(OPS["layer_norm"], total, gain, shift, eps=eps)


@computed("add_rms_norm")
def _add_rms_norm(x: DTensor, h: DTensor, gain: DTensor, *, eps: float) -> Any:
    total = finished(x + h)
    if not _fit("add_rms_norm", total, gain):
        return NotImplemented
    return total, apply(OPS["rms_norm"], total, gain, eps=eps)
