"""Optimizers that treat every element alike: they go through a parameter in blocks that stay in the cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from hpcdist.array import Array, is_device
from hpcdist.autograd import Tensor
from hpcdist.kernels.precision import wide
from hpcdist.optim.clip import whole_gradient
from hpcdist.optim.optimizer import Optimizer, flat_values

__all__ = ["Elementwise"]

BLOCK = 1 << 14
"""Elements that are updated at a time; what is computed on the way needs no fresh pages."""


class Elementwise(Optimizer):
    """Base of optimizers whose update of an element depends on nothing but what belongs to that element."""

    def _update(self, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        flat = self._flat(parameter)
        numbers = self._prepare(flat, state, group)
        gradient, factor = whole_gradient(parameter), self._factor(group)
        arrays = {key: value for key, value in state.items() if getattr(value, "ndim", 0)}
        for block in _blocks(flat):
            part, change = flat[block], gradient[block].astype(wide(flat[:0]).dtype, copy=False)
            if factor != 1:
                change = change * factor
            if group["weight_decay"]:
                change = change + group["weight_decay"] * wide(part)
            kept = {key: array[block] for key, array in arrays.items()}
            part[...] = wide(part) - self._step_of(change, kept, group, numbers)  # rounds once

    def _flat(self, parameter: Tensor) -> Array:
        """Return the values of a parameter, (n,), in its own memory."""
        return flat_values(parameter)

    @abstractmethod
    def _prepare(self, flat: Array, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Make what is remembered, count the step; return the numbers that hold for all blocks."""

    @abstractmethod
    def _step_of(self, gradient: Array, kept: dict[str, Any], group: dict[str, Any], numbers: Any) -> Array:
        """Update what is remembered of a block, in place; return what to subtract from its values."""


def _blocks(flat: Array) -> Iterator[slice]:
    length = max(flat.size, 1) if is_device(flat) else BLOCK
    for start in range(0, flat.size, length):
        yield slice(start, start + length)
