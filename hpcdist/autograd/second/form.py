"""The vjp of a row as a function of tensors, and the table of those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hpcdist.autograd.tensor import Tensor

__all__ = ["SECOND", "SecondForm", "Shapes", "second", "to_shape"]

Shapes: TypeAlias = Sequence[tuple[int, ...] | None]
"""The shapes of inputs; None for one whose gradient is not wanted."""


@dataclass(frozen=True)
class SecondForm:
    """How to write the vjp of a row in operations.

    Attributes
    ----------
    keeps : tuple of int
        Which tensors the saved values are: input i is i, output i is ~i. Empty: none, the form gets arrays.
    vjp : function ``(grads, saved, shapes, **attrs) -> sequence of Tensor or None``
        From the cotangents of the outputs, what the row saved and the :data:`Shapes` of its inputs, the cotangent of
        each input.
    """

    keeps: tuple[int, ...]
    vjp: Callable[..., Sequence[Tensor | None]]


SECOND: dict[str, SecondForm] = {}


def second(name: str, *keeps: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the second form of the row ``name``."""

    def register(vjp: Callable[..., Any]) -> Callable[..., Any]:
        SECOND[name] = SecondForm(keeps, vjp)
        return vjp

    return register


def to_shape(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo broadcasting: add ``g`` up to ``shape``."""
    if g.shape == shape:
        return g
    lead = g.ndim - len(shape)
    stretched = [i + lead for i, n in enumerate(shape) if n == 1 and g.shape[i + lead] != 1]
    return g.sum((*range(lead), *stretched), keepdim=True).reshape(shape)
