"""Operations of layers as functions, under the names of torch.nn.functional."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcdist.autograd import Tensor, apply, ops, random
from hpcdist.autograd.arrangement import pad
from hpcdist.autograd.operand import call, wrapped
from hpcdist.errors import explain
from hpcdist.nn.functional_conv import Sizes, conv1d, conv2d, conv_transpose1d, conv_transpose2d
from hpcdist.nn.functional_loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    linear_cross_entropy,
    mse_loss,
    smooth_l1_loss,
)
from hpcdist.nn.functional_spatial import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    avg_pool1d,
    avg_pool2d,
    batch_norm,
    group_norm,
    interpolate,
    max_pool1d,
    max_pool2d,
)

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "group_norm",
    "huber_loss",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "max_pool1d",
    "max_pool2d",
    "mse_loss",
    "packed_attention",
    "pad",
    "relu",
    "rms_eps",
    "rms_norm",
    "rotary",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "swiglu",
    "ungroup",
]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``: x (..., k), weight (n, k), bias (n,)."""
    return apply(ops.LINEAR, x, weight) if bias is None else apply(ops.LINEAR, x, weight, bias)


def embedding(tokens: Any, weight: Tensor) -> Tensor:
    """Return the rows ``weight[tokens]``: tokens (...), integers; weight (num, width)."""
    return apply(ops.EMBEDDING, wrapped(tokens), weight)


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0)."""
    return apply(ops.RELU, x)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return x * Phi(x), exactly (``"none"``) or by its ``"tanh"`` form."""
    if approximate not in ("none", "tanh"):
        raise ValueError(explain("gelu: approximate", got=repr(approximate), expected="'none' or 'tanh'"))
    return apply(ops.GELU, x, tanh=approximate == "tanh")


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x)."""
    return apply(ops.SILU, x)


def swiglu(x: Tensor) -> Tensor:
    """Return silu(gate) * up, where the last dimension of x is [gate | up]: (..., 2 n) -> (..., n)."""
    return apply(ops.SWIGLU, x)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return exp(x) / sum(exp(x)) along ``dim``."""
    return apply(ops.SOFTMAX, x, dim=dim)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return the logarithm of :func:`softmax`."""
    return apply(ops.LOG_SOFTMAX, x, dim=dim)


def layer_norm(
    x: Tensor,
    normalized_shape: Sizes,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return the layer norm over the last dimensions, ``normalized_shape``, which weight and bias have."""
    return _norm("layer_norm", x, normalized_shape, (weight, 1), (bias, 0), eps=eps)


def rms_norm(x: Tensor, normalized_shape: Sizes, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Return the RMS norm over the last dimensions, ``normalized_shape``, which weight has; eps: :func:`rms_eps`."""
    return _norm("rms_norm", x, normalized_shape, (weight, 1), eps=rms_eps(eps, x))


def rms_eps(eps: float | None, x: Tensor) -> float:
    """Return ``eps``; for None the distance of 1 to the next number of the type that sums of ``x`` have."""
    return float(np.finfo(np.float64 if x.dtype == np.float64 else np.float32).eps) if eps is None else eps


def _norm(name: str, x: Tensor, normalized_shape: Sizes, *weights: tuple[Tensor | None, float], eps: float) -> Tensor:
    """Run the norm of rows over the last dimensions as one; a weight that is None is a number."""
    extents = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    lead = x.shape[: x.ndim - len(extents)]
    if not extents or (*lead, *extents) != x.shape:
        raise ValueError(explain(f"{name}: x", got=x.shape, expected=f"(..., {', '.join(map(str, extents))})"))
    rows = [x.new_full(extents, number) if w is None else w for w, number in weights]
    if len(extents) == 1:
        return call(name, x, *rows, eps=eps)
    count = math.prod(extents)
    flat: Tensor = call(name, x.reshape(*lead, count), *(w.reshape(count) for w in rows), eps=eps)
    return flat.reshape(x.shape)


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Set elements to 0 with probability p and scale the others by 1 / (1 - p); nothing if not ``training``.

    The draw depends on the seed, the step and the part of it (``hpcdist.autograd.random.at``), and on how many draws
    went before it there.
    """
    if not 0 <= p <= 1:
        raise ValueError(explain("dropout: p", got=p, expected="a probability, 0 to 1"))
    return apply(ops.DROPOUT, x, p=p, key=random.next_key("dropout")) if training and p else x


def packed_attention(qkv: Tensor, num_heads: int, is_causal: bool = True) -> Tensor:
    """Return softmax(q k^T / sqrt(head_dim)) v of every head: (batch, seq, 3 d) -> (batch, seq, d).

    The last dimension is head-major: q, k and v of head 0, then of head 1, and so on; see :func:`ungroup`.
    """
    return apply(ops.ATTENTION, qkv, num_heads=num_heads, causal=is_causal)


def ungroup(qkv: Tensor, num_heads: int, num_kv_heads: int) -> Tensor:
    """Repeat keys and values that queries share: (..., (num_heads + 2 num_kv_heads) head_dim) -> head-major rows.

    The last dimension is by groups: the queries of a group of ``num_heads / num_kv_heads`` heads, their key, their
    value, then the next group.
    """
    return apply(ops.UNGROUP, qkv, num_heads=num_heads, num_kv_heads=num_kv_heads)


def rotary(qkv: Tensor, num_heads: int, base: float = 10000.0) -> Tensor:
    """Rotate q and k of packed q, k, v by their positions (rotary embedding)."""
    return apply(ops.ROTARY, qkv, num_heads=num_heads, base=base)
