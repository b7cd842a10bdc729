"""Clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hpcdist.array import Array
from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.kernels.optimizer import sum_squares

__all__ = ["clip_grad_norm_", "get_total_norm"]


def get_total_norm(parameters: Tensor | Iterable[Tensor]) -> float:
    """Return the 2-norm of all gradients together, squares added up in float64."""
    chosen = [parameters] if isinstance(parameters, Tensor) else parameters
    return math.sqrt(math.fsum(sum_squares(_real(p.grad.reshape(-1))) for p in chosen if p.grad is not None))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, *, error_if_nonfinite: bool = False
) -> float:
    """Scale all gradients down, in place, so that their 2-norm together is at most ``max_norm``.

    Returns
    -------
    float
        The norm before.

    Raises
    ------
    RuntimeError
        If the norm is not finite and ``error_if_nonfinite``; gradients are left as they are.
    """
    chosen = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    norm = get_total_norm(chosen)
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(explain("clip_grad_norm_: the norm of the gradients", got=norm, expected="a finite number"))
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        for p in chosen:
            if p.grad is not None:
                p.grad *= p.grad.dtype.type(factor)
    return norm


def _real(x: Array) -> Array:
    """Return complex values as pairs of real ones."""
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x
