"""Computations of a user's own on what ranks hold, such as a compiled kernel (torch's local_map)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from hpcdist.autograd import Tensor
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.dtensor.placements import Placement
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain

__all__ = ["local_map"]

Placements: TypeAlias = Sequence[Placement] | None


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Any = None,
    in_placements: Sequence[Placements] | None = None,
    in_grad_placements: Sequence[Placements] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Callable[..., Any]:
    """Return a function of distributed tensors that calls ``func`` with what this rank holds of them.

    The result is collective over the mesh where an output is sharded (sizes are exchanged, as by ``from_local``), and
    over axes along which inputs are redistributed.

    Parameters
    ----------
    func : function of Tensors
        Returns a Tensor or a tuple; left out: a decorator is returned. It is differentiated as any other: write it in
        operations, or as one by ``hd.autograd.define``.
    out_placements : sequence of Placement, or tuple of such sequences
        How the output, or each of several, is placed; None for one that is not a distributed tensor.
    in_placements : sequence, optional
        Placements of each positional argument, None for those that are no distributed tensors; default: any.
    in_grad_placements : sequence, optional
        How gradients of each argument are placed; default: the dual of its placements.
    device_mesh : DeviceMesh, optional
        Default: that of the arguments.
    redistribute_inputs : bool
        Move arguments to ``in_placements``, instead of raising.

    Raises
    ------
    ValueError
        When called, if an argument is placed differently; on every rank.
    """
    if func is None:
        return functools.partial(
            local_map,
            out_placements=out_placements,
            in_placements=in_placements,
            in_grad_placements=in_grad_placements,
            device_mesh=device_mesh,
            redistribute_inputs=redistribute_inputs,
        )
    fn: Callable[..., Any] = func
    name = getattr(fn, "__name__", "func")

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        meshes = [x.device_mesh for x in args if isinstance(x, DTensor)]
        mesh = device_mesh or (meshes[0] if meshes else None)
        if mesh is None or any(m != mesh for m in meshes):
            do = "pass distributed tensors of one mesh, or device_mesh="
            raise ValueError(explain(f"local_map of {name}: mesh", got=meshes, do=do))
        wanted = _one_each(name, "in_placements", in_placements, len(args))
        grads = _one_each(name, "in_grad_placements", in_grad_placements, len(args))
        local = [
            _local(f"local_map of {name}: argument {i}", x, p, g, redistribute_inputs)
            for i, (x, p, g) in enumerate(zip(args, wanted, grads, strict=True))
        ]
        return _wrapped(name, fn(*local, **kwargs), out_placements, mesh)

    return mapped


def _one_each(name: str, what: str, placements: Sequence[Placements] | None, count: int) -> Sequence[Placements]:
    if placements is None:
        return [None] * count
    if len(placements) != count:
        raise ValueError(
            explain(f"local_map of {name}: {what}", got=len(placements), expected=f"{count}, one an argument")
        )
    return placements


def _local(what: str, x: Any, placements: Placements, grads: Placements, moves: bool) -> Any:
    """Return what this rank holds of an argument. Collective over the axes along which it is moved."""
    if not isinstance(x, DTensor):
        if placements is not None:
            do = "distribute it before"
            raise ValueError(explain(what, got=type(x).__name__, expected=f"placed as {list(placements)}", do=do))
        return x
    if placements is not None and x.layout.placed(placements).placements != x.placements:
        if not moves:
            do = "redistribute it before, or say redistribute_inputs=True"
            raise ValueError(explain(what, got=list(x.placements), expected=list(placements), do=do))
        x = x.redistribute(placements=placements)
    return x.to_local(grad_placements=grads)


def _wrapped(name: str, result: Any, placements: Any, mesh: DeviceMesh) -> Any:
    """Return outputs as distributed tensors. Collective over the mesh, for those that are sharded."""
    if not isinstance(result, (tuple, list)):
        return _placed(result, placements, mesh)
    each = placements if not _is_one(placements) else [placements] * len(result)
    if len(each) != len(result):
        what = f"local_map of {name}: outputs"
        raise ValueError(explain(what, got=len(result), expected=f"{len(each)}, as out_placements has"))
    return tuple(_placed(x, p, mesh) for x, p in zip(result, each, strict=True))


def _is_one(placements: Any) -> bool:
    return placements is None or all(isinstance(p, Placement) for p in placements)


def _placed(x: Any, placements: Placements, mesh: DeviceMesh) -> Any:
    return x if placements is None or not isinstance(x, Tensor) else DTensor.from_local(x, mesh, placements)
