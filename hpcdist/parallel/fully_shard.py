"""fully_shard: parameters, gradients and optimizer state of a module, shared out to the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from hpcdist.array import is_device
from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator, DeviceMesh
from hpcdist.dtensor import Shard
from hpcdist.nn import Module
from hpcdist.parallel.alike import check_same
from hpcdist.parallel.bundle import Bundle
from hpcdist.parallel.fsdp_module import fsdp_class
from hpcdist.parallel.fully_shard_arguments import (
    DataParallelMeshDims,
    check_modules,
    check_parameter,
    check_policies,
    check_resharding,
    chosen_mesh,
    parts,
    warn,
)
from hpcdist.parallel.mixed_precision import MixedPrecisionPolicy
from hpcdist.parallel.offload import CPUOffloadPolicy, OffloadPolicy
from hpcdist.parallel.resting import Chooses, Resting, computing, rest, resting_layout, whole_shape
from hpcdist.parallel.settings import Settings
from hpcdist.parallel.sharded import ShardedUnit

__all__ = ["fully_shard"]

M = TypeVar("M", bound=Module)
_taken: WeakKeyDictionary[Module, set[str]] = WeakKeyDictionary()
"""Slots that a unit fills already."""


def fully_shard(
    module: M | Sequence[Module],
    *,
    mesh: DeviceMesh | Communicator | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Chooses | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: Iterable[Tensor] = (),
    dp_mesh_dims: DataParallelMeshDims | None = None,
    auto_wrap_policy: Callable[[Module], bool] | None = None,
) -> M:
    """Share the parameters of a module out to the ranks of a mesh, in place, and return it. Collective over the mesh.

    They rest as shards (``Shard(0)``), are gathered before the module's forward and again for its backward, and let go
    of in between; gradients are averaged over ranks and come back as shards. Call it bottom-up: first for parts, then
    for what is made of them, which takes the parameters that are left. Names do not change, nor do the values; whoever
    runs the whole moves, in a step, all parameters twice and all gradients once.

    Every rank calls the same units, in the same order; backward may come to others on each rank, or to none.

    Parameters
    ----------
    module : Module, or sequence of them
        The same on every rank. Several are one unit: gathered for the first, let go of after the last one of a forward.
    mesh : DeviceMesh or Communicator, optional
        Of one axis, or of two: parameters are copies along the first, and shards along the second (HSDP). Default: all
        ranks. A mesh of which ``parallelize_module`` has used other axes: shards are cut out of what they left.
    reshard_after_forward : bool or int, optional
        False: parameters stay whole until backward is through. None: only those of the outermost unit do. A number, a
        divisor of that of shards: so many neighbouring ranks (those of a node, say) share them out until backward,
        which gathers among them.
    shard_placement_fn : function ``(parameter) -> Shard or None``, optional
        Which dimension is cut; None: the first. A parameter without dimensions stays whole.
    mp_policy : MixedPrecisionPolicy, optional
    offload_policy : OffloadPolicy, optional
        ``CPUOffloadPolicy()``: what rests is on the host, also where a GPU computes.
    ignored_params : iterable of Tensor
        Left as they are.
    dp_mesh_dims : DataParallelMeshDims, optional
        Names of the axes of ``mesh`` to use; default: all.
    auto_wrap_policy : function ``(module) -> bool``, optional
        Parts for which it is true become units of their own first.

    Raises
    ------
    ValueError, TypeError
        The same on every rank, before anything is changed: if a module is sharded, or never called, or ranks differ.
    """
    options: dict[str, Any] = {
        "reshard_after_forward": reshard_after_forward,
        "shard_placement_fn": shard_placement_fn,
        "mp_policy": mp_policy,
        "offload_policy": offload_policy,
        "ignored_params": list(ignored_params),
    }
    chosen = chosen_mesh(mesh, dp_mesh_dims)
    modules = [module] if isinstance(module, Module) else list(module)
    for part in [] if auto_wrap_policy is None else parts(modules, auto_wrap_policy):
        _shard([part], chosen, **options)
    _shard(modules, chosen, **options)
    return cast(M, module)


def _shard(
    modules: Sequence[Module],
    mesh: DeviceMesh,
    *,
    reshard_after_forward: bool | int | None,
    shard_placement_fn: Chooses | None,
    mp_policy: MixedPrecisionPolicy | None,
    offload_policy: OffloadPolicy | None,
    ignored_params: Sequence[Tensor],
) -> None:
    """Make one unit of modules. Collective over the mesh."""
    comm, policy = mesh.get_mesh_group(), mp_policy or MixedPrecisionPolicy()
    with comm.agreed():
        check_modules(modules)
        check_policies(mp_policy, offload_policy)
        reshards = check_resharding(reshard_after_forward, mesh.shape[-1])
        left_out = {id(p) for p in ignored_params}
        slots = [slot for m in modules for slot in _left(m, left_out)]
        described = [(key, str(p.dtype), p.requires_grad, whole_shape(p)) for _, key, p in slots]
        chooses = shard_placement_fn or (lambda _: Shard(0))
        for _, _, p in slots:
            check_parameter(p)
            resting_layout(p, mesh, chooses)  # before anything is changed
    check_same(comm, "fully_shard: options or parameters", [(reshards, policy, offload_policy), *described])
    if comm.rank == 0:
        warn(modules)
    offloads = isinstance(offload_policy, CPUOffloadPolicy)
    distinct = {id(p): p for _, _, p in slots}
    resting = {key: rest(p, mesh, chooses, offloads=offloads) for key, p in distinct.items()}
    unit = _unit(modules, slots, mesh, resting, policy, reshards)
    for m in modules:
        object.__setattr__(m, "__class__", fsdp_class(type(m)))
        m.__dict__["sharded_unit"] = unit
        if policy.param_dtype is not None or policy.output_dtype is not None:
            m.around.append(policy.around)


def _left(module: Module, left_out: set[int]) -> list[tuple[Module, str, Any]]:
    """Return the slots below ``module`` that no unit fills yet."""
    return [
        (owner, key, owner.slots[key])
        for _, owner, key in module.named_slots()
        if key not in _taken.get(owner, ()) and id(owner.slots[key]) not in left_out
    ]


def _unit(
    modules: Sequence[Module],
    slots: Sequence[tuple[Module, str, Any]],
    mesh: DeviceMesh,
    resting: Mapping[int, Resting],
    policy: MixedPrecisionPolicy,
    reshards: bool | int | None,
) -> ShardedUnit:
    """Put shards into the slots, and return the unit that makes them whole."""
    for owner, key, p in slots:
        owner.slots[key] = resting[id(p)].parameter
    place = {key: i for i, key in enumerate(resting)}
    shard, reducing = _comms(mesh)
    near = _neighbours(mesh, reshards) if isinstance(reshards, int) and not isinstance(reshards, bool) else None
    unit = ShardedUnit(
        modules=modules,
        slots=[(owner, key, place[id(p)]) for owner, key, p in slots],
        leaves=[r.piece.leaf for r in resting.values()],
        layouts=[computing(r.parameter, mesh) for r in resting.values()],
        bundles=_bundles(list(resting.values()), policy, shard, near),
        reducing=reducing,
        replicas=mesh.get_all_groups()[0] if mesh.ndim == 2 else None,
        reduce_dtype=policy.reduce_dtype,
        settings=Settings(reshards_after_forward=reshards),
    )
    for owner, key, _ in slots:
        _taken.setdefault(owner, set()).add(key)
    return unit


def _bundles(
    resting: Sequence[Resting],
    policy: MixedPrecisionPolicy,
    comm: Communicator,
    near: Communicator | None,
) -> list[tuple[Bundle, list[int]]]:
    """Return what travels together, and where in ``resting`` it is."""
    together: dict[tuple[Any, ...], list[int]] = {}
    for i, r in enumerate(resting):
        data = r.piece.leaf.data
        key = (data.dtype, policy.travels(data), policy.computes(data, r.like), is_device(data), is_device(r.like))
        together.setdefault(key, []).append(i)
    found = []
    number = comm.memo["fully_shard: units"] = comm.memo.get("fully_shard: units", -1) + 1
    for (_, travels, computes, _, _), places in together.items():
        mine = [resting[i] for i in places]
        pieces, owned = [r.piece for r in mine], [r.is_new for r in mine]
        found.append((Bundle(pieces, owned, comm, travels, computes, mine[0].like, number % 250 + 1, near), places))
    return found


def _comms(mesh: DeviceMesh) -> tuple[Communicator, Communicator]:
    """Return communicators of the shard axis for parameters and for gradients: their orders are their own."""
    key = ("fully_shard", mesh.axis_names)
    if key not in mesh.memo:
        group = mesh.get_all_groups()[-1]
        mesh.memo[key] = group.dup(), group.dup()
    comms: tuple[Communicator, Communicator] = mesh.memo[key]
    return comms


def _neighbours(mesh: DeviceMesh, number: int) -> Communicator:
    """Return the communicator of ``number`` neighbours on the shard axis. Collective over it, the first time."""
    key = ("fully_shard", mesh.axis_names, number)
    if key not in mesh.memo:
        mesh.memo[key] = mesh.get_all_groups()[-1].split_by(lambda rank: (rank // number, rank))
    comm: Communicator = mesh.memo[key]
    return comm
