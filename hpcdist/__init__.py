"""Train models on MPI machines with NumPy and CuPy arrays.

Importing this package loads none of mpi4py, numba, h5py and cupy, and starts no MPI: each name below is fetched
when it is first used, so that ``import hpcdist`` works on a login node.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdist import (
        autograd,
        backends,
        checkpoint,
        comm,
        data,
        dtensor,
        elastic,
        nn,
        optim,
        parallel,
        train,
    )
    from hpcdist.autograd.random import manual_seed
    from hpcdist.autograd.tape import no_grad
    from hpcdist.autograd.tensor import Tensor, tensor
    from hpcdist.comm.init import init
    from hpcdist.comm.mesh import init_device_mesh

    __version__: str

__all__ = [
    "Tensor",
    "__version__",
    "autograd",
    "backends",
    "checkpoint",
    "comm",
    "data",
    "dtensor",
    "elastic",
    "init",
    "init_device_mesh",
    "manual_seed",
    "nn",
    "no_grad",
    "optim",
    "parallel",
    "tensor",
    "train",
]

_HOMES = {
    "Tensor": "hpcdist.autograd",
    "init": "hpcdist.comm.init",
    "init_device_mesh": "hpcdist.comm.mesh",
    "manual_seed": "hpcdist.autograd",
    "no_grad": "hpcdist.autograd",
    "tensor": "hpcdist.autograd",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.import_module("importlib.metadata").version("hpcdist")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in __all__:
        value = importlib.import_module(f"hpcdist.{name}")
    else:
        raise AttributeError(f"module 'hpcdist' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
