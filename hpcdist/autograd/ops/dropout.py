"""Dropout, drawn from the seed and the global index of each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd import random
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import check_floating, unary_signature
from hpcdist.autograd.pool import empty

__all__ = ["DROPOUT"]


@row(unary_signature, linear="joint")
def dropout(a: Array, *, p: float, key: random.Key, index: Array | None = None) -> tuple[Array, tuple[Array, Any]]:
    """Set elements to 0 with probability p and scale the others by 1 / (1 - p).

    Srivastava et al. 2014, section 10 (the scaled form). ``index`` gives the global index of each element where ``a``
    is a part of an array; None: ``a`` is whole.
    """
    check_floating(a)
    xp = namespace(a)
    kept = empty(a.shape, np.bool_, a)
    xp.greater_equal(xp.asarray(random.uniform(key, a.shape, index=index)), p, out=kept)
    scale = a.dtype.type(0.0 if p == 1 else 1 / (1 - p))
    return _scaled(a, kept, scale), (kept, scale)


@dropout
def DROPOUT(into: Any, grads: Any, saved: Any, **_: Any) -> None:
    kept, scale = saved
    into[0].give(_scaled(grads[0], kept, scale))


def _scaled(a: Array, kept: Array, scale: Any) -> Array:
    out = empty(a.shape, a.dtype, a)
    namespace(a).multiply(a, kept, out=out)
    out *= scale
    return out
