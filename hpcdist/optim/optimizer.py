"""What optimizers share: parameter groups, hooks around a step, state by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.kernels.precision import wide
from hpcdist.optim.clip import get_total_norm

__all__ = ["Optimizer", "Parameters"]

Parameters: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
"""Parameters, pairs of name and parameter, or groups: dicts with "params" (one of the former) and options."""


class Optimizer:
    """Base of all optimizers; knows no ranks.

    Attributes
    ----------
    param_groups : list of dict
        "params" (list of Tensor), "names" (list of str) and the options of the group, "lr" among them.
    state : dict of str to dict
        What is kept for a parameter between steps: arrays of its size (flat), and numbers; by its name.
    pre, post : list of function ``() -> None``
        Run before and after the update.
    grad_scale : float
        The next step multiplies gradients by it as it reads them, and sets it to 1 again: where a mean over ranks, the
        scale of a loss or a clipping factor waits.
    """

    def __init__(self, params: Parameters, **defaults: Any) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[str, dict[str, Any]] = {}
        self.pre: list[Callable[[], None]] = []
        self.post: list[Callable[[], None]] = []
        self.defaults = defaults
        self.grad_scale = 1.0
        if isinstance(params, Tensor):
            raise TypeError(explain(f"{type(self).__name__}: params", got="one tensor", do="pass a list of them"))
        given: list[Any] = list(params)
        for group in given if given and isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError(explain(f"{type(self).__name__}: params", got="none", expected="at least one"))

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters, with options of their own where ``group`` has them.

        Raises
        ------
        ValueError
            If an option is unknown, or a parameter or its name is here already, or it is not contiguous.
        TypeError
            If something is no leaf tensor.
        """
        unknown = group.keys() - self.defaults.keys() - {"params"}
        if unknown:
            raise ValueError(explain("add_param_group: unknown options", got=unknown, expected=set(self.defaults)))
        taken = sum(len(g["params"]) for g in self.param_groups)
        given = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        pairs = [p if isinstance(p, tuple) else (str(taken + i), p) for i, p in enumerate(given)]
        names = [name for name, _ in pairs]
        present = {
            key for g in self.param_groups for n, p in zip(g["names"], g["params"], strict=True) for key in (n, id(p))
        }
        for name, parameter in pairs:
            _check(name, parameter)
            if not present.isdisjoint((name, id(parameter))):
                do = "name each parameter differently: its state goes by its name"
                raise ValueError(explain(f"add_param_group: parameter {name!r} is here already", do=do))
            present |= {name, id(parameter)}
        self.param_groups.append(
            {**self.defaults, **group, "params": [p for _, p in pairs], "names": names},
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Parameters
        ----------
        closure : function, optional
            Computes the loss and its gradients first; the loss is returned.
        """
        loss = None if closure is None else closure()
        for hook in self.pre:
            hook()
        self._update_all()
        self.grad_scale = 1.0
        for hook in self.post:
            hook()
        return loss

    def _update_all(self) -> None:
        for group in self.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                if parameter.grad is not None:
                    self._update(parameter, self.state.setdefault(name, {}), group)

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter, in place; ``state`` is empty the first time. Optimizers define it, or ``step``."""
        raise TypeError(f"{type(self).__name__} defines no update for {parameter.shape}, {[*state]}, {[*group]}")

    def _factor(self, group: Mapping[str, Any]) -> float:
        """Return what gradients are multiplied by: the pending scale, negative where the loss is maximised."""
        return -self.grad_scale if group["maximize"] else self.grad_scale

    def _gradient(self, parameter: Tensor, group: Mapping[str, Any]) -> Array:
        """Return the whole gradient of a parameter, flat, with what ``weight_decay`` adds to it; not to be changed."""
        parts, factor = wide(parts_of(parameter)), self._factor(group)
        gradient: Array = parts[0] if len(parts) == 1 else parts.sum(0)
        if factor != 1:
            gradient = gradient * factor
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * wide(parameter.data.reshape(-1))
        return gradient

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Have the next step scale gradients down to a 2-norm of at most ``max_norm``; return the norm before.

        Unlike :func:`hpcdist.optim.clip_grad_norm_` it makes no pass over the gradients but the one that measures.
        """
        norm = abs(self.grad_scale) * get_total_norm(p for g in self.param_groups for p in g["params"])
        self.grad_scale *= min(1.0, max_norm / (norm + 1e-6)) if math.isfinite(norm) else 1.0
        return norm

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    # ---- state
    def state_dict(self) -> dict[str, Any]:
        """Return ``{"state": {name: {...}}, "param_groups": [...]}``: the arrays in use, not copies."""
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"state": self.state, "param_groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, for parameters of the same names, in any order.

        A group takes the options that its parameters had. Parameters that had no state start anew.

        Raises
        ------
        ValueError
            If names, options or sizes differ, or parameters of one group had different options; before anything is
            changed.
        """
        options = {name: _options(g) for g in state["param_groups"] for name in g["names"]}
        sizes = {n: p.size for g in self.param_groups for n, p in zip(g["names"], g["params"], strict=True)}
        if options.keys() != sizes.keys():
            raise ValueError(explain("load_state_dict: parameters differ", got=[*options], expected=[*sizes]))
        chosen = [_agreed(group, [options[name] for name in group["names"]]) for group in self.param_groups]
        _check_sizes(state["state"], sizes)
        self.state = {name: {k: _copied(v) for k, v in entries.items()} for name, entries in state["state"].items()}
        for group, new in zip(self.param_groups, chosen, strict=True):
            group.update(new)


_OF_SCHEDULES = {"initial_lr"}


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "names")}


def _agreed(group: Mapping[str, Any], saved: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the options that all parameters of a group had."""
    mine = _options(group)
    for one in saved:
        if one.keys() - _OF_SCHEDULES != mine.keys() - _OF_SCHEDULES:
            raise ValueError(explain("load_state_dict: options differ", got=[*one], expected=[*mine]))
        if one != saved[0]:
            do = "load into groups that have the parameters the saved ones had"
            raise ValueError(explain("load_state_dict: options differ within a group", got=[saved[0], one], do=do))
    return saved[0] if saved else {}


def _check_sizes(state: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> None:
    for name, entries in state.items():
        if name not in sizes:
            raise ValueError(explain("load_state_dict: state", got=repr(name), expected=f"one of {[*sizes]}"))
        for key, value in entries.items():
            if getattr(value, "ndim", 0) and value.size != sizes[name]:
                raise ValueError(explain(f"load_state_dict: {key} of {name}", got=value.size, expected=sizes[name]))


def check_options(who: str, **options: float) -> None:
    """Refuse options below 0, and NaN."""
    for name, value in options.items():
        if not value >= 0:
            raise ValueError(explain(f"{who}: {name}", got=value, expected=">= 0"))


def check_betas(who: str, betas: tuple[float, float]) -> None:
    """Refuse decays of moments that are not in [0, 1)."""
    if len(betas) != 2 or not all(0 <= b < 1 for b in betas):
        raise ValueError(explain(f"{who}: betas", got=betas, expected="two numbers in [0, 1)"))


def real_flat(who: str, parameter: Tensor) -> Array:
    """Return the values of a parameter, (n,); refuse complex ones."""
    flat = parameter.data.reshape(-1)
    if flat.dtype.kind == "c":
        raise TypeError(explain(f"{who}: parameter", got=flat.dtype, expected="a real dtype"))
    return flat


def _check(name: str, parameter: Any) -> None:
    """Refuse what cannot be updated in place."""
    if not hasattr(type(parameter), "requires_grad"):
        got = type(parameter).__name__
        raise TypeError(explain(f"add_param_group: parameter {name!r}", got=got, expected="a tensor"))
    if not parameter.is_leaf:
        raise TypeError(explain(f"add_param_group: parameter {name!r}", got="a computed tensor", expected="a leaf"))
    if not parameter.data.flags.c_contiguous:
        raise ValueError(explain(f"add_param_group: parameter {name!r}", got="strides", expected="C order"))


def parts_of(parameter: Tensor) -> Array:
    """Return the gradient as a stack (parts, n); its sum over the first dimension is the gradient."""
    assert parameter.grad is not None
    n = parameter.data.size
    return parameter.grad.reshape(parameter.grad.size // max(n, 1) or 1, n)


def wide_zeros(flat: Array) -> Array:
    """Return room for what is remembered of a parameter: 16-bit floats would lose small changes."""
    zeros: Array = namespace(flat).zeros_like(wide(flat))
    return zeros


def descend(flat: Array, change: Array) -> None:
    """Subtract in place, rounding once."""
    flat[...] = wide(flat) - change


def _copied(value: Any) -> Any:
    """Return an array as a flat copy, and a number as Python's, which is a float64 or longer."""
    if getattr(value, "ndim", 0):
        return value.reshape(-1).copy()
    return value.item() if hasattr(value, "item") else value
