"""Where backward starts: what each rank holds of a result, and of its cotangent."""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor, no_grad
from hpcdist.autograd.tape import seed_of
from hpcdist.dtensor.placements import Invariant, Partial, dual
from hpcdist.dtensor.tensor import DTensor, relaid
from hpcdist.errors import explain

__all__ = ["seeded"]


def seeded(x: DTensor, grad: Any) -> tuple[Tensor, Array]:
    """Return where backward starts on this rank, and with what: a cotangent in the dual layout."""
    root = _linear(x)
    if grad is None and x.size != 1:
        do = "pass a cotangent of its shape"
        raise RuntimeError(explain("backward: only a scalar has a gradient of its own", got=x.shape, do=do))
    target = root.layout.placed([dual(p) for p in root.placements])
    if not isinstance(grad, DTensor):
        xp = namespace(root.local.data)
        value = xp.asarray(1 if grad is None else grad.data if isinstance(grad, Tensor) else grad, root.dtype)
        grad = value if value.ndim else xp.broadcast_to(value, x.shape)
    if grad.shape != x.shape:
        raise RuntimeError(explain("backward: a cotangent has another shape", got=grad.shape, expected=x.shape))
    if not isinstance(grad, DTensor):
        grad = DTensor(Tensor(grad), target.placed([Invariant()] * len(x.placements)))
    with no_grad():
        seed = relaid(grad, target).local.data
    return root.local, seed_of(root.local, seed)


def _linear(x: DTensor) -> DTensor:
    """Return it with averages as sums, and combinations that are not linear finished."""
    changed = {"sum": Partial(), "avg": Partial()}
    placements = [changed.get(p.op, Invariant()) if isinstance(p, Partial) else p for p in x.placements]
    return relaid(x, x.layout.placed(placements))
