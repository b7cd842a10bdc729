"""Data parallelism with whole parameters on every rank (DDP): gathering is free, gradients meet in all-reduces.

Gradients are collected in one flat buffer a dtype, units in reverse order, so that what is complete first lies first.
As backward proceeds, the complete prefix is cut into buckets that are reduced, in place, while backward goes on.
Buckets start in the same order on every rank, and all of them in every step: also those of units that got no gradient
on this rank. A parameter that got a gradient on no rank has none. What was reduced already, and has not been zeroed,
is added to and not reduced again.

Hooks of parameters run once a reduction, at its end: those that see a gradient see what the reduction adds, those that
are told see ``.grad``. ``autograd.grad`` returns the gradients of this rank alone, and communicates nothing.

A backward that failed counts: the next forward takes part in its reductions, for which other ranks wait, and forgets
its gradients. A forward that failed does not, so that the next backward of that rank takes its place.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from hpcdist.array import Array
from hpcdist.autograd import Tensor, is_grad_enabled, is_replaying, queue_callback
from hpcdist.comm import Communicator, ReduceOp
from hpcdist.dtensor.tensor import local_of
from hpcdist.errors import explain
from hpcdist.nn import Module
from hpcdist.nn.deferral import materialize
from hpcdist.parallel.alike import check_same, send_first, send_first_together
from hpcdist.parallel.bucket import Bucket, buckets_of
from hpcdist.parallel.comm_hooks.hooked import Hooked
from hpcdist.parallel.syncing import Syncing
from hpcdist.parallel.unit import Unit, claim, uses_ahead
from hpcdist.parallel.unused import Unused

__all__ = ["Replica", "is_training"]

_log = logging.getLogger("hpcdist.parallel")


class Replica(Syncing):
    """A module whose gradients are reduced over ranks; made by :func:`replicate`.

    Attributes
    ----------
    module : Module
        The module, whose parameter names did not change.
    comm : Communicator
        The ranks, in a message space of their own.
    wait_s : float
        Seconds that backward has waited for reductions to end, since the start.
    """

    def __init__(
        self,
        module: Module,
        comm: Communicator,
        units: Sequence[Module],
        *,
        bucket_bytes: int,
        init_sync: bool = True,
        broadcast_buffers: bool = True,
        warns_of_unused: bool = True,
    ) -> None:
        self.module = materialize(module)
        self.comm = comm.dup()  # buckets keep an order of their own
        self.wait_s = 0.0
        self._bucket_bytes, self._warns = bucket_bytes, warns_of_unused
        self._factor = float(comm.size)
        self._hooked: Hooked | None = None
        self._sends_buffers = broadcast_buffers and comm.size > 1
        self._buffers_due = True
        module.pre.append(self._before_forward)  # before those of units
        self._units = [Unit(m, slots, self) for m, slots in claim(module, units)]
        self._buckets: list[Bucket] = []
        self._started, self._complete, self._ahead = 0, set[Unit](), Counter[Unit]()
        self._reduced = self._reducing = self._unreduced = False
        self._form_buckets()
        if init_sync:
            send_first(self.comm, (t for _, t in (*module.named_parameters(), *module.named_buffers())))

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled, as happens with the module."""
        do = "copy it before, or with hd.optim.AveragedModel; save its state_dict()"
        raise TypeError(explain("replicate: a module that is replicated is copied or pickled", do=do))

    # ---- buckets
    def _trained(self) -> dict[int, str]:
        """Return the name of each parameter that is trained, by its identity."""
        return {id(local_of(p)): name for name, p in self.module.named_parameters() if p.requires_grad}

    def _form_buckets(self) -> None:
        """Deal what is trained now out to buckets. Collective over the communicator."""
        self._names = self._trained()
        self._check_known()
        before, self._buckets = self._buckets, buckets_of(self._units, self._bucket_bytes)
        check_same(self.comm, "replicate: buckets", [(b.buffer.size, str(b.buffer.dtype)) for b in self._buckets])
        for bucket in self._buckets:
            bucket.adopt(before)

    def _check_known(self) -> None:
        """Refuse parameters that would silently be trained on this rank alone."""
        known = {id(p) for unit in self._units for p in unit.parameters}
        for identity, name in self._names.items():
            if identity not in known:
                what = f"replicate: {name} was put in after the module was replicated"
                raise RuntimeError(explain(what, do="replicate a module when all its parameters are there"))

    # ---- before a forward
    def _before_forward(self, _: Module) -> None:
        """Make up for what has changed since the last one. Collective over the communicator, if something has."""
        if not is_training():
            return
        if self._reducing:
            self._recover()
        if self._trained().keys() != self._names.keys():
            self._form_buckets()
        self._tell_of_drift()
        if self._buffers_due and self.module.training and self._sends_buffers:
            self._buffers_due = False
            send_first_together(self.comm, (buffer for _, buffer in self.module.named_buffers()))

    def _tell_of_drift(self) -> None:
        if self._unreduced and all(p.grad is None for bucket in self._buckets for p in bucket.parameters):
            self._unreduced = False
            _log.warning(
                "replicate: gradients of no_sync() were never reduced: if an optimizer has used them, ranks differ now"
            )

    # ---- the exchange of a unit
    def gather(self, parameters: Sequence[Tensor]) -> tuple[Array, ...]:
        """Return the parameters themselves."""
        if self._reducing and is_training():
            self._recover()
        if is_training() and not self._names.keys() >= {id(p) for p in parameters}:
            what = "replicate: a parameter was unfrozen, and a part of the module is called by itself"
            raise RuntimeError(explain(what, do="call the module that was replicated once, on every rank"))
        return tuple(p.data for p in parameters)

    def home(self, parameter: Tensor) -> tuple[Array, float]:
        """Return the place of a gradient in the flat buffer."""
        if self._reduced:
            self._reduced = False
            for bucket in self._buckets:
                bucket.remember()
        return parameter.place()

    def reduce(self, unit: Unit) -> None:
        """Start the buckets that are complete, in their order. Collective over the communicator, once they are."""
        if not self._sync:
            self._unreduced = True
            return
        if not self._reducing:
            self._reducing, self._ahead = True, uses_ahead() + Counter([unit])
        queue_callback(self.finish)
        self._ahead[unit] -= 1
        if self._ahead[unit] <= 0:
            self._complete.add(unit)
        while self._started < len(self._buckets) and self._complete.issuperset(self._buckets[self._started].units):
            self._start_next()
        self.comm.poll()

    def missed(self) -> None:
        """Take note that the reductions of a backward that has failed here are due: others wait for them."""
        self._reducing |= self._sync

    def _start_next(self) -> None:
        bucket = self._buckets[self._started]
        self._started += 1
        bucket.close()
        if self._hooked is not None:
            self._hooked.start(bucket, index=self._started - 1, is_last=self._started == len(self._buckets))
            return
        # an average is rounded once: sums of 16-bit floats may be out of their range
        bucket.op = ReduceOp.AVG if self._factor == self.comm.size > 1 else ReduceOp.SUM
        bucket.work = self.comm.iall_reduce(bucket.buffer, bucket.op, out=bucket.buffer)
        self.comm.watch(bucket.work)

    def finish(self) -> None:
        """Reduce what has not been reduced, and wait for all of it: gradients are then the same on every rank.

        Collective over the communicator. Called at the end of a backward that reached the module; where that of one
        rank does not reach it at all, this rank has to call it.
        """
        self._reduce_rest()
        self._end()
        for bucket in self._buckets:
            bucket.settle(self._factor)
        self._tell_of_unused()

    def _reduce_rest(self) -> None:
        while self._started < len(self._buckets):
            self._start_next()
        begin = time.perf_counter()
        if self._hooked is not None:
            self._wait_for_hook(self._hooked)
        else:
            for bucket in self._buckets:
                assert bucket.work is not None
                bucket.work.wait()
        self.wait_s += time.perf_counter() - begin

    def _wait_for_hook(self, hooked: Hooked) -> None:
        if not hooked.finish(self._buckets):
            self._end()
            self.module.zero_grad()
            self._form_buckets()  # messages that nobody answered may still be written to the old ones
            hooked.fail()

    def _end(self) -> None:
        """Let gradients be written again, now that they are whole."""
        self._started, self._reduced, self._reducing, self._unreduced = 0, True, False, False
        self._buffers_due = True
        self._complete.clear()
        for bucket in self._buckets:
            bucket.open()

    def _recover(self) -> None:
        """Take part in what a backward that failed here left undone, and forget its gradients.

        Collective over the communicator: ranks whose backward did not fail have waited for it.
        """
        self._reduce_rest()
        self._end()
        self.module.zero_grad()

    # ---- what a training loop says, and asks
    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum over ranks by ``factor``; the default is the number of ranks."""
        if not factor > 0:
            raise ValueError(explain("set_gradient_divide_factor", got=factor, expected="a number above 0"))
        if self._hooked is not None:
            raise RuntimeError(explain("set_gradient_divide_factor: there is a hook", do="divide in the hook"))
        self._factor = float(factor)

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Let ``hook(state, bucket)`` bring gradients together from now on, instead of an all-reduce.

        Collective over the communicator. The hook divides itself, gets buckets in one order on every rank, and
        communicates alike on all; where it or what it returns fails on one rank, backward raises the same on every one,
        without gradients.

        Parameters
        ----------
        state, hook
            The hook gets the state and a :class:`~hpcdist.parallel.comm_hooks.GradBucket`; it returns an array in the
            shape and dtype of its ``buffer()``, or a Work or Future of one.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            The same on every rank: if it cannot be called so, differs between ranks, or is not the first one.
        """
        with self.comm.agreed():
            self._check_hookable()
        self._hooked = Hooked(self.comm, state, hook)

    def _check_hookable(self) -> None:
        if self._hooked is not None:
            raise RuntimeError(explain("register_comm_hook: there is a hook already", do="wrap one in the other"))
        if self._reducing:
            raise RuntimeError(explain("register_comm_hook: a backward is running, or has failed", do="do it before"))
        if self._factor != self.comm.size:
            do = "leave the factor alone, and divide in the hook"
            raise RuntimeError(explain("register_comm_hook: set_gradient_divide_factor was called", do=do))

    def unused_parameters(self) -> Unused:
        """Return the names of parameters that got no gradient: on any rank, or only on this one, by the last reduction.

        Both count what micro-batches under ``no_sync`` have added since the gradients were zeroed.
        """
        return Unused.of(self._buckets, self._names)

    def _tell_of_unused(self) -> None:
        if self._warns and not all(all(b.found) for b in self._buckets):
            self._warns = False
            if self.comm.rank == 0:
                _log.warning(
                    "replicate: on no rank a gradient came to %s", ", ".join(self.unused_parameters().anywhere)
                )

    def free(self) -> None:
        """Let the module be a plain one again, and give the communicator back. Collective over it."""
        if self._reducing:
            self._recover()
        self.module.pre.remove(self._before_forward)
        for unit in self._units:
            unit.detach()
        for bucket in self._buckets:
            bucket.dissolve()
        if self._hooked is not None:
            self._hooked.free()
        self.comm.free()


def is_training() -> bool:
    """Say whether a forward that begins here is recorded, and for the first time."""
    return is_grad_enabled() and not is_replaying()
