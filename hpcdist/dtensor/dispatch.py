"""How an operation on distributed tensors becomes one on what ranks hold: choose, move, compute.

What is chosen depends on layouts and attributes only, so it is found once and kept with the mesh.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from hpcdist.autograd import Op, Tensor, apply
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant
from hpcdist.dtensor.signature import Row, Terms, parse, rows, unnamed
from hpcdist.dtensor.steps import Step, is_implicit, steps
from hpcdist.dtensor.tensor import DTensor, relaid
from hpcdist.errors import explain

__all__ = [
    "COMPUTED",
    "REGISTERED",
    "RULES",
    "Computed",
    "Placed",
    "Rule",
    "computed",
    "dispatch",
    "implicit_replication",
    "refusal",
    "rule",
]


class Placed(NamedTuple):
    """A way to run an operation on what ranks hold.

    Attributes
    ----------
    inputs : list of Layout
        How inputs must be laid out.
    outputs : list of Layout, optional
        How outputs then are; None: as ``terms`` and ``placements`` say, with extents that are seen when it has run.
    attrs : dict
        Attributes that differ on this rank.
    """

    inputs: list[Layout]
    outputs: list[Layout] | None
    attrs: dict[str, Any]


Rule: TypeAlias = "Callable[[Op, list[Layout], dict[str, Any]], Placed | None]"
"""Finds a way for an operation that its signature does not describe; None: the signature does, or nothing."""
Computed: TypeAlias = Callable[..., Any]
"""Computes an operation by others: ``(*inputs, **attrs) -> DTensor`` or tuple; NotImplemented: refuse."""

Register: TypeAlias = Callable[[list[Layout], dict[str, Any]], Sequence[Row]]
"""Yields more ways to run an operation on one axis."""

RULES: dict[str, Rule] = {}
REGISTERED: dict[str, list[Register]] = {}
COMPUTED: dict[str, Computed] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of operations."""

    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def computed(*names: str) -> Callable[[Computed], Computed]:
    """Register a function that computes an operation where the signature's way is barred."""

    def register(fn: Computed) -> Computed:
        COMPUTED.update(dict.fromkeys(names, fn))
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
    return DTensor(x, Layout.of(mesh, [Invariant()] * mesh.ndim, x.shape))


# ---------------------------------------------------------------- plans
Plan: TypeAlias = Callable[[list[DTensor], dict[str, Any]], Any]

_LIMIT = 4096
"""Plans that are kept a mesh; programs whose shapes never repeat would fill the memory."""


def _plan(op: Op, tensors: list[DTensor], attrs: dict[str, Any]) -> Plan:
    plans: dict[Any, Plan] = tensors[0].layout.mesh.memo.setdefault("plans", {})
    try:
        key = (op, *[x.layout for x in tensors], *[v for k, v in attrs.items() if k != "key"])
        known = plans.get(key)
    except TypeError:  # an attribute that has no hash
        return _find(op, [x.layout for x in tensors], attrs)
    if known is None:
        if len(plans) >= _LIMIT:
            plans.clear()
        known = plans[key] = _find(op, [x.layout for x in tensors], attrs)
    return known


def _find(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Plan:
    """Find the way to run an operation: by its rule, by its signature, or by other operations."""
    placed = RULES[op.name](op, layouts, attrs) if op.name in RULES else None
    if placed is not None:
        return _Run(op, placed, None)
    best = _best(op, _Choice.of(op, layouts, attrs))
    if best is not None:
        return best
    if op.name not in COMPUTED:
        raise refusal(op, layouts, attrs)
    fn = COMPUTED[op.name]

    def compute(tensors: list[DTensor], attrs: dict[str, Any]) -> Any:
        result = fn(*tensors, **attrs)
        if result is NotImplemented:
            raise refusal(op, layouts, attrs)
        return result

    return compute


class _Run:
    """Move inputs, compute with what ranks hold, and say how the results are laid out."""

    def __init__(self, op: Op, placed: Placed, way: tuple[Terms, _Way] | None) -> None:
        self.op, self.inputs, self.outputs, self.attrs = op, placed.inputs, placed.outputs, placed.attrs
        self._way = way

    def __call__(self, tensors: list[DTensor], attrs: dict[str, Any]) -> Any:
        local = [
            x.local if x.layout is wanted else relaid(x, wanted).local
            for x, wanted in zip(tensors, self.inputs, strict=True)
        ]
        result = apply(self.op, *local, **({**attrs, **self.attrs} if self.attrs else attrs))
        many = type(result) is tuple
        results = result if many else (result,)
        if self.outputs is None:
            self.outputs = self._seen([t.data.shape for t in results])
        made = [DTensor(t, layout) for t, layout in zip(results, self.outputs, strict=True)]
        return tuple(made) if many else made[0]

    def _seen(self, shapes: list[tuple[int, ...]]) -> list[Layout]:
        """Return the layouts of outputs, whose extents are those of letters, or were computed whole."""
        assert self._way is not None
        terms, way = self._way
        cut = {row.letter for row in way.rows} - {""}
        extents = {
            letter: n
            for g, x in zip(terms.inputs, self.inputs, strict=True)
            for letter, n in zip(g, x.shape, strict=True)
        }
        layouts = []
        for slot, shape in enumerate(shapes):
            group = terms.outputs[slot] if terms.outputs else ("",) * len(shape)
            whole = [extents[c] if c in cut else n for c, n in zip(group, shape, strict=True)]
            placements = [row.outputs[min(slot, len(row.outputs) - 1)] for row in way.rows]
            layouts.append(Layout.of(self.inputs[0].mesh, placements, whole, way.order))
        return layouts


class _Choice(NamedTuple):
    """What there is to choose from: the rows of a signature, and those that were registered, axis by axis."""

    terms: Terms
    layouts: list[Layout]
    rows: list[list[Row]]

    @classmethod
    def of(cls, op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> _Choice:
        """Read the signature of an operation; one that has none must be whole."""
        shapes = [x.shape for x in layouts]
        terms = parse(op.signature_for(shapes, attrs)) if op.signature else unnamed([len(s) for s in shapes])
        more = [row for find in REGISTERED.get(op.name, ()) for row in find(layouts, attrs)]
        axes = range(len(layouts[0].placements))
        return cls(terms, layouts, [[*more, *rows(terms, op.linear, [x.placements[a] for x in layouts])] for a in axes])


class _Way(NamedTuple):
    """Rows, one an axis, the layouts they ask for, and the order in which axes cut what they cut together."""

    rows: list[Row]
    inputs: list[Layout]
    order: list[int]


def _best(op: Op, choice: _Choice) -> _Run | None:
    """Return the cheapest way, a row an axis, that needs nothing but implicit moves."""
    ways = [(way, taken) for way, taken in _ways(choice) if all(map(is_implicit, taken))]
    if not ways:
        return None
    best, _ = min(ways, key=lambda way: sum(map(_cost, way[1])))
    return _Run(op, Placed(best.inputs, None, {}), (choice.terms, best))


def _ways(choice: _Choice) -> Iterator[tuple[_Way, list[Step]]]:
    """Yield all ways to run an operation, and the steps that each needs."""
    for chosen in itertools.product(*choice.rows):
        order = _order(chosen, choice.terms, choice.layouts)
        try:
            wanted = [x.placed([row.inputs[i] for row in chosen], order) for i, x in enumerate(choice.layouts)]
        except ValueError:  # units do not fit what another axis leaves
            continue
        taken = [step for x, w in zip(choice.layouts, wanted, strict=True) for step in steps(x, w)]
        yield _Way(list(chosen), wanted, order), taken


def _order(chosen: Sequence[Row], terms: Terms, layouts: Sequence[Layout]) -> list[int]:
    """Return the order in which axes cut: for a letter, that of the input that most of them cut already."""
    order = list(range(len(chosen)))
    for letter in {row.letter for row in chosen} - {""}:
        axes = [axis for axis, row in enumerate(chosen) if row.letter == letter]
        present = [x.cutters(g.index(letter)) for g, x in zip(terms.inputs, layouts, strict=True) if letter in g]
        first = max(([a for a in cutters if a in axes] for cutters in present), key=len)
        for place, axis in zip(axes, (*first, *(a for a in axes if a not in first)), strict=True):
            order[place] = axis
    return order


def _cost(step: Step) -> float:
    """Return about how many elements an implicit step moves, with what its transpose moves in backward."""
    src, dst = (type(p).__name__ for p in step.kinds)
    return _COSTS.get((src, dst), 0.0) * step.src.size


_COSTS = {
    ("Invariant", "Replicate"): 2.0,
    ("Invariant", "Shard"): 1.0,
    ("Partial", "Invariant"): 2.0,
    ("Partial", "Replicate"): 4.0,
    ("Partial", "Shard"): 2.0,
}


# ---------------------------------------------------------------- refusals
def refusal(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> ValueError:
    """Return the error for an operation that would need more than implicit moves: it says which would help."""
    got = "; ".join(f"input {i}: {x}" for i, x in enumerate(layouts))
    asked = [way.inputs for way, _ in _ways(_Choice.of(op, layouts, attrs))]
    wanted = min(asked, key=lambda inputs: _distance(layouts, inputs))
    calls = [
        f"redistribute(placements={list(w.placements)}) of input {i}"
        for i, (x, w) in enumerate(zip(layouts, wanted, strict=True))
        if not all(map(is_implicit, steps(x, w)))
    ]
    do = f"call {' and '.join(calls)} before, or use local_map for a computation of your own"
    return ValueError(
        explain(f"{op.name}: what ranks hold does not suffice, and nothing is gathered unasked", got=got, do=do)
    )


def _distance(layouts: Sequence[Layout], wanted: Sequence[Layout]) -> tuple[int, float]:
    """Return how many inputs would have to be moved by hand, and how much."""
    paths = [steps(x, w) for x, w in zip(layouts, wanted, strict=True)]
    by_hand = [path for path in paths if not all(map(is_implicit, path))]
    return len(by_hand), sum(step.src.size for path in by_hand for step in path)
