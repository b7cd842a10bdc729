"""The choice among ways to run an operation: a row an axis, the cheapest that needs nothing but implicit moves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcdist.autograd import Op
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.signature import Row, Terms, rows
from hpcdist.dtensor.steps import Step, is_implicit, steps

__all__ = ["Choice", "Placed", "Way", "best", "distance", "ways"]


class Placed(NamedTuple):
    """A way to run an operation on what ranks hold.

    Attributes
    ----------
    inputs : list of Layout
        How inputs must be laid out.
    outputs : list of Layout, optional
        How outputs then are; None: as ``way`` says, with extents that are seen when it has run.
    attrs : dict
        Attributes that differ on this rank.
    op : Op, optional
        Is run with what ranks hold, in place of the operation itself.
    way : (Terms, Way), optional
        Says how outputs are laid out.
    """

    inputs: list[Layout]
    outputs: list[Layout] | None
    attrs: dict[str, Any]
    op: Op | None = None
    way: tuple[Terms, Way] | None = None


class Choice(NamedTuple):
    """What there is to choose from: rows, axis by axis."""

    terms: Terms
    layouts: list[Layout]
    rows: list[list[Row]]

    @classmethod
    def by(
        cls,
        terms: Terms,
        linear: str,
        layouts: list[Layout],
        *,
        fixed: Mapping[int, Row] | None = None,
        more: Sequence[Row] = (),
    ) -> Choice:
        """Take the rows of ``terms``; those of ``fixed`` are the only ones of their axes."""
        found: list[list[Row]] = []
        for axis in range(len(layouts[0].placements)):
            have = [x.placements[axis] for x in layouts]
            known = (fixed or {}).get(axis)
            found.append([*more, *rows(terms, linear, have)] if known is None else [known])
        return cls(terms, layouts, found)


class Way(NamedTuple):
    """Rows, one an axis, the layouts they ask for, and the order in which axes cut what they cut together."""

    rows: list[Row]
    inputs: list[Layout]
    order: list[int]


def best(choice: Choice) -> Placed | None:
    """Return the cheapest way, a row an axis, that needs nothing but implicit moves."""
    possible = [(way, taken) for way, taken in ways(choice) if all(map(is_implicit, taken))]
    if not possible:
        return None
    cheapest, _ = min(possible, key=lambda way: sum(map(_cost, way[1])))
    return Placed(cheapest.inputs, None, {}, way=(choice.terms, cheapest))


def ways(choice: Choice) -> Iterator[tuple[Way, list[Step]]]:
    """Yield all ways to run an operation, and the steps that each needs."""
    for chosen in itertools.product(*choice.rows):
        order = _order(chosen, choice.terms, choice.layouts)
        try:
            wanted = [x.placed([row.inputs[i] for row in chosen], order) for i, x in enumerate(choice.layouts)]
        except ValueError:  # units do not fit what another axis leaves
            continue
        taken = [step for x, w in zip(choice.layouts, wanted, strict=True) for step in steps(x, w)]
        yield Way(list(chosen), wanted, order), taken


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


def distance(layouts: Sequence[Layout], wanted: Sequence[Layout]) -> tuple[int, float]:
    """Return how many inputs would have to be moved by hand, and how much."""
    paths = [steps(x, w) for x, w in zip(layouts, wanted, strict=True)]
    by_hand = [path for path in paths if not all(map(is_implicit, path))]
    return len(by_hand), sum(step.src.size for path in by_hand for step in path)
