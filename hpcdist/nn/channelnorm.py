"""Norms of channels: batch, group and instance norm."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcdist.autograd import Tensor, is_replaying
from hpcdist.errors import explain
from hpcdist.nn import functional as F
from hpcdist.nn.module import Module, Parameter

__all__ = ["BatchNorm1d", "BatchNorm2d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d"]


class _ChannelNorm(Module):
    """Gain (weight) and shift (bias) of each channel, if there are any, and which inputs are accepted."""

    ndims: tuple[int, ...] = ()

    def _make(self, num_channels: int, eps: float, affine: bool, dtype: npt.DTypeLike) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(np.ones(num_channels, dtype)) if affine else None
        self.bias = Parameter(np.zeros(num_channels, dtype)) if affine else None

    def _check(self, x: Tensor, num_channels: int) -> None:
        if x.ndim not in (self.ndims or range(2, x.ndim + 1)) or x.shape[1] != num_channels:
            expected = " or ".join(f"(batch, {', '.join([str(num_channels), 'n', 'n'][: n - 1])})" for n in self.ndims)
            expected = expected or f"(batch, {num_channels}, ...)"
            raise ValueError(explain(f"{type(self).__name__}: input", got=x.shape, expected=expected))


class BatchNorm1d(_ChannelNorm):
    """Batch norm of (n, c) or (n, c, width): by the batch's statistics while training, by running ones otherwise.

    The running statistics are buffers. Where ranks train on different samples, each rank has those of its own;
    a checkpoint holds those of one rank.

    Parameters
    ----------
    num_features : int
        c: weight and bias are (c,), and start at 1 and 0.
    momentum : float or None
        How far the running statistics move towards the batch's; None: they are the mean of all batches'.
    affine : bool
        Whether there are a weight and a bias.
    track_running_stats : bool
        False: no running statistics; the batch's are used always.
    """

    ndims: tuple[int, ...] = (2, 3)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self._make(num_features, eps, affine, dtype)
        self.num_features, self.momentum = num_features, momentum
        self.track_running_stats = track_running_stats
        if track_running_stats:
            self.register_buffer("running_mean", np.zeros(num_features, dtype))
            self.register_buffer("running_var", np.ones(num_features, dtype))
            self.register_buffer("num_batches_tracked", np.zeros((), np.int64))

    def forward(self, x: Tensor) -> Tensor:
        self._check(x, self.num_features)
        if not self.track_running_stats:
            return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self._step(), self.eps
        )
        if self.training and not is_replaying():
            self.num_batches_tracked.data[...] += 1
        return y

    def _step(self) -> float:
        return 1 / (int(self.num_batches_tracked) + 1) if self.momentum is None else self.momentum


class BatchNorm2d(BatchNorm1d):
    """Batch norm of (n, c, height, width); parameters as in :class:`BatchNorm1d`."""

    ndims = (4,)


class GroupNorm(_ChannelNorm):
    """Norm of (n, c, ...) over each sample's groups of channels.

    Parameters
    ----------
    num_groups, num_channels : int
        The first divides the second, c: weight and bias are (c,), and start at 1 and 0.
    affine : bool
        Whether there are a weight and a bias.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                explain(
                    "GroupNorm", got=f"{num_groups} groups of {num_channels} channels", expected="groups of one size"
                )
            )
        self._make(num_channels, eps, affine, dtype)
        self.num_groups, self.num_channels = num_groups, num_channels

    def forward(self, x: Tensor) -> Tensor:
        self._check(x, self.num_channels)
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm1d(_ChannelNorm):
    """Norm of (n, c, width) over each channel of each sample; without weight and bias unless ``affine``."""

    ndims: tuple[int, ...] = (3,)

    def __init__(
        self, num_features: int, eps: float = 1e-5, *, affine: bool = False, dtype: npt.DTypeLike = np.float32
    ) -> None:
        self._make(num_features, eps, affine, dtype)
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        self._check(x, self.num_features)
        return F.group_norm(x, self.num_features, self.weight, self.bias, self.eps)


class InstanceNorm2d(InstanceNorm1d):
    """Norm of (n, c, height, width) over each channel of each sample; without weight and bias unless ``affine``."""

    ndims = (4,)
