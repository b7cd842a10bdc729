"""What fully_shard is given: the mesh, the modules and options, checked on every rank alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.comm import Communicator, DeviceMesh, init_device_mesh
from hpcdist.errors import explain
from hpcdist.nn import Module, ModuleList
from hpcdist.parallel.fsdp_module import FSDPModule
from hpcdist.parallel.mixed_precision import MixedPrecisionPolicy
from hpcdist.parallel.offload import OffloadPolicy

__all__ = [
    "DataParallelMeshDims",
    "check_modules",
    "check_parameter",
    "check_policies",
    "check_resharding",
    "chosen_mesh",
    "parts",
    "warn",
]

_log = logging.getLogger("hpcdist.parallel")

Names = str | tuple[str, ...] | None


@dataclass(frozen=True)
class DataParallelMeshDims:
    """Which axes of a mesh fully_shard is to use, by name; the others are left to other strategies.

    Attributes
    ----------
    shard : str or tuple of str
        Along which parameters are cut; several axes count as one, which :meth:`DeviceMesh.flatten` makes of them.
    replicate : str or tuple of str, optional
        Along which there are copies.

    Raises
    ------
    ValueError
        If no axis is named to shard along.
    """

    shard: Names = None
    replicate: Names = None

    def __post_init__(self) -> None:
        if self.shard is None:
            do = "for copies alone, use replicate"
            raise ValueError(explain("DataParallelMeshDims: shard", got=None, expected="names of axes", do=do))

    def of(self, mesh: DeviceMesh) -> DeviceMesh:
        """Return the mesh of these axes. Collective over them, where several are made one for the first time."""
        axes = [_axis(mesh, names) for names in (self.replicate, self.shard) if names is not None]
        return axes[0] if len(axes) == 1 else DeviceMesh.concatenate(axes)


def _axis(mesh: DeviceMesh, names: str | tuple[str, ...]) -> DeviceMesh:
    if isinstance(names, str) or len(names) == 1:
        return mesh[names]
    flat = "_".join(names)
    try:
        return mesh[flat]
    except KeyError:
        return mesh[names].flatten(flat)


def chosen_mesh(mesh: Any, dims: DataParallelMeshDims | None) -> DeviceMesh:
    """Return the mesh to shard on; of a communicator always the same one."""
    if mesh is None:
        from hpcdist.comm.init import get_default

        mesh = get_default()
    if isinstance(mesh, Communicator):
        if "fully_shard" not in mesh.memo:  # all units that are given this communicator are on one mesh
            mesh.memo["fully_shard"] = init_device_mesh((mesh.size,), ("shard",), mesh)
        mesh = mesh.memo["fully_shard"]
    if isinstance(mesh, DeviceMesh) and dims is not None:
        mesh = dims.of(mesh)
    if not isinstance(mesh, DeviceMesh) or mesh.ndim > 2:
        expected = "a mesh of one axis (shards), or of two (copies, shards)"
        raise ValueError(explain("fully_shard: mesh", got=mesh, expected=expected, do="slice it: mesh['dp']"))
    return mesh


def check_modules(modules: Sequence[Module]) -> None:
    """Refuse what is sharded already, and what is never called."""
    if not modules:
        raise ValueError(explain("fully_shard: modules", got="none", expected="one or more"))
    for m in modules:
        if not isinstance(m, Module):
            raise TypeError(
                explain("fully_shard: module", got=type(m).__name__, expected="a Module, or a list of them")
            )
        if isinstance(m, FSDPModule):
            do = "call it once, parts before the whole"
            raise ValueError(explain(f"fully_shard: this {type(m).__name__} is sharded already", do=do))
        if type(m).forward is Module.forward:
            do = "shard what is in it, or pass a list of that"
            raise ValueError(explain(f"fully_shard: a {type(m).__name__} has no forward of its own", do=do))


def check_parameter(p: Any) -> None:
    """Refuse a parameter whose gradient another strategy reduces."""
    if p.home is not None:
        do = "use one of them; copies of shards: a mesh of two axes"
        raise ValueError(explain("fully_shard: a parameter that replicate has already", got=tuple(p.shape), do=do))


def check_policies(mp_policy: object, offload_policy: object) -> None:
    """Refuse what is no policy, such as a dtype."""
    for name, given, kind in (
        ("mp_policy", mp_policy, MixedPrecisionPolicy),
        ("offload_policy", offload_policy, OffloadPolicy),
    ):
        if given is not None and not isinstance(given, kind):
            raise TypeError(explain(f"fully_shard: {name}", got=given, expected=f"a {kind.__name__}"))


def check_resharding(value: bool | int | None, size: int) -> bool | int | None:
    """Return ``reshard_after_forward``: a number only if neighbours keep a part and are not all ranks."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, int) or value < 1 or size % value:
        expected = f"True, False, None, or a divisor of {size}, the number of shards"
        raise ValueError(explain("fully_shard: reshard_after_forward", got=value, expected=expected))
    return False if value == 1 else True if value == size else value


def parts(modules: Sequence[Module], wants: Callable[[Module], bool]) -> list[Module]:
    """Return the parts to be units of their own, inner ones first."""
    found = [part for m in modules for part in m.modules() if part not in modules and wants(part)]
    return [part for part in reversed(dict.fromkeys(found)) if not isinstance(part, FSDPModule)]


def warn(modules: Sequence[Module]) -> None:
    """Say so if a stack of blocks becomes one unit: all of it would be whole at the same time."""
    for m in modules:
        if any(isinstance(part, FSDPModule) for part in m.modules()):
            return
        for name, part in m.named_modules():
            if isinstance(part, ModuleList) and sum(any(b.named_slots()) for b in part.children.values()) > 1:
                _log.warning(
                    "fully_shard: all parameters of %s are gathered at the same time; to hold one block at a time, "
                    "call it on each item of %s first, or pass auto_wrap_policy",
                    type(m).__name__,
                    repr(name) if name else "it",
                )
                return
