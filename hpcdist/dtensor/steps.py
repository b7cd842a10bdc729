"""From one layout to another, step by step: moves on single axes, and exchanges over several."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hpcdist.comm.communicator import Communicator
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.memo import kept
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard
from hpcdist.errors import explain

__all__ = ["Step", "is_free", "is_implicit", "steps"]


@dataclass(frozen=True)
class Step:
    """A change of layout.

    Attributes
    ----------
    axis : int or None
        The only axis whose placement changes; None: all axes that cut exchange what they hold (one all-to-all).
    """

    axis: int | None
    src: Layout
    dst: Layout

    @cached_property
    def kinds(self) -> tuple[Placement, Placement]:
        """The placements of the axis before and after."""
        assert self.axis is not None
        return self.src.placements[self.axis], self.dst.placements[self.axis]

    @cached_property
    def group(self) -> Communicator:
        """The ranks of the axis."""
        assert self.axis is not None
        return self.src.groups[self.axis]

    @cached_property
    def seen(self) -> tuple[int, ...]:
        """The shape of the array as the ranks of the axis see it: cut by all others."""
        assert self.axis is not None
        return self.src.at(self.axis, Invariant()).local_shape

    @cached_property
    def stays(self) -> bool:
        """Whether this rank holds the same before and after, and that whole array as far as the axis goes."""
        return self.axis is not None and (
            self.group.size == 1 or all(isinstance(p, (Invariant, Replicate)) for p in self.kinds)
        )

    @cached_property
    def lends(self) -> bool:
        """Whether ranks that did all the same may each do their own with the array."""
        return self.axis is not None and self.kinds == (Invariant(), Replicate())

    @cached_property
    def adds(self) -> bool:
        """Whether one rank adds what all have to a sum over ranks."""
        return self.axis is not None and isinstance(self.kinds[1], Partial) and not isinstance(self.kinds[0], Partial)


def steps(src: Layout, dst: Layout) -> tuple[Step, ...]:
    """Return the steps that lead from ``src`` to ``dst``, layouts of one array on one mesh.

    Slices are taken first, then sums are finished, and at last things are gathered. An axis is moved by itself where
    none that cuts the same dimension comes after it; else those that cut exchange what they hold, once.

    Raises
    ------
    ValueError
        If shapes or meshes differ.
    """
    return kept(src.mesh, (src, dst), _found)


def _found(src: Layout, dst: Layout) -> tuple[Step, ...]:
    if src.shape != dst.shape or src.mesh != dst.mesh:
        expected = f"a layout of an array of {src.shape} on {src.mesh}"
        raise ValueError(explain("a change of layout", got=f"{dst} on {dst.mesh}", expected=expected))
    found: list[Step] = []
    now, dst = src, src.placed(dst.placements, dst.order)  # meshes that are equal keep layouts each of its own
    while now is not dst:
        step = _direct(now, dst) or _blocked(now, dst)
        found.append(step)
        now = step.dst
    return tuple(found)


def is_free(step: Step) -> bool:
    """Say whether a step communicates nothing and loses nothing."""
    if step.axis is None:
        return False
    src, dst = step.kinds
    if isinstance(src, Partial):
        return (src, dst) == (Partial("avg"), Partial("sum"))
    return isinstance(src, (Replicate, Invariant)) and (not isinstance(dst, Partial) or dst.op in ("sum", "avg"))


def is_implicit(step: Step) -> bool:
    """Say whether a step may be taken without being asked for: it is free, or finishes a combination."""
    return is_free(step) or (
        step.axis is not None and isinstance(step.kinds[0], Partial) and not isinstance(step.kinds[1], Partial)
    )


def _direct(now: Layout, dst: Layout) -> Step | None:
    """Return the best move of one axis to where it belongs."""
    legal = [axis for axis, p in enumerate(now.placements) if p != dst.placements[axis] and _may_move(now, dst, axis)]
    if not legal:
        return None
    axis = min(legal, key=lambda a: _rank(now.placements[a], dst.placements[a]))
    return Step(axis, now, now.at(axis, dst.placements[axis]))


def _may_move(now: Layout, dst: Layout, axis: int) -> bool:
    """Say whether ``axis`` cuts its dimension last, now and then."""
    before, after = now.placements[axis], dst.placements[axis]
    if isinstance(before, Shard) and now.cutters(before.dim)[-1] != axis:
        return False
    if isinstance(after, Shard):
        order = dst.cutters(after.dim)
        others = tuple(a for a in now.cutters(after.dim) if a != axis)
        in_place = all(now.placements[a] == dst.placements[a] for a in others)
        return in_place and others == order[: order.index(axis)]
    return True


def _rank(before: Placement, after: Placement) -> int:
    """Return when to make a move: early what leaves less to move, for the array and, in reverse, for its gradient."""
    kinds = type(before), type(after)
    return _TURNS.index(kinds) if kinds in _TURNS else len(_TURNS)


_TURNS = (
    (Replicate, Shard),
    (Invariant, Shard),
    (Partial, Shard),
    (Shard, Shard),
    (Invariant, Replicate),
    (Replicate, Invariant),
    (Partial, Replicate),
    (Partial, Invariant),
    (Shard, Replicate),
    (Shard, Invariant),
)
"""Moves in the order in which they are made; those to Partial come last."""


def _blocked(now: Layout, dst: Layout) -> Step:
    """Return a step where no axis may move by itself: cut in a wrong order first, then exchange."""
    for axis, placement in enumerate(dst.placements):
        if isinstance(placement, Shard) and not isinstance(now.placements[axis], Shard):
            return Step(axis, now, now.at(axis, Shard(placement.dim)))  # units need not fit what others leave
    placements, staying = list(now.placements), []
    for axis in now.order:
        if isinstance(p := now.placements[axis], Shard):
            if isinstance(dst.placements[axis], Shard):
                placements[axis] = dst.placements[axis]
            else:  # it will be gathered, last cut first
                placements[axis] = Shard(p.dim)
                staying.append(axis)
    order = [axis for axis in dst.order if axis not in staying]
    return Step(None, now, now.placed(placements, (*order, *staying)))
