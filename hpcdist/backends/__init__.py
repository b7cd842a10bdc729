"""What this machine offers, and the switches (torch.backends).

Each part is imported when it is first asked for, and loads the library it describes only when it has to.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdist.backends import blas, cpu, cuda, flags, mpi, numba

__all__ = ["blas", "cpu", "cuda", "flags", "mpi", "numba"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hpcdist.backends' has no attribute {name!r}")
    return importlib.import_module(f"hpcdist.backends.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
