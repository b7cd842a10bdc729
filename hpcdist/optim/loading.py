"""What of a saved state fits an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.errors import explain

__all__ = ["OF_SCHEDULES", "agreed", "check_form", "check_names", "check_state", "copied", "options_of"]

OF_SCHEDULES = {"initial_lr"}
"""What schedules keep in groups."""


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a group has beside parameters."""
    return {key: value for key, value in group.items() if key not in ("params", "names")}


def check_form(state: Mapping[str, Any]) -> None:
    """Refuse what no ``state_dict`` returned."""
    if not {"state", "param_groups"} <= state.keys() or not all("names" in g for g in state["param_groups"]):
        expected = '"state" and "param_groups", whose items have "names"'
        raise ValueError(explain("load_state_dict: the state of an optimizer", got=[*state], expected=expected))


def check_names(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Refuse a state of other parameters."""
    if saved.keys() != mine.keys():
        unknown, missing = [n for n in saved if n not in mine], [n for n in mine if n not in saved]
        raise ValueError(explain("load_state_dict: parameters differ", got=f"unknown {unknown}", expected=missing))


def agreed(group: Mapping[str, Any], saved: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the options that all parameters of a group had."""
    mine = options_of(group)
    for one in saved:
        if one.keys() - OF_SCHEDULES != mine.keys() - OF_SCHEDULES:
            raise ValueError(explain("load_state_dict: options differ", got=[*one], expected=[*mine]))
        if one != saved[0]:
            do = "load into groups that have the parameters the saved ones had"
            raise ValueError(explain("load_state_dict: options differ within a group", got=[saved[0], one], do=do))
    return saved[0] if saved else {}


def check_state(state: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int], kept: frozenset[str] | None) -> None:
    """Refuse what was kept for another parameter, by another optimizer, or in another size."""
    for name, entries in state.items():
        if name not in sizes:
            raise ValueError(explain("load_state_dict: state", got=repr(name), expected=f"one of {[*sizes]}"))
        if kept is not None and not {key.rstrip("0123456789") for key in entries} <= kept:
            what = f"load_state_dict: {name} has the state of another optimizer"
            raise ValueError(explain(what, got=[*entries], expected=sorted(kept)))
        for key, value in entries.items():
            if getattr(value, "ndim", 0) and value.size != sizes[name]:
                raise ValueError(explain(f"load_state_dict: {key} of {name}", got=value.size, expected=sizes[name]))


def copied(value: Any, where: slice, dtype: Any) -> Any:
    """Return the elements of an array, flat, as a copy of ``dtype``, and a number as Python's: a float64 or longer."""
    if getattr(value, "ndim", 0):
        return value.reshape(-1)[where].astype(dtype)
    return value.item() if hasattr(value, "item") else value
