"""Whole parameters of sharded modules in a block: to look at, or to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpcdist.array import Array, is_device, namespace, to_host
from hpcdist.autograd import Tensor, is_replaying, no_grad
from hpcdist.dtensor import DTensor
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.running import entered, units_below
from hpcdist.parallel.sharded import ShardedUnit

__all__ = ["summon_full_params"]

WHO = "summon_full_params"
Slot = tuple[Module, str, DTensor]
"""Where a parameter is, and what rests there."""


@contextmanager
def summon_full_params(
    module: Module,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """Show whole parameters as plain tensors in a block, under their names.

    Collective over the meshes of the parameters: one gathering each. No forward or backward runs in the block.

    Parameters
    ----------
    module : Module
    recurse : bool
        Also those of units inside.
    writeback : bool
        Afterwards each rank keeps its part of what it has been shown: make the same changes on every rank.
    rank0_only : bool
        The first rank of the mesh is shown them, others keep their parts.
    offload_to_cpu : bool
        They are on the host.
    with_grads : bool
        Their gradients are there, whole, too.

    Raises
    ------
    ValueError
        If ``writeback`` and ``rank0_only``, which others would know nothing of; or a parameter has another shape after
        the block.
    RuntimeError
        In a forward or backward.
    """
    if writeback and rank0_only:
        do = "pass writeback=False, or change parameters on every rank"
        raise ValueError(explain(f"{WHO}: writeback and rank0_only", got="both", expected="one of them", do=do))
    if entered() or is_replaying():
        raise RuntimeError(explain(f"{WHO}: a forward or backward is running", do="call it before or after"))
    units = [u for u in units_below(module) if recurse or u is _own(module)]
    slots = [slot for unit in units for slot in _resting(unit)]
    shown = {key: _whole(p, offload_to_cpu, with_grads) for key, p in {id(p): p for *_, p in slots}.items()}
    slots = [slot for slot in slots if not rank0_only or _is_first(slot[2])]
    for owner, key, p in slots:
        owner.slots[key] = shown[id(p)]
    try:
        yield
    finally:
        now = [(p, owner.slots[key]) for owner, key, p in slots]
        for owner, key, p in slots:
            owner.slots[key] = p
        if writeback:
            _write_back(now, with_grads)
            for unit in units:
                unit.gathered.let_go()


def _own(module: Module) -> ShardedUnit | None:
    """Return the unit of a module, or of what is wrapped under its name."""
    own = (m.__dict__.get("sharded_unit") for name, m in module.named_modules() if not name)
    return next((unit for unit in own if unit is not None), None)


def _resting(unit: ShardedUnit) -> list[Slot]:
    """Return what a unit has at rest; what is shown already is not."""
    pairs = zip(unit.slots, unit.resting, strict=True)
    return [(owner, key, p) for (owner, key, _), p in pairs if owner.slots[key] is p]


def _whole(p: DTensor, offloads: bool, with_gradient: bool) -> Tensor:
    """Return a copy of a whole parameter. Collective over its mesh."""
    with no_grad():
        result = Tensor(_copy(p, offloads), p.requires_grad)
        gradient = p.gradient() if with_gradient else None
        result.grad = None if gradient is None else _copy(gradient, offloads)
    return result


def _copy(p: DTensor, offloads: bool) -> Any:
    whole = p.full_tensor().data
    return (to_host(whole) if offloads else whole).copy()


def _is_first(p: DTensor) -> bool:
    return not any(p.device_mesh.get_coordinate() or ())


def _write_back(now: list[tuple[DTensor, Any]], with_gradients: bool) -> None:
    """Keep this rank's parts of what was shown."""
    for p, shown in now:
        if shown.shape != p.shape:
            do = "write into what is shown"
            raise ValueError(explain(f"{WHO}: a parameter after the block", got=shown.shape, expected=p.shape, do=do))
    for p, shown in now:
        p.local.data[...] = _part(shown.data, p)
        if with_gradients:
            p.local.grad = None if shown.grad is None else _part(shown.grad, p).astype(p.dtype, copy=False)


def _part(whole: Array, p: DTensor) -> Array:
    """Return this rank's part of a whole array, where the parameter rests."""
    part = p.layout.part_of(whole)
    if is_device(part) == is_device(p.local.data):
        return part
    beside: Array = namespace(p.local.data).asarray(to_host(part))
    return beside
