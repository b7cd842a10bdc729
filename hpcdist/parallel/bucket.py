"""Buckets: gradients that lie side by side and travel together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace, to_host
from hpcdist.autograd import Tensor
from hpcdist.comm import ReduceOp, Work
from hpcdist.parallel.unit import Unit

__all__ = ["Bucket", "buckets_of", "tell"]


class Bucket:
    """A stretch of a flat buffer of gradients, complete when its last unit is.

    Attributes
    ----------
    buffer : array
        What is reduced: gradients side by side, then ``present``.
    present : array
        (parameters,): not 0 where there is a gradient; once reduced, where a rank has one.
    had, found : list of bool
        Where this rank had one when they were reduced last, and where any rank had.
    """

    def __init__(self, parameters: list[Tensor], units: list[Unit]) -> None:
        self.parameters, self.units = parameters, units
        self.buffer = _flat(parameters)
        self.gradients, self.present = self.buffer[: -len(parameters)], self.buffer[-len(parameters) :]
        self.had = [True] * len(parameters)
        self.found = [True] * len(parameters)
        self.op = ReduceOp.SUM
        self.work: Work[Array] | None = None
        # what reductions have left in .grad, as an object of its own: another object there is a gradient of this rank
        self._whole: list[Array | None] = [None] * len(parameters)
        self._before: Array | None = None

    # ---- before gradients are reduced
    def remember(self) -> None:
        """Keep what was reduced already, before more is added to it: it must not be reduced again."""
        self._before = self.gradients.copy() if any(map(self._is_whole, range(len(self.parameters)))) else None

    def _is_whole(self, i: int) -> bool:
        return self._whole[i] is not None and self.parameters[i].grad is self._whole[i]

    def close(self) -> None:
        """Make sure that gradients lie in the buffer and that nothing is added to them while they are being reduced."""
        self.had = [p.grad is not None for p in self.parameters]
        start = 0
        for i, p in enumerate(self.parameters):
            self.present[i] = self.had[i]
            if self._before is not None and not self._is_whole(i):
                self._before[start : start + p.size] = 0
            start += p.size
            _close(p, in_home=self._is_whole(i))
        if self._before is not None:
            self.gradients -= self._before

    # ---- after it
    def open(self) -> None:
        """Let gradients be written again; a parameter that got none on any rank, or is frozen by now, has none."""
        self.found = to_host(self.present).astype(bool).tolist()
        for i, (p, found) in enumerate(zip(self.parameters, self.found, strict=True)):
            home = _open(p)
            self._whole[i] = p.grad = home.view() if found and p.requires_grad else None

    def clear(self) -> None:
        """Let gradients be written again, from nothing."""
        for p in self.parameters:
            _open(p)
            p.grad = None

    def settle(self, factor: float) -> None:
        """Divide sums by ``factor``, show them to hooks of parameters, and add them to what was there before."""
        if self.op is ReduceOp.SUM and factor != 1:
            self.gradients /= self.buffer.dtype.type(factor)
        for p in self.parameters:
            show(p)
        if self._before is not None:
            self.gradients += self._before
        self._before = None
        for p in self.parameters:
            tell_done(p)

    def dissolve(self) -> None:
        """Let each gradient have memory of its own."""
        for p in self.parameters:
            p.home, p.grad = None, None if p.grad is None else p.grad.copy()

    def adopt(self, before: list[Bucket]) -> None:
        """Take over the gradients that lie in other buckets."""
        whole = {id(g) for bucket in before for g in bucket._whole if g is not None}
        for i, p in enumerate(self.parameters):
            if p.grad is not None:
                is_whole = id(p.grad) in whole
                assert p.home is not None
                p.home[...] = p.grad
                p.grad = p.home.view() if is_whole else p.home
                self._whole[i] = p.grad if is_whole else None


def buckets_of(units: Sequence[Unit], bucket_bytes: int) -> list[Bucket]:
    """Return the buckets of what is trained in units, which are complete in the opposite order."""
    by_dtype: dict[np.dtype[Any], list[tuple[Unit, list[Tensor]]]] = {}
    for unit in reversed(units):
        trained = [p for p in unit.parameters if p.requires_grad]
        for dtype in dict.fromkeys(p.dtype for p in trained):
            by_dtype.setdefault(dtype, []).append((unit, [p for p in trained if p.dtype == dtype]))
    return [
        Bucket([p for _, piece in pieces for p in piece], [unit for unit, _ in pieces])
        for group in by_dtype.values()
        for pieces in _cut_at(group, bucket_bytes)
    ]


def _cut_at(group: list[tuple[Unit, list[Tensor]]], bucket_bytes: int) -> Iterator[list[tuple[Unit, list[Tensor]]]]:
    """Cut units, each with parameters, into pieces of at least ``bucket_bytes``."""
    pieces: list[tuple[Unit, list[Tensor]]] = []
    held = 0
    for unit, parameters in group:
        pieces.append((unit, parameters))
        held += sum(p.data.nbytes for p in parameters)
        if held >= bucket_bytes:
            yield pieces
            pieces, held = [], 0
    if pieces:
        yield pieces


def _flat(parameters: list[Tensor]) -> Array:
    """Give gradients homes that lie side by side; return all of it, with a number more for each parameter."""
    first = parameters[0].data
    flat: Array = namespace(first).zeros(sum(p.size for p in parameters) + len(parameters), first.dtype)
    start = 0
    for p in parameters:
        p.home = flat[start : start + p.size].reshape(p.shape)
        start += p.size
    return flat


def _close(parameter: Tensor, *, in_home: bool) -> None:
    """Make sure that the gradient lies in its home, read-only."""
    home = parameter.home
    assert home is not None
    if parameter.grad is None:
        home[...] = 0
    elif parameter.grad is not home and not in_home:
        home[...] = parameter.grad
    parameter.grad = home
    if hasattr(home.flags, "writeable"):
        home.flags.writeable = False


def _open(parameter: Tensor) -> Array:
    """Let the gradient be written again; return where it lies."""
    home = parameter.home
    assert home is not None
    if hasattr(home.flags, "writeable"):
        home.flags.writeable = True
    return home


def show(parameter: Tensor) -> None:
    """Show a gradient, in place, to the hooks of its parameter, and let them change it."""
    gradient = parameter.grad
    if gradient is None:
        return
    for hook in parameter.hooks:
        changed = hook(gradient)
        if changed is not None:
            gradient[...] = changed


def tell_done(parameter: Tensor) -> None:
    """Tell those who asked for it that the gradient is complete."""
    for done in parameter.done_hooks if parameter.grad is not None else ():
        done(parameter)


def tell(parameter: Tensor) -> None:
    """Show the gradient, now that it is whole, to those who asked for it."""
    show(parameter)
    tell_done(parameter)
