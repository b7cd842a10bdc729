"""The tensor: an array, whether it needs a gradient, and where in the graph it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array, is_device, namespace, to_host
from hpcdist.autograd.operand import binary, product
from hpcdist.autograd.operators import Operators
from hpcdist.autograd.pool import empty
from hpcdist.errors import explain

if TYPE_CHECKING:
    from hpcdist.autograd.tape import Node

__all__ = ["UFUNC_OPS", "Tensor", "tensor"]

Hook: TypeAlias = Callable[[Array], Array | None]


class Tensor(Operators):
    """An array in the graph of what was computed.

    Parameters
    ----------
    data : array
        Kept, not copied. What is computed from it keeps it too: whoever changes it before backward changes gradients.
    requires_grad : bool
        Collect a gradient for it; floating or complex dtypes only.

    Attributes
    ----------
    grad : array or None
        The gradient that ``backward`` collected, of the same shape and dtype; leaves only. None: none was written
        since it was last set to None.
    home : array or None
        Memory that ``grad`` shall use.
    """

    __slots__ = (
        "__weakref__",
        "data",
        "done_hooks",
        "grad",
        "home",
        "hooks",
        "node",
        "requires_grad",
        "slot",
    )

    def __init__(self, data: Array, requires_grad: bool = False) -> None:
        if requires_grad and data.dtype.kind not in "fcV":
            raise TypeError(explain("Tensor: only floating and complex dtypes have gradients", got=data.dtype))
        self.data = data
        self.requires_grad = requires_grad
        self.node: Node | None = None
        self.slot = 0
        self.grad: Array | None = None
        self.home: Array | None = None
        self.hooks: Sequence[Hook] = ()
        self.done_hooks: Sequence[Callable[[Tensor], None]] = ()

    @classmethod
    def _of_node(cls, data: Array, node: Node, slot: int) -> Tensor:
        result = Tensor(data)
        result.requires_grad, result.node, result.slot = True, node, slot
        return result

    # ---- what it is
    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the array."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.data.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.data.size

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation computed it."""
        return self.node is None

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        body = np.array2string(to_host(self.data), separator=", ", prefix="tensor(")
        origin = f", from={self.node.op.name}" if self.node else ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({body}, dtype={self.dtype}{origin})"

    # ---- reading values
    def item(self) -> Any:
        """Return the one element as a Python number."""
        return self.data.item()

    def __float__(self) -> float:
        return float(self.data)

    def __int__(self) -> int:
        return int(self.data)

    def __bool__(self) -> bool:
        return bool(self.data)

    def numpy(self) -> Array:
        """Return the values as a NumPy array, outside the graph: a view on the host, a copy from a GPU."""
        return to_host(self.data)

    def detach(self) -> Tensor:
        """Return the same data outside the graph."""
        return Tensor(self.data)

    def new_full(self, size: int | Sequence[int], fill_value: float, dtype: npt.DTypeLike | None = None) -> Tensor:
        return Tensor(namespace(self.data).full(size, fill_value, self.dtype if dtype is None else dtype))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        self._refuse_numpy("a NumPy conversion")
        return np.array(self.data, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        reflected = UFUNC_OPS.get(ufunc.__name__)
        if method == "__call__" and reflected and len(inputs) == 2 and not kwargs:
            return product(*inputs) if reflected == "matmul" else binary(reflected, *inputs)
        for x in inputs:
            if isinstance(x, Tensor):
                x._refuse_numpy(f"numpy.{ufunc.__name__}")
        plain = [x.data if isinstance(x, Tensor) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    def _refuse_numpy(self, what: str) -> None:
        if self.requires_grad:
            raise TypeError(
                explain(
                    f"{what} of a tensor that needs gradients would lose them",
                    do="use hpcdist's operations, or .numpy() to leave the graph",
                )
            )

    # ---- gradients
    def place(self) -> tuple[Array, float]:
        """Return ``(array, beta)`` for ``array = gradient + beta * array``: the first write of a step does not read."""
        if self.grad is not None:
            if self.grad.shape != self.data.shape:
                raise RuntimeError(
                    explain("backward: .grad has another shape", got=self.grad.shape, expected=self.shape)
                )
            if not getattr(self.grad.flags, "writeable", True):
                raise RuntimeError(
                    explain(
                        "backward: a gradient that is being reduced over ranks would change",
                        got=f"a parameter of shape {self.shape} that is used outside the module that holds it",
                        do="use parameters inside the forward of their unit only",
                    )
                )
            return self.grad, 1.0
        self.grad = self.home if self.home is not None else empty(self.data.shape, self.data.dtype, self.data)
        return self.grad, 0.0

    def backward(self, grad: Any = None, *, retain_graph: bool = False) -> None:
        """Add gradients to ``.grad`` of every leaf this was computed from; see :func:`hpcdist.autograd.backward`."""
        from hpcdist.autograd.tape import backward

        backward(self, grad, retain_graph=retain_graph)

    def register_hook(self, hook: Hook) -> Callable[[], None]:
        """Have ``hook(gradient)`` see, and perhaps replace, this tensor's gradient; return a function that removes it.

        A leaf's hook runs once a backward, before the gradient is added to ``.grad``.
        """
        if not self.requires_grad:
            raise RuntimeError("register_hook: the tensor does not need gradients")
        if self.node is None:
            self.hooks = [*self.hooks, hook]
            return lambda: setattr(self, "hooks", _without(self.hooks, hook))
        node, entry = self.node, (self.slot, hook)
        node.hooks.append(entry)
        return lambda: setattr(node, "hooks", _without(node.hooks, entry))

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> Callable[[], None]:
        """Have ``hook(leaf)`` called when ``.grad`` of this leaf is complete; return a function that removes it."""
        if not self.requires_grad or self.node is not None:
            raise RuntimeError("register_post_accumulate_grad_hook: only leaves that need gradients have one")
        self.done_hooks = [*self.done_hooks, hook]
        return lambda: setattr(self, "done_hooks", _without(self.done_hooks, hook))


def _without(hooks: Sequence[Any], hook: Any) -> list[Any]:
    """Return ``hooks`` less one ``hook``, if it is there: one that was added twice stays once."""
    place = next((i for i, h in enumerate(hooks) if h == hook), len(hooks))
    return [*hooks[:place], *hooks[place + 1 :]]


UFUNC_OPS = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "matmul": "matmul",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
}


def tensor(data: Any, dtype: npt.DTypeLike | None = None, requires_grad: bool = False) -> Tensor:
    """Copy ``data`` (an array, a number or nested sequences) into a new leaf.

    Python floats become float32; arrays keep their dtype.
    """
    if isinstance(data, Tensor):
        data = data.data
    if is_device(data):
        return Tensor(data.copy() if dtype is None else data.astype(dtype), requires_grad)
    if dtype is None and not isinstance(data, (np.ndarray, np.generic)) and np.asarray(data).dtype == np.float64:
        dtype = np.float32
    return Tensor(np.array(data, dtype=dtype), requires_grad)
