"""What a distributed tensor is to a rank: a tensor of its own, and where that lies in the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.autograd import Tensor
from hpcdist.autograd.operand import binary, product
from hpcdist.autograd.operators import Operators
from hpcdist.autograd.tensor import UFUNC_OPS, Hook
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Partial, Placement
from hpcdist.errors import explain

__all__ = ["Held"]


class Held(Operators):
    """What one rank holds of an array, and the layout of the whole. Communicates with nobody.

    Parameters
    ----------
    local : Tensor, shape ``layout.local_shape``
        Kept, with its place in the graph.
    layout : Layout
    """

    __slots__ = ("__weakref__", "layout", "local")

    def __init__(self, local: Tensor, layout: Layout) -> None:
        if local.shape != layout.local_shape:
            what = f"DTensor: what the rank at {layout.coordinate} holds of {layout}"
            raise ValueError(explain(what, got=local.shape, expected=layout.local_shape))
        self.local, self.layout = local, layout

    # ---- what it is
    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the whole."""
        return self.layout.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.layout.shape)

    @property
    def size(self) -> int:
        """Number of elements of the whole."""
        return self.layout.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type."""
        return self.local.data.dtype

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh."""
        return self.layout.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """One placement a mesh axis."""
        return self.layout.placements

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation computed it."""
        return self.local.node is None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a distributed tensor without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        pending = "not reduced; " if any(isinstance(p, Partial) for p in self.placements) else ""
        needs = "; requires_grad" if self.requires_grad else ""
        return f"DTensor({self.layout}; {pending}rank {self.device_mesh.comm.rank} holds {self.local!r}{needs})"

    # ---- what this rank holds: attributes of the local tensor
    @property
    def data(self) -> Array:
        """The array that this rank holds, of shape ``layout.local_shape``."""
        return self.local.data

    @data.setter
    def data(self, value: Array) -> None:
        self.local.data = value

    @property
    def grad(self) -> Array | None:
        """The gradient of what this rank holds, an array of the same shape; see :meth:`gradient` for the whole."""
        return self.local.grad

    @grad.setter
    def grad(self, value: Array | None) -> None:
        self.local.grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is collected for it."""
        return self.local.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.local.requires_grad = value

    @property
    def home(self) -> Array | None:
        """Memory that ``grad`` shall use."""
        return self.local.home

    def register_hook(self, hook: Hook) -> Any:
        """Have ``hook`` see, and perhaps replace, the gradient of what this rank holds; see Tensor.register_hook."""
        return self.local.register_hook(hook)

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """Have ``hook(tensor)`` called when ``.grad`` of this leaf is complete."""
        return self.local.register_post_accumulate_grad_hook(lambda _: hook(self))

    # ---- what NumPy must not do with it
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Raise: NumPy would not know what it got."""
        do = "say .numpy(), .full_tensor() or .to_local()"
        raise TypeError(explain("a NumPy conversion of a distributed tensor", got=self.layout, do=do))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        reflected = UFUNC_OPS.get(ufunc.__name__)
        if method == "__call__" and reflected and len(inputs) == 2 and not kwargs:
            return product(*inputs) if reflected == "matmul" else binary(reflected, *inputs)
        do = "use hpcdist's operations"
        raise TypeError(explain(f"numpy.{ufunc.__name__} of a distributed tensor", got=self.layout, do=do))
