"""Clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.kernels.optimizer import sum_squares

__all__ = ["clip_grad_norm_", "clip_grad_value_", "get_total_norm"]


def get_total_norm(parameters: Tensor | Iterable[Tensor]) -> float:
    """Return the 2-norm of all gradients together, squares added up in float64."""
    return math.sqrt(math.fsum(sum_squares(_real(p.grad.reshape(-1))) for p in _with_gradients(parameters)))


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
    TypeError
        If parameters are distributed.
    """
    chosen = _with_gradients(parameters)
    norm = get_total_norm(chosen)
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(explain("clip_grad_norm_: the norm of the gradients", got=norm, expected="a finite number"))
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        for p in chosen:
            with namespace(p.grad).errstate(invalid="ignore"):  # infinity times 0
                p.grad *= p.grad.dtype.type(factor)
    return norm


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Cut all gradients off, in place, at ``-clip_value`` and ``clip_value``; NaN stays."""
    if not clip_value >= 0:
        raise ValueError(explain("clip_grad_value_: clip_value", got=clip_value, expected=">= 0"))
    for p in _with_gradients(parameters):
        namespace(p.grad).clip(p.grad, -clip_value, clip_value, out=p.grad)


def _with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[Any]:
    """Return the parameters that have gradients; refuse those of which each rank has a part."""
    chosen = [parameters] if hasattr(type(parameters), "requires_grad") else list(parameters)  # type: ignore[arg-type]
    for p in chosen:
        if hasattr(type(p), "placements"):
            do = "use hd.parallel.clip_grad_norm_, which knows all parts"
            raise TypeError(explain("clipping: a parameter is distributed", got=type(p).__name__, do=do))
    return [p for p in chosen if p.grad is not None]  # type: ignore[union-attr]


def _real(x: Array) -> Array:
    """Return complex values as pairs of real ones."""
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x
