"""A module on a mesh: its parameters become distributed tensors, in place and under their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hpcdist.comm.mesh import DeviceMesh
from hpcdist.dtensor.distribute import chosen, distribute_tensor
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain

__all__ = ["distribute_module"]

M = TypeVar("M")
_MARK = "_is_distributed"


def distribute_module(
    module: M,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, Any, DeviceMesh], object] | None = None,
    input_fn: Callable[[Any, tuple[Any, ...], DeviceMesh], Any] | None = None,
    output_fn: Callable[[Any, Any, DeviceMesh], Any] | None = None,
) -> M:
    """Make parameters and buffers of a module distributed tensors, in place; return it. Collective over the mesh.

    Their names do not change, and tied ones stay tied.

    Parameters
    ----------
    module : Module
        The same on every rank.
    device_mesh : DeviceMesh, optional
        Default: that of the ``with`` block.
    partition_fn : function ``(name, module, mesh)``, optional
        Called with every module; puts distributed tensors in place of the parameters that it wants to be placed in a
        certain way: ``module.weight = distribute_tensor(module.weight, mesh, [Shard(0)])``. What it leaves, and
        everything without it, becomes Invariant, with the values of the mesh's first rank.
    input_fn : function ``(module, inputs, mesh)``, optional
        Gets the tuple of positional arguments of a call and returns others.
    output_fn : function ``(module, output, mesh)``, optional
        Gets what a call returned and returns what is returned instead.

    Raises
    ------
    RuntimeError
        If it has been called with this module before.
    ValueError
        If ``partition_fn`` placed a tied parameter in two ways.
    """
    mesh, _ = chosen("distribute_module", device_mesh, None)
    if vars(module).get(_MARK):
        do = "distribute it once, or build it anew"
        raise RuntimeError(explain(f"distribute_module: this {type(module).__name__} is distributed already", do=do))
    before = _holders(module)
    if partition_fn is not None:
        for name, part in module.named_modules():  # type: ignore[attr-defined]
            partition_fn(name, part, mesh)
    for original, holders in before:
        _finish(original, holders, mesh)
    if input_fn is not None or output_fn is not None:
        module.around.append(_converted(module, mesh, input_fn, output_fn))  # type: ignore[attr-defined]
    vars(module)[_MARK] = True
    return module


Holder = tuple[str, dict[str, Any], str]
"""Full name, the table of a module that has a tensor, and its name in it."""


def _holders(module: Any) -> list[tuple[Any, list[Holder]]]:
    """Return every parameter and buffer with all its places."""
    found: dict[int, tuple[Any, list[Holder]]] = {}
    for prefix, part in module.named_modules():
        for table in (part.slots, part.buffers):
            for key, held in table.items():
                name = f"{prefix}.{key}" if prefix else key
                found.setdefault(id(held), (held, []))[1].append((name, table, key))
    return list(found.values())


def _finish(original: Any, holders: list[Holder], mesh: DeviceMesh) -> None:
    """Put one distributed tensor in all places of a parameter: the one that was placed there, or an Invariant one."""
    now = {id(table[key]): table[key] for _, table, key in holders if key in table}
    placed = [x for x in now.values() if x is not original]
    if len(placed) > 1:
        names = ", ".join(name for name, _, _ in holders)
        do = "place one of them: the others follow"
        raise ValueError(explain(f"distribute_module: {names} are one parameter", got=placed, expected="one", do=do))
    if not placed:
        placed = [original if isinstance(original, DTensor) else distribute_tensor(original, mesh)]
    for _, table, key in holders:
        if key in table:
            table[key] = placed[0]


def _converted(module: Any, mesh: DeviceMesh, input_fn: Any, output_fn: Any) -> Callable[..., Any]:
    """Return a wrapper of calls that converts what goes in and what comes out."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def converted(*args: Any, **kwargs: Any) -> Any:
            if input_fn is not None:
                given = input_fn(module, args, mesh)
                args = given if isinstance(given, tuple) else (given,)
            result = call(*args, **kwargs)
            return result if output_fn is None else output_fn(module, result, mesh)

        return converted

    return wrap
