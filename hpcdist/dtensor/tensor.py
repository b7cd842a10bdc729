"""The distributed tensor: what this rank holds of an array, and its layout."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.autograd import Tensor, backward, no_grad
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.comm.work import Then
from hpcdist.dtensor.held import Held
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.memo import kept
from hpcdist.dtensor.path import along, posted
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard, dual
from hpcdist.dtensor.steps import steps
from hpcdist.dtensor.target import redirected, with_gradients
from hpcdist.errors import explain

if TYPE_CHECKING:
    from hpcdist.dtensor.chunks import Chunk

__all__ = ["DTensor", "local_of", "relaid"]


class DTensor(Held):
    """An array on a mesh, as one rank sees it: ``shape`` is that of the whole, ``local`` what this rank holds.

    Operations compute with local parts. What they communicate follows from the layouts: a sum over ranks is finished
    where it has to be; nothing is ever gathered unless :meth:`redistribute` or :meth:`full_tensor` says so.
    """

    __slots__ = ()

    @staticmethod
    def from_local(
        local: Any,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        order: Sequence[int] | None = None,
        grad_placements: Sequence[Placement] | None = None,
    ) -> DTensor:
        """Return the distributed tensor of what every rank holds, in the same graph.

        Collective over the mesh where a placement is a Shard and ``shape`` is not given, or with ``run_check``: one
        small exchange, after which every rank knows the shape of the whole, or raises the same error.

        Parameters
        ----------
        local : Tensor or array
            Kept. What ranks hold of a dimension that is cut may be uneven, or empty: as the ceil rule says.
        device_mesh : DeviceMesh, optional
            Default: that of the ``with`` block.
        placements : sequence of Placement, optional
            One an axis; default: Invariant.
        run_check : bool
            Check also that copies are the same, bit for bit.
        shape : sequence of int, optional
            Of the whole. Then nothing is exchanged, and a rank that holds what does not fit raises alone.
        order : sequence of int, optional
            See :class:`Layout`.
        grad_placements : sequence of Placement, optional
            How gradients of ``local`` shall be placed; default: the dual of ``placements``.

        Raises
        ------
        ValueError
            If what ranks hold makes no array: other numbers of dimensions, dtypes or extents, or not the ceil rule.
        DistError
            On a rank that is not in the mesh.
        """
        from hpcdist.dtensor.distribute import from_local

        return from_local(
            local,
            device_mesh,
            placements,
            run_check=run_check,
            shape=shape,
            order=order,
            grad_placements=grad_placements,
        )

    @staticmethod
    def __apply__(op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Run an operation; see ``hpcdist.dtensor.dispatch``."""
        from hpcdist.dtensor.dispatch import dispatch

        return dispatch(op, inputs, attrs)

    def gradient(self) -> DTensor | None:
        """Return the gradient as a distributed tensor: placed as this one, Partial where this one is Replicate."""
        return None if self.local.grad is None else self.__gradient__(self.local.grad)

    def new_full(self, size: int | Sequence[int], fill_value: float, dtype: npt.DTypeLike | None = None) -> DTensor:
        """Return a constant in the dtype of this, Invariant on its mesh."""
        whole = self.local.new_full(size, fill_value, dtype)
        return DTensor(whole, Layout.of(self.device_mesh, [Invariant()] * len(self.placements), whole.shape))

    def detach(self) -> DTensor:
        """Return the same data outside the graph."""
        return DTensor(self.local.detach(), self.layout)

    def __deepcopy__(self, memo: Any) -> DTensor:
        copied = Tensor(self.local.data.copy(), self.local.requires_grad)
        copied.grad = copy.deepcopy(self.local.grad, memo)  # which may say that gradients are left out
        return DTensor(copied, self.layout)

    # ---- changes of layout
    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        order: Sequence[int] | None = None,
    ) -> Any:
        """Return the same array in another layout. Collective over the axes that change, unless they change for free.

        Moves what the table of ``hpcdist.dtensor.move`` says; gradients move the transposed way.

        Parameters
        ----------
        device_mesh : DeviceMesh, optional
            That of the tensor.
        placements : sequence of Placement
            One an axis.
        async_op : bool
            Return a Work at once; its ``wait()`` returns the tensor, and must be called on every rank.
        order : sequence of int, optional
            See :class:`Layout`; default: that of the tensor, axes that cut anew coming last.

        Raises
        ------
        ValueError
            On a move that is not in the table, or to another mesh.
        """
        if placements is None:
            raise ValueError(explain("redistribute: placements", got=None, expected="one an axis"))
        if device_mesh is not None and device_mesh != self.device_mesh:
            do = "distribute full_tensor() anew"
            raise ValueError(explain("redistribute: mesh", got=device_mesh, expected=self.device_mesh, do=do))
        asked = (self.layout, tuple(placements), None if order is None else tuple(order))
        target = kept(self.device_mesh, asked, redirected)
        if async_op:
            return Then(posted(self.local, steps(self.layout, target)), lambda local: _moved(self, local, target))
        return relaid(self, target)

    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """Return the whole array as a plain tensor, on every rank. Collective over the axes that hold parts.

        Gradients that come back are taken to be equal on all ranks, or placed as ``grad_placements`` says.
        """
        whole = relaid(self, self.layout.placed([Invariant()] * len(self.placements)))
        return whole.to_local(grad_placements=grad_placements)

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """Return what this rank holds, as a plain tensor in the same graph.

        Parameters
        ----------
        grad_placements : sequence of Placement, optional
            How gradients that come back are placed; default: the dual of ``placements``, so those of an Invariant are
            taken to be equal on all ranks, those of a Replicate are added up over them.

        Raises
        ------
        ValueError
            If ``grad_placements`` do not fit the placements.
        """
        if grad_placements is None:
            return self.local
        return relaid(self, with_gradients("to_local", self.layout, grad_placements)).local

    # ---- saving and loading
    def chunks(self) -> list[Chunk]:
        """Return the boxes of the whole that this rank has to save: over all ranks every element once.

        Of ranks that hold the same the first one saves it. Arrays are views.

        Raises
        ------
        ValueError
            If it is Partial.
        """
        from hpcdist.dtensor.chunks import chunks

        return chunks(self)

    __create_chunk_list__ = chunks

    def fill(self, read: Callable[[tuple[int, ...], tuple[int, ...]], Array]) -> None:
        """Write what ``read(offsets, sizes)`` returns to every box of the whole that this rank holds, in place.

        Raises
        ------
        ValueError
            If it is Partial, or what was read has another shape.
        """
        from hpcdist.dtensor.chunks import fill

        fill(self, read)

    # ---- reading values
    def item(self) -> Any:
        """Return the one element as a Python number. Collective over axes that hold parts of it.

        Raises
        ------
        ValueError
            If there are more, or none; nothing is gathered then.
        """
        if self.size != 1:
            raise ValueError(explain("item: number of elements", got=f"{self.size}, {self.layout}", expected=1))
        with no_grad():
            return self.full_tensor().item()

    def __float__(self) -> float:
        """Return the one element. Collective over axes that hold parts of it."""
        return float(self.item())

    def __int__(self) -> int:
        """Return the one element. Collective over axes that hold parts of it."""
        return int(self.item())

    def __bool__(self) -> bool:
        """Return the one element. Collective over axes that hold parts of it."""
        return bool(self.item())

    def numpy(self) -> Array:
        """Return the values as a NumPy array; Collective over axes on which they are Partial.

        Raises
        ------
        ValueError
            If ranks hold slices, which are not gathered unasked.
        """
        if any(isinstance(p, Shard) for p in self.placements):
            do = "say full_tensor().numpy() for the whole, to_local().numpy() for what this rank holds"
            raise ValueError(explain("numpy: ranks hold slices", got=self.layout, do=do))
        with no_grad():
            return self.full_tensor().numpy()

    # ---- gradients
    def backward(self, grad: Any = None, *, retain_graph: bool = False) -> None:
        """Add gradients to ``.grad`` of every leaf this was computed from.

        Collective over the axes on which gradients are moved: see the table of ``hpcdist.dtensor.move``.

        Parameters
        ----------
        grad : DTensor, array or number, optional
            Cotangent, of the shape of the whole and the same on every rank; default 1, for one element.
        """
        backward(self, grad, retain_graph=retain_graph)

    def __seeded__(self, grad: Any) -> tuple[Tensor, Array]:
        """Return where backward starts on this rank, and with what: a cotangent in the dual layout."""
        from hpcdist.dtensor.seed import seeded

        return seeded(self, grad)

    def __gradient__(self, array: Array) -> DTensor:
        """Return a gradient of what this rank holds as a distributed tensor."""
        shares = [axis for axis, p in enumerate(self.placements) if p == Partial("avg")]
        if shares:  # each rank has its share of the gradient of a mean
            array = array * math.prod(self.device_mesh.shape[axis] for axis in shares)
        placements = [Replicate() if axis in shares else dual(p) for axis, p in enumerate(self.placements)]
        return DTensor(Tensor(array), self.layout.placed(placements))


def local_of(x: Any) -> Tensor:
    """Return what this rank holds of a distributed tensor; a plain one is its own."""
    local: Tensor = x.local if isinstance(x, DTensor) else x
    return local


def relaid(x: DTensor, layout: Layout) -> DTensor:
    """Return ``x`` in another layout of its mesh. Collective over the axes that change, unless they change for free."""
    if x.layout is layout:
        return x
    return _moved(x, along(x.local, steps(x.layout, layout)), layout)


def _moved(x: DTensor, local: Tensor, layout: Layout) -> DTensor:
    """Return what has become of ``x``; two layouts of one tensor do not share its gradient."""
    return DTensor(local.detach() if local is x.local and layout is not x.layout else local, layout)
