"""Batch norm and group norm: (x - mean) / sqrt(variance + eps) * gain + shift, statistics by channel or group.

Saved are the input and the statistics; the output is cheap and computed again. Batch norm: Ioffe and Szegedy 2015,
arXiv:1502.03167, algorithm 1. Group norm: Wu and He 2018, arXiv:1803.08494, equations 1, 2 and 7.
"""

from __future__ import annotations

import math
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, check_floating
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.pool import empty
from hpcdist.kernels import channels as kernels
from hpcdist.kernels.precision import add_up, wide

__all__ = ["BATCH_NORM", "BATCH_NORM_EVAL", "GROUP_NORM"]


def _check(x: Array, *of_channels: Array) -> None:
    check_floating(x, *of_channels)
    if x.ndim < 2 or any(a.shape != x.shape[1:2] for a in of_channels):
        raise ValueError("expected x (batch, channels, ...), and weights and statistics (channels,)")


def _whole(names: str) -> str:
    return "".join(f"[{name}]" for name in names)


def _vectors(x: Array, count: int, num: int) -> list[Array]:
    """Return memory for ``num`` statistics of ``count`` channels."""
    return [namespace(x).empty(count, wide(x[:0]).dtype) for _ in range(num)]


def _channels(x: Array) -> Array:
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))


def _samples(x: Array, num_groups: int) -> Array:
    """Return ``x`` as one sample whose channels are the groups of all samples."""
    return x.reshape(1, x.shape[0] * num_groups, math.prod(x.shape[1:]) // num_groups)


def _give(into: Any, *values: Array) -> None:
    for target, value in zip(into, values, strict=True):
        if target is not None:
            target.give(value.astype(target.dtype, copy=False))


def _applied(x: Array, view: Array, mean: Array, scale: Array, shift: Array) -> Array:
    y = empty(x.shape, x.dtype, x)
    kernels.channel_norm(view, mean, scale, shift, y.reshape(view.shape))
    return y


# ---------------------------------------------------------------- batch norm with the batch's own statistics
def _batch_again(saved: Any, eps: float) -> Array:
    x, mean, rstd, gain, shift = saved
    return _applied(x, _channels(x), mean, rstd * wide(gain), wide(shift))


@row(
    lambda shapes, **_: "[a]b{0},b,b->[a]b{0},b,b".format(_whole(LETTERS[2 : len(shapes[0])])),
    again={0: _batch_again},
)
def batch_norm(x: Array, gain: Array, shift: Array, *, eps: float) -> tuple[Any, tuple[Array, ...]]:
    """Return the batch norm of x (batch, channels, ...), and the mean and the (biased) variance of each channel.

    These two are float32 at least: the variance of float16 may be past its range.
    """
    _check(x, gain, shift)
    if 0 < x.shape[1] >= x.size:
        raise ValueError("expected more than one value a channel while training: its variance would be 0")
    x = contiguous(x)
    mean, var = _vectors(x, x.shape[1], 2)
    kernels.channel_moments(_channels(x), mean, var)
    saved = x, mean, (var + eps) ** -0.5, gain, shift
    return (_batch_again(saved, eps), mean.copy(), var.copy()), saved


@batch_norm
def BATCH_NORM(into: Any, grads: Any, saved: Any, eps: float) -> None:
    x, mean, rstd, gain, _ = saved
    gy, gmean, gvar = grads
    gy = namespace(x).zeros_like(x) if gy is None else contiguous(gy)
    gmean, gvar = (0.0 if g is None else wide(g) for g in (gmean, gvar))
    first, second = _vectors(x, x.shape[1], 2)
    kernels.channel_sums(_channels(gy), _channels(x), mean, first, second)
    count, scale = x.shape[0] * math.prod(x.shape[2:]), wide(gain) * rstd
    of_x = (2 * gvar - scale * rstd * rstd * second) / count
    gx = empty(x.shape, x.dtype, x)
    constant = (gmean - scale * first) / count
    kernels.channel_norm_grad(_channels(gy), _channels(x), mean, scale, of_x, constant, _channels(gx))
    _give(into, gx, second * rstd, first)


# ---------------------------------------------------------------- batch norm with given statistics
@row(lambda shapes, **_: "ab{0},b,b,b,b->ab{0}".format(_whole(LETTERS[2 : len(shapes[0])])))
def batch_norm_eval(
    x: Array, mean: Array, var: Array, gain: Array, shift: Array, *, eps: float
) -> tuple[Array, tuple[Array, ...]]:
    """Return the batch norm of x (batch, channels, ...) by statistics (channels,) that are known."""
    _check(x, mean, var, gain, shift)
    x, mean, rstd = contiguous(x), wide(mean), (wide(var) + eps) ** -0.5
    return _applied(x, _channels(x), mean, rstd * wide(gain), wide(shift)), (x, mean, rstd, gain)


@batch_norm_eval
def BATCH_NORM_EVAL(into: Any, grads: Any, saved: Any, eps: float) -> None:
    x, mean, rstd, gain = saved
    gy, scale = contiguous(grads[0]), rstd * wide(gain)
    first, second = _vectors(x, x.shape[1], 2)
    kernels.channel_sums(_channels(gy), _channels(x), mean, first, second)
    nothing = namespace(x).zeros_like(mean)
    gx = _applied(gy, _channels(gy), nothing, scale, nothing) if into[0] is not None else gy
    _give(into, gx, -scale * first, -0.5 * scale * rstd * rstd * second, second * rstd, first)


# ---------------------------------------------------------------- group norm
def _by_channel(values: Array, x: Array, num_groups: int) -> Array:
    """Repeat what each sample's group has (batch * groups,) for its channels: (batch * channels,)."""
    return values.repeat(x.shape[1] // num_groups)


def _of_channels(x: Array) -> Array:
    return _samples(x, x.shape[1])


def _group_again(saved: Any, num_groups: int, eps: float) -> Array:
    x, mean, rstd, gain, shift = saved
    xp, batch = namespace(x), x.shape[0]
    scale = _by_channel(rstd, x, num_groups) * xp.tile(wide(gain), batch)
    return _applied(x, _of_channels(x), _by_channel(mean, x, num_groups), scale, xp.tile(wide(shift), batch))


@row(
    lambda shapes, **_: "a{0},[b],[b]->a{0}".format(_whole(LETTERS[1 : len(shapes[0])])),
    again={0: _group_again},
)
def group_norm(x: Array, gain: Array, shift: Array, *, num_groups: int, eps: float) -> tuple[Array, tuple[Array, ...]]:
    """Return the norm of x (batch, channels, ...) over each sample's groups of channels."""
    _check(x, gain, shift)
    if num_groups < 1 or x.shape[1] % num_groups or not math.prod(x.shape[1:]):
        raise ValueError(f"expected channels in {num_groups} groups of one size, and at least one element in each")
    x = contiguous(x)
    mean, var = _vectors(x, x.shape[0] * num_groups, 2)
    kernels.channel_moments(_samples(x, num_groups), mean, var)
    saved = x, mean, (var + eps) ** -0.5, gain, shift
    return _group_again(saved, num_groups, eps), saved


@group_norm
def GROUP_NORM(into: Any, grads: Any, saved: Any, num_groups: int, eps: float) -> None:
    x, mean, rstd, gain, _ = saved
    gy, (batch, channels) = contiguous(grads[0]), x.shape[:2]
    first, second = _vectors(x, batch * channels, 2)
    means, rstds = _by_channel(mean, x, num_groups), _by_channel(rstd, x, num_groups)
    kernels.channel_sums(_of_channels(gy), _of_channels(x), means, first, second)
    count = math.prod(x.shape[1:]) // num_groups
    gains = namespace(x).tile(wide(gain), batch)
    of_group = [
        _by_channel((gains * s).reshape(len(mean), channels // num_groups).sum(1), x, num_groups) / count
        for s in (first, second)
    ]
    gx = empty(x.shape, x.dtype, x)
    kernels.channel_norm_grad(
        _of_channels(gy), _of_channels(x), means, rstds * gains, -(rstds**3) * of_group[1], -rstds * of_group[0],
        _of_channels(gx),
    )  # fmt: skip
    _give(into, gx, *(add_up(s.reshape(batch, channels), (0,)) for s in (second * rstds, first)))
