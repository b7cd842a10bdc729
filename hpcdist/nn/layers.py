"""Layers under torch's names: containers, linear, embedding, norms, dropout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from hpcdist.autograd import Tensor, apply, ops
from hpcdist.errors import explain
from hpcdist.nn import functional as F
from hpcdist.nn import init
from hpcdist.nn.deferral import empty
from hpcdist.nn.functional_conv import Sizes
from hpcdist.nn.module import Module, Parameter

__all__ = ["Dropout", "Embedding", "LayerNorm", "Linear", "ModuleList", "RMSNorm", "Sequential"]


class ModuleList(Module):
    """A list of modules, named by their positions."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        if not isinstance(module, Module):
            raise TypeError(explain(f"{type(self).__name__}: an item", got=type(module).__name__, expected="a module"))
        self.children[str(len(self.children))] = module

    def __iter__(self) -> Iterator[Module]:
        return iter(self.children.values())

    def __len__(self) -> int:
        return len(self.children)

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Module:
        found = list(self.children.values())[index]
        if isinstance(found, Module):
            return found
        part = type(self)()
        for module in found:
            part.append(module)
        return part


class Sequential(ModuleList):
    """Modules that are applied one after another."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class Linear(Module):
    """``x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features : int
        k and n: weight is (n, k), bias (n,); both start uniform in +-1/sqrt(k), as torch's.
    bias : bool
        Whether there is one.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: npt.DTypeLike = np.float32
    ) -> None:
        super().__init__()
        self.weight = Parameter(empty((out_features, in_features), dtype))
        self.bias = Parameter(empty(out_features, dtype)) if bias else None
        bound = max(in_features, 1) ** -0.5
        for parameter in self.slots.values():
            init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding(Module):
    """Rows of a table: weight (num_embeddings, embedding_dim), which start standard normal."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__()
        self.weight = init.normal_(Parameter(empty((num_embeddings, embedding_dim), dtype)))

    def forward(self, tokens: Any) -> Tensor:
        return F.embedding(tokens, self.weight)


def _extents(normalized_shape: Sizes) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


class LayerNorm(Module):
    """Layer norm over the last dimensions, ``normalized_shape``.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Of weight and bias, which start at 1 and 0.
    elementwise_affine, bias : bool
        Whether there is a weight, and with it a bias.
    """

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = _extents(normalized_shape), eps
        self.weight = init.ones_(Parameter(empty(self.normalized_shape, dtype))) if elementwise_affine else None
        self.bias = init.zeros_(Parameter(empty(self.normalized_shape, dtype))) if elementwise_affine and bias else None

    def forward(self, x: Tensor, branch: Tensor | None = None) -> Any:
        """Return the norm of x; with a ``branch``: ``x + branch`` and its norm, for a residual stream."""
        if branch is None:
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        if self.bias is None or len(self.normalized_shape) > 1:
            return (total := x + branch), self(total)
        return apply(ops.ADD_LAYER_NORM, x, branch, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """RMS norm over the last dimensions, ``normalized_shape``.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Of the weight, which starts at 1.
    eps : float, optional
        Added to the mean square; None: the machine epsilon of the type that is computed in, as torch's.
    elementwise_affine : bool
        Whether there is a weight.
    """

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = _extents(normalized_shape), eps
        self.weight = init.ones_(Parameter(empty(self.normalized_shape, dtype))) if elementwise_affine else None

    def forward(self, x: Tensor, branch: Tensor | None = None) -> Any:
        """Return the norm of x; with a ``branch``: ``x + branch`` and its norm, for a residual stream."""
        if branch is None:
            return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        if self.weight is None or len(self.normalized_shape) > 1:
            return (total := x + branch), self(total)
        return apply(ops.ADD_RMS_NORM, x, branch, self.weight, eps=F.rms_eps(self.eps, x))


class Dropout(Module):
    """Set elements to 0 with probability p while training."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(explain("Dropout: p", got=p, expected="a probability, 0 to 1"))
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, self.training)
