"""Updates while backward runs: each parameter as soon as its gradient is there, which is let go of then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.optim.optimizer import Optimizer, Parameters, updates_alone

__all__ = ["apply_optimizer_in_backward"]


def apply_optimizer_in_backward(
    optimizer_class: type[Optimizer], params: Parameters, optimizer_kwargs: Mapping[str, Any] | None = None
) -> Optimizer:
    """Have every backward from now on update parameters, one by one, as their gradients become complete.

    A gradient lives from when it is complete until the update, so that those of a whole model are never there at once;
    afterwards ``.grad`` is None. Where gradients are reduced over ranks it is the reduced one that counts. There is
    one update a backward: to add gradients of several up, or to look at all of them, as clipping and loss scales do,
    take steps instead.

    Parameters
    ----------
    optimizer_class : type of Optimizer
        What updates; it has to update a parameter without knowing the others, as LBFGS cannot.
    params : see :data:`hpcdist.optim.optimizer.Parameters`
        Each needs a gradient.
    optimizer_kwargs : dict, optional
        Options of ``optimizer_class``.

    Returns
    -------
    Optimizer
        What updates, for its groups, its state and schedules; its ``step`` finds no gradients.

    Raises
    ------
    ValueError, RuntimeError
        If the optimizer looks at all parameters at once, or a parameter is frozen, or is updated in backward already;
        and what ``optimizer_class`` raises. Nothing is changed then.
    """
    if not updates_alone(optimizer_class):
        do = "call its step() after backward"
        name = optimizer_class.__name__
        raise ValueError(explain(f"apply_optimizer_in_backward: {name} looks at all parameters at once", do=do))
    optimizer = optimizer_class(params, **(optimizer_kwargs or {}))
    named = [pair for group in optimizer.param_groups for pair in zip(group["names"], group["params"], strict=True)]
    for name, p in named:
        _check_usable(name, p)
    for _, p in named:
        p.register_post_accumulate_grad_hook(_Update(optimizer))
    return optimizer


class _Update:
    """What is told that a gradient is complete."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def __call__(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.optimizer.step_param(parameter, parameter.grad)
        parameter.grad = None


def _check_usable(name: str, parameter: Any) -> None:
    if not parameter.requires_grad:
        what = f"apply_optimizer_in_backward: parameter {name!r} is frozen"
        raise RuntimeError(explain(what, do="pass those that need gradients"))
    if any(isinstance(hook, _Update) for hook in getattr(parameter, "done_hooks", ())):
        raise RuntimeError(explain(f"apply_optimizer_in_backward: parameter {name!r} is updated in backward already"))
