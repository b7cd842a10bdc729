"""Activations of a transformer. Saved is the argument; the value is cheap and computed again.

GELU: Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2. SiLU: the same, section 4. SwiGLU: Shazeer 2020,
arXiv:2002.05202, equation 6, without the projections.
"""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array
from hpcdist.autograd.op import Op, define
from hpcdist.autograd.ops.elementwise import LETTERS, check_floating, unary_signature
from hpcdist.autograd.ops.linalg import rows_of
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.pool import empty
from hpcdist.kernels import activation as kernels

__all__ = ["GELU", "SILU", "SWIGLU"]


def _activation(name: str, values: Any, gradient: Any) -> Op:
    """Define an elementwise activation; its gradient overwrites the incoming one."""

    def again(saved: Any, **attrs: Any) -> Array:
        y = empty(saved[0].shape, saved[0].dtype, saved[0])
        values(rows_of(saved[0]), rows_of(y), *attrs.values())
        return y

    def forward(z: Array, **attrs: Any) -> tuple[Array, tuple[Array]]:
        check_floating(z)
        z = contiguous(z)
        return again((z,), **attrs), (z,)

    def vjp(into: Any, grads: Any, saved: Any, **attrs: Any) -> None:
        g = contiguous(grads[0])
        gradient(rows_of(saved[0]), rows_of(g), rows_of(g), *attrs.values())
        into[0].give(g)

    return define(name, forward, vjp, signature=unary_signature, again={0: again}, overwrites=(0,))


GELU = _activation("gelu", kernels.gelu, kernels.gelu_grad)
"""``gelu(z, tanh=bool)``: the tanh form, or the exact one."""
SILU = _activation("silu", kernels.silu, kernels.silu_grad)
"""``silu(z)``: z * sigmoid(z)."""


def _swiglu_again(saved: Any) -> Array:
    (z,) = saved
    y = empty((*z.shape[:-1], z.shape[-1] // 2), z.dtype, z)
    kernels.swiglu(rows_of(z), rows_of(y))
    return y


def _swiglu(z: Array) -> tuple[Array, tuple[Array]]:
    """Return ``silu(gate) * up`` where the last dimension of z is [gate | up]."""
    check_floating(z)
    if z.ndim < 1 or z.shape[-1] % 2:
        raise ValueError("expected [gate | up]: an even last dimension")
    z = contiguous(z)
    return _swiglu_again((z,)), (z,)


def _swiglu_vjp(into: Any, grads: Any, saved: Any) -> None:
    gz = empty(saved[0].shape, saved[0].dtype, saved[0])
    kernels.swiglu_grad(rows_of(saved[0]), rows_of(contiguous(grads[0])), rows_of(gz))
    into[0].give(gz)


def _swiglu_signature(shapes: list[tuple[int, ...]]) -> str:
    lead = LETTERS[: len(shapes[0]) - 1]
    return f"{lead}[y]->{lead}[z]"


SWIGLU = define("swiglu", _swiglu, _swiglu_vjp, signature=_swiglu_signature, again={0: _swiglu_again})
"""``swiglu(z)``: z (..., 2 n) -> (..., n)."""
