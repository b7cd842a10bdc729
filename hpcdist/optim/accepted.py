"""Parameters and options that an optimizer takes."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from hpcdist.autograd import Tensor
from hpcdist.errors import explain

__all__ = ["check_options", "check_whole", "checked", "listed"]

_NOT_NEGATIVE = {
    "alpha", "eps", "initial_accumulator_value", "lr", "lr_decay", "momentum", "tolerance_change", "tolerance_grad",
    "trust_coefficient", "weight_decay",
}  # fmt: skip


def check_options(who: str, options: Mapping[str, Any]) -> None:
    """Refuse numbers below 0, and NaN, where an option is known to be above; decays of moments are below 1, too."""
    for name in _NOT_NEGATIVE & options.keys():
        if not (isinstance(options[name], Real) and options[name] >= 0):
            raise ValueError(explain(f"{who}: {name}", got=repr(options[name]), expected="a number >= 0"))
    betas = options.get("betas", (0, 0))
    if not (isinstance(betas, (tuple, list)) and len(betas) == 2 and all(0 <= b < 1 for b in betas)):
        raise ValueError(explain(f"{who}: betas", got=betas, expected="two numbers in [0, 1)"))


def listed(params: Any) -> list[Any]:
    """Return parameters as a list; refuse those whose order, and with it names, may be another on every rank."""
    if isinstance(params, (set, frozenset)):
        raise TypeError(explain("parameters", got=type(params).__name__, expected="a list: a set has no order"))
    return list(params)


def checked(pair: tuple[Any, ...]) -> tuple[str, Tensor]:
    """Return a name and its parameter; refuse what has no name, and what cannot be updated in place."""
    if len(pair) != 2 or not isinstance(pair[0], str):
        raise TypeError(explain("add_param_group", got=[type(x).__name__ for x in pair], expected="a name, a tensor"))
    name, parameter = pair
    if not hasattr(type(parameter), "requires_grad"):
        got = type(parameter).__name__
        raise TypeError(explain(f"add_param_group: parameter {name!r}", got=got, expected="a tensor"))
    if not parameter.is_leaf:
        raise TypeError(explain(f"add_param_group: parameter {name!r}", got="a computed tensor", expected="a leaf"))
    if not parameter.data.flags.c_contiguous:
        raise ValueError(explain(f"add_param_group: parameter {name!r}", got="strides", expected="C order"))
    for placement in getattr(parameter, "placements", ()):
        if placement.is_replicate() or placement.is_partial():
            what = f"add_param_group: gradients of parameter {name!r} are sums that are not finished"
            do = "place it as Invariant, whose gradient is the same on every rank"
            raise TypeError(explain(what, got=placement, expected="Shard or Invariant", do=do))
    return name, parameter


def check_whole(who: str, name: str, parameter: Any) -> None:
    """Refuse a distributed parameter of which this rank has a part."""
    for placement in getattr(parameter, "placements", ()):
        if not placement.is_invariant():
            do = "use it on whole parameters (Invariant ones), or take an optimizer that needs no norms"
            what = f"{who}: parameter {name!r} is a part: norms would be those of the part"
            raise TypeError(explain(what, got=placement, expected="the whole on every rank", do=do))
