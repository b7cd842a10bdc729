"""What a plan would do: a table of layouts, collectives and bytes, a row a module. Nothing is changed or sent."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hpcdist.autograd import random
from hpcdist.comm import DeviceMesh, DryCommunicator
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.dtensor.debug_table import text
from hpcdist.dtensor.move import transpose
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard
from hpcdist.nn import Module
from hpcdist.parallel.plan import Assignment, Placing, Plan, unnumbered
from hpcdist.parallel.style import Change
from hpcdist.parallel.tensor_parallel import one_axis, parallelize_module, planned

__all__ = ["explain_plan"]


class _Sent(NamedTuple):
    """Calls of a collective by one module: how many bytes this rank brings; None: not known."""

    module: str
    phase: str
    verb: str
    payload_bytes: int | None


def explain_plan(
    model: Module,
    device_mesh: DeviceMesh,
    parallelize_plan: Plan,
    *,
    inputs: Sequence[Any] | None = None,
    positions: int = 1,
    strict: bool = True,
) -> str:
    """Return a table of what ``parallelize_module`` would do: layouts of parameters, inputs and outputs, collectives.

    Communicates with nobody and leaves the model as it is; the mesh may be one of a ``DryCommunicator``. Modules that
    differ in their numbers only, and are placed alike, share a row.

    Parameters
    ----------
    model, device_mesh, parallelize_plan, strict
        As for :func:`parallelize_module`.
    inputs : sequence, optional
        Arguments of a call of the model: collectives are those of a forward and a backward of a copy of it, on one rank
        of a mesh whose others are not there. Default: they follow from the styles, and what is communicated elsewhere
        (a loss, positions that are added) is not in the table.
    positions : int
        Without ``inputs``: tokens a call, on all ranks of the mesh together, of which bytes are told.

    Returns
    -------
    str
        Bytes are those that this rank brings to the collectives of a row's modules, all together.
    """
    assigned, placed = planned(model, one_axis(device_mesh), parallelize_plan, strict)
    if inputs is None:
        sent = list(_expected(assigned, placed, device_mesh.size(), positions))
        title = f"{positions} position{'s' * (positions != 1)} a call"
    else:
        sent = _traced(model, device_mesh, parallelize_plan, inputs, strict)
        title = "a forward and a backward with the given inputs"
    rows = [row for group in _groups(model, assigned, sent) for row in _rows(group, assigned, placed, sent)]
    return text(rows, f"{type(model).__name__} on {device_mesh.size()} ranks, {title}")


# ---------------------------------------------------------------- rows
_REST = "(end of backward)"


def _groups(model: Module, assigned: Sequence[Assignment], sent: Sequence[_Sent]) -> list[list[str]]:
    """Return names of modules that rows shall have, together those that differ in their numbers only."""
    styled = {name for name, _, _ in assigned} | {s.module for s in sent}
    groups: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if module.slots or name in styled:
            groups.setdefault(unnumbered(name), []).append(name)
    if _REST in styled:
        groups[_REST] = [_REST]
    return list(groups.values())


def _rows(
    group: list[str], assigned: Sequence[Assignment], placed: Sequence[Placing], sent: Sequence[_Sent]
) -> Iterator[dict[str, Any]]:
    """Yield one row of modules that are placed alike, or more."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in group:
        alike.setdefault(tuple(_placed(name, assigned, placed).values()), []).append(name)
    for names in alike.values():
        yield {
            "module": names[0] if len(alike) > 1 or len(names) == 1 else unnumbered(names[0]),
            "modules": len(names),
            **_placed(names[0], assigned, placed),
            "forward": _collectives(names, "forward", sent),
            "backward": _collectives(names, "backward", sent),
        }


def _placed(name: str, assigned: Sequence[Assignment], placed: Sequence[Placing]) -> dict[str, str]:
    """Return the layouts of a module's parameters, inputs and outputs."""
    parameters = [
        f"{key} {_short(placing.placement)}"
        for placing in placed
        for full, _, key in placing.places
        if full == (f"{name}.{key}" if name else key)
    ]
    changes = [change for there, module, style in assigned if there == name for change in style.changes(module)]
    return {
        "parameters": ", ".join(parameters) or "-",
        "input": _layouts("input", changes),
        "output": _layouts("output", changes),
    }


def _layouts(what: str, changes: Sequence[Change]) -> str:
    told = []
    for change in changes:
        if change.what == what:
            pair = list(dict.fromkeys(_short(p) for p in (change.src, change.dst)))
            told.append(" -> ".join(pair))
    return ", ".join(told) or "-"


def _short(placement: Placement | None) -> str:
    """Return a placement without empty brackets."""
    return "any" if placement is None else re.sub(r"\(\)|\(op='sum'\)", "", repr(placement))


def _collectives(group: Sequence[str], phase: str, sent: Sequence[_Sent]) -> str:
    found: dict[str, list[int | None]] = {}
    for one in sent:
        if one.module in group and one.phase == phase:
            found.setdefault(one.verb, []).append(one.payload_bytes)
    told = []
    for verb, payloads in found.items():
        known = [n for n in payloads if n is not None]
        size = f"{sum(known):,} B" if len(known) == len(payloads) else "? B"
        told.append(f"{len(payloads)} {verb} {size}")
    return ", ".join(told) or "-"


# ---------------------------------------------------------------- collectives, as they follow from styles
def _expected(assigned: Sequence[Assignment], placed: Sequence[Placing], size: int, positions: int) -> Iterator[_Sent]:
    """Yield what changes of layout communicate, and the sums of gradients that are collected until backward ends."""
    lent = 0
    for name, module, style in assigned:
        changes = style.changes(module)
        itemsize = max((p.dtype.itemsize for p in module.slots.values()), default=4)
        for change in changes:
            if change.src is not None and change.dst is not None:
                yield from _moved(name, change, itemsize, size, positions)
        if any(c.what == "input" and _is_cut_elsewhere(c) for c in changes):
            own = {id(module.slots[key]) for key in module.slots}
            lent += sum(
                p.tensor.size * p.tensor.dtype.itemsize
                for p in placed
                if id(p.tensor) in own and p.placement == Invariant() and p.tensor.requires_grad
            )
    if lent:
        yield _Sent(_REST, "backward", "all_reduce", lent)


def _is_cut_elsewhere(change: Change) -> bool:
    """Say whether a module computes with a slice of positions, so that gradients of its parameters are sums."""
    return isinstance(change.dst, Shard) and change.dst.dim >= 0


def _moved(name: str, change: Change, itemsize: int, size: int, positions: int) -> Iterator[_Sent]:
    assert change.src is not None
    assert change.dst is not None
    payload = None if change.features is None else positions * change.features * itemsize
    moves = [("forward", change.src, change.dst)]
    if change.has_gradient:
        moves.append(("backward", *transpose(change.src, change.dst)))
    for phase, src, dst in moves:
        verb = _VERBS.get((type(src), type(dst)))
        if verb and src != dst:
            part = payload if payload is None or isinstance(src, Partial) else -(-payload // size)
            yield _Sent(name, phase, verb, part)


_VERBS = {
    (Shard, Shard): "all_to_all",
    (Shard, Replicate): "all_gather",
    (Shard, Invariant): "all_gather",
    (Partial, Shard): "reduce_scatter",
    (Partial, Replicate): "all_reduce",
    (Partial, Invariant): "all_reduce",
}


# ---------------------------------------------------------------- collectives, as they are called
def _traced(model: Module, mesh: DeviceMesh, plan: Plan, inputs: Sequence[Any], strict: bool) -> list[_Sent]:
    """Run a copy of the model alone, and return what it calls."""
    alone = DryCommunicator(mesh.size(), max(mesh.get_local_rank(), 0))
    dry = DeviceMesh(range(alone.size), mesh.axis_names, alone)
    before = random.get_state()
    twin = parallelize_module(copy.deepcopy(model), dry, plan, src_data_rank=None, strict=strict)
    try:
        with CommDebugMode(twin) as mode:
            result = twin(*inputs)
            for output in result if isinstance(result, tuple) else (result,):
                if getattr(output, "requires_grad", False):
                    output.sum().backward(retain_graph=True)
    finally:
        random.set_state(before)
    return [_Sent(_REST if r.module is None else r.module, r.phase, r.verb, r.payload_bytes) for r in mode.records]
