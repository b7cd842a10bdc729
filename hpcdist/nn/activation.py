"""Functions of single elements, and of shapes, as layers."""

from __future__ import annotations

from hpcdist.autograd import Tensor, apply, ops
from hpcdist.nn import functional as F
from hpcdist.nn.module import Module

__all__ = ["GELU", "Flatten", "ReLU", "SiLU", "Sigmoid", "Tanh"]


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class GELU(Module):
    """x * Phi(x), exactly (``approximate="none"``) or by its ``"tanh"`` form."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(ops.SIGMOID, x)


class Flatten(Module):
    """Dimensions ``start_dim`` to ``end_dim``, both included, as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)
