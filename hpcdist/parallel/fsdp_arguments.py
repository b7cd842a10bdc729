"""What FullyShardedDataParallel is given: ranks, parts and what is ignored, checked on every rank alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator, DeviceMesh, init_device_mesh
from hpcdist.dtensor import DTensor
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.fsdp_module import FSDPModule
from hpcdist.parallel.fsdp_options import ShardingStrategy, UnitOptions
from hpcdist.parallel.fully_shard_arguments import chosen_mesh
from hpcdist.parallel.wrap import CustomPolicy, always_wrap_policy

__all__ = ["check_given", "ignored_modules_of", "ignored_parameters", "mesh_of", "parts_of", "ranks_of"]

WHO = "FullyShardedDataParallel"
AXES = ("replica", "shard")


# ---------------------------------------------------------------- ranks
def ranks_of(process_group: Any, device_mesh: Any) -> Communicator:
    """Return all ranks that take part. Collective over a mesh whose group nobody has asked for before."""
    if process_group is not None and device_mesh is not None:
        raise ValueError(explain(f"{WHO}: process_group and device_mesh", got="both", expected="one of them"))
    if isinstance(device_mesh, DeviceMesh):
        return device_mesh.get_mesh_group()
    if isinstance(process_group, Communicator):
        return process_group
    from hpcdist.comm.init import get_default

    return get_default()


def check_ranks(strategy: ShardingStrategy, process_group: Any, device_mesh: Any) -> None:
    """Refuse groups and meshes that do not fit the strategy."""
    hybrid = strategy.is_hybrid
    if process_group is not None:
        pair = isinstance(process_group, tuple) and len(process_group) == 2
        fits = pair and all(isinstance(group, Communicator) for group in process_group)
        if not (fits if hybrid else isinstance(process_group, Communicator)):
            expected = "(ranks that share a copy, ranks that hold the same part)" if hybrid else "a Communicator"
            what = f"{WHO}: process_group for {strategy.name}"
            raise ValueError(explain(what, got=process_group, expected=expected))
    if device_mesh is not None and not (isinstance(device_mesh, DeviceMesh) and device_mesh.ndim == 1 + hybrid):
        expected = "a mesh of two axes (copies, shards)" if hybrid else "a mesh of one axis"
        raise ValueError(explain(f"{WHO}: device_mesh for {strategy.name}", got=device_mesh, expected=expected))


def mesh_of(strategy: ShardingStrategy, process_group: Any, device_mesh: Any, comm: Communicator) -> DeviceMesh:
    """Return the mesh to shard on, the same one for the same ranks. Collective over ``comm``."""
    if strategy is ShardingStrategy.NO_SHARD:
        return _remembered(comm, lambda: init_device_mesh((comm.size, 1), AXES, comm), "copies")
    if not strategy.is_hybrid:
        return chosen_mesh(comm if device_mesh is None else device_mesh, None)
    if device_mesh is not None:
        return chosen_mesh(device_mesh, None)
    if process_group is None:
        return _remembered(comm, lambda: _nodes(comm), "nodes")
    intra, inter = process_group
    return _remembered(comm, lambda: _from_groups(intra, inter, comm), (intra, inter))


def _remembered(comm: Communicator, make: Callable[[], DeviceMesh], key: Any) -> DeviceMesh:
    if (WHO, key) not in comm.memo:
        comm.memo[WHO, key] = make()
    mesh: DeviceMesh = comm.memo[WHO, key]
    return mesh


def _nodes(comm: Communicator) -> DeviceMesh:
    """Return a mesh whose rows are nodes. Collective over ``comm``."""
    node = comm.split_node()
    rows: dict[int, list[int]] = {}
    for rank, first in enumerate(comm.all_gather_object(node.members[0])):
        rows.setdefault(first, []).append(rank)
    node.free()
    sizes = [len(row) for row in rows.values()]
    if len(set(sizes)) > 1:
        do = "pass device_mesh, or process_group=(shards, copies)"
        raise ValueError(explain(f"{WHO}: ranks of each node", got=sizes, expected="the same number", do=do))
    return DeviceMesh(list(rows.values()), AXES, comm)


def _from_groups(intra: Communicator, inter: Communicator, comm: Communicator) -> DeviceMesh:
    """Return the mesh of two groups. Collective over both, and over ``comm``."""
    rows = inter.all_gather_object(list(intra.members))
    with comm.agreed():
        return DeviceMesh.from_group((inter, intra), mesh=rows, mesh_dim_names=AXES, comm=comm)


# ---------------------------------------------------------------- other arguments
def check_given(
    module: Any,
    options: UnitOptions,
    process_group: Any,
    device_mesh: Any,
    auto_wrap_policy: Any,
    param_init_fn: Any,
    device_id: Any,
) -> None:
    """Refuse what makes no sense, before anything is changed."""
    if not isinstance(module, Module):
        raise TypeError(explain(f"{WHO}: module", got=type(module).__name__, expected="a Module"))
    check_ranks(options.sharding_strategy, process_group, device_mesh)
    for name, value in (("auto_wrap_policy", auto_wrap_policy), ("param_init_fn", param_init_fn)):
        if value is not None and not callable(value):
            raise TypeError(explain(f"{WHO}: {name}", got=repr(value), expected="a function of a module, or None"))
    if device_id is not None:
        do = "leave it out: each rank has one device"
        raise ValueError(explain(f"{WHO}: device_id", got=device_id, do=do))
    inside = [m for m in module.modules() if isinstance(m, FSDPModule)]
    if isinstance(module, FSDPModule):
        raise ValueError(explain(f"{WHO}: this {type(module).__name__} is sharded already", do="wrap it once"))
    if inside and auto_wrap_policy is not None:
        do = "leave auto_wrap_policy out, or the wrapping of parts"
        raise ValueError(explain(f"{WHO}: auto_wrap_policy", got="parts that are sharded already", do=do))


def ignored_modules_of(module: Module, ignored_modules: Any, ignored_states: Any) -> list[Module]:
    """Return ignored modules and all below them."""
    if ignored_modules is not None and ignored_states is not None:
        raise ValueError(explain(f"{WHO}: ignored_modules and ignored_states", got="both", expected="one of them"))
    states = list(ignored_states or ())
    given = list(ignored_modules or ()) or [m for m in states if isinstance(m, Module)]
    for part in given:
        if not isinstance(part, Module):
            raise TypeError(explain(f"{WHO}: ignored_modules", got=type(part).__name__, expected="modules"))
        if part is module or any(isinstance(m, FSDPModule) for m in part.modules()):
            what = f"{WHO}: ignored_modules"
            raise ValueError(explain(what, got=type(part).__name__, expected="parts, none of them sharded"))
    return [m for part in given for m in part.modules()]


def ignored_parameters(module: Module, ignored: Iterable[Module], ignored_states: Any) -> list[Tensor]:
    """Return the parameters that are left as they are."""
    found = [p for m in ignored for p in m.slots.values()]
    own = {id(p) for p in module.parameters()}
    for p in ignored_states or ():
        if not isinstance(p, Module):
            if not isinstance(p, (Tensor, DTensor)):
                got = type(p).__name__
                raise TypeError(explain(f"{WHO}: ignored_states", got=got, expected="parameters, or modules"))
            if id(p) not in own:
                raise ValueError(explain(f"{WHO}: ignored_states", got=p.shape, expected="parameters of the module"))
            found.append(p)
    return found


def parts_of(
    module: Module,
    policy: Callable[[Module], bool] | None,
    options: UnitOptions,
    ignored: Iterable[Module],
) -> list[tuple[Module, UnitOptions]]:
    """Return the parts to be units of their own, inner ones first, with their options."""
    left_out = {module, *ignored}
    found: dict[Module, UnitOptions] = {}
    for part in module.modules():
        if part in left_out or isinstance(part, FSDPModule) or not any(part.named_slots()):
            continue
        chosen = _chosen(part, policy, options)
        if chosen is None:
            continue
        if not always_wrap_policy(part):
            do = "choose what is in it"
            raise ValueError(explain(f"{WHO}: auto_wrap_policy", got=f"a {type(part).__name__}, never called", do=do))
        found[part] = chosen
    return list(found.items())[::-1]


def _chosen(part: Module, policy: Callable[[Module], bool] | None, options: UnitOptions) -> UnitOptions | None:
    """Return the options of a part; None: it is no unit."""
    precision = options.mixed_precision
    if precision is not None and precision.leaves_out(part):
        return replace(options, mixed_precision=None)
    if policy is None:
        return None
    if not isinstance(policy, CustomPolicy):
        return options if policy(part) else None
    own = policy.options(part)
    return None if own is None else _changed(options, own)


def _changed(options: UnitOptions, own: dict[str, Any]) -> UnitOptions:
    """Return options of which a policy has replaced some."""
    unknown = own.keys() - UnitOptions.__dataclass_fields__.keys()
    if unknown:
        expected = f"some of {[*UnitOptions.__dataclass_fields__]}: others hold for the whole"
        raise ValueError(explain("CustomPolicy: options of a unit", got=sorted(unknown), expected=expected))
    changed = replace(options, **own)
    before, after = options.sharding_strategy, changed.sharding_strategy
    if _mesh_kind(before) != _mesh_kind(after):
        do = "wrap such a part by hand, before the whole"
        what = "CustomPolicy: sharding_strategy of a unit"
        raise ValueError(explain(what, got=after.name, expected=f"one on the mesh of {before.name}", do=do))
    return changed


def _mesh_kind(strategy: ShardingStrategy) -> tuple[bool, bool]:
    return strategy.is_hybrid, strategy is ShardingStrategy.NO_SHARD
