"""Gradients of a sharded unit: collected whole, reduced, and handed over as shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.array import Array, is_device, to_host
from hpcdist.autograd import Tensor
from hpcdist.autograd.replay import Leaf
from hpcdist.autograd.tape import is_collecting
from hpcdist.comm import Communicator, ReduceOp
from hpcdist.errors import explain
from hpcdist.parallel.bucket import tell
from hpcdist.parallel.bundle import Bundle
from hpcdist.parallel.collection import Bundles, Collection
from hpcdist.parallel.settings import Settings
from hpcdist.parallel.summation import RoundSum
from hpcdist.parallel.walk import Round

__all__ = ["Reduction", "check_round"]


class Reduction:
    """What backward collects, and how ranks bring it together.

    Parameters
    ----------
    leaves : sequence of Tensor
        What this rank holds of the parameters.
    bundles : Bundles
    shards : Communicator
        The ranks of the shard axis, for messages of gradients.
    replicas : Communicator, optional
        Those of the replica axis.
    dtype : dtype, optional
        Of messages; None: that of the gradients.
    settings : Settings
    """

    def __init__(
        self,
        leaves: Sequence[Tensor],
        bundles: Bundles,
        shards: Communicator,
        replicas: Communicator | None,
        dtype: Any,
        settings: Settings,
    ) -> None:
        self.leaves, self.bundles, self.dtype, self.settings = leaves, bundles, dtype, settings
        self.shards, self.replicas = shards, replicas if replicas is None or replicas.size > 1 else None
        self.into: Sequence[Any] = [None] * len(leaves)
        self._of_leaf = {id(leaf): i for i, leaf in enumerate(leaves)}
        self.sums = [RoundSum(shards, replicas) for _ in bundles]
        self.prepare()
        self.discard()

    def prepare(self) -> None:
        """Fix for one backward whether gradients are reduced: it may end outside of the block that says so."""
        self._syncs, self._all_reduces = self.settings.syncs, self.settings.all_reduces

    def discard(self) -> None:
        """Forget gradients that have been collected, and not reduced."""
        self._collected, self._asked = (Collection(self.bundles, len(self.leaves)) for _ in range(2))
        self._unreduced: list[Array | None] = [None] * len(self.bundles)

    @property
    def collection(self) -> Collection:
        """What the backward that is running adds to: ``autograd.grad`` has its own."""
        return self._collected if is_collecting() else self._asked

    def reduce(self, round: Round | None, *, collecting: bool) -> None:
        """Reduce gradients and hand them over, unless they are to be added to first.

        Collective over the axes of the strategy. ``autograd.grad`` gets its own reduced, and nothing else.
        """
        if collecting and not self._syncs:
            return
        gradients = (self._collected if collecting else self._asked).take()
        for i, (bundle, places) in enumerate(self.bundles):
            if any([self.leaves[place].requires_grad for place in places]):
                received = self._reduced(i, [gradients[place] for place in places], round, collecting)
                if received is not None:
                    self._hand_over(bundle, received)

    def _reduced(self, i: int, gradients: list[Array | None], round: Round | None, collecting: bool) -> Array | None:
        """Return what the ranks make of this rank's shards together; None: there is more to add up later."""
        bundle = self.bundles[i][0]
        message, sizes = bundle.message(gradients, bundle.computes if self.dtype is None else self.dtype)
        factor = self.settings.factor
        if self.shards.reproducible:
            assert round is not None, "checked when the forward began"
            whole = self.sums[i].add(*round, message, sizes)
            return whole if whole is None or factor is None else whole / whole.dtype.type(factor)
        op = ReduceOp.AVG if factor is None else ReduceOp.SUM
        received = message
        if self.shards.size > 1:
            received = self.shards.reduce_scatter(message, 0, op, sizes=sizes)
        if self.replicas is not None:
            if collecting:
                before, self._unreduced[i] = self._unreduced[i], None
                if before is not None:
                    received += before
                if not self._all_reduces:
                    self._unreduced[i] = received
                    return None
            received = self.replicas.all_reduce(received, op)
        return received if factor is None else received / received.dtype.type(factor)

    def _hand_over(self, bundle: Bundle, received: Array) -> None:
        if self.settings.all_reduce_hook is not None:
            self.settings.all_reduce_hook(bundle.values(received))
        for leaf, gradient in bundle.read(received):
            if gradient is not None:
                self._deliver(leaf, gradient)

    def _deliver(self, leaf: Tensor, gradient: Array) -> None:
        """Add to the gradient of what this rank holds."""
        gradient = gradient if is_device(leaf.data) else to_host(gradient)
        gradient = gradient.astype(leaf.data.dtype, copy=False)
        into = self.into[self._of_leaf[id(leaf)]]
        if into is not None:
            into.give(gradient)
        elif is_collecting():  # only other ranks have one, and backward has not come through here
            Leaf(leaf).give(gradient)
            tell(leaf)


def check_round(settings: Settings, reductions: Sequence[Reduction]) -> None:
    """Refuse a forward whose backward would add micro-batches up in an order of its own."""
    do = "run each forward and its backward in a block: with model.micro_batch(index, of=number): ..."
    if settings.round is None:
        raise RuntimeError(explain("reproducible: which micro-batch it is has not been said", do=do))
    if not settings.syncs:
        raise RuntimeError(explain("reproducible: gradients would be added up without an exchange", do=do))
    expected = {sums.expected for reduction in reductions for sums in reduction.sums} - {0}
    if settings.round.start and expected != {settings.round.start}:
        do = "begin the step anew, with its first micro-batch"
        got, wanted = settings.round.start, max(expected, default=0)
        raise RuntimeError(explain("reproducible: the first micro-batch of a round", got=got, expected=wanted, do=do))
