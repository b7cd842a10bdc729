"""Modules without storage: parameters that know their shape and how they begin, and of which any part can be drawn."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.autograd import Tensor, random
from hpcdist.errors import explain

if TYPE_CHECKING:
    from hpcdist.nn.module import Module

    M = TypeVar("M", bound=Module)

__all__ = ["Box", "Deferred", "Initial", "Values", "deferred", "draw", "empty", "fill", "is_deferring", "materialize"]

SLAB = 1 << 20
"""Elements that are drawn at a time: draws need many times the memory of their result."""


@dataclass(frozen=True)
class Box:
    """A part of an array of shape ``whole``: ``shape`` elements from ``start`` on."""

    whole: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def all_of(cls, shape: tuple[int, ...]) -> Box:
        """Return the box that is everything."""
        return cls(shape, (0,) * len(shape), shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where the box is in the whole array."""
        return tuple(slice(a, a + n) for a, n in zip(self.start, self.shape, strict=True))

    @property
    def index(self) -> Array | None:
        """Flat index of each element in the whole array; None for a box that is everything."""
        return None if self.shape == self.whole else random.box_index(self.whole, self.start, self.shape)

    def coordinate(self, dim: int) -> Array:
        """Return the index along ``dim`` of each element, in a shape that broadcasts."""
        line = np.arange(self.start[dim], self.start[dim] + self.shape[dim])
        return line.reshape([-1 if i == dim else 1 for i in range(len(self.shape))])

    def slabs(self) -> Iterator[Box]:
        """Yield small boxes that make up this one, in order."""
        if math.prod(self.shape) <= SLAB:
            yield self
            return
        dim = next(d for d, n in enumerate(self.shape) if n > 1)
        rows, first = max(SLAB // math.prod(self.shape[dim + 1 :]), 1), self.start[dim]
        for row in range(0, self.shape[dim], rows):
            start = (*self.start[:dim], first + row, *self.start[dim + 1 :])
            shape = (*self.shape[:dim], min(rows, self.shape[dim] - row), *self.shape[dim + 1 :])
            yield from Box(self.whole, start, shape).slabs()


Values: TypeAlias = Callable[[Box], Array | float]


@dataclass(frozen=True)
class Initial:
    """How values begin.

    Attributes
    ----------
    values : function ``(box) -> array``
        Draws a part: the same numbers as in a draw of everything.
    local : bool
        Whether a part is drawn without the rest.
    """

    values: Values
    local: bool = True

    def draw(self, box: Box, dtype: npt.DTypeLike) -> Array:
        """Return the values in a box."""
        out = np.empty(box.shape, dtype)
        if not self.local:
            out[...] = np.asarray(self.values(Box.all_of(box.whole)))[box.slices]
            return out
        for slab in box.slabs():
            offset = tuple(a - b for a, b in zip(slab.start, box.start, strict=True))
            out[Box(box.shape, offset, slab.shape).slices] = self.values(slab)
        return out


class Deferred(Tensor):
    """A parameter without storage.

    Attributes
    ----------
    initial : Initial
        How it begins.
    """

    __slots__ = ("_dtype", "_shape", "initial")

    @property
    def data(self) -> Array:
        """Raise: there is none."""
        raise _no_storage("data", self._shape)

    @data.setter
    def data(self, value: Array) -> None:
        """Begin with these values."""
        self._shape, self._dtype = value.shape, value.dtype
        self.initial = Initial(lambda box: value[box.slices])

    def cast(self, dtype: npt.DTypeLike) -> None:
        """Have another dtype: values are drawn in the one there was."""
        initial, before = self.initial, self._dtype
        self.initial = Initial(lambda box: initial.draw(box, before), initial.local)
        self._dtype = np.dtype(dtype)

    def stored(self, values: Array) -> Tensor:
        """Return the parameter with storage; hooks go with it."""
        result = Tensor(values, self.requires_grad)
        result.hooks, result.done_hooks = self.hooks, self.done_hooks
        return result

    def __deepcopy__(self, _: Any) -> Deferred:
        twin = Deferred(np.broadcast_to(np.zeros((), self._dtype), self._shape), self.requires_grad)
        twin.initial = self.initial
        return twin

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        return math.prod(self._shape)

    def __len__(self) -> int:
        return self._shape[0]

    def __repr__(self) -> str:
        return f"deferred(shape={self._shape}, dtype={self._dtype})"

    @staticmethod
    def __apply__(op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Refuse to compute."""
        shape = next(x.shape for x in inputs if isinstance(x, Deferred))
        raise _no_storage(op.name, shape)


def _no_storage(what: str, shape: tuple[int, ...]) -> RuntimeError:
    return RuntimeError(
        explain(
            f"{what}: a parameter of shape {shape} is deferred: it has no values yet",
            do="call hd.nn.materialize(module) first, or hand the module to a strategy that draws its parts",
        )
    )


# ---------------------------------------------------------------- building
class _Mode(threading.local):
    """Whether this thread builds modules without storage."""

    on = False


_mode = _Mode()


@contextmanager
def deferred() -> Iterator[None]:
    """Build modules without storage in a ``with`` block: parameters are :class:`Deferred`.

    The draws are those that would have been made there and then, so :func:`materialize` gives the same bits.
    """
    before, _mode.on = _mode.on, True
    try:
        yield
    finally:
        _mode.on = before


def is_deferring() -> bool:
    """Say whether modules are built without storage."""
    return _mode.on


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array for a parameter that will be initialised: without memory of its own where deferred."""
    return np.broadcast_to(np.zeros((), dtype), shape) if _mode.on else np.empty(shape, dtype)


# ---------------------------------------------------------------- drawing
def draw(parameter: Tensor, start: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None) -> Array:
    """Return the first values of a deferred parameter: those in a box, or all; the same bits either way.

    Parameters
    ----------
    start, shape : tuple of int, optional
        Where the box begins, and its extents; default: everything.
    """
    if not isinstance(parameter, Deferred):
        raise TypeError(explain("draw: parameter", got=type(parameter).__name__, expected="a deferred one"))
    whole = parameter.shape
    start = (0,) * len(whole) if start is None else tuple(start)
    shape = tuple(n - a for n, a in zip(whole, start, strict=False)) if shape is None else tuple(shape)
    ends = [(a, a + n, w) for w, a, n in zip(whole, start, shape, strict=False)]
    if not len(start) == len(shape) == len(whole) or not all(0 <= a <= b <= w for a, b, w in ends):
        raise ValueError(explain("draw: box", got=f"{shape} from {start}", expected=f"inside {whole}"))
    return parameter.initial.draw(Box(whole, start, shape), parameter.dtype)


def materialize(module: M) -> M:
    """Give every deferred parameter of a module its storage and first values; tied ones stay tied."""
    fill(module, lambda _, parameter: draw(parameter))
    return module


def fill(module: Module, values: Callable[[str, Deferred], Array | None]) -> None:
    """Store what ``values(name, parameter)`` returns as each deferred parameter; None: it stays deferred."""
    made: dict[int, Tensor] = {}
    for name, owner, key in list(module.named_slots()):
        parameter = owner.slots[key]
        if isinstance(parameter, Deferred):
            if id(parameter) not in made:
                array = values(name, parameter)
                made[id(parameter)] = parameter if array is None else parameter.stored(array)
            owner.slots[key] = made[id(parameter)]
