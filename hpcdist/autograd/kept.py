"""A tensor that is put away until backward, as values that operations save are."""

from __future__ import annotations

from hpcdist.array import Array
from hpcdist.autograd.tape import keep
from hpcdist.autograd.tensor import Tensor

__all__ = ["Kept"]


class Kept:
    """A tensor whose array is kept by what it is a result of, or by the hooks of saved values, or here.

    Parameters
    ----------
    tensor : Tensor
        Its place in the graph is kept, too.
    """

    __slots__ = ("_node", "_packed", "_requires_grad", "_slot", "_unpack")

    def __init__(self, tensor: Tensor) -> None:
        ((self._packed, self._unpack),) = keep((tensor.data,), (tensor,))
        self._requires_grad, self._node, self._slot = tensor.requires_grad, tensor.node, tensor.slot

    def array(self) -> Array:
        """Return the array; one that is cheap to compute again is."""
        found: Array = self._packed if self._unpack is None else self._unpack(self._packed)
        return found

    def tensor(self) -> Tensor:
        """Return a tensor in the same place of the graph; a leaf of its own in place of a leaf."""
        if self._node is None:
            return Tensor(self.array(), self._requires_grad)
        return Tensor._of_node(self.array(), self._node, self._slot)
