"""Buckets: gradients that lie side by side and travel together."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.array import Array, namespace, to_host
from hpcdist.autograd import Tensor
from hpcdist.comm import ReduceOp, Work
from hpcdist.parallel.unit import Unit

__all__ = ["Bucket", "cut_at", "tell"]


class Bucket:
    """A stretch of a flat buffer of gradients, complete when its last unit is.

    Attributes
    ----------
    buffer : array
        What is reduced: gradients side by side, then ``present``.
    present : array
        (parameters,): above 0 where there is a gradient; once reduced, where a rank has one.
    """

    def __init__(self, parameters: list[Tensor], units: list[Unit]) -> None:
        self.parameters, self.units = parameters, units
        self.buffer = flat_gradients(parameters)
        self.gradients, self.present = self.buffer[: -len(parameters)], self.buffer[-len(parameters) :]
        self.op = ReduceOp.SUM
        self.work: Work[Array] | None = None

    def close(self) -> None:
        """Make sure that gradients lie in the buffer and that nothing is added to them while they are being reduced."""
        for i, p in enumerate(self.parameters):
            self.present[i] = p.grad is not None
            close(p)

    def open(self) -> None:
        """Let gradients be written again; a parameter that got none on any rank, or is frozen by now, has none."""
        for p, present in zip(self.parameters, to_host(self.present), strict=True):
            open_(p)
            if not (present > 0 and p.requires_grad):
                p.grad = None


def cut_at(group: list[tuple[Unit, list[Tensor]]], bucket_bytes: int) -> Iterator[list[tuple[Unit, list[Tensor]]]]:
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


def flat_gradients(parameters: list[Tensor]) -> Array:
    """Give gradients homes that lie side by side; return all of it, with a number more for each parameter."""
    first = parameters[0].data
    flat: Array = namespace(first).zeros(sum(p.size for p in parameters) + len(parameters), first.dtype)
    start = 0
    for p in parameters:
        p.home = flat[start : start + p.size].reshape(p.shape)
        start += p.size
    return flat


def close(parameter: Tensor) -> None:
    """Make sure that the gradient lies in its home, read-only."""
    home = parameter.home
    assert home is not None
    if parameter.grad is None:
        home[...] = 0
    elif parameter.grad is not home:
        home[...] = parameter.grad
    parameter.grad = home
    if hasattr(home.flags, "writeable"):
        home.flags.writeable = False


def open_(parameter: Tensor) -> None:
    """Let the gradient be written again."""
    home = parameter.home
    assert home is not None
    if hasattr(home.flags, "writeable"):
        home.flags.writeable = True


def tell(parameter: Tensor) -> None:
    """Show the gradient, now that it is whole, to those who asked for it."""
    home = parameter.grad
    if home is None:
        return
    for hook in parameter.hooks:
        changed = hook(home)
        if changed is not None:
            home[...] = changed
    for done in parameter.done_hooks:
        done(parameter)
