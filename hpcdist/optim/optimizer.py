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
            If an option is unknown, or a parameter is here already or is not contiguous.
        """
        unknown = group.keys() - self.defaults.keys() - {"params"}
        if unknown:
            raise ValueError(explain("add_param_group: unknown options", got=unknown, expected=set(self.defaults)))
        taken = sum(len(g["params"]) for g in self.param_groups)
        pairs = [p if isinstance(p, tuple) else (str(taken + i), p) for i, p in enumerate(group["params"])]
        names = [name for name, _ in pairs]
        present = {id(p) for g in self.param_groups for p in g["params"]}
        for name, parameter in pairs:
            if id(parameter) in present:
                raise ValueError(explain(f"add_param_group: parameter {name!r} is here already"))
            if not parameter.data.flags.c_contiguous:
                raise ValueError(explain(f"add_param_group: parameter {name!r}", got="strides", expected="C order"))
            present.add(id(parameter))
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
            If names or sizes differ; before anything is changed.
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
        sizes = {n: p.size for g in self.param_groups for n, p in zip(g["names"], g["params"], strict=True)}
        for name, entries in state["state"].items():
            for key, value in entries.items():
                if getattr(value, "ndim", 0) and value.size != sizes.get(name):
                    raise ValueError(
                        explain(f"load_state_dict: {key} of {name}", got=value.size, expected=sizes.get(name))
                    )
        self.state = {name: {k: _copied(v) for k, v in entries.items()} for name, entries in state["state"].items()}
        for mine, theirs in zip(self.param_groups, groups, strict=True):
            mine.update({k: v for k, v in theirs.items() if k != "params"})


def parts_of(parameter: Tensor) -> Array:
    """Return the gradient as a stack (parts, n); its sum over the first dimension is the gradient."""
    assert parameter.grad is not None
    return parameter.grad.reshape(-1, parameter.data.size)


def _copied(value: Any) -> Any:
    return value.reshape(-1).copy() if getattr(value, "ndim", 0) else value
