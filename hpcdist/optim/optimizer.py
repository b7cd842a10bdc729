"""What optimizers share: parameter groups, hooks around a step, state by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.kernels.precision import wide
from hpcdist.optim.accepted import check_options, check_whole, checked, listed
from hpcdist.optim.clip import get_total_norm, whole_gradient, with_gradients
from hpcdist.optim.loading import OF_SCHEDULES, agreed, check_form, check_names, check_state, copied, options_of

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

    _needs_whole: ClassVar[bool] = False
    """Whether a step depends on all elements of a parameter, so that a rank that has a part cannot take it."""

    _kept: ClassVar[frozenset[str] | None] = None
    """The names of what it keeps for a parameter, numbers at their ends left out; None: any."""

    def __init__(self, params: Parameters, **defaults: Any) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[str, dict[str, Any]] = {}
        self.pre: list[Callable[[], None]] = []
        self.post: list[Callable[[], None]] = []
        self.defaults = defaults
        self.grad_scale = 1.0
        if isinstance(params, Tensor):
            raise TypeError(explain(f"{type(self).__name__}: params", got="one tensor", do="pass a list of them"))
        given = listed(params)
        for group in given if given and isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError(explain(f"{type(self).__name__}: params", got="none", expected="at least one"))

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters, with options of their own where ``group`` has them.

        Raises
        ------
        ValueError
            If an option is unknown or out of range, a parameter or its name is here already, or it is not contiguous.
        TypeError
            If something is no leaf tensor, or parameters have no order, or the optimizer needs whole ones.
        """
        if not isinstance(group, Mapping) or "params" not in group:
            raise TypeError(explain("add_param_group", got=type(group).__name__, expected='a dict with "params"'))
        unknown = group.keys() - self.defaults.keys() - {"params"} - OF_SCHEDULES
        if unknown:
            raise ValueError(explain("add_param_group: unknown options", got=unknown, expected=set(self.defaults)))
        check_options(type(self).__name__, {**self.defaults, **group})
        taken = sum(len(g["params"]) for g in self.param_groups)
        given = [group["params"]] if isinstance(group["params"], Tensor) else listed(group["params"])
        pairs = [p if isinstance(p, tuple) else (str(taken + i), p) for i, p in enumerate(given)]
        names = [pair[0] for pair in pairs]
        present = {
            key for g in self.param_groups for n, p in zip(g["names"], g["params"], strict=True) for key in (n, id(p))
        }
        for pair in pairs:
            name, parameter = checked(pair)
            if self._needs_whole:
                check_whole(type(self).__name__, name, parameter)
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

    def step_param(self, param: Tensor, grad: Array) -> None:
        """Update one parameter by a gradient that is given, as a step would by its own.

        ``param.grad`` stays as it is, ``grad_scale`` counts and stays, and hooks do not run.

        Parameters
        ----------
        param : tensor
            One of the parameters.
        grad : array
            Of its shape, or a stack of such parts.

        Raises
        ------
        ValueError, TypeError
            If it is not one of them, the gradient does not fit, or the optimizer looks at all parameters at once.
        """
        if not updates_alone(type(self)):
            what = f"step_param: {type(self).__name__} updates all parameters in one step"
            raise TypeError(explain(what, do="call step()"))
        name, group = self._place_of(param)
        before, param.grad = param.grad, grad
        try:
            self._update(param, self.state.setdefault(name, {}), group)
        finally:
            param.grad = before

    def _place_of(self, parameter: Tensor) -> tuple[str, dict[str, Any]]:
        """Return the name and the group of a parameter."""
        for group in self.param_groups:
            for name, one in zip(group["names"], group["params"], strict=True):
                if one is parameter:
                    return name, group
        expected = "one of the optimizer's"
        raise ValueError(explain("step_param: param", got=f"a tensor of shape {parameter.shape}", expected=expected))

    def _factor(self, group: Mapping[str, Any]) -> float:
        """Return what gradients are multiplied by: the pending scale, negative where the loss is maximised."""
        return -self.grad_scale if group["maximize"] else self.grad_scale

    def _gradient(self, parameter: Tensor, group: Mapping[str, Any]) -> Array:
        """Return the whole gradient of a parameter, flat, with what ``weight_decay`` adds to it; not to be changed."""
        gradient, factor = whole_gradient(parameter), self._factor(group)
        gradient = gradient.astype(_kept_dtype(parameter), copy=False)
        if factor != 1:
            gradient = gradient * factor
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * wide(parameter.data.reshape(-1))
        return gradient

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Have the next step scale gradients down to a 2-norm of at most ``max_norm``; return the norm before.

        Unlike :func:`hpcdist.optim.clip_grad_norm_` it makes no pass over the gradients but the one that measures. A
        norm that is not finite has the step scale nothing.
        """
        chosen = with_gradients(p for g in self.param_groups for p in g["params"])
        norm = abs(self.grad_scale) * get_total_norm(map(whole_gradient, chosen))
        self.grad_scale *= min(1.0, max_norm / (norm + 1e-6)) if math.isfinite(norm) else 1.0
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters; or make those that are there zero."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad[...] = 0

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
        sizes = {name: p.data.size for g in self.param_groups for name, p in zip(g["names"], g["params"], strict=True)}
        self._load(state, sizes, dict.fromkeys(sizes, slice(None)))

    def _load(self, state: Mapping[str, Any], sizes: Mapping[str, int], wanted: Mapping[str, slice]) -> None:
        """Continue from a state whose arrays have ``sizes``, with the elements that are ``wanted``, by parameter."""
        check_form(state)
        options = {name: options_of(g) for g in state["param_groups"] for name in g["names"]}
        mine = {n: p for g in self.param_groups for n, p in zip(g["names"], g["params"], strict=True)}
        check_names(options, mine)
        chosen = [agreed(group, [options[name] for name in group["names"]]) for group in self.param_groups]
        check_state(state["state"], sizes, self._kept)
        self.state = {
            name: {k: copied(v, wanted[name], _kept_dtype(mine[name])) for k, v in entries.items()}
            for name, entries in state["state"].items()
            if name in wanted
        }
        for group, new in zip(self.param_groups, chosen, strict=True):
            group.update(new)


def updates_alone(kind: type[Optimizer]) -> bool:
    """Say whether optimizers of a class update a parameter without knowing the others."""
    return kind._update is not Optimizer._update


def flat_values(parameter: Tensor) -> Array:
    """Return the values of a parameter, (n,), in its own memory."""
    if not parameter.data.flags.c_contiguous:
        do = "give it an array in C order: p.data = np.ascontiguousarray(p.data)"
        raise ValueError(explain("a parameter cannot be updated in place", got="strides", expected="C order", do=do))
    return parameter.data.reshape(-1)


def real_flat(who: str, parameter: Tensor) -> Array:
    """Return the values of a parameter, (n,), in its own memory; refuse complex ones."""
    if parameter.dtype.kind == "c":
        raise TypeError(explain(f"{who}: parameter", got=parameter.dtype, expected="a real dtype"))
    return flat_values(parameter)


def wide_zeros(flat: Array) -> Array:
    """Return room for what is remembered of a parameter: 16-bit floats would lose small changes."""
    zeros: Array = namespace(flat).zeros_like(wide(flat))
    return zeros


def descend(flat: Array, change: Array) -> None:
    """Subtract in place, rounding once."""
    flat[...] = wide(flat) - change


def _kept_dtype(parameter: Tensor) -> Any:
    """Return the dtype of what is remembered of a parameter."""
    return wide(parameter.data.reshape(-1)[:0]).dtype
