"""A unit whose parameters are sharded at rest: gathered before use, let go of after it, gradients reduced to shards.

Zhao et al. 2023, arXiv:2304.11277; Rajbhandari et al. 2020, arXiv:1910.02054, stage 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from hpcdist.array import Array
from hpcdist.autograd import Tensor, apply, define, is_grad_enabled, is_replaying, queue_callback, saved_values
from hpcdist.autograd.tape import TAPE
from hpcdist.comm import Communicator
from hpcdist.dtensor import DTensor, Layout
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.collection import Bundles
from hpcdist.parallel.gathered import Gathered
from hpcdist.parallel.reduction import Reduction, check_round
from hpcdist.parallel.references import Reference, References
from hpcdist.parallel.running import RUNNING, units_below
from hpcdist.parallel.settings import Settings
from hpcdist.parallel.walk import Walk

__all__ = ["ShardedUnit"]


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
        How parameters are laid out on axes that are not of the strategy; None: they are plain.
    bundles : Bundles
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
    bundles: Bundles
    reducing: Communicator
    replicas: Communicator | None = None
    reduce_dtype: Any = None
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.resting: list[Any] = [owner.slots[key] for owner, key, _ in self.slots]
        self.gathered = Gathered(self.bundles)
        self.stays = False
        self.walk = Walk()
        self.following: ShardedUnit | None = None
        means = self.reducing, self.replicas, self.reduce_dtype, self.settings
        self.reduction = Reduction(self.leaves, self.bundles, *means)
        self._stays_after_backward = False
        self._depth = 0
        self._left: set[Module] = set()
        self._hooks: list[AbstractContextManager[None]] = []
        for module in self.modules:
            module.pre.append(self.fill)
            module.post.append(self.empty)

    @property
    def whole(self) -> list[Array] | None:
        """Whole parameters, where they are there."""
        return self.gathered.arrays

    # ---- forward
    def fill(self, module: Module) -> None:
        """Put whole parameters into their slots. Collective over the shard axis."""
        if self._depth:  # called inside its own forward
            self._depth += 1
            return
        self._check_slots(module)
        if is_replaying():  # computed again: nothing that is written down changes
            walk = RUNNING.again or self.walk
            self._refer(self._show_again(walk), walk)
        else:
            self._enter()
        self._depth = 1

    def _check_slots(self, module: Module) -> None:
        for (owner, key, _), p in zip(self.slots, self.resting, strict=True):
            if owner.slots.get(key) is not p:
                what = f"{type(module).__name__}: its parameter {key!r} is not the one that was sharded"
                raise RuntimeError(
                    explain(what, do="write into it (load_state_dict), or replace it before fully_shard")
                )

    def _enter(self) -> None:
        if not RUNNING.entered:
            self._begin()
        if RUNNING.last is not None:
            RUNNING.last.following = self
        RUNNING.last, self._stays_after_backward = self, False
        self.gathered.get()
        self._post(self.settings.ahead, self.following)
        self._record()
        RUNNING.entered.append(self)

    def _begin(self) -> None:
        """Start a forward of which this unit is the root."""
        units = list(dict.fromkeys(u for m in self.modules for u in units_below(m)))
        for unit in units:
            unit.recover()
        if is_grad_enabled() and self.reducing.reproducible:
            check_round(self.settings, [unit.reduction for unit in units])
        RUNNING.begin(Walk(self.settings.round))

    def _record(self) -> None:
        """Enter whole parameters into the graph, and keep the graph from keeping them."""
        walk = RUNNING.walk
        assert walk is not None
        shown = apply(SHARDED, *self.leaves, use=_Use(self, walk))
        if is_grad_enabled():
            self.walk = walk
            walk.enter(self, trains=any([t.requires_grad for t in shown]))
            self._refer(shown, walk)
        else:
            self._hooks.append(nullcontext())
        self._show([t if p.requires_grad else t.detach() for t, p in zip(shown, self.leaves, strict=True)])

    def _refer(self, shown: Sequence[Tensor], walk: Walk) -> None:
        """Have the graph keep references in place of whole parameters until the slots are emptied."""
        references = References([t.data for t in shown], lambda: walk.need(self))

        def unpack(reference: Reference) -> Array:
            return reference.of(self._reach(walk))

        hooks = saved_values(references.pack, unpack)
        hooks.__enter__()
        self._hooks.append(hooks)

    def _show_again(self, walk: Walk) -> list[Tensor]:
        """Put whole parameters into their slots in backward. Collective over what lies on the way back to here."""
        shown = [Tensor(a, leaf.requires_grad) for a, leaf in zip(self._reach(walk), self.leaves, strict=True)]
        self._show(shown)
        return shown

    def _reach(self, walk: Walk) -> list[Array]:
        """Return whole parameters after the forward. Collective over what lies on the way back to where it was left."""
        if TAPE.replays:  # else a gradient is computed with a graph of its own: there will be a backward through that
            queue_callback(walk.finish)
            walk.to_gather(self)
        return self.gathered.get()

    @contextmanager
    def refilled(self, walk: Walk) -> Iterator[None]:
        """Show whole parameters to a part of the forward that backward computes again.

        Collective over what lies on the way back to where the unit was left.
        """
        before = [owner.slots[key] for owner, key, _ in self.slots]
        self._depth += 1
        try:
            self._show_again(walk)
            yield
        finally:
            self._depth -= 1
            for (owner, key, _), p in zip(self.slots, before, strict=True):
                owner.slots[key] = p

    def _show(self, whole: Sequence[Tensor]) -> None:
        for owner, key, i in self.slots:
            layout = self.layouts[i]
            owner.slots[key] = whole[i] if layout is None else DTensor(whole[i], layout)

    def empty(self, module: Module) -> None:
        """Put what rests back into the slots, and let go of whole parameters."""
        if self._depth != 1:  # it goes on, or has not begun: another hook has failed before
            self._depth = max(0, self._depth - 1)
            return
        self._depth = 0
        for (owner, key, _), p in zip(self.slots, self.resting, strict=True):
            owner.slots[key] = p
        hooks = self._hooks.pop()
        hooks.__exit__(None, None, None)
        if is_replaying():
            return
        is_root = RUNNING.entered[0] is self
        RUNNING.entered.pop()
        if is_root:
            RUNNING.end()
        if not isinstance(hooks, nullcontext):
            self.walk.leave(self)
        self._left.add(module)
        if len(self._left) == len(self.modules):
            self._left.clear()
            self._let_go_after_forward(is_root)

    def _let_go_after_forward(self, is_root: bool) -> None:
        if self.stays:
            return
        if not is_grad_enabled():
            self.gathered.let_go()
        elif self.settings.keeps_near:
            self.gathered.share_out()
        elif not is_root if self.settings.reshards_after_forward is None else self.settings.reshards_after_forward:
            self.gathered.let_go()

    # ---- backward
    def prepare(self) -> None:
        """Note what the loop has chosen for a backward, which begins."""
        self.reduction.prepare()

    def gather_again(self, walk: Walk) -> None:
        """Gather for backward, and post what comes next. Collective over the shard axis."""
        if not self.settings.unshards_in_backward:
            return
        self.gathered.get()
        self._post(self.settings.ahead_in_backward, walk.after(self) if self.settings.prefetches else None)

    def _post(self, chosen: Sequence[ShardedUnit] | None, expected: Any) -> None:
        """Post what is gathered ahead: what was chosen, or else what is expected. Collective over the shard axis."""
        if chosen is None:
            chosen = [expected] if self.settings.prefetches and expected is not None else []
        for unit in chosen:
            unit.gathered.post()

    def replayed(self, walk: Walk, into: Sequence[Any]) -> None:
        """Take note that backward has come through one use of the unit; after the last one gradients are reduced."""
        queue_callback(walk.finish)
        if walk.come(self):
            self.reduction.into = into
            walk.to_reduce(self)
            self.reduction.into = [None] * len(self.leaves)

    def reduce(self, walk: Walk) -> None:
        """Reduce gradients to shards, and let go of parameters. Collective over the axes of the strategy."""
        if self.settings.reshards_after_backward and not self.stays:
            self.gathered.let_go()
        self._stays_after_backward = self.whole is not None
        self.reduction.reduce(walk.round, collecting=walk.collects)

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
            self.walk.has_failed = True
        if self.walk.has_failed:
            self.walk = Walk()
            self.reduction.discard()
            for leaf in self.leaves:
                leaf.grad = None
        if not self.stays and not self._stays_after_backward:
            self.gathered.let_go()
        self._left.clear()


@dataclass(eq=False)
class _Use:
    """One use of a unit, on its way."""

    unit: ShardedUnit
    walk: Walk


def _forward(*_: Array, use: _Use) -> Any:
    return tuple(use.unit.gathered.get()), ()


def _vjp(into: Any, grads: Any, _saved: Any, *, use: _Use) -> None:
    use.unit.reduction.collection.complete(use, grads)
    use.unit.replayed(use.walk, into)


SHARDED = define(
    "gather_shards",
    _forward,
    _vjp,
    home=lambda slot, use: use.unit.reduction.collection.home(slot, use),
    missed=lambda use: use.walk.begin(),
)
