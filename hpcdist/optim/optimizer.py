"""What optimizers share: parameter groups, hooks around a step, state by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from hpcdist.array import Array
from hpcdist.autograd import Tensor
from hpcdist.errors import explain

__all__ = ["Optimizer", "Parameters"]

Parameters: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
"""Parameters, pairs of name and parameter, or groups: dicts with "params" (one of the former) and options."""


class Optimizer(ABC):
    """Base of all optimizers; knows no ranks.

    Attributes
    ----------
    param_groups : list of dict
        "params" (list of Tensor), "names" (list of str) and the options of the group, "lr" among them.
    state : dict of str to dict
        What is kept for a parameter between steps: arrays of its size (flat), and numbers; by its name.
    pre, post : list of function ``() -> None``
        Run before and after the update.
    """

    def __init__(self, params: Parameters, **defaults: Any) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[str, dict[str, Any]] = {}
        self.pre: list[Callable[[], None]] = []
        self.post: list[Callable[[], None]] = []
        self.defaults = defaults
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

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for hook in self.pre:
            hook()
        for group in self.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                if parameter.grad is not None:
                    self._update(parameter, self.state.setdefault(name, {}), group)
        for hook in self.post:
            hook()

    @abstractmethod
    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter, in place."""

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
        """Continue from what :meth:`state_dict` returned, for the same parameters.

        Raises
        ------
        ValueError
            If names, options or sizes differ; before anything is changed.
        """
        groups = state["param_groups"]
        if [g["names"] for g in groups] != [g["names"] for g in self.param_groups]:
            raise ValueError(
                explain(
                    "load_state_dict: parameters differ",
                    got=[g["names"] for g in groups],
                    expected=[g["names"] for g in self.param_groups],
                )
            )
        for mine, theirs in zip(self.param_groups, groups, strict=True):
            if theirs.keys() | {"params"} != mine.keys():
                raise ValueError(
                    explain(
                        "load_state_dict: options differ", got=[*theirs], expected=[k for k in mine if k != "params"]
                    )
                )
        sizes = {n: p.size for g in self.param_groups for n, p in zip(g["names"], g["params"], strict=True)}
        for name, entries in state["state"].items():
            if name not in sizes:
                raise ValueError(explain("load_state_dict: state", got=repr(name), expected=f"one of {[*sizes]}"))
            for key, value in entries.items():
                if getattr(value, "ndim", 0) and value.size != sizes[name]:
                    raise ValueError(explain(f"load_state_dict: {key} of {name}", got=value.size, expected=sizes[name]))
        self.state = {name: {k: _copied(v) for k, v in entries.items()} for name, entries in state["state"].items()}
        for mine, theirs in zip(self.param_groups, groups, strict=True):
            mine.update({k: v for k, v in theirs.items() if k != "params"})


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


def _copied(value: Any) -> Any:
    return value.reshape(-1).copy() if getattr(value, "ndim", 0) else value
