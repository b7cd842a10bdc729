"""Arithmetic as functions, under the names and with the arguments of torch's."""

from __future__ import annotations

from typing import Any

from hpcdist.autograd.operand import Operand, binary, call, operand, product, wrapped
from hpcdist.autograd.ops.reduce import Dims
from hpcdist.autograd.tensor import Tensor, tensor
from hpcdist.errors import explain

__all__ = [
    "abs", "amax", "amin", "argmax", "argmin", "argsort", "bmm", "clamp", "cos", "cumsum", "einsum", "eq", "erf",
    "exp", "ge", "gt", "le", "log", "lt", "masked_fill", "matmul", "max", "maximum", "mean", "min", "minimum", "ne",
    "norm", "outer", "sigmoid", "sin", "sort", "sqrt", "std", "sum", "tanh", "topk", "var", "where",
]  # fmt: skip


# ---------------------------------------------------------------- element by element
def abs(x: Tensor) -> Tensor:
    """Return the magnitude of each element; its gradient is 0 at 0."""
    return x.abs()


def exp(x: Tensor) -> Tensor:
    """Return e to the power of each element."""
    return x.exp()


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of each element."""
    return x.log()


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of each element."""
    return x.sqrt()


def sin(x: Tensor) -> Tensor:
    """Return the sine of each element."""
    return x.sin()


def cos(x: Tensor) -> Tensor:
    """Return the cosine of each element."""
    return x.cos()


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of each element."""
    return x.tanh()


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return call("sigmoid", x)


def erf(x: Tensor) -> Tensor:
    """Return the error function of each element."""
    return x.erf()


def eq(a: Operand, b: Operand) -> Tensor:
    """Return whether the elements of each pair are equal; the operator ``==`` compares tensors, not elements."""
    return binary("eq", a, b)


def ne(a: Operand, b: Operand) -> Tensor:
    """Return whether the elements of each pair differ."""
    return binary("ne", a, b)


def lt(a: Operand, b: Operand) -> Tensor:
    """Return ``a < b``, element by element."""
    return binary("lt", a, b)


def le(a: Operand, b: Operand) -> Tensor:
    """Return ``a <= b``, element by element."""
    return binary("le", a, b)


def gt(a: Operand, b: Operand) -> Tensor:
    """Return ``a > b``, element by element."""
    return binary("gt", a, b)


def ge(a: Operand, b: Operand) -> Tensor:
    """Return ``a >= b``, element by element."""
    return binary("ge", a, b)


def maximum(a: Operand, b: Operand) -> Tensor:
    """Return the larger of each pair; equals get half of the gradient each."""
    return binary("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Tensor:
    """Return the smaller of each pair; equals get half of the gradient each."""
    return binary("minimum", a, b)


def clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """Move elements outside ``min .. max`` to the nearer end; those at an end keep their gradient."""
    return x.clamp(min, max)


def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """Return ``a`` where ``condition`` (bool) holds, else ``b``."""
    if not (hasattr(type(a), "requires_grad") or hasattr(type(b), "requires_grad")):
        a = tensor(a)
    return call("where", wrapped(condition), operand(a, b), operand(b, a))


def masked_fill(x: Tensor, mask: Operand, value: float) -> Tensor:
    """Return ``x`` with ``value`` where ``mask`` (bool) holds."""
    return x.masked_fill(mask, value)


# ---------------------------------------------------------------- along dimensions
def sum(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Add up the elements along ``dim`` (None: all)."""
    return x.sum(dim, keepdim)


def mean(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Average the elements along ``dim`` (None: all)."""
    return x.mean(dim, keepdim)


def cumsum(x: Tensor, dim: int) -> Tensor:
    """Add up the elements along ``dim`` as far as each."""
    return x.cumsum(dim)


def var(x: Tensor, dim: Dims = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Return the variance along ``dim``, with a divisor of the number of elements less ``correction``."""
    return x.var(dim, correction, keepdim)


def std(x: Tensor, dim: Dims = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Return the square root of :func:`var`; its gradient is 0 where it is 0."""
    return x.std(dim, correction, keepdim)


def norm(x: Tensor, p: float = 2, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return ``sum(|x| ** p) ** (1 / p)`` along ``dim`` (None: all), for p > 0 or infinity; the gradient of 0 is 0."""
    return x.norm(p, dim, keepdim)


def max(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the largest element; along a ``dim``, the pair (largest elements, where they first are).

    Its gradient goes to the first of equals.
    """
    return x.max(dim, keepdim)


def min(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the smallest element; along a ``dim``, the pair (smallest elements, where they first are).

    Its gradient goes to the first of equals.
    """
    return x.min(dim, keepdim)


def amax(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return the largest elements along ``dim``; unlike in torch, the first of equals gets all of the gradient."""
    return x.amax(dim, keepdim)


def amin(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return the smallest elements along ``dim``; unlike in torch, the first of equals gets all of the gradient."""
    return x.amin(dim, keepdim)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return where the largest element first is along ``dim`` (None: among all, in one row)."""
    return x.argmax(dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return where the smallest element first is along ``dim`` (None: among all, in one row)."""
    return x.argmin(dim, keepdim)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return the elements along ``dim`` in order, and where they were. NaN is largest; equals keep their order."""
    return x.sort(dim, descending)


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Return the indices that put the elements along ``dim`` in order."""
    return x.argsort(dim, descending)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest (or smallest) elements along ``dim``, the foremost first, and where they were."""
    return x.topk(k, dim, largest)


# ---------------------------------------------------------------- products
def matmul(a: Operand, b: Operand) -> Tensor:
    """Return ``a @ b``: a (..., m, k) or (k,), b (..., k, n) or (k,); batch dimensions broadcast."""
    return product(a, b)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of each pair of matrices: a (batch, m, k), b (batch, k, n)."""
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0]:
        raise ValueError(
            explain("bmm: batches of matrices", got=f"{a.shape}, {b.shape}", expected="(b, m, k), (b, k, n)")
        )
    return call("matmul", a, b)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Return all products of two elements: a (m,), b (n,) -> (m, n)."""
    return einsum("i,j->ij", a, b)


def einsum(equation: str, *operands: Operand) -> Tensor:
    """Return the product of the operands, added up over the letters that the result lacks.

    Parameters
    ----------
    equation : str
        ``"bij,bjk->bik"``: one letter a dimension, ``...`` for any number of them. Without ``->``: the dimensions of
        ``...``, then, in alphabetical order, the letters that are there once.
    operands : Tensor
        One by one, or a sequence of them. A dimension of extent one is stretched.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    return call("einsum", *map(wrapped, operands), equation=equation)
