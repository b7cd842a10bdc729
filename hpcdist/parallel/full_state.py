"""State of models of which ranks hold parts, as whole arrays: saved by some ranks, loaded by any number of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.array import Array
from hpcdist.autograd import Tensor
from hpcdist.dtensor import DTensor, Layout
from hpcdist.errors import explain
from hpcdist.nn import Module

__all__ = ["full_state_dict", "layouts_of", "load_full_state_dict", "part", "whole"]


def full_state_dict(module: Module) -> dict[str, Array]:
    """Return the whole arrays of parameters and buffers by name, on every rank: those that one process would have.

    Collective over the meshes of distributed ones. Others are the arrays in use, not copies.
    """
    layouts = layouts_of(module)
    return {name: whole(value, layouts.get(name)) for name, value in Module.state_dict(module).items()}


def load_full_state_dict(module: Module, state: Mapping[str, Any], strict: bool = True) -> None:
    """Copy whole arrays into parameters and buffers: of distributed ones this rank's part. Communicates with nobody.

    Parameters
    ----------
    state, strict
        As for ``Module.load_state_dict``.

    Raises
    ------
    ValueError
        If names or shapes do not match, before anything is changed.
    """
    layouts = layouts_of(module)
    module.load_state_dict({name: part(name, value, layouts.get(name)) for name, value in state.items()}, strict)


def layouts_of(module: Module) -> dict[str, Layout]:
    """Return the layouts of distributed parameters and buffers."""
    named: list[tuple[str, Any]] = [*module.named_parameters(), *module.named_buffers()]
    return {name: t.layout for name, t in named if isinstance(t, DTensor)}


def whole(value: Array, layout: Layout | None) -> Array:
    """Return an array of which this rank has a part. Collective over the layout's mesh."""
    return value if layout is None else DTensor(Tensor(value), layout).full_tensor().data


def part(name: str, value: Any, layout: Layout | None) -> Any:
    """Return what this rank holds of a whole array.

    Raises
    ------
    ValueError
        If it has another shape.
    """
    if layout is None:
        return value
    if value.shape != layout.shape:
        raise ValueError(explain(f"load_full_state_dict: {name}", got=value.shape, expected=layout.shape))
    return layout.part_of(value)
