"""Clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcdist.array import Array, is_array, namespace
from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.kernels.optimizer import sum_squares
from hpcdist.kernels.precision import wide

__all__ = ["clip_grad_norm_", "clip_grad_value_", "get_total_norm"]


def get_total_norm(tensors: Array | Iterable[Array], norm_type: float = 2.0, error_if_nonfinite: bool = False) -> float:
    """Return the norm of all arrays together, such as gradients; powers are added up in float64.

    Parameters
    ----------
    norm_type : float
        Above 0; infinity: the largest magnitude.

    Raises
    ------
    RuntimeError
        If the norm is not finite and ``error_if_nonfinite``.
    """
    if not norm_type > 0:
        raise ValueError(explain("norm_type", got=norm_type, expected="a number above 0"))
    arrays: Any = [tensors] if is_array(tensors) else tensors
    norm = root(sum_of_powers(arrays, float(norm_type)), float(norm_type))
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(explain("the norm of the gradients", got=norm, expected="a finite number"))
    return norm


def sum_of_powers(arrays: Iterable[Array], power: float) -> float:
    """Return the sum of ``|x| ** power`` over all elements; for infinity the largest ``|x|``, NaN if there is one."""
    filled = [x for x in arrays if x.size]
    if power == math.inf:
        largest = [float(abs(wide(x)).max()) for x in filled]
        return math.nan if any(map(math.isnan, largest)) else max(largest, default=0.0)
    if power == 2:
        return math.fsum(sum_squares(real(x.reshape(-1))) for x in filled)
    return math.fsum(float((abs(wide(x)).astype("f8") ** power).sum()) for x in filled)


def root(total: float, power: float) -> float:
    """Return the norm of which :func:`sum_of_powers` returns ``total``."""
    return total if power == math.inf else math.sqrt(total) if power == 2 else float(total ** (1 / power))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> float:
    """Scale all gradients down, in place, so that their norm together is at most ``max_norm``.

    Parameters
    ----------
    norm_type, error_if_nonfinite : float, bool
        As of :func:`get_total_norm`. Gradients whose norm is NaN are left as they are.

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
    if not max_norm >= 0:
        raise ValueError(explain("clip_grad_norm_: max_norm", got=max_norm, expected=">= 0"))
    chosen = with_gradients(parameters)
    norm = get_total_norm(map(whole_gradient, chosen), norm_type, error_if_nonfinite)
    scale_gradients(chosen, max_norm / (norm + 1e-6))
    return norm


def scale_gradients(parameters: Iterable[Any], factor: float) -> None:
    """Scale gradients in place, if ``factor`` is below 1."""
    if factor < 1:
        for p in parameters:
            with namespace(p.grad).errstate(invalid="ignore"):  # infinity times 0
                p.grad *= np.float32(factor) if p.grad.dtype.itemsize == 2 else factor  # 16 bits would change it


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Cut all gradients off, in place, at ``-clip_value`` and ``clip_value``; NaN stays.

    Raises
    ------
    TypeError
        If parameters are distributed, or gradients complex.
    """
    if not clip_value >= 0:
        raise ValueError(explain("clip_grad_value_: clip_value", got=clip_value, expected=">= 0"))
    for p in with_gradients(parameters):
        if p.grad.dtype.kind == "c" or p.grad.shape != p.shape:
            got = f"{p.grad.dtype}, {p.grad.shape}"
            raise TypeError(explain("clip_grad_value_: gradient", got=got, expected=f"real, {p.shape}"))
        namespace(p.grad).clip(p.grad, -clip_value, clip_value, out=p.grad)


def with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[Any]:
    """Return the parameters that have gradients; refuse those of which each rank has a part."""
    chosen = [parameters] if hasattr(type(parameters), "requires_grad") else list(parameters)  # type: ignore[arg-type]
    for p in chosen:
        if hasattr(p, "placements"):
            do = "use hd.parallel.clip_grad_norm_, which knows all parts"
            raise TypeError(explain("clipping: a parameter is distributed", got=type(p).__name__, do=do))
    return [p for p in chosen if p.grad is not None]  # type: ignore[union-attr]


def parts_of(parameter: Tensor) -> Array:
    """Return the gradient as a stack (parts, n); its sum over the first dimension is the gradient.

    Raises
    ------
    TypeError, ValueError
        If it is no array that fits the parameter.
    """
    gradient, data = parameter.grad, parameter.data
    assert gradient is not None
    fitting = "fcV" if data.dtype.kind == "c" else "fV"
    if not is_array(gradient) or gradient.dtype.kind not in fitting:
        got = f"{type(gradient).__name__} of {getattr(gradient, 'dtype', None)}"
        raise TypeError(explain("a gradient", got=got, expected=f"an array that fits {data.dtype}"))
    if data.shape not in (gradient.shape, gradient.shape[1:]):
        expected = f"{data.shape}, or a stack of such parts"
        raise ValueError(explain("the shape of a gradient", got=gradient.shape, expected=expected))
    parts = 1 if gradient.shape == data.shape else len(gradient)
    return gradient.reshape(parts, data.size)


def whole_gradient(parameter: Tensor) -> Array:
    """Return the gradient of a parameter, flat, in its own memory where it is one part."""
    parts = parts_of(parameter)
    whole: Array = parts[0] if len(parts) == 1 else wide(parts).sum(0)
    return whole


def real(x: Array) -> Array:
    """Return complex values as pairs of real ones."""
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x
