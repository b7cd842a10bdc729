"""An operation is one row: how to compute, how to transpose, and how it may be sharded.

Autograd reads the first two; the sharding signature is an inert string for those who place arrays on a mesh. It has
one group of letters an input and an output, one letter a dimension: ``"mk,nk,+n->mn"``. Dimensions of one letter have
one extent and may be cut together; ``[k]`` must be whole on a rank; ``1`` is a dimension of extent one. A letter that
the outputs lack is summed over; ``+`` stands before the group of an input that is added to that sum, once. ``#`` stands
before integers that name places. Where it depends on shapes or attributes it is a function ``(shapes, **attrs) ->
str``. ``linear`` says whether the op is linear in all inputs together (``"joint"``, but for those that name places), in
each of them (``"each"``), or not (``""``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hpcdist.array import Array

__all__ = ["OPS", "Op", "define", "row"]

Signature: TypeAlias = str | Callable[..., str]
Forward: TypeAlias = Callable[..., tuple[Any, tuple[Any, ...]]]


@dataclass(frozen=True, eq=False)
class Op:
    """One row of the table of operations.

    Attributes
    ----------
    forward : function ``(*arrays, **attrs) -> (outputs, saved)``
        ``outputs`` is an array or a tuple of arrays; ``saved`` holds all that backward needs, and nothing else stays
        alive. With a keyword ``recording`` it is told whether backward may follow.
    vjp : function ``(into, grads, saved, **attrs)``
        Adds the gradient of each input through ``into[i]``, which is None where none is wanted: ``into[i].give(array)``
        hands an array over; ``array, beta = into[i].place()`` asks for memory, for ``array = gradient + beta * array``.
        ``grads[i]`` is None for an output that nobody used. What is given may be added to later: an array that is an
        input's own is copied first.
    again : mapping of slot to function ``(saved, **attrs) -> output``
        Outputs that are cheap to compute once more: consumers keep a reference to this node in place of the array.
    home : function ``(slot, **attrs) -> (array, beta)``, optional
        Where gradients of this node's outputs are collected.
    overwrites : tuple of int
        Outputs whose gradient the vjp uses as its own work space.
    gives_saved : bool
        Whether the vjp hands out arrays that it saved.
    missed : function ``(**attrs)``, optional
        Called when a backward fails before it comes to this node.
    """

    name: str
    forward: Forward
    vjp: Callable[..., None]
    signature: Signature = ""
    linear: str = ""
    again: Mapping[int, Callable[..., Array]] = field(default_factory=dict)
    home: Callable[..., tuple[Array, float]] | None = None
    overwrites: tuple[int, ...] = ()
    gives_saved: bool = False
    missed: Callable[..., None] | None = None
    plans: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plans", "recording" in inspect.signature(self.forward).parameters)

    def signature_for(self, shapes: list[tuple[int, ...]], attrs: Mapping[str, Any]) -> str:
        """Return the signature for inputs of these shapes."""
        return self.signature if isinstance(self.signature, str) else self.signature(shapes, **attrs)


OPS: dict[str, Op] = {}


def define(name: str, forward: Forward, vjp: Callable[..., None], **fields: Any) -> Op:
    """Add an operation to the table and return its row, for use with ``apply``.

    Parameters
    ----------
    name : str
        Shown in messages; must be new.
    forward, vjp, **fields
        See :class:`Op`.

    Examples
    --------
    >>> def forward(x):
    ...     return x * x, (x,)
    >>> def vjp(into, grads, saved):
    ...     into[0].give(2 * saved[0] * grads[0])
    >>> square = define("square", forward, vjp, signature="m->m")
    """
    if name in OPS:
        raise ValueError(f"define: an operation {name!r} is there already\n  do       choose another name")
    OPS[name] = Op(name, forward, vjp, **fields)
    return OPS[name]


def row(signature: Signature, **fields: Any) -> Callable[[Forward], Callable[[Callable[..., None]], Op]]:
    """Define an operation by two decorated functions: the forward, then its vjp decorated with the result."""

    def decorate(forward: Forward) -> Callable[[Callable[..., None]], Op]:
        name = forward.__name__.strip("_")
        return lambda vjp: define(name, forward, vjp, signature=signature, **fields)

    return decorate
