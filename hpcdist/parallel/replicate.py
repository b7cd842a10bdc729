"""Data parallelism with whole parameters on every rank (DDP): gathering is free, gradients meet in all-reduces.

Gradients are collected in one flat buffer a dtype, units in reverse order, so that what is complete first lies first.
As backward proceeds, the complete prefix is cut into buckets that are reduced, in place, while backward goes on.
Buckets start in the same order on every rank, and all of them in every step: also those of units that got no gradient
on this rank. A parameter that got a gradient on no rank has none. Hooks of parameters see gradients that have been
reduced.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd import Tensor, is_replaying, queue_callback
from hpcdist.comm import Communicator, DeviceMesh, ReduceOp
from hpcdist.dtensor.tensor import local_of
from hpcdist.errors import explain
from hpcdist.nn import Module, ModuleList
from hpcdist.parallel.bucket import Bucket, cut_at, tell
from hpcdist.parallel.unit import Unit, claim

__all__ = ["Replica", "replicate"]

BUCKET_BYTES = 4 << 20


class Replica:
    """A module whose gradients are reduced over ranks; made by :func:`replicate`.

    Attributes
    ----------
    module : Module
        The module, whose parameter names did not change.
    wait_s : float
        Seconds that backward has waited for reductions to end, since the start.
    """

    def __init__(self, module: Module, comm: Communicator, units: Sequence[Module], bucket_bytes: int) -> None:
        self.module = module
        self.comm = comm.dup()  # buckets keep an order of their own
        self.wait_s = 0.0
        self._sync, self._factor = True, float(comm.size)
        self._check_same("parameters", [_described(*named) for named in module.named_parameters()])
        self._check_same("buffers", [_described(*named) for named in module.named_buffers()])
        self._units = self._make_units(units)
        self._known = {id(p) for unit in self._units for p in unit.parameters}
        self._buckets = self._make_buckets(bucket_bytes)
        self._check_same("buckets", [(b.buffer.size, str(b.buffer.dtype)) for b in self._buckets])
        self._started = 0
        self._complete: set[Unit] = set()
        self._reduced = self._reducing = False
        self._send_from_first()

    # ---- setting up
    def _make_units(self, modules: Sequence[Module]) -> list[Unit]:
        units = [Unit(m, slots, self) for m, slots in claim(self.module, modules)]
        if not units:
            raise ValueError(
                explain("replicate: module", got="no parameter that needs a gradient", do="pass one that trains")
            )
        return units

    def _check_same(self, what: str, mine: list[Any]) -> None:
        """Make sure that all ranks have the same, before the first message that would not fit."""
        for rank, theirs in enumerate(self.comm.all_gather_object(mine)):
            different = [pair for pair in itertools.zip_longest(theirs, mine) if pair[0] != pair[1]]
            if different:
                raise ValueError(
                    explain(
                        f"replicate: {what} of rank {rank} and rank {self.comm.rank} differ",
                        got=different[0][0],
                        expected=different[0][1],
                        do="build the same model, and replicate it alike, on every rank",
                    )
                )

    def _make_buckets(self, bucket_bytes: int) -> list[Bucket]:
        buckets = []
        by_dtype: dict[np.dtype[np.generic], list[tuple[Unit, list[Tensor]]]] = {}
        for unit in reversed(self._units):
            for dtype in dict.fromkeys(p.dtype for p in unit.parameters):
                by_dtype.setdefault(dtype, []).append((unit, [p for p in unit.parameters if p.dtype == dtype]))
        for group in by_dtype.values():
            for pieces in cut_at(group, bucket_bytes):
                buckets.append(Bucket([p for _, piece in pieces for p in piece], [unit for unit, _ in pieces]))
        return buckets

    def _send_from_first(self) -> None:
        """Start from the parameters and buffers of rank 0."""
        for _, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
            tensor.data[...] = self.comm.broadcast(tensor.data)

    # ---- the exchange of a unit
    def gather(self, unit: Unit) -> tuple[Array, ...]:
        """Return the parameters themselves."""
        if self._reducing and not is_replaying():
            self._recover()
        return tuple(p.data for p in unit.parameters)

    def home(self, unit: Unit, slot: int) -> tuple[Array, float]:
        """Return the place of a gradient in the flat buffer."""
        if self._reduced:
            self._start_anew()
        return unit.parameters[slot].place()

    def reduce(self, unit: Unit) -> None:
        """Start the buckets that are complete, in their order. Collective over the communicator, once they are."""
        unit.gathered -= 1
        if not self._sync:
            return
        queue_callback(self.finish)
        self._reducing = True
        if unit.gathered <= 0:
            self._complete.add(unit)
        while self._started < len(self._buckets) and self._complete.issuperset(self._buckets[self._started].units):
            self._start_next()
        self.comm.poll()

    def _start_next(self) -> None:
        bucket = self._buckets[self._started]
        self._started += 1
        bucket.close()
        # an average is rounded once: sums of 16-bit floats may be out of their range
        bucket.op = ReduceOp.AVG if self._factor == self.comm.size > 1 else ReduceOp.SUM
        bucket.work = self.comm.iall_reduce(bucket.buffer, bucket.op, out=bucket.buffer)
        self.comm.watch(bucket.work)

    def finish(self) -> None:
        """Reduce what has not been reduced, and wait for all of it: gradients are then the same on every rank.

        Collective over the communicator. Called at the end of a backward that reached the module.
        """
        self._check_known()
        self._reduce_rest()
        for bucket in self._buckets:
            if bucket.op is ReduceOp.SUM and self._factor != 1:
                bucket.gradients /= bucket.buffer.dtype.type(self._factor)
        self._end()
        for unit in self._units:
            for p in unit.parameters:
                tell(p)

    def _check_known(self) -> None:
        """Refuse parameters that would silently be trained on this rank alone."""
        for name, p in self.module.named_parameters():
            if p.requires_grad and id(local_of(p)) not in self._known:
                raise RuntimeError(
                    explain(
                        f"replicate: {name} is trained now, and was not when the module was replicated",
                        do="unfreeze or replace parameters before replicate",
                    )
                )

    def _reduce_rest(self) -> None:
        while self._started < len(self._buckets):
            self._start_next()
        begin = time.perf_counter()
        for bucket in self._buckets:
            assert bucket.work is not None
            bucket.work.wait()
        self.wait_s += time.perf_counter() - begin

    def _end(self) -> None:
        """Let gradients be written again, now that they are whole."""
        self._started, self._reduced, self._reducing = 0, True, False
        self._complete.clear()
        for unit in self._units:
            unit.gathered = 0
        for bucket in self._buckets:
            bucket.open()

    def _recover(self) -> None:
        """Take part in what a backward that failed here left undone, and forget its gradients.

        Collective over the communicator: ranks whose backward did not fail have waited for it.
        """
        self._reduce_rest()
        self._end()
        self.module.zero_grad()

    def _start_anew(self) -> None:
        if any(p.grad is not None for unit in self._units for p in unit.parameters):
            raise RuntimeError(
                explain(
                    "replicate: gradients that were reduced already would be added to, and reduced again",
                    do="call zero_grad() after each step; accumulate micro-batches under no_sync(), all but the last",
                )
            )
        self._reduced = False

    # ---- what a training loop says
    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Say whether the next backward reduces gradients, or only adds to them."""
        self._sync = requires_gradient_sync

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add to gradients in a block: the next backward outside reduces the sum."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum over ranks by ``factor``; the default is the number of ranks."""
        if not factor > 0:
            raise ValueError(explain("set_gradient_divide_factor", got=factor, expected="a number above 0"))
        self._factor = float(factor)


def replicate(
    module: Module,
    mesh: DeviceMesh | Communicator,
    *,
    units: Sequence[Module] | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Replica:
    """Train the same parameters on every rank: gradients are averaged in backward, while it runs.

    Collective over the mesh. Moves about ``2 (size - 1) / size`` of the gradients' bytes per rank and step.
    Parameters and buffers of rank 0 are sent to all.

    Parameters
    ----------
    module : Module
        The same on every rank; its names do not change.
    mesh : DeviceMesh of one dimension, or Communicator
        The ranks.
    units : sequence of Module, optional
        Modules whose gradients become complete together, in the order in which their forwards begin; ``module`` itself
        takes what is left. Default: the items of every outermost ``ModuleList``.
    bucket_bytes : int
        Units are reduced together until they have so many bytes.

    Raises
    ------
    ValueError
        If nothing needs gradients, or parameters differ between ranks; on every rank.
    """
    comm = mesh if isinstance(mesh, Communicator) else mesh.get_group()
    chosen = _repeated(module) if units is None else list(units)
    return Replica(module, comm, [m for m in chosen if m is not module], bucket_bytes)


def _repeated(module: Module) -> list[Module]:
    found: list[Module] = []
    for child in module.children.values():
        found += list(child) if type(child) is ModuleList else _repeated(child)
    return found


def _described(name: str, tensor: Tensor) -> tuple[Any, ...]:
    return name, tensor.shape, str(tensor.dtype), tensor.requires_grad
