"""GradBucket: what a communication hook gets."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.array import Array
from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator
from hpcdist.errors import explain

__all__ = ["GradBucket"]


class GradBucket:
    """Gradients that lie side by side and travel together.

    Attributes
    ----------
    group : Communicator
        The ranks of the model, in a message space that only hooks use.
    """

    def __init__(
        self, buffer: Array, parameters: Sequence[Tensor], group: Communicator, *, index: int, is_last: bool
    ) -> None:
        self.group = group
        self._buffer, self._parameters = buffer, list(parameters)
        self._index, self._is_last = index, is_last

    def index(self) -> int:
        """Return its place in the order in which buckets are reduced."""
        return self._index

    def is_last(self) -> bool:
        """Say whether it is the last one of this backward."""
        return self._is_last

    def buffer(self) -> Array:
        """Return the gradients of this rank, flat, which may be changed: 0 where there is none."""
        return self._buffer

    def parameters(self) -> list[Tensor]:
        """Return the parameters, in the order in which their gradients lie."""
        return list(self._parameters)

    def gradients(self) -> list[Array]:
        """Return the gradient of each parameter, in its shape: views of :meth:`buffer`."""
        views, start = [], 0
        for p in self._parameters:
            views.append(self._buffer[start : start + p.size].reshape(p.shape))
            start += p.size
        return views

    def set_buffer(self, buffer: Array) -> None:
        """Have :meth:`buffer` return another array, for a hook inside a hook; the gradients stay as they are.

        Parameters
        ----------
        buffer : array
            Of the shape of the one before, in any dtype.

        Raises
        ------
        ValueError
            If it has another shape.
        """
        if buffer.shape != self._buffer.shape:
            raise ValueError(explain("GradBucket.set_buffer", got=buffer.shape, expected=self._buffer.shape))
        self._buffer = buffer
