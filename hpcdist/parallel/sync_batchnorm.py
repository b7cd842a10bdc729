"""SyncBatchNorm: batch norm by the statistics of all ranks' batches.

Ranks exchange, of each channel, how many values they have, their mean and the sum of squared distances from it, and
merge these in one order: Chan, Golub and LeVeque 1979, Updating formulae and a pairwise algorithm for computing sample
variances. So batches of different sizes count by their sizes, and cancellation is no concern.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array, namespace, to_host
from hpcdist.autograd import Tensor, apply, define, is_replaying
from hpcdist.comm import Communicator
from hpcdist.dtensor.tensor import local_of
from hpcdist.errors import explain
from hpcdist.kernels import channels as kernels
from hpcdist.kernels.precision import wide
from hpcdist.nn import BatchNorm1d, Module
from hpcdist.nn import functional as F

__all__ = ["SyncBatchNorm", "convert_sync_batchnorm"]


class SyncBatchNorm(BatchNorm1d):
    """Batch norm of (n, c, ...) that is, while training, that of the batches of all ranks put together.

    Running statistics are equal on all ranks. Batches may differ in n and in extents, and may be empty. Gradients are
    those of the sum of all ranks' losses: where strategies average over ranks, so are these.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats, dtype
        As for ``nn.BatchNorm1d``.
    process_group : Communicator, optional
        The ranks; default: all, when it is called.
    """

    ndims = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Communicator | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype)
        self.process_group = process_group

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Communicator | None = None) -> Module:
        """Return ``module`` with its batch norms replaced; see :func:`convert_sync_batchnorm`."""
        return convert_sync_batchnorm(module, process_group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of x (n, c, ...).

        Collective over the ranks while training, in one small message, and once more in backward; not otherwise.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            The same on every rank: if the input of one does not fit, or all together have a single value a channel.
        """
        comm = self._ranks() if self.training else None
        if comm is None or comm.size == 1:
            return super().forward(x)
        count, mean, var = self._statistics(comm, x)
        return self._normed(comm, x, count, mean, var)

    def _ranks(self) -> Communicator:
        from hpcdist.comm.init import get_default

        comm = get_default() if self.process_group is None else self.process_group
        if comm.reproducible and comm.size > 1:
            do = "use a norm that knows no ranks, such as GroupNorm"
            raise RuntimeError(explain("SyncBatchNorm: sums over ranks in a reproducible run", do=do))
        return comm

    def _statistics(self, comm: Communicator, x: Tensor) -> tuple[float, Array, Array]:
        """Return how many values a channel all ranks have, their mean and (biased) variance. Collective over it."""
        mine, error = np.full(1 + 2 * self.num_features, -1.0), None
        try:
            self._check_input(x)
            mine[:] = _moments(x.data)
        except Exception as e:
            error = e
        rows = comm.all_gather(mine[None])
        if rows[:, 0].min() < 0:
            comm.agree(error)
        count, mean, var = _merged(rows)
        if count < 2:
            raise ValueError(explain("SyncBatchNorm: values a channel, on all ranks", got=int(count), expected="two"))
        return count, mean, var

    def _check_input(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            do = "pass this rank's part, and the ranks as process_group"
            raise TypeError(explain("SyncBatchNorm: input", got=type(x).__name__, expected="a Tensor", do=do))
        self._check(x, self.num_features)
        if x.dtype.kind not in "fV":
            raise TypeError(explain("SyncBatchNorm: input", got=x.dtype, expected="a floating dtype"))

    def _normed(self, comm: Communicator, x: Tensor, count: float, mean: Array, var: Array) -> Tensor:
        if self.track_running_stats and not is_replaying():
            step = self._step()
            for running, now in ((self.running_mean, mean), (self.running_var, var * (count / (count - 1)))):
                moved = namespace(running.data).asarray(now.astype(running.dtype))
                running.data[...] = (1 - step) * running.data + step * moved
            self.num_batches_tracked.data[...] += 1
        of_mean, of_var = apply(MOMENTS, x, comm=comm, count=count, found=(mean, var))
        return F.batch_norm(x, of_mean, of_var, self.weight, self.bias, False, 0.0, self.eps)

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        """Copy all but the group."""
        made = type(self).__new__(type(self))
        memo |= {id(self): made, id(self.process_group): self.process_group}
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


def convert_sync_batchnorm(module: Module, process_group: Communicator | None = None) -> Module:
    """Replace all batch norms in ``module`` by :class:`SyncBatchNorm`, with the same parameters and buffers.

    Do it before a strategy gets the module. Optimizers keep their parameters.

    Parameters
    ----------
    process_group : Communicator, optional
        The ranks; default: all.

    Returns
    -------
    Module
        ``module`` itself, unless it is a batch norm.

    Raises
    ------
    RuntimeError
        If a strategy has the module already.
    """
    for name, part in module.named_modules():
        if "sharded_unit" in part.__dict__ or any(local_of(p).home is not None for p in part.slots.values()):
            what = f"convert_sync_batchnorm: {name or 'the module'} is replicated or sharded already"
            raise RuntimeError(explain(what, do="convert before"))
    return _converted(module, process_group, {})


def _converted(module: Module, group: Communicator | None, done: dict[int, Module]) -> Module:
    if id(module) not in done:
        done[id(module)] = module
        if isinstance(module, BatchNorm1d) and not isinstance(module, SyncBatchNorm):
            done[id(module)] = _synced(module, group)
        for name, child in module.children.items():
            module.children[name] = _converted(child, group, done)
    return done[id(module)]


def _synced(norm: BatchNorm1d, group: Communicator | None) -> SyncBatchNorm:
    made = SyncBatchNorm(norm.num_features, norm.eps, norm.momentum, False, norm.track_running_stats, group)
    made.slots.update(norm.slots)
    for name in norm.slots:
        made.__dict__.pop(name, None)
    made.buffers.update(norm.buffers)
    made.training = norm.training
    return made


# ---------------------------------------------------------------- moments of all ranks
def _of_channels(x: Array) -> Array:
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))


def _moments(x: Array) -> Array:
    """Return this rank's (1 + 2 c,): how many values a channel, their means, their summed squared distances."""
    channels, count = x.shape[1], x.shape[0] * math.prod(x.shape[2:])
    mean, var = namespace(x).zeros((2, channels), wide(x[:0]).dtype)
    if count:
        kernels.channel_moments(namespace(x).ascontiguousarray(_of_channels(x)), mean, var)
    return np.concatenate([[count], to_host(mean), to_host(var).astype(np.float64) * count])


def _merged(rows: Array) -> tuple[float, Array, Array]:
    """Return the number of values of all ranks, their mean (c,) and variance (c,)."""
    counts, (means, squares) = rows[:, :1], np.split(rows[:, 1:], 2, axis=1)
    total = float(counts.sum())
    mean = (counts * means).sum(0) / max(total, 1)
    return total, mean, (squares + counts * (means - mean) ** 2).sum(0) / max(total, 1)


def _forward(x: Array, *, comm: Communicator, count: float, found: tuple[Array, Array]) -> Any:  # noqa: ARG001
    of_x = tuple(namespace(x).asarray(value.astype(wide(x[:0]).dtype)) for value in found)
    return of_x, (x, of_x[0])


def _vjp(into: Any, grads: Any, saved: Any, *, comm: Communicator, count: float, found: Any) -> None:  # noqa: ARG001
    x, mean = saved
    together = namespace(x).stack([namespace(x).zeros_like(mean) if g is None else g for g in grads])
    of_mean, of_var = comm.all_reduce(together) / together.dtype.type(count)
    gx = namespace(x).empty(_of_channels(x).shape, x.dtype)
    view = namespace(x).ascontiguousarray(_of_channels(x))
    kernels.channel_norm(view, mean, 2 * of_var, of_mean, gx)
    into[0].give(gx.reshape(x.shape))


MOMENTS = define("sync_batch_norm.moments", _forward, _vjp)
