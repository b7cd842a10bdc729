"""Buckets: gradients that lie side by side and travel together."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.comm import ReduceOp, Work
from hpcdist.parallel.unit import Unit

__all__ = ["Bucket", "close", "cut_at", "flat_gradients", "open_", "tell"]


class Bucket:
    """A stretch of a flat buffer of gradients, complete when its last unit is."""

    def __init__(self, buffer: Array, units: list[Unit]) -> None:
        self.buffer, self.units = buffer, units
        self.op = ReduceOp.SUM
        self.work: Work[Array] | None = None


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
    """Give the gradients of ``parameters`` homes that lie side by side, and return all of it: zeros."""
    first = parameters[0].data
    flat: Array = namespace(first).zeros(sum(p.size for p in parameters), first.dtype)
    start = 0
    for p in parameters:
        p.home = flat[start : start + p.size].reshape(p.shape)
        start += p.size
    return flat


def close(parameter: Tensor) -> None:
    """Make sure that the gradient lies in its home and that nothing is added to it while it is being reduced."""
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
    """Let the gradient be written again; a parameter that was frozen in the meantime has none."""
    home = parameter.home
    assert home is not None
    if hasattr(home.flags, "writeable"):
        home.flags.writeable = True
    if not parameter.requires_grad:
        parameter.grad = None


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
