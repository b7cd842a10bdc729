"""How an operation on distributed tensors becomes one on what ranks hold: choose, move, compute.

What is chosen depends on layouts and attributes only, so it is found once and kept with the mesh.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from hpcdist.autograd import Op, Tensor, apply
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.dtensor.adopted import adopted
from hpcdist.dtensor.choice import Choice, Placed, best, distance, ways
from hpcdist.dtensor.distribute import from_local
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.memo import LIMIT
from hpcdist.dtensor.path import along
from hpcdist.dtensor.placements import Placement, Shard
from hpcdist.dtensor.signature import Row, parse, unnamed
from hpcdist.dtensor.steps import is_implicit, steps
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain

__all__ = [
    "REGISTERED",
    "Computed",
    "LayoutError",
    "Placed",
    "Rule",
    "computed",
    "dispatch",
    "implicit_replication",
    "refusal",
    "rule",
    "unlike",
]


Rule: TypeAlias = "Callable[[Op, list[Layout], dict[str, Any]], Placed | None]"
"""Finds a way for an operation that its signature does not describe; None: the signature does, or nothing."""
Computed: TypeAlias = Callable[..., Any]
"""Computes an operation by others: ``(*inputs, **attrs) -> DTensor`` or tuple; NotImplemented: refuse."""

Register: TypeAlias = Callable[[list[Layout], dict[str, Any]], Sequence[Row]]
"""Yields more ways to run an operation on one axis."""

_RULES: dict[str, Rule] = {}
REGISTERED: dict[str, list[Register]] = {}
_COMPUTED: dict[str, Computed] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of operations."""

    def register(fn: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def computed(*names: str) -> Callable[[Computed], Computed]:
    """Register a function that computes an operation where the signature's way is barred."""

    def register(fn: Computed) -> Computed:
        _COMPUTED.update(dict.fromkeys(names, fn))
        return fn

    return register


class _Mode(threading.local):
    """Whether plain arrays on this thread count as the same on all ranks."""

    implicit = False


_mode = _Mode()


@contextmanager
def implicit_replication() -> Iterator[None]:
    """Let plain tensors stand beside distributed ones in a block: they are taken to be the same on all ranks."""
    before, _mode.implicit = _mode.implicit, True
    try:
        yield
    finally:
        _mode.implicit = before


def dispatch(op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """Run an operation of which an input is distributed.

    Collective over the axes on which inputs are moved: where they are Partial and must not be.

    Raises
    ------
    ValueError
        If inputs would have to be gathered, or are on different meshes; says what to call.
    TypeError
        If a plain array stands beside a distributed one.
    """
    mesh = next(x.layout.mesh for x in inputs if type(x) is DTensor)
    tensors = [x if type(x) is DTensor and x.layout.mesh is mesh else _adopted(op, x, mesh) for x in inputs]
    plan = _plan(op, tensors, attrs)
    return plan(tensors, attrs)


def _adopted(op: Op, x: Any, mesh: DeviceMesh) -> DTensor:
    """Return a plain tensor as one that is the same on all ranks."""
    if isinstance(x, DTensor):
        if x.layout.mesh != mesh:
            do = "bring them to one mesh"
            raise ValueError(explain(f"{op.name}: inputs on two meshes", got=f"{mesh}, {x.layout.mesh}", do=do))
        return x
    if not isinstance(x, Tensor):
        raise TypeError(
            explain(f"{op.name}: an input is not a tensor", got=type(x).__name__, do="wrap it: hd.tensor(x)")
        )
    if x.ndim and not _mode.implicit:
        do = "distribute it, say DTensor.from_local(x, mesh), or compute under hd.dtensor.implicit_replication()"
        raise TypeError(explain(f"{op.name}: a plain tensor beside a distributed one", got=x.shape, do=do))
    return adopted(x, mesh)


# ---------------------------------------------------------------- plans
Plan: TypeAlias = Callable[[list[DTensor], dict[str, Any]], Any]


def _plan(op: Op, tensors: list[DTensor], attrs: dict[str, Any]) -> Plan:
    plans: dict[Any, Plan] = tensors[0].layout.mesh.memo.setdefault("plans", {})
    key = (op, *[x.layout for x in tensors], *[v for k, v in attrs.items() if k != "key"])
    try:
        known = plans.get(key)
    except TypeError:  # an attribute that has no hash
        key = _hashable(key)
        if key is None:
            return _find(op, [x.layout for x in tensors], attrs)
        known = plans.get(key)
    if known is None:
        if len(plans) >= LIMIT:
            plans.clear()
        known = plans[key] = _find(op, [x.layout for x in tensors], attrs)
    return known


def _hashable(key: tuple[Any, ...]) -> Any:
    """Return a key whose slices, which have no hash, are tuples; None if something else has none either."""

    def told(value: Any) -> Any:
        if isinstance(value, slice):
            return (slice, value.start, value.stop, value.step)
        return tuple(map(told, value)) if type(value) is tuple else value

    changed = tuple(map(told, key))
    try:
        hash(changed)
    except TypeError:
        return None
    return changed


def _find(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Plan:
    """Find the way to run an operation: by its rule, by its signature, or by other operations."""
    placed = _RULES[op.name](op, layouts, attrs) if op.name in _RULES else None
    placed = placed or best(_choice(op, layouts, attrs))
    if placed is not None:
        return _Run(op, layouts, placed)
    if op.name not in _COMPUTED:
        raise refusal(op, layouts, attrs)
    fn = _COMPUTED[op.name]

    def compute(tensors: list[DTensor], attrs: dict[str, Any]) -> Any:
        try:
            result = fn(*tensors, **attrs)
        except LayoutError as error:  # of an operation that it is composed of: users know the whole only
            if error.name == op.name:
                raise
            raise refusal(op, layouts, attrs) from error
        if result is NotImplemented:
            raise refusal(op, layouts, attrs)
        return result

    return compute


def _choice(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Choice:
    """Read the signature of an operation; one that has none must be whole."""
    shapes = [x.shape for x in layouts]
    terms = parse(op.signature_for(shapes, attrs)) if op.signature else unnamed([len(s) for s in shapes])
    more = [row for find in REGISTERED.get(op.name, ()) for row in find(layouts, attrs)]
    return Choice.by(terms, op.linear, layouts, more=more)


class _Run:
    """Move inputs, compute with what ranks hold, and say how the results are laid out."""

    def __init__(self, op: Op, layouts: list[Layout], placed: Placed) -> None:
        self.op, self.inputs, self.outputs, self.attrs = placed.op or op, placed.inputs, placed.outputs, placed.attrs
        self._way = placed.way
        self._paths = [steps(x, wanted) for x, wanted in zip(layouts, placed.inputs, strict=True)]

    def __call__(self, tensors: list[DTensor], attrs: dict[str, Any]) -> Any:
        local = [along(x.local, path) if path else x.local for x, path in zip(tensors, self._paths, strict=True)]
        result = apply(self.op, *local, **({**attrs, **self.attrs} if self.attrs else attrs))
        many = type(result) is tuple
        results = result if many else (result,)
        if self.outputs is None:
            self.outputs = self._seen(results)
        made = [DTensor(t, layout) for t, layout in zip(results, self.outputs, strict=True)]
        return tuple(made) if many else made[0]

    def _seen(self, results: Sequence[Tensor]) -> list[Layout]:
        """Return the layouts of outputs, whose extents are those of letters, or were computed whole.

        Collective over the mesh where a registered way cuts an output, of which this rank knows its part only.
        """
        assert self._way is not None
        terms, way = self._way
        mesh, letters = self.inputs[0].mesh, {row.letter for row in way.rows} - {""}
        extents = {
            letter: n
            for g, x in zip(terms.inputs, self.inputs, strict=True)
            for letter, n in zip(g, x.shape, strict=True)
        }
        layouts = []
        for slot, t in enumerate(results):
            group = terms.outputs[slot] if terms.outputs else ("",) * t.ndim
            placements = [row.outputs[min(slot, len(row.outputs) - 1)] for row in way.rows]
            if any(isinstance(p, Shard) and not row.letter for p, row in zip(placements, way.rows, strict=True)):
                layouts.append(from_local(t, mesh, placements, order=way.order).layout)
            else:
                whole = [extents[c] if c in letters else n for c, n in zip(group, t.shape, strict=True)]
                layouts.append(Layout.of(mesh, placements, whole, way.order))
        return layouts


# ---------------------------------------------------------------- refusals
class LayoutError(ValueError):
    """An operation would need more than implicit moves."""

    @property
    def name(self) -> str:
        """That of the operation, with which every message begins."""
        return str(self).partition(":")[0]


def refusal(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> LayoutError:
    """Return the error for an operation that would need more than implicit moves: it says which would help."""
    asked = [way.inputs for way, _ in ways(_choice(op, layouts, attrs))]
    return unlike(op.name, layouts, min(asked, key=lambda inputs: distance(layouts, inputs)))


def unlike(name: str, layouts: Sequence[Layout], wanted: Sequence[Layout]) -> LayoutError:
    """Return the error for inputs that are not laid out as wanted, of which some must be moved by hand."""
    got = "; ".join(f"input {i}: {x}" for i, x in enumerate(layouts))
    calls = [
        f"redistribute(placements={_told(name, i, w)}{_said(w)}) of input {i}"
        for i, (x, w) in enumerate(zip(layouts, wanted, strict=True))
        if not all(map(is_implicit, steps(x, w)))
    ]
    do = f"call {' and '.join(calls)} before, or use local_map for a computation of your own"
    return LayoutError(
        explain(f"{name}: what ranks hold does not suffice, and nothing is gathered unasked", got=got, do=do)
    )


def _told(name: str, i: int, layout: Layout) -> list[Placement]:
    """Return placements; of a row, which may be a vector to the user, with dimensions counted from the end."""
    if (name, i) != ("matmul", 0) or layout.shape[:-1] != (1,):
        return list(layout.placements)
    return [replace(p, dim=p.dim - 2) if isinstance(p, Shard) else p for p in layout.placements]


def _said(layout: Layout) -> str:
    """Return the order of axes as an argument, where it matters."""
    matters = any(len(layout.cutters(dim)) > 1 for dim in range(len(layout.shape)))
    return f", order={layout.order}" if matters else ""
