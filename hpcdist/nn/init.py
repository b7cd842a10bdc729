"""Initial values, drawn from the seed and the place of each element: the same on every mesh."""

from __future__ import annotations

from hpcdist.array import Array
from hpcdist.autograd import Tensor, random

__all__ = ["normal_", "ones_", "uniform_", "zeros_"]


def normal_(parameter: Tensor, std: float = 1.0, mean: float = 0.0, *, name: str | None = None) -> Tensor:
    """Fill with normal numbers.

    Parameters
    ----------
    name : str, optional
        Draw by this name (and the seed), whenever it happens; None: by how many draws went before.
    """
    return _fill(parameter, random.normal(_key(name), parameter.shape) * std + mean)


def uniform_(parameter: Tensor, low: float = 0.0, high: float = 1.0, *, name: str | None = None) -> Tensor:
    """Fill with numbers from [low, high); ``name`` as in :func:`normal_`."""
    return _fill(parameter, random.uniform(_key(name), parameter.shape) * (high - low) + low)


def zeros_(parameter: Tensor) -> Tensor:
    """Fill with 0."""
    return _fill(parameter, 0)


def ones_(parameter: Tensor) -> Tensor:
    """Fill with 1."""
    return _fill(parameter, 1)


def _key(name: str | None) -> random.Key:
    return random.next_key("init") if name is None else random.key(random.get_state()["seed"], f"init {name}")


def _fill(parameter: Tensor, values: Array | int) -> Tensor:
    parameter.data[...] = values
    return parameter
