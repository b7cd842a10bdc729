"""Clipping of gradients of which ranks hold parts: one norm, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator, DeviceMesh, ReduceOp
from hpcdist.dtensor.placements import Invariant, Shard
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain
from hpcdist.optim.clip import root, scale_gradients, sum_of_powers, whole_gradient
from hpcdist.parallel.squares import gathered, sum_of_squares

__all__ = ["clip_grad_norm_"]


def clip_grad_norm_(
    parameters: Tensor | DTensor | Iterable[Tensor | DTensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:
    """Scale all gradients down, in place, so that their norm together is at most ``max_norm``.

    Collective over the mesh of distributed parameters: one small message. What ranks hold parts of counts
    part by part, what all of them hold counts once; plain parameters are taken to be the same on every rank.
    In reproducible runs (``hd.init(reproducible=True)``) the bits do not depend on how parameters are cut, at the price
    of two small messages for parameters that are cut along their first dimension, and of gathering others, or all of
    them for another ``norm_type`` than 2 and infinity.

    Parameters
    ----------
    parameters : tensors, or one
        Distributed ones on one mesh, each Shard or Invariant on every axis; plain ones may be among them.
    norm_type : float
        Above 0; infinity: the largest magnitude.
    error_if_nonfinite : bool
        Whether a norm that is not finite is an error. Gradients whose norm is NaN are left as they are.

    Returns
    -------
    float
        The norm before, the same on every rank.

    Raises
    ------
    RuntimeError
        If the norm is not finite and ``error_if_nonfinite``; gradients are left as they are.
    TypeError
        If a placement is Replicate or Partial: gradients would be unfinished sums.
    ValueError
        If parameters are on several meshes.
    """
    if not max_norm >= 0:
        raise ValueError(explain("clip_grad_norm_: max_norm", got=max_norm, expected=">= 0"))
    if not norm_type > 0:
        raise ValueError(explain("clip_grad_norm_: norm_type", got=norm_type, expected="a number above 0"))
    given: Any = parameters
    chosen = [given] if hasattr(type(given), "requires_grad") else list(given)
    mesh = _mesh_of(chosen)
    power = float(norm_type)
    norm = root(_sum([p for p in chosen if p.grad is not None], power, mesh), power)
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(explain("the norm of the gradients", got=norm, expected="a finite number"))
    scale_gradients((p for p in chosen if p.grad is not None), max_norm / (norm + 1e-6))
    return norm


def _sum(parameters: list[Any], power: float, mesh: DeviceMesh | None) -> float:
    """Return the sum of powers of all gradients. Collective over the mesh."""
    if mesh is not None and power != math.inf and mesh.get_mesh_group().reproducible:
        return sum_of_squares(parameters) if power == 2 else sum_of_powers(map(gathered, parameters), power)
    total = sum_of_powers([whole_gradient(p) for p in parameters if _counts_here(p, mesh)], power)
    return total if mesh is None else _combined(total, power, mesh.get_mesh_group())


def _mesh_of(parameters: list[Any]) -> DeviceMesh | None:
    """Return the mesh of distributed parameters; None if there are none."""
    placed = [(place, p) for place, p in enumerate(parameters) if isinstance(p, DTensor)]
    for place, p in placed:
        if not all(isinstance(placement, (Shard, Invariant)) for placement in p.placements):
            what = f"clip_grad_norm_: the gradient of parameter {place} is a sum that is not finished"
            raise TypeError(explain(what, got=p.layout, expected="Shard or Invariant on every axis"))
        if p.device_mesh != placed[0][1].device_mesh:
            got = f"{placed[0][1].device_mesh} and {p.device_mesh}"
            raise ValueError(explain("clip_grad_norm_: parameters on two meshes", got=got, expected="one"))
    return placed[0][1].device_mesh if placed else None


def _counts_here(parameter: Any, mesh: DeviceMesh | None) -> bool:
    """Say whether this rank counts what it holds: of those that hold the same, the first one does."""
    if mesh is None:
        return True
    here = mesh.get_coordinate() or ()
    cut = (
        [isinstance(p, Shard) for p in parameter.placements] if isinstance(parameter, DTensor) else [False] * len(here)
    )
    return all(is_cut or place == 0 for place, is_cut in zip(here, cut, strict=True))


def _combined(total: float, power: float, comm: Communicator) -> float:
    """Return what ``sum_of_powers`` returns of all ranks' parts. Collective over ``comm``."""
    if power != math.inf:
        return float(comm.all_reduce(np.array([total]))[0])
    told = np.array([-math.inf if math.isnan(total) else total, math.isnan(total)])
    largest, unknown = comm.all_reduce(told, ReduceOp.MAX)
    return math.nan if unknown else float(largest)
