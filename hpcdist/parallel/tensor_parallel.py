"""Tensor parallelism: a module's parameters are dealt out over the ranks of one mesh axis, by a plan."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, TypeVar

from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator, DeviceMesh, on_every_rank
from hpcdist.comm.mesh import current_mesh
from hpcdist.dtensor.dispatch import implicit_replication
from hpcdist.dtensor.distribute import distribute_tensor
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.nn.deferral import Deferred
from hpcdist.parallel.alike import check_told
from hpcdist.parallel.drawing import drawn
from hpcdist.parallel.plan import DEALT, Assignment, Placing, Plan, assignments, layout_of, placings
from hpcdist.parallel.style import Call

__all__ = ["parallelize_module"]

M = TypeVar("M", bound=Module)


def parallelize_module(
    module: M,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: Plan | None = None,
    *,
    src_data_rank: int | None = 0,
    strict: bool = True,
) -> M:
    """Deal the parameters of a module out over a mesh, in place, and return it. Collective over the mesh.

    All parameters become distributed tensors under the names they had: those that no style places are Invariant, the
    same on every rank. Buffers stay plain. When the module is called, plain inputs count as the same on every rank.
    Deferred parameters are drawn part by part: no rank ever holds more than its part. In check mode ranks compare
    plain inputs. Make the optimizer afterwards: it would go on with the parameters that were there before.

    Parameters
    ----------
    module : Module
        The same on every rank. Parts of it may have been parallelized before; a tied parameter stays one.
    device_mesh : DeviceMesh of one axis, optional
        The ranks; default: the current mesh. Of several axes, say ``mesh["tp"]``.
    parallelize_plan : ParallelStyle, sequence of them, or dict of such plans by name
        Names are matched part by part between dots, as file names are (``"blocks.*.attn.qkv"``), and are relative to
        the plan they stand in; "" is the module itself. Styles that wrap a call do so in the order of the plan.
    src_data_rank : int, optional
        The rank of the mesh whose values are taken. None: each rank takes its part of its own, without communication.
    strict : bool
        Whether a name that fits no module is an error; else it is a warning.

    Raises
    ------
    ValueError, TypeError
        The same on every rank, before anything is changed: for a name that fits nothing, a module that a style has no
        rule for, sizes that do not fit, a tied parameter placed in two ways, or modules or plans that differ.
    RuntimeError
        If the module is parallelized already.
    """
    mesh = one_axis(current_mesh() if device_mesh is None else device_mesh)
    assigned, placed = _agreed(mesh.get_group(), module, mesh, parallelize_plan, strict)
    for placing in placed:
        _put(placing, mesh, src_data_rank)
    for _, part, style in assigned:
        wrap = style.wrap(part, mesh)
        if wrap is not None:
            part.around.append(wrap)
    module.around.append(with_plain_inputs)
    return module


def with_plain_inputs(call: Call) -> Call:
    """Let plain arrays beside distributed ones count as the same on every rank while a module runs."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with implicit_replication():
            return call(*args, **kwargs)

    return run


# ---------------------------------------------------------------- what is refused
def one_axis(mesh: DeviceMesh | None) -> DeviceMesh:
    """Return the mesh, or raise if there is none, or one of several axes."""
    if mesh is None:
        do = "pass one, or call this in its `with` block"
        raise ValueError(explain("parallelize_module: device_mesh", got=None, expected="a mesh", do=do))
    if mesh.ndim != 1:
        do = f"slice it: mesh[{mesh.axis_names[-1]!r}]"
        raise ValueError(explain("parallelize_module: device_mesh", got=mesh, expected="a mesh of one axis", do=do))
    return mesh


def _agreed(
    comm: Communicator, module: Module, mesh: DeviceMesh, plan: Any, strict: bool
) -> tuple[list[Assignment], list[Placing]]:
    """Return what the plan says, if it can be done and is the same on every rank. Collective over ``comm``."""
    found: list[Any] = []

    def look() -> list[tuple[Any, ...]]:
        found[:] = planned(module, mesh, plan, strict)
        styles = [(name, repr(style) if is_dataclass(style) else type(style).__name__) for name, _, style in found[0]]
        return [*styles, *map(_described, found[1])]

    told = on_every_rank(comm, look)
    check_told("parallelize_module: styles or parameters", told)
    return found[0], found[1]


def planned(module: Module, mesh: DeviceMesh, plan: Any, strict: bool) -> tuple[list[Assignment], list[Placing]]:
    """Return styles and placements, all of which can be applied; changes nothing."""
    if with_plain_inputs in module.around:
        do = "parallelize it once; parts of it before the whole"
        raise RuntimeError(explain(f"parallelize_module: this {type(module).__name__} is parallelized already", do=do))
    assigned = assignments(module, plan, strict=strict)
    placed = placings(module, assigned)
    styled = {(id(m), key) for _, m, style in assigned for key in style.placements(m)}
    for placing in placed:
        _check(placing, mesh, styled)
    return assigned, placed


def _check(placing: Placing, mesh: DeviceMesh, styled: set[tuple[int, str]]) -> None:
    """Refuse what cannot be placed so, and parameters that are distributed, or in use, already."""
    p: Any = placing.tensor
    if isinstance(p, DTensor):
        again = any(owner.slots[key] is p and (id(owner), key) in styled for _, owner, key in placing.places)
        if again or p.device_mesh != mesh:
            do = "parallelize parts before the whole, each once, on one mesh"
            raise RuntimeError(explain(f"{placing.name}: it is distributed already", got=p.layout, do=do))
    layout = layout_of(placing, mesh)
    if isinstance(p, DTensor):
        if layout is not p.layout:
            what, do = f"{placing.name}: a tied parameter is distributed already", "place it in one way"
            raise ValueError(explain(what, got=layout, expected=p.layout, do=do))
    elif p.home is not None:
        do = "call parallelize_module before replicate"
        raise RuntimeError(explain(f"{placing.name}: its gradient is reduced by another strategy", do=do))


def _described(placing: Placing) -> tuple[Any, ...]:
    names = tuple(name for name, _, _ in placing.places)
    p = placing.tensor
    return names, p.shape, str(p.dtype), p.requires_grad, isinstance(p, Deferred), placing.placement


# ---------------------------------------------------------------- putting
def _put(placing: Placing, mesh: DeviceMesh, src_data_rank: int | None) -> None:
    """Put the distributed tensor into all slots of a parameter. Collective over the mesh, unless it is deferred."""
    p = placing.tensor
    made = p if isinstance(p, DTensor) else _made(placing, mesh, src_data_rank)
    for _, owner, key in placing.places:
        owner.slots[key] = made


def _made(placing: Placing, mesh: DeviceMesh, src_data_rank: int | None) -> DTensor:
    """Return the distributed tensor of a plain one. Collective over the mesh, unless it is deferred."""
    p = placing.tensor
    if isinstance(p, Deferred):
        layout = layout_of(placing, mesh)
        made = DTensor(Tensor(drawn(p, layout), p.requires_grad), layout)
    else:
        made = distribute_tensor(p, mesh, [placing.placement], src_data_rank=src_data_rank)
    made.local.hooks, made.local.done_hooks = p.hooks, p.done_hooks
    DEALT[p] = made
    return made
