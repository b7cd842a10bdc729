"""What can be done with a tensor: operators and methods, each of them one operation or two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from hpcdist.autograd.operand import Operand, binary, call, flat, operand, plain_index, product, wrapped
from hpcdist.autograd.ops.reduce import Dims, reduced
from hpcdist.errors import explain

__all__ = ["Operators"]


class Operators:
    """Methods of everything that can be the input of an operation."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def ndim(self) -> int: ...
        @property
        def dtype(self) -> np.dtype[Any]: ...

    @property
    def T(self) -> Self:  # noqa: N802 (NumPy's name)
        """With its dimensions reversed."""
        return self.transpose()

    # ---- operators
    def __add__(self, other: Operand) -> Self:
        return binary("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Self:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Self:
        return binary("sub", other, self)

    def __mul__(self, other: Operand) -> Self:
        return binary("mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Self:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Self:
        return binary("div", other, self)

    def __matmul__(self, other: Operand) -> Self:
        return product(self, other)

    def __rmatmul__(self, other: Operand) -> Self:
        return product(other, self)

    def __neg__(self) -> Self:
        return call("neg", self)

    def __pow__(self, exponent: float) -> Self:
        return call("pow", self, exponent=exponent)

    def __lt__(self, other: Operand) -> Self:
        return binary("lt", self, other)

    def __le__(self, other: Operand) -> Self:
        return binary("le", self, other)

    def __gt__(self, other: Operand) -> Self:
        return binary("gt", self, other)

    def __ge__(self, other: Operand) -> Self:
        return binary("ge", self, other)

    def __getitem__(self, index: Any) -> Self:
        parts = tuple(map(plain_index, index)) if isinstance(index, tuple) else plain_index(index)
        return call("getitem", self, index=parts)

    # ---- methods that are operations
    def exp(self) -> Self:
        """Return e to the power of each element."""
        return call("exp", self)

    def log(self) -> Self:
        """Return the natural logarithm of each element."""
        return call("log", self)

    def sqrt(self) -> Self:
        """Return the square root of each element."""
        return call("sqrt", self)

    def tanh(self) -> Self:
        """Return the hyperbolic tangent of each element."""
        return call("tanh", self)

    def erf(self) -> Self:
        """Return the error function of each element."""
        return call("erf", self)

    def sin(self) -> Self:
        """Return the sine of each element."""
        return call("sin", self)

    def cos(self) -> Self:
        """Return the cosine of each element."""
        return call("cos", self)

    def abs(self) -> Self:
        """Return the magnitude of each element."""
        return call("abs", self)

    __abs__ = abs

    def sum(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """Add up the elements along ``dim`` (None: all)."""
        return call("sum", self, dim=dim, keepdim=keepdim)

    def mean(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """Average the elements along ``dim`` (None: all)."""
        return call("mean", self, dim=dim, keepdim=keepdim)

    def max(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the largest element; along a ``dim``, the largest elements and where they first are."""
        found = call("max", self, dim=dim, keepdim=keepdim)
        return found[0] if dim is None else found

    def min(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the smallest element; along a ``dim``, the smallest elements and where they first are."""
        found = call("min", self, dim=dim, keepdim=keepdim)
        return found[0] if dim is None else found

    def amax(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """Return the largest elements along ``dim`` (None: of all)."""
        return call("max", self, dim=dim, keepdim=keepdim)[0]

    def amin(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """Return the smallest elements along ``dim`` (None: of all)."""
        return call("min", self, dim=dim, keepdim=keepdim)[0]

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Self:
        """Return where the largest element first is along ``dim`` (None: among all, in one row)."""
        return call("max", self, dim=dim, keepdim=keepdim)[1]

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Self:
        """Return where the smallest element first is along ``dim`` (None: among all, in one row)."""
        return call("min", self, dim=dim, keepdim=keepdim)[1]

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """Return the elements along ``dim`` in order, and where they were; equals keep their order."""
        return call("sort", self, dim=dim, descending=descending)

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """Return the indices that put the elements along ``dim`` in order."""
        return self.sort(dim, descending)[1]

    def topk(self, k: int, dim: int = -1, largest: bool = True) -> tuple[Self, Self]:
        """Return the k largest (or smallest) elements along ``dim``, the foremost first, and where they were."""
        return call("topk", self, k=k, dim=dim, largest=largest)

    def clamp(self, min: float | None = None, max: float | None = None) -> Self:
        """Move elements outside ``min .. max`` to the nearer end."""
        return call("clamp", self, min=min, max=max)

    def cumsum(self, dim: int) -> Self:
        """Add up the elements along ``dim`` as far as each."""
        return call("cumsum", self, dim=dim)

    def var(self, dim: Dims = None, correction: float = 1, keepdim: bool = False) -> Self:
        """Return the variance along ``dim``: sum of squares divided by number of elements less ``correction``."""
        return call("var", self, dim=dim, correction=correction, keepdim=keepdim)

    def std(self, dim: Dims = None, correction: float = 1, keepdim: bool = False) -> Self:
        """Return the square root of the variance; its gradient is 0 where it is 0."""
        return call("std", self, dim=dim, correction=correction, keepdim=keepdim)

    def norm(self, p: float = 2, dim: Dims = None, keepdim: bool = False) -> Self:
        """Return ``sum(|x| ** p) ** (1 / p)`` along ``dim``, for p > 0 or infinity."""
        return call("norm", self, p=p, dim=dim, keepdim=keepdim)

    def masked_fill(self, mask: Operand, value: float) -> Self:
        """Return the values with ``value`` in place of those where ``mask`` (bool) holds."""
        return call("where", wrapped(mask), operand(value, self), self)

    def new_full(self, size: int | Sequence[int], fill_value: float, dtype: npt.DTypeLike | None = None) -> Self:
        """Return a constant in the dtype of this, to stand beside it: in the same place, the same on all ranks."""
        raise TypeError(f"new_full: {type(self).__name__} makes no constants: {size}, {fill_value}, {dtype}")

    def new_zeros(self, size: int | Sequence[int], dtype: npt.DTypeLike | None = None) -> Self:
        """Return zeros, as :meth:`new_full`."""
        return self.new_full(size, 0, dtype)

    def new_ones(self, size: int | Sequence[int], dtype: npt.DTypeLike | None = None) -> Self:
        """Return ones, as :meth:`new_full`."""
        return self.new_full(size, 1, dtype)

    def softmax(self, dim: int) -> Self:
        """Return ``exp(x) / sum(exp(x))`` along ``dim``."""
        return call("softmax", self, dim=dim)

    def reshape(self, *shape: Any) -> Self:
        """Return the elements in another shape; one extent may be -1."""
        return call("reshape", self, shape=flat(shape))

    def transpose(self, *dims: Any) -> Self:
        """Exchange two dimensions, given one by one; or put all in the order of a sequence (default: reversed)."""
        if len(dims) == 2:
            one, other = reduced(self.ndim, dims)
            order = list(range(self.ndim))
            order[one], order[other] = other, one
            return self.permute(order)
        return self.permute(*dims) if dims else self.permute(range(self.ndim)[::-1])

    def view(self, *shape: Any) -> Self:
        """Return :meth:`reshape`: a view of the same memory where it allows."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Make one dimension of those from ``start_dim`` to ``end_dim``, which is included."""
        shape, (start, end) = self.shape, reduced(max(self.ndim, 1), (start_dim, end_dim))
        if start > end:
            raise ValueError(
                explain("flatten: dimensions", got=f"{start_dim} to {end_dim}", expected="the first one first")
            )
        stop = end + 1
        return self.reshape((*shape[:start], math.prod(shape[start:stop]), *shape[stop:]))

    def squeeze(self, dim: int | tuple[int, ...] | None = None) -> Self:
        """Remove dimensions of extent one: those of ``dim`` that have it, or all."""
        chosen = reduced(self.ndim, dim)
        return self.reshape(tuple(n for d, n in enumerate(self.shape) if n != 1 or d not in chosen))

    def unsqueeze(self, dim: int) -> Self:
        """Insert a dimension of extent one at ``dim``."""
        (place,) = reduced(self.ndim + 1, dim)
        return self.reshape((*self.shape[:place], 1, *self.shape[place:]))

    def permute(self, *dims: Any) -> Self:
        """Return the dimensions in another order."""
        return call("transpose", self, dims=flat(dims))

    def expand(self, *sizes: Any) -> Self:
        """Stretch dimensions of extent one to ``sizes`` (-1: leave it), with new dimensions in front."""
        wanted = flat(sizes)
        own = (-1,) * (len(wanted) - self.ndim) + self.shape
        if len(own) > len(wanted) or any(n == o == -1 for n, o in zip(wanted, own, strict=True)):
            raise ValueError(
                explain(
                    "expand: sizes", got=wanted, expected=f"one for each of {self.shape}; new ones, in front, not -1"
                )
            )
        return call("broadcast_to", self, shape=tuple(o if n == -1 else n for o, n in zip(own, wanted, strict=True)))

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Cut into pieces of the given sizes (an int: of that size, the last may be shorter) along ``dim``."""
        if isinstance(sizes, (int, np.integer)):
            if sizes < 1:
                raise ValueError(explain("split: size of a piece", got=sizes, expected="1 or more"))
            n = self.shape[reduced(self.ndim, dim)[0]]
            sizes = [min(sizes, n - start) for start in range(0, max(n, 1), sizes)]  # of nothing: one piece
        return call("split", self, sizes=tuple(sizes), dim=dim)

    def to(self, dtype: npt.DTypeLike) -> Self:
        """Return the values in another dtype."""
        return self if np.dtype(dtype) == self.dtype else call("cast", self, dtype=np.dtype(dtype))
