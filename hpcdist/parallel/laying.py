"""How styles lay out what goes into a module and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.autograd.operand import wrapped
from hpcdist.comm import DeviceMesh
from hpcdist.dtensor.adopted import adopted
from hpcdist.dtensor.distribute import from_local
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard
from hpcdist.dtensor.tensor import DTensor, relaid
from hpcdist.errors import explain

__all__ = ["check_layout", "invariant", "laid", "local_parts", "moved", "whole"]


def check_layout(what: str, layout: object) -> None:
    """Refuse what is no placement."""
    if layout is not None and not isinstance(layout, (Shard, Replicate, Invariant, Partial)):
        raise TypeError(explain(what, got=repr(layout), expected="a placement, or None"))


def invariant(layout: Placement) -> Placement:
    """Return what torch calls Replicate, where all ranks do the same, by its name here."""
    return Invariant() if isinstance(layout, Replicate) else layout


def laid(x: Any, mesh: DeviceMesh, layout: Placement) -> DTensor:
    """Return ``x``, or of a plain tensor a distributed one. Collective over the mesh where plain ``x`` is cut.

    In check mode also where it counts as the same on all ranks, which compare it.
    """
    if isinstance(x, DTensor):
        return x
    x = wrapped(x)
    if isinstance(layout, Shard):
        return from_local(x, mesh, [layout])
    if isinstance(layout, Partial):
        return DTensor(x, Layout.of(mesh, [layout], x.shape))
    return adopted(x, mesh)


def moved(x: DTensor, placement: Placement) -> DTensor:
    """Return ``x`` in another layout of its one axis. Collective over it, unless the change is free."""
    return relaid(x, x.layout.placed([placement]))


def whole(x: DTensor) -> DTensor:
    """Return ``x`` gathered where it is cut. Collective over the mesh, then."""
    return moved(x, Replicate()) if isinstance(x.placements[0], Shard) else x


def local_parts(y: Any) -> Any:
    """Return what this rank holds, of one tensor or of several."""
    if isinstance(y, Sequence):
        return type(y)(map(local_parts, y))  # type: ignore[call-arg]
    return y.to_local() if isinstance(y, DTensor) else y
