"""How values of several ranks become one: the name of a combination."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["PremulSum", "ReduceOp"]


class PremulSum(NamedTuple):
    """A sum whose terms are multiplied by ``factor`` first: ``ReduceOp.PREMUL_SUM(factor)``."""

    factor: float


class ReduceOp(StrEnum):
    """How values of several ranks become one, element by element.

    ``SUM``, ``PRODUCT``, ``MIN`` and ``MAX`` take numbers (bool is combined logically), ``AVG`` floating and complex
    ones, ``BAND``, ``BOR`` and ``BXOR`` integers and bool. ``PREMUL_SUM(factor)`` is taken by the functions of
    :mod:`hpcdist.comm` that reduce.
    """

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    @staticmethod
    def PREMUL_SUM(factor: float) -> PremulSum:  # noqa: N802 (PyTorch's name)
        """Return the sum of values that are multiplied by ``factor`` first."""
        return PremulSum(factor)
