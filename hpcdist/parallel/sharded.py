"""A unit whose parameters are sharded at rest: gathered before use, let go of after it, gradients reduced to shards.

Zhao et al. 2023, arXiv:2304.11277; Rajbhandari et al. 2020, arXiv:1910.02054, stage 3.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from hpcdist.array import Array
from hpcdist.autograd import Tensor, apply, define, empty, is_grad_enabled, is_replaying, queue_callback, saved_values
from hpcdist.autograd.replay import Leaf
from hpcdist.autograd.tape import is_collecting
from hpcdist.comm import Communicator, ReduceOp, Work
from hpcdist.dtensor import DTensor, Layout
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.bucket import tell
from hpcdist.parallel.bundle import Bundle
from hpcdist.parallel.summation import RoundSum
from hpcdist.parallel.walk import Round, Walk

__all__ = ["Settings", "ShardedUnit", "current_walk", "entered", "units_below", "walking_again"]


@dataclass
class Settings:
    """What a training loop may change from step to step.

    Attributes
    ----------
    reshards_after_forward : bool or None
        Whether whole parameters are let go of between forward and backward; None: unless the unit is the root.
    reshards_after_backward : bool
        Whether they are after backward.
    syncs, all_reduces : bool
        Whether backward reduces gradients at all, and over replicas, too.
    factor : float, optional
        What sums of gradients are divided by; None: the number of ranks, or 1 in reproducible runs.
    round : Round, optional
        The micro-batches that are worked on.
    prefetches : bool
        Whether the unit that is expected next is gathered while this one computes.
    ahead, ahead_in_backward : sequence of ShardedUnit, optional
        The units that are gathered ahead instead.
    """

    reshards_after_forward: bool | None = None
    reshards_after_backward: bool = True
    syncs: bool = True
    all_reduces: bool = True
    factor: float | None = None
    round: Round | None = None
    prefetches: bool = False
    ahead: Sequence[ShardedUnit] | None = None
    ahead_in_backward: Sequence[ShardedUnit] | None = None


class _Running(threading.local):
    """The forward that runs on this thread: its way, and the units that have been entered, the root first."""

    def __init__(self) -> None:
        self.walk: Walk | None = None
        self.entered: list[ShardedUnit] = []
        self.last: ShardedUnit | None = None
        self.again: Walk | None = None


_running = _Running()


def entered() -> tuple[ShardedUnit, ...]:
    """Return the units in whose forward this thread is, the outermost first."""
    return tuple(_running.entered)


def current_walk() -> Walk | None:
    """Return the way of the forward that this thread is in, or was in last."""
    return _running.walk


@contextmanager
def walking_again(walk: Walk | None) -> Iterator[None]:
    """Have units that are filled in backward stand on ``walk``, which the forward went whose part is computed again."""
    before, _running.again = _running.again, walk
    try:
        yield
    finally:
        _running.again = before


@dataclass(eq=False)
class ShardedUnit:
    """Parameters that one or more modules need in their forward.

    Attributes
    ----------
    modules : sequence of Module
        Whose calls need them.
    slots : list of (Module, str, int)
        Where they are put, and the place of each parameter in ``leaves``.
    leaves : list of Tensor
        What this rank holds.
    layouts : list of Layout or None
        How parameters are laid out on other axes than those of the strategy; None: they are plain.
    bundles : list of (Bundle, list of int)
        What travels together, and the places of its pieces in ``leaves``.
    reducing : Communicator
        The ranks of the shard axis, for messages of gradients.
    replicas : Communicator, optional
        Those of the replica axis.
    reduce_dtype : dtype, optional
        Of messages of gradients; None: that of the gradients.
    """

    modules: Sequence[Module]
    slots: list[tuple[Module, str, int]]
    leaves: list[Tensor]
    layouts: list[Layout | None]
    bundles: list[tuple[Bundle, list[int]]]
    reducing: Communicator
    replicas: Communicator | None = None
    reduce_dtype: Any = None
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.resting: list[Any] = [owner.slots[key] for owner, key, _ in self.slots]
        self.whole: list[Array] | None = None
        self.stays = False
        self.walk = Walk()
        self.following: ShardedUnit | None = None
        self._coming: list[Work[list[Array]]] | None = None
        self._gradients: list[Array | None] = [None] * len(self.leaves)
        self._unreduced: list[Array | None] = [None] * len(self.bundles)
        self.sums = [RoundSum(self.reducing, self.replicas) for _ in self.bundles]
        self._into: Sequence[Any] = [None] * len(self.leaves)
        self._left: set[Module] = set()
        self._hooks: list[AbstractContextManager[None]] = []
        for module in self.modules:
            module.pre.append(self.fill)
            module.post.append(self.empty)

    # ---- parameters
    def gather(self) -> list[Array]:
        """Return whole parameters. Collective over the shard axis, unless they are there already."""
        if self.whole is None:
            coming, self._coming = self._coming, None
            found: dict[int, Array] = {}
            for i, (bundle, places) in enumerate(self.bundles):
                arrays = bundle.gather() if coming is None else coming[i].wait()
                found.update(zip(places, arrays, strict=True))
            self.whole = [found[i] for i in range(len(self.leaves))]
        return self.whole

    def gather_ahead(self) -> None:
        """Post the gathering. Collective over the shard axis, unless it has been done."""
        if self.whole is None and self._coming is None:
            self._coming = [bundle.igather() for bundle, _ in self.bundles]

    def let_go(self) -> None:
        """Forget whole parameters; wait for those that are on their way. Collective over the shard axis then."""
        for work in self._coming or ():
            work.wait()
        self.whole, self._coming = None, None

    # ---- forward
    def fill(self, _: Module) -> None:
        """Put whole parameters into their slots. Collective over the shard axis."""
        if is_replaying():  # computed again: nothing that is written down changes
            walk = _running.again or self.walk
            self._refer(self._show_again(walk), walk)
            return
        if not _running.entered:
            self._begin()
        if _running.last is not None:
            _running.last.following = self
        _running.last = self
        self.gather()
        self._record()
        _running.entered.append(self)
        ahead = self.settings.ahead
        if ahead is None:
            ahead = [self.following] if self.settings.prefetches and self.following is not None else []
        for unit in ahead:
            unit.gather_ahead()

    def _begin(self) -> None:
        """Start a forward of which this unit is the root."""
        units = list(dict.fromkeys(u for m in self.modules for u in units_below(m)))
        for unit in units:
            unit.recover()
        if is_grad_enabled() and self.reducing.reproducible:
            check_round(self.settings, units)
        _running.walk, _running.last = Walk(self.settings.round), None

    def _record(self) -> None:
        """Enter whole parameters into the graph, and keep the graph from keeping them."""
        walk = _running.walk
        assert walk is not None
        shown = apply(SHARDED, *self.leaves, unit=self, walk=walk)
        if is_grad_enabled():
            self.walk = walk
            walk.enter(self)
            walk.uses[self] += any(t.requires_grad for t in shown)
            self._refer(shown, walk)
        else:
            self._hooks.append(nullcontext())
        self._show([t if p.requires_grad else t.detach() for t, p in zip(shown, self.leaves, strict=True)])

    def _refer(self, shown: Sequence[Tensor], walk: Walk) -> None:
        """Have the graph keep references in place of whole parameters until the slots are emptied."""
        place_of = {id(t.data): i for i, t in enumerate(shown)}

        def pack(value: Array) -> Any:
            place = place_of.get(id(value))
            if place is None:
                return NotImplemented
            walk.need(self)
            return place

        hooks = saved_values(pack, functools.partial(self._unpacked, walk))
        hooks.__enter__()
        self._hooks.append(hooks)

    def _show_again(self, walk: Walk) -> list[Tensor]:
        """Put whole parameters into their slots in backward. Collective over what lies on the way back to here."""
        queue_callback(walk.finish)
        walk.to_gather(self)
        shown = [Tensor(a, leaf.requires_grad) for a, leaf in zip(self.gather(), self.leaves, strict=True)]
        self._show(shown)
        return shown

    @contextmanager
    def refilled(self, walk: Walk) -> Iterator[None]:
        """Show whole parameters to a part of the forward that backward computes again.

        Collective over what lies on the way back to where the unit was left.
        """
        before = [owner.slots[key] for owner, key, _ in self.slots]
        try:
            self._show_again(walk)
            yield
        finally:
            for (owner, key, _), p in zip(self.slots, before, strict=True):
                owner.slots[key] = p

    def _show(self, whole: Sequence[Tensor]) -> None:
        for owner, key, i in self.slots:
            layout = self.layouts[i]
            owner.slots[key] = whole[i] if layout is None else DTensor(whole[i], layout)

    def empty(self, module: Module) -> None:
        """Put what rests back into the slots, and let go of whole parameters."""
        for (owner, key, _), p in zip(self.slots, self.resting, strict=True):
            owner.slots[key] = p
        hooks = self._hooks.pop()
        hooks.__exit__(None, None, None)
        if is_replaying():
            return
        is_root = _running.entered[0] is self
        _running.entered.pop()
        if not isinstance(hooks, nullcontext):
            self.walk.leave(self)
        self._left.add(module)
        if len(self._left) == len(self.modules):
            self._left.clear()
            self._let_go_after_forward(is_root)

    def _let_go_after_forward(self, is_root: bool) -> None:
        wanted = self.settings.reshards_after_forward
        reshards = (not is_root if wanted is None else wanted) or not is_grad_enabled()
        if reshards and not self.stays:
            self.let_go()

    # ---- backward
    def _unpacked(self, walk: Walk, place: int) -> Array:
        queue_callback(walk.finish)
        walk.to_gather(self)
        return self.gather()[place]

    def gather_again(self, walk: Walk) -> None:
        """Gather for backward, and post what comes next. Collective over the shard axis."""
        self.gather()
        ahead = self.settings.ahead_in_backward
        if ahead is None:
            following = walk.after(self) if self.settings.prefetches else None
            ahead = [following] if isinstance(following, ShardedUnit) else []
        for unit in ahead:
            unit.gather_ahead()

    def home(self, place: int) -> tuple[Array, float]:
        """Return the memory in which a gradient is collected, and how (as ``Into.place``)."""
        there = self._gradients[place]
        if there is not None:
            return there, 1.0
        bundle, places = next(pair for pair in self.bundles if place in pair[1])
        shape = bundle.pieces[places.index(place)].shape
        made = self._gradients[place] = empty(shape, bundle.computes, self.leaves[place].data)
        return made, 0.0

    def replayed(self, walk: Walk, into: Sequence[Any]) -> None:
        """Take note that backward has come through one use of the unit; after the last one gradients are reduced."""
        queue_callback(walk.finish)
        walk.uses[self] -= 1
        if walk.uses[self] <= 0:
            self._into = into
            walk.to_reduce(self)
            self._into = [None] * len(self.leaves)

    def reduce(self, walk: Walk) -> None:
        """Reduce gradients to shards, and let go of parameters. Collective over the axes of the strategy."""
        if self.settings.reshards_after_backward and not self.stays:
            self.let_go()
        if not self.settings.syncs:
            return
        gradients, self._gradients = self._gradients, [None] * len(self.leaves)
        for i, (bundle, places) in enumerate(self.bundles):
            if any(self.leaves[place].requires_grad for place in places):
                received = self._reduced(i, bundle, [gradients[place] for place in places], walk.round)
                if received is not None:
                    for leaf, gradient in bundle.read(received):
                        self._deliver(leaf, gradient)

    def _reduced(self, i: int, bundle: Bundle, gradients: list[Array | None], round: Round | None) -> Array | None:
        """Return what the ranks make of this rank's shards together; None: there is more to add up later."""
        message, sizes = bundle.message(gradients, bundle.computes if self.reduce_dtype is None else self.reduce_dtype)
        factor = self.settings.factor
        if self.reducing.reproducible:
            assert round is not None, "checked when the forward began"
            whole = self.sums[i].add(*round, message, sizes)
            return whole if whole is None or factor is None else whole / whole.dtype.type(factor)
        op = ReduceOp.AVG if factor is None else ReduceOp.SUM
        received = message
        if self.reducing.size > 1:
            received = self.reducing.reduce_scatter(message, 0, op, sizes=sizes)
        if self.replicas is not None and self.replicas.size > 1:
            before, self._unreduced[i] = self._unreduced[i], None
            if before is not None:
                received += before
            if not self.settings.all_reduces:
                self._unreduced[i] = received
                return None
            received = self.replicas.all_reduce(received, op)
        return received if factor is None else received / received.dtype.type(factor)

    def _deliver(self, leaf: Tensor, gradient: Array | None) -> None:
        """Add to the gradient of what this rank holds."""
        if gradient is None:
            return
        gradient = gradient.astype(leaf.data.dtype, copy=False)
        into = self._into[next(i for i, p in enumerate(self.leaves) if p is leaf)]
        if into is not None:
            into.give(gradient)
        elif is_collecting():  # only other ranks have one, and backward has not come through here
            add_to_leaf(leaf, gradient)

    @property
    def place(self) -> tuple[int, int]:
        """Which of the ranks that share micro-batches this one is, and how many they are."""
        copy, copies = (0, 1) if self.replicas is None else (self.replicas.rank, self.replicas.size)
        return copy * self.reducing.size + self.reducing.rank, copies * self.reducing.size

    # ---- after an error
    def recover(self) -> None:
        """Forget what a forward or backward has left behind.

        Collective over the axes of the strategy, if a backward failed: other ranks wait for its messages.
        """
        if self.walk.is_under_way:
            self.walk.finish()
            for leaf in self.leaves:
                leaf.grad = None
        if not self.stays:
            self.let_go()
        self._left.clear()


def units_below(module: Module) -> list[ShardedUnit]:
    """Return the units of a module and of all below it, each once."""
    found = [m.__dict__["sharded_unit"] for m in module.modules() if "sharded_unit" in m.__dict__]
    return list(dict.fromkeys(found))


def check_round(settings: Settings, units: Sequence[ShardedUnit]) -> None:
    """Refuse a forward whose backward would add micro-batches up in an order of its own."""
    do = "run each forward and its backward in a block: with model.micro_batch(index, of=number): ..."
    if settings.round is None:
        raise RuntimeError(explain("reproducible: which micro-batch it is has not been said", do=do))
    if not settings.syncs:
        raise RuntimeError(explain("reproducible: gradients would be added up without an exchange", do=do))
    expected = {sums.expected for unit in units for sums in unit.sums} - {0}
    if settings.round.start and expected != {settings.round.start}:
        do = "begin the step anew, with its first micro-batch"
        got, wanted = settings.round.start, max(expected, default=0)
        raise RuntimeError(explain("reproducible: the first micro-batch of a round", got=got, expected=wanted, do=do))


def add_to_leaf(leaf: Tensor, gradient: Array) -> None:
    """Add to the gradient of a leaf that backward has not come through, and tell those who asked for it."""
    Leaf(leaf).give(gradient)
    tell(leaf)


def _forward(*_: Array, unit: ShardedUnit, walk: Walk) -> Any:  # noqa: ARG001 (backward needs it)
    return tuple(unit.gather()), ()


def _vjp(into: Any, _grads: Any, _saved: Any, *, unit: ShardedUnit, walk: Walk) -> None:
    unit.replayed(walk, into)


SHARDED = define("gather_shards", _forward, _vjp, home=lambda slot, unit, walk: unit.home(slot))  # noqa: ARG005
