"""Convolution over one or two dimensions, and its transpose. Saved are input and weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, check_floating
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.ops.planes import Dims, as_planes, window_of
from hpcdist.autograd.pool import empty
from hpcdist.autograd.replay import Into
from hpcdist.kernels import convolution as kernels
from hpcdist.kernels.precision import add_up
from hpcdist.kernels.window import extent

__all__ = ["CONV", "CONV_TRANSPOSE"]


def _signature(shapes: list[tuple[int, ...]], *, groups: int, transposed: bool) -> str:
    """Images and channels may be cut; of several groups of channels, none."""
    dims = len(shapes[0]) - 2
    x, w, y = ("".join(f"[{name}]" for name in LETTERS[3 + k * dims :][:dims]) for k in range(3))
    inner, outer = ("b", "c") if groups == 1 else ("[b]", "[c]")
    rows, each = (inner, outer) if transposed else (outer, inner)
    if groups > 1:
        each = "[z]"
    return f"a{inner}{x},{rows}{each}{w}{f',+{outer}' * (len(shapes) == 3)}->a{outer}{y}"


def _check(x: Array, weight: Array, bias: Array | None, stride: Dims, groups: int, *, transposed: bool) -> None:
    check_floating(x, weight, bias)
    inner = "in, out / groups" if transposed else "out, in / groups"
    dims = len(stride)
    if x.ndim != dims + 2 or weight.ndim != dims + 2:
        raise ValueError(f"expected x (batch, in, ...) and weight ({inner}, ...) with {dims} dimensions more")
    one, several = (x.shape[1], weight.shape[0]) if transposed else (x.shape[1], weight.shape[1] * groups)
    if one != several or weight.shape[0] % groups or x.shape[1] % groups:
        raise ValueError(f"expected x (batch, in, ...) and weight ({inner}, ...) of {groups} groups")
    if bias is not None and bias.shape != (weight.shape[1] * groups if transposed else weight.shape[0],):
        raise ValueError("expected one bias an output channel")


def _into(into: Into | None, compute: Callable[[Array, float], None]) -> None:
    """Have ``compute(array, beta)`` add to a gradient, in contiguous memory of four dimensions."""
    if into is None:
        return
    out, beta = into.place()
    if out.flags.c_contiguous:
        compute(as_planes(out), beta)
        return
    part = empty(out.shape, out.dtype, out)
    compute(as_planes(part), 0.0)
    out[...] = part + beta * out if beta else part


def _bias_grad(into: Any, g: Array) -> None:
    if len(into) == 3 and into[2] is not None:
        into[2].give(add_up(g, (0, 2, 3)))


def _started(shape: tuple[int, ...], dtype: np.dtype[Any], x: Array, bias: Array | None) -> tuple[Array, float]:
    """Return memory for a result, with the bias in it if there is one, and whether there is."""
    y = empty(shape, dtype, x)
    if bias is not None:
        y[...] = bias.reshape(-1, *(1,) * (len(shape) - 2))
    return y, float(bias is not None)


# ---------------------------------------------------------------- convolution
@row(lambda shapes, *, groups, **_: _signature(shapes, groups=groups, transposed=False))
def conv(
    x: Array, weight: Array, bias: Array | None = None, *, stride: Dims, padding: Dims, dilation: Dims, groups: int
) -> tuple[Array, tuple[Array, Array]]:
    """Return the cross-correlation of images with kernels.

    x (batch, in, ...), weight (out, in / groups, ...), bias (out,) or left out; one or two more dimensions.
    """
    _check(x, weight, bias, stride, groups, transposed=False)
    x, weight = contiguous(x), contiguous(weight)
    size = weight.shape[2:]
    places = tuple(map(extent, x.shape[2:], size, stride, padding, dilation))
    y, beta = _started((x.shape[0], weight.shape[0], *places), np.result_type(x.dtype, weight.dtype), x, bias)
    window = window_of(size, stride, padding, dilation)
    out = as_planes(y)
    kernels.correlate(as_planes(x), as_planes(weight), window, groups, out, beta)
    return y, (x, weight)


@conv
def CONV(into: Any, grads: Any, saved: Any, stride: Dims, padding: Dims, dilation: Dims, groups: int) -> None:
    x, weight = map(as_planes, saved)
    window = window_of(saved[1].shape[2:], stride, padding, dilation)
    g = as_planes(contiguous(grads[0]))
    _into(into[0], lambda gx, beta: kernels.correlate_back(g, weight, window, groups, gx, beta))
    _into(into[1], lambda gw, beta: kernels.correlate_weight(x, g, window, groups, gw, beta))
    _bias_grad(into, g)


# ---------------------------------------------------------------- its transpose
@row(lambda shapes, *, groups, **_: _signature(shapes, groups=groups, transposed=True))
def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Dims,
    padding: Dims,
    output_padding: Dims,
    dilation: Dims,
    groups: int,
) -> tuple[Array, tuple[Array, Array]]:
    """Return the transpose of :func:`conv`, as a map of images, at ``x``, and the bias.

    x (batch, in, ...), weight (in, out / groups, ...), bias (out,) or left out.
    """
    _check(x, weight, bias, stride, groups, transposed=True)
    x, weight = contiguous(x), contiguous(weight)
    size = weight.shape[2:]
    if any(extra >= max(s, d) for extra, s, d in zip(output_padding, stride, dilation, strict=True)):
        raise ValueError("expected an output padding below stride or dilation")
    dims = zip(x.shape[2:], size, stride, padding, output_padding, dilation, strict=True)
    places = [(n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, k, s, p, extra, d in dims]
    if min(places) < 1:
        raise ValueError(f"the padding leaves a result of {places} elements")
    shape = (x.shape[0], weight.shape[1] * groups, *places)
    y, beta = _started(shape, np.result_type(x.dtype, weight.dtype), x, bias)
    window = window_of(size, stride, padding, dilation)
    planes = as_planes(x)
    kernels.correlate_back(planes, as_planes(weight), window, groups, as_planes(y), beta)
    return y, (x, weight)


@conv_transpose
def CONV_TRANSPOSE(
    into: Any, grads: Any, saved: Any, stride: Dims, padding: Dims, dilation: Dims, groups: int, **_: Any
) -> None:
    x, weight = map(as_planes, saved)
    window = window_of(saved[1].shape[2:], stride, padding, dilation)
    g = as_planes(contiguous(grads[0]))
    _into(into[0], lambda gx, beta: kernels.correlate(g, weight, window, groups, gx, beta))
    _into(into[1], lambda gw, beta: kernels.correlate_weight(g, x, window, groups, gw, beta))
    _bias_grad(into, g)
