"""Averages of weights over steps: exponential, and plain (Izmailov et al. 2018, arXiv:1803.05407).

They hold modules as given, and know nothing of their kind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

from hpcdist.array import Array
from hpcdist.autograd import no_grad
from hpcdist.errors import explain
from hpcdist.kernels.precision import wide
from hpcdist.optim.one_cycle import anneal
from hpcdist.optim.optimizer import Optimizer
from hpcdist.optim.schedule import LRScheduler

__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_swa_avg_fn", "update_bn"]

Average: TypeAlias = Callable[[Array, Array, int], Array]
"""``(average, value, number of values before) -> average``."""


def get_swa_avg_fn() -> Average:
    """Return the function that keeps the mean of all values."""
    return lambda average, value, count: average + (value - average) / (count + 1)


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Return the function that keeps ``decay`` of the average and takes the rest from the value."""
    if not 0 <= decay <= 1:
        raise ValueError(explain("get_ema_avg_fn: decay", got=decay, expected="0 to 1"))
    return lambda average, value, _: decay * average + (1 - decay) * value


class AveragedModel:
    """A copy of a model whose parameters are averages of the model's over steps; call it as the model.

    Averages of 16-bit parameters are kept in single precision, and rounded into the copy.

    Parameters
    ----------
    model : Module
        Copied without gradients and hooks; what wraps its calls stays.
    avg_fn : function ``(average, value, count) -> average``, optional
        On arrays, of at least single precision; default: the mean of all.
    use_buffers : bool
        Whether floating buffers are averaged too; else the model's are copied.

    Attributes
    ----------
    module : Module
        The copy.
    n_averaged : int
        Times the model's parameters were taken in.
    """

    def __init__(self, model: Any, avg_fn: Average | None = None, *, use_buffers: bool = False) -> None:
        self.module = copy.deepcopy(model, _leave_out(model))
        self.avg_fn, self.use_buffers = avg_fn or get_swa_avg_fn(), use_buffers
        self.n_averaged = 0
        self._fine = {name: wide(p.data) for name, p in self.module.named_parameters()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Make dropout and the like active in the copy."""
        self.module.train(mode)
        return self

    def eval(self) -> Self:
        """Make dropout and the like inactive in the copy."""
        return self.train(False)

    def parameters(self) -> Iterator[Any]:
        """Yield the averages."""
        yield from self.module.parameters()

    def update_parameters(self, model: Any) -> None:
        """Take the parameters of ``model`` in; the first ones are copied."""
        averages, values = dict(self.module.named_parameters()), dict(model.named_parameters())
        buffers = dict(self.module.named_buffers()), dict(model.named_buffers())
        mine, theirs = _shapes(averages | buffers[0]), _shapes(values | buffers[1])
        if mine != theirs:
            raise ValueError(explain("update_parameters: the model has others", got=theirs, expected=mine))
        for name, average in averages.items():
            self._take(self._fine[name], values[name].data, averaged=True)
            average.data[...] = self._fine[name]
        for name, average in buffers[0].items():
            self._take(average.data, buffers[1][name].data, averaged=self.use_buffers)
        self.n_averaged += 1

    def _take(self, average: Array, value: Array, *, averaged: bool) -> None:
        if averaged and self.n_averaged and average.dtype.kind in "fcV":
            average[...] = self.avg_fn(wide(average), wide(value), self.n_averaged)
        else:
            average[...] = value

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, named ``module.*``, and ``n_averaged``."""
        arrays = {f"module.{name}": array for name, array in (self.module.state_dict() | self._fine).items()}
        return {"n_averaged": self.n_averaged, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        if "n_averaged" not in state:
            raise ValueError(explain("AveragedModel.load_state_dict", got=[*state], expected="n_averaged, module.*"))
        values = {k.removeprefix("module."): v for k, v in state.items() if k != "n_averaged"}
        self.module.load_state_dict(values)
        for name, fine in self._fine.items():
            fine[...] = values[name]
        self.n_averaged = int(state["n_averaged"])


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _leave_out(model: Any) -> dict[int, Any]:
    """Return a memo that makes a deep copy of a module put nothing in place of hooks and gradients."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        memo |= {id(hooks): [] for hooks in (module.pre, module.post)}
    for parameter in model.parameters():
        held = getattr(parameter, "local", parameter)
        memo |= {id(hooks): () for hooks in (held.hooks, held.done_hooks)}
        memo |= {id(array): None for array in (parameter.grad, parameter.home)}
    return memo


class SWALR(LRScheduler):
    """Move the rates from what they are at its first step to ``swa_lr`` in ``anneal_epochs`` steps; hold them there.

    Parameters
    ----------
    swa_lr : float or list of float
        A list has one a group.
    anneal_strategy : str
        ``"cos"`` or ``"linear"``.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.swa_lrs = [float(swa_lr)] * groups if isinstance(swa_lr, (int, float)) else list(swa_lr)
        if len(self.swa_lrs) != groups or anneal_epochs < 0:
            raise ValueError(
                explain("SWALR", got=f"{swa_lr}, {anneal_epochs}", expected=f"{groups} rates, anneal_epochs >= 0")
            )
        self.anneal_epochs, self.anneal = anneal_epochs, anneal(anneal_strategy)
        self.start_lrs = [group["lr"] for group in optimizer.param_groups]
        super().__init__(optimizer, last_epoch)

    def rates(self, epoch: int) -> list[float]:
        if epoch == 0 and self.anneal_epochs:
            return list(self.start_lrs)
        done = min(epoch / self.anneal_epochs, 1.0) if self.anneal_epochs else 1.0
        return [self.anneal(start, end, done) for start, end in zip(self.start_lrs, self.swa_lrs, strict=False)]

    def step(self) -> None:
        if self.last_epoch == 0:  # another schedule ruled until now
            self.start_lrs = self._set = self.get_last_lr()
        super().step()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "start_lrs": list(self.start_lrs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.start_lrs = [float(rate) for rate in state["start_lrs"]]
        super().load_state_dict(state)


def update_bn(loader: Iterable[Any], model: Any) -> None:
    """Set running means and variances of all batch norms in ``model`` to the mean over the batches of ``loader``.

    Parameters
    ----------
    loader : iterable
        Of inputs, or of tuples and lists whose first item is the input.
    model : Module or AveragedModel
        Batch norms are the modules that have a buffer ``running_mean``.
    """
    root = getattr(model, "module", model)
    norms = [m for m in root.modules() if "running_mean" in m.buffers]
    if not norms:
        return
    momenta, was_training = [m.momentum for m in norms], root.training
    for m in norms:
        _restart(m)
    root.train()
    try:
        with no_grad():
            for batch in loader:
                root(batch[0] if isinstance(batch, (list, tuple)) else batch)
    finally:
        root.train(was_training)
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum


def _restart(norm: Any) -> None:
    """Make a batch norm begin a mean of all batches."""
    norm.momentum = None
    for name, value in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
        norm.buffers[name].data[...] = value
