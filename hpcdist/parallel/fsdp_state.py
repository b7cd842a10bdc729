"""State of sharded models and their optimizers by clean names: whole, or as distributed tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.array import Array, to_host
from hpcdist.autograd import Tensor
from hpcdist.dtensor import DTensor, Layout
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.optim.optimizer import Optimizer
from hpcdist.parallel.full_state import layouts_of, whole
from hpcdist.parallel.state_types import FullOptimStateDictConfig, FullStateDictConfig, StateDictSettings

__all__ = ["local_state", "model_state", "optimizer_state", "optimizer_state_to_load"]


# ---------------------------------------------------------------- models
def model_state(module: Module, settings: StateDictSettings) -> dict[str, Any]:
    """Return parameters and buffers by name. Collective over their meshes, if they are to be whole."""
    layouts, config = layouts_of(module), settings.state_dict_config
    local = Module.state_dict(module)
    found = {name: _given(value, layouts.get(name), settings.is_full, config) for name, value in local.items()}
    return {} if isinstance(config, FullStateDictConfig) and config.rank0_only and not is_first(layouts) else found


def local_state(module: Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this rank holds of whole arrays, of distributed tensors, or of what it holds already.

    Collective over the mesh of distributed tensors that are laid out in another way.
    """
    layouts = layouts_of(module)
    return {name: _held(value, layouts.get(name)) for name, value in state.items()}


def is_first(layouts: Mapping[str, Layout]) -> bool:
    """Say whether this is the first rank of all meshes."""
    return not any(place for layout in layouts.values() for place in layout.mesh.get_coordinate() or ())


def _given(value: Array, layout: Layout | None, is_full: bool, config: Any) -> Any:
    """Return an array as a state dict has it. Collective over the layout's mesh, if it is to be whole.

    What was distributed is no array in use, on any number of ranks.
    """
    moved = to_host if config.offload_to_cpu else lambda x: x
    if layout is None:
        return moved(value)
    if not is_full:
        return DTensor(Tensor(moved(value)), layout)
    gathered = moved(whole(value, layout))
    return gathered.copy() if layout.local_shape == layout.shape else gathered


def _held(value: Any, layout: Layout | None) -> Any:
    if isinstance(value, DTensor):
        if value.layout == layout:
            return value.local.data
        value = value.full_tensor().data
    if layout is None or value.shape != layout.shape:  # what does not fit either is refused where it is loaded
        return value
    return layout.part_of(value)


# ---------------------------------------------------------------- optimizers
def optimizer_state(model: Module, optim: Optimizer, state: Any, settings: StateDictSettings) -> dict[str, Any]:
    """Return the state of an optimizer by the names of the model. Collective over meshes, if it is to be whole."""
    state = optim.state_dict() if state is None else state
    clean, layouts, config = _clean_names(model, optim), layouts_of(model), settings.optim_state_dict_config
    shapes, found = {name: p.data.shape for name, p in model.named_parameters()}, {}
    for name, entries in sorted(state["state"].items()):
        layout, shape = layouts.get(clean[name]), shapes[clean[name]]
        found[clean[name]] = {
            key: _given(value.reshape(shape), layout, settings.is_full, config) if _is_array(value) else value
            for key, value in sorted(entries.items())
        }
    if isinstance(config, FullOptimStateDictConfig) and config.rank0_only and not is_first(layouts):
        return {}
    groups = [{**group, "names": [clean[name] for name in group["names"]]} for group in state["param_groups"]]
    return {"state": found, "param_groups": groups}


def optimizer_state_to_load(model: Module, optim: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this rank's optimizer continues from; see :func:`local_state` for what communicates.

    Collective over the mesh of distributed tensors that are laid out in another way.
    """
    if not {"state", "param_groups"} <= state.keys():
        expected = '"state" and "param_groups", as optim_state_dict returns on every rank'
        raise ValueError(explain("optim_state_dict_to_load: optim_state_dict", got=[*state], expected=expected))
    names, layouts = {clean: name for name, clean in _clean_names(model, optim).items()}, layouts_of(model)
    saved = {*state["state"], *(name for group in state["param_groups"] for name in group["names"])}
    if not saved <= names.keys():
        got = sorted(saved - names.keys())
        raise ValueError(explain("optim_state_dict_to_load: names", got=got, expected="parameters of the optimizer"))
    found = {
        names[clean]: {
            key: _held(value, layouts.get(clean)).reshape(-1) if _is_array(value) else value
            for key, value in entries.items()
        }
        for clean, entries in state["state"].items()
    }
    groups = [{**group, "names": [names[clean] for clean in group["names"]]} for group in state["param_groups"]]
    return {"state": found, "param_groups": groups}


def _clean_names(model: Module, optim: Optimizer) -> dict[str, str]:
    """Return the names of the model by those of the optimizer.

    Raises
    ------
    ValueError
        If the optimizer has a parameter that is not of the model.
    """
    named: list[tuple[str, Any]] = list(model.named_parameters())
    clean = {id(p): name for name, p in named}
    clean |= {id(p.local): name for name, p in named if isinstance(p, DTensor)}
    pairs = [pair for group in optim.param_groups for pair in zip(group["names"], group["params"], strict=True)]
    for name, p in pairs:
        if id(p) not in clean:
            what = f"optim_state_dict: parameter {name!r} of the optimizer"
            do = "make the optimizer of the parameters that the model has after it was sharded"
            raise ValueError(explain(what, got=tuple(p.shape), expected="a parameter of the model", do=do))
    return {name: clean[id(p)] for name, p in pairs}


def _is_array(value: Any) -> bool:
    return bool(getattr(value, "ndim", 0))
