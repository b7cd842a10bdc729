"""fully_shard: parameters, gradients and optimizer state of a module, shared out to the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, ref

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator, DeviceMesh, init_device_mesh
from hpcdist.dtensor import DTensor, Invariant, Layout, Placement, Shard
from hpcdist.dtensor.cut import cut, take
from hpcdist.errors import explain
from hpcdist.nn import Module, ModuleList
from hpcdist.nn.deferral import Deferred, draw
from hpcdist.parallel.bundle import Bundle, Piece
from hpcdist.parallel.fsdp_module import FSDPModule, fsdp_class
from hpcdist.parallel.mixed_precision import MixedPrecisionPolicy
from hpcdist.parallel.sharded import Settings, ShardedUnit

__all__ = ["fully_shard"]

M = TypeVar("M", bound=Module)
Chooses = Callable[[Any], Shard | None]

_taken: WeakKeyDictionary[Module, set[str]] = WeakKeyDictionary()
"""Slots that a unit fills already."""
_resting: WeakKeyDictionary[Tensor, ref[DTensor]] = WeakKeyDictionary()
"""What was made of tensors that other slots may hold still."""


def fully_shard(
    module: M | Sequence[Module],
    *,
    mesh: DeviceMesh | Communicator | None = None,
    reshard_after_forward: bool | None = None,
    shard_placement_fn: Chooses | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    ignored_params: Iterable[Tensor] = (),
    auto_wrap_policy: Callable[[Module], bool] | None = None,
) -> M:
    """Share the parameters of a module out to the ranks of a mesh, in place, and return it. Collective over the mesh.

    They rest as shards (``Shard(0)``), are gathered before the module's forward and again for its backward, and let go
    of in between; gradients are averaged over ranks and come back as shards. Call it bottom-up: first for parts, then
    for what is made of them, which takes the parameters that are left. Names do not change, nor do the values; whoever
    runs the whole moves, in a step, all parameters twice and all gradients once.

    Parameters
    ----------
    module : Module, or sequence of them
        The same on every rank. Several are one unit: gathered for the first, let go of after the last one of a forward.
    mesh : DeviceMesh or Communicator, optional
        Of one axis, or of two: parameters are copies along the first, and shards along the second (HSDP). Default: all
        ranks. A mesh of which ``parallelize_module`` has used other axes: shards are cut out of what they left.
    reshard_after_forward : bool, optional
        False: parameters stay whole until backward is through. None: only those of the outermost unit do.
    shard_placement_fn : function ``(parameter) -> Shard or None``, optional
        Which dimension is cut; None: the first. A parameter without dimensions stays whole.
    mp_policy : MixedPrecisionPolicy, optional
    ignored_params : iterable of Tensor
        Left as they are.
    auto_wrap_policy : function ``(module) -> bool``, optional
        Parts for which it is true become units of their own first.

    Raises
    ------
    ValueError, TypeError
        The same on every rank: if there is nothing to shard, or it is sharded, or modules differ between ranks.
    """
    chosen = _mesh(mesh)
    modules = [module] if isinstance(module, Module) else list(module)
    if auto_wrap_policy is not None:
        for part in _parts(modules, auto_wrap_policy):
            fully_shard(
                part,
                mesh=chosen,
                reshard_after_forward=reshard_after_forward,
                shard_placement_fn=shard_placement_fn,
                mp_policy=mp_policy,
                ignored_params=ignored_params,
            )
    comm = chosen.get_mesh_group()
    with comm.agreed():
        left_out = {id(p) for p in ignored_params}
        slots = [slot for m in modules for slot in _left(m, left_out)]
        _check(modules)
        described = [(key, str(p.dtype), p.requires_grad, _shape(p)) for _, key, p in slots]
    _check_same(comm, described)
    policy = mp_policy or MixedPrecisionPolicy()
    unit = _unit(modules, slots, chosen, shard_placement_fn or (lambda _: Shard(0)), policy)
    unit.settings.reshards_after_forward = reshard_after_forward
    for owner, key, _ in slots:
        _taken.setdefault(owner, set()).add(key)
    for m in modules:
        object.__setattr__(m, "__class__", fsdp_class(type(m)))
        m.__dict__["sharded_unit"] = unit
        if policy.param_dtype is not None or policy.output_dtype is not None:
            m.around.append(policy.around)
    return cast(M, module)


# ---------------------------------------------------------------- what is refused
def _mesh(mesh: Any) -> DeviceMesh:
    if mesh is None:
        from hpcdist.comm.init import get_default

        mesh = get_default()
    if isinstance(mesh, Communicator):
        if "fully_shard" not in mesh.memo:  # all units that are given this communicator are on one mesh
            mesh.memo["fully_shard"] = init_device_mesh((mesh.size,), ("shard",), mesh)
        mesh = mesh.memo["fully_shard"]
    if not isinstance(mesh, DeviceMesh) or mesh.ndim > 2:
        expected = "a mesh of one axis (shards), or of two (copies, shards)"
        raise ValueError(explain("fully_shard: mesh", got=mesh, expected=expected, do="slice it: mesh['dp']"))
    return mesh


def _check(modules: Sequence[Module]) -> None:
    for m in modules:
        if isinstance(m, FSDPModule):
            do = "call it once, parts before the whole"
            raise ValueError(explain(f"fully_shard: this {type(m).__name__} is sharded already", do=do))
        if type(m) is ModuleList:
            do = "shard its items, or pass a list of them"
            raise ValueError(explain("fully_shard: a ModuleList is never called", do=do))


def _check_same(comm: Communicator, mine: list[Any]) -> None:
    """Make sure that all ranks shard the same. Collective over ``comm``."""
    everyone = comm.all_gather_object(mine)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            pairs = zip(theirs, everyone[0], strict=False)
            got, expected = next((p for p in pairs if p[0] != p[1]), (f"{len(theirs)} parameters", len(everyone[0])))
            do = "build the same model, and shard it alike, on every rank"
            what = f"fully_shard: parameters of rank {rank} and rank 0 differ"
            raise ValueError(explain(what, got=got, expected=expected, do=do))


def _shape(p: Any) -> tuple[int, ...]:
    """Return the shape of the whole parameter."""
    made = _resting[p]() if p in _resting else None
    shape: tuple[int, ...] = p.shape if made is None else made.shape
    return shape


def _left(module: Module, left_out: set[int]) -> list[tuple[Module, str, Any]]:
    """Return the slots below ``module`` that no unit fills yet."""
    return [
        (owner, key, owner.slots[key])
        for _, owner, key in module.named_slots()
        if key not in _taken.get(owner, ()) and id(owner.slots[key]) not in left_out
    ]


def _parts(modules: Sequence[Module], wants: Callable[[Module], bool]) -> list[Module]:
    """Return the parts to be units of their own, inner ones first."""
    found = [part for m in modules for part in m.modules() if part not in modules and wants(part)]
    return [part for part in reversed(dict.fromkeys(found)) if not isinstance(part, FSDPModule)]


# ---------------------------------------------------------------- how it is done
def _unit(
    modules: Sequence[Module],
    slots: Sequence[tuple[Module, str, Any]],
    mesh: DeviceMesh,
    chooses: Chooses,
    policy: MixedPrecisionPolicy,
) -> ShardedUnit:
    """Put shards into the slots, and return the unit that makes them whole."""
    resting: dict[int, tuple[Any, Piece, bool]] = {}
    for _, _, p in slots:
        if id(p) not in resting:
            resting[id(p)] = _rest(p, mesh, chooses)
    for owner, key, p in slots:
        owner.slots[key] = resting[id(p)][0]
    place = {key: i for i, key in enumerate(resting)}
    together: dict[tuple[Any, Any], list[int]] = {}
    for i, (_, piece, _) in enumerate(resting.values()):
        together.setdefault((policy.travels(piece.leaf.data), policy.computes(piece.leaf.data)), []).append(i)
    pieces = [(piece, owned) for _, piece, owned in resting.values()]
    shard, reducing = _comms(mesh)
    bundles = [
        (Bundle([pieces[i][0] for i in places], [pieces[i][1] for i in places], shard, *dtypes), places)
        for dtypes, places in together.items()
    ]
    return ShardedUnit(
        modules=modules,
        slots=[(owner, key, place[id(p)]) for owner, key, p in slots],
        leaves=[piece.leaf for piece, _ in pieces],
        layouts=[_computing(p, mesh) for p, _, _ in resting.values()],
        bundles=bundles,
        reducing=reducing,
        replicas=mesh.get_all_groups()[0] if mesh.ndim == 2 else None,
        reduce_dtype=policy.reduce_dtype,
        settings=Settings(),
    )


def _comms(mesh: DeviceMesh) -> tuple[Communicator, Communicator]:
    """Return communicators of the shard axis for parameters and for gradients: their orders are their own."""
    key = ("fully_shard", mesh.axis_names)
    if key not in mesh.memo:
        group = mesh.get_all_groups()[-1]
        mesh.memo[key] = group.dup(), group.dup()
    comms: tuple[Communicator, Communicator] = mesh.memo[key]
    return comms


def _rest(p: Any, mesh: DeviceMesh, chooses: Chooses) -> tuple[DTensor, Piece, bool]:
    """Return a parameter as it rests, as a piece of a message, and whether its array may be moved."""
    made = p if isinstance(p, DTensor) else _resting[p]() if p in _resting else None
    if made is not None and set(mesh.axis_names) <= set(made.device_mesh.axis_names):
        return made, _piece(made, mesh), False  # it is tied to one of another unit
    layout = _resting_layout(p, mesh, chooses)
    if isinstance(p, Deferred):
        leaf = p.stored(_drawn(p, layout))
    else:
        leaf = p.local if isinstance(p, DTensor) else p  # the tensor itself: an optimizer may have it already
        leaf.data = _cut(layout, mesh, leaf.data)
    resting = DTensor(leaf, layout)
    _resting[leaf] = ref(resting)
    return resting, _piece(resting, mesh), True


def _resting_layout(p: Any, mesh: DeviceMesh, chooses: Chooses) -> Layout:
    """Return shards along the last axis of ``mesh``, copies along one before it, and else what there is."""
    shard: Placement = Invariant()
    if p.ndim:
        shard = chooses(p) or Shard(0)
    mine = (*[Invariant()] * (mesh.ndim - 1), shard)
    if not isinstance(p, DTensor):
        return Layout.of(mesh, mine, p.shape)
    joined = DeviceMesh.concatenate([mesh, p.device_mesh])
    inner = [mesh.ndim + axis for axis in p.layout.order]
    return Layout.of(joined, (*mine, *p.placements), p.shape, (*inner, *range(mesh.ndim)))


def _shard_of(layout: Layout, mesh: DeviceMesh) -> tuple[Shard | None, tuple[int, ...]]:
    """Return how the shard axis cuts, and the shape of what its ranks hold together."""
    axis = layout.mesh.axis_names.index(mesh.axis_names[-1])
    placement = layout.placements[axis]
    return placement if isinstance(placement, Shard) else None, layout.at(axis, Invariant()).local_shape


def _cut(layout: Layout, mesh: DeviceMesh, whole: Array) -> Array:
    """Return a copy of this rank's shard of what the ranks of the shard axis hold together."""
    shard, shape = _shard_of(layout, mesh)
    if shard is None:
        return whole.copy()
    size, here = mesh.shape[-1], mesh.get_local_rank(mesh.ndim - 1)
    return take(whole, shard.dim, cut(shard, shape[shard.dim], size).runs[here]).copy()


def _drawn(p: Deferred, layout: Layout) -> Array:
    """Return the first values of what this rank holds, drawn without the rest."""
    part = np.empty(layout.local_shape, p.dtype)
    for there, here in layout.boxes:
        part[here] = draw(p, tuple(s.start for s in there), tuple(s.stop - s.start for s in there))
    return part


def _piece(p: DTensor, mesh: DeviceMesh) -> Piece:
    shard, shape = _shard_of(p.layout, mesh)
    return Piece.of(p.local, shape, shard, mesh.shape[-1])


def _computing(p: DTensor, mesh: DeviceMesh) -> Layout | None:
    """Return how a gathered parameter is laid out on the other axes; None: it is plain."""
    others = [axis for axis, name in enumerate(p.device_mesh.axis_names) if name not in mesh.axis_names]
    if not others:
        return None
    part = p.device_mesh[tuple(p.device_mesh.axis_names[axis] for axis in others)]
    order = sorted(range(len(others)), key=lambda i: p.layout.order.index(others[i]))
    return Layout.of(part, [p.placements[axis] for axis in others], p.shape, order)
