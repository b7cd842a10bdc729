"""Replicas in reproducible runs: gradients of micro-batches are added up by a tree.

Each micro-batch leaves its gradients in the buckets, from where they are read into sums of whole subtrees; with the
last one of a rank these are exchanged, bucket by bucket, while backward goes on: every rank adds its chunk up to the
root, and chunks are gathered. Bits are those of one rank that works on all micro-batches, whatever the buckets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from hpcdist.array import Array
from hpcdist.autograd import Tensor
from hpcdist.comm import ReduceOp, Work
from hpcdist.dtensor.placements import chunk_sizes
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.parallel.bucket import Bucket
from hpcdist.parallel.replica import Replica, is_training
from hpcdist.parallel.summation import RunSum
from hpcdist.parallel.unit import Unit

__all__ = ["TreeReplica"]

_DO = "run each forward and its backward in a block: with replica.micro_batch(index, of=number): ..."


@dataclass(frozen=True)
class _Turn:
    """A micro-batch, those of this rank, and how many a step has."""

    index: int
    run: range
    of: int

    @property
    def is_last(self) -> bool:
        return self.index == self.run[-1]


class TreeReplica(Replica):
    """A replica whose sums have the same bits at any number of ranks.

    The promise covers weights, moments and losses on one kind of machine, at one number of threads, for the same
    micro-batches; not buffers that each forward changes, such as running means. Gradients of 16 bits are added up as
    float32. The sum is not divided, unless :meth:`set_gradient_divide_factor` says so: micro-batches carry their share.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._factor = 1.0
        self._turn: _Turn | None = None
        self._inside = False
        self._sums: dict[Bucket, RunSum] = {}
        self._exchanges: dict[Bucket, Work[Array]] = {}

    # ---- micro-batches
    @contextmanager
    def micro_batch(self, index: int, *, of: int) -> Iterator[None]:
        """Run the forward and the backward of one of :meth:`turns` in a block; they come in order.

        Collective over the communicator, if the backward before has failed.

        Raises
        ------
        ValueError
            If ``index`` is not the next one of this rank, nor its first.
        """
        run = self._checked_turns(index, of)
        if self._reducing:
            self._recover()
        following = run[0] if self._turn is None or self._turn.is_last else self._turn.index + 1
        if index not in (run[0], following):
            raise ValueError(explain("micro_batch: index", got=index, expected=f"{following}, or {run[0]} to begin"))
        self._turn, self._inside = _Turn(index, run, of), True
        try:
            yield
        finally:
            self._inside = False

    def no_sync(self) -> NoReturn:
        """Refuse: the order in which gradients are added up would be another one."""
        raise RuntimeError(explain("reproducible: no_sync() adds gradients up as they come", do=_DO))

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Refuse what :meth:`no_sync` refuses."""
        if not requires_gradient_sync:
            raise RuntimeError(explain("reproducible: gradients would be added up as they come", do=_DO))

    def register_comm_hook(self, state: Any, hook: Any) -> NoReturn:  # noqa: ARG002
        """Refuse: what a hook adds up would be another sum."""
        raise RuntimeError(explain("reproducible: a hook would add gradients up in its own order", do="use none"))

    # ---- before a forward
    def _before_forward(self, module: Module) -> None:
        if is_training():
            self._check_inside()
        super()._before_forward(module)
        if is_training():
            self._check_fresh()

    def _check_inside(self) -> None:
        if not self._inside:
            raise RuntimeError(explain("reproducible: which micro-batch it is has not been said", do=_DO))

    def _check_fresh(self) -> None:
        """Refuse to add to what is there already: the sum would not be the tree's."""
        assert self._turn is not None
        if any(p.grad is not None for bucket in self._buckets for p in bucket.parameters):
            raise RuntimeError(explain("reproducible: there are gradients already", do="call zero_grad() after a step"))
        if self._turn.index == self._turn.run[0]:
            self._sums = {bucket: RunSum(self.comm, self._turn.of) for bucket in self._buckets}
        elif self._sums.keys() != set(self._buckets):
            do = "freeze and unfreeze parameters between steps"
            raise RuntimeError(explain("reproducible: other parameters are trained than at the begin of a step", do=do))

    # ---- sums
    def home(self, parameter: Tensor) -> tuple[Array, float]:
        """Return the place of a gradient in the flat buffer."""
        return parameter.place()

    def reduce(self, unit: Unit) -> None:
        """Add up buckets that are complete, and exchange them in the last micro-batch of this rank.

        Collective over the communicator then.
        """
        self._check_inside()
        super().reduce(unit)

    def _start_next(self) -> None:
        assert self._turn is not None
        bucket = self._buckets[self._started]
        self._started += 1
        bucket.close()
        bucket.op = ReduceOp.SUM
        self._sums[bucket].add(self._turn.index, bucket.buffer)
        if self._turn.is_last:
            self._exchanges[bucket] = self._sums[bucket].post()

    def finish(self) -> None:
        """Add up what has not been added up; in the last micro-batch of this rank, wait for the sum of all.

        Collective over the communicator then.
        """
        assert self._turn is not None
        if self._turn.is_last:
            super().finish()
        else:
            self._reduce_rest()
            self._drop()

    def _reduce_rest(self) -> None:
        while self._started < len(self._buckets):
            self._start_next()
        if not self._exchanges:
            return
        begin = time.perf_counter()
        for bucket, exchange in self._exchanges.items():
            chunk = exchange.wait().astype(bucket.buffer.dtype, copy=False)
            sizes = chunk_sizes(bucket.buffer.size, self.comm.size)
            bucket.work = self.comm.iall_gather(chunk, sizes=sizes, out=bucket.buffer)
        for bucket in self._exchanges:
            assert bucket.work is not None
            bucket.work.wait()
        self._exchanges.clear()
        self.wait_s += time.perf_counter() - begin

    def _drop(self) -> None:
        """Begin the next micro-batch from nothing."""
        self._started, self._reducing = 0, False
        self._complete.clear()
        for bucket in self._buckets:
            bucket.clear()
