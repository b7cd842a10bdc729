"""Train models on MPI machines with NumPy and CuPy arrays.

Importing this package loads none of mpi4py, numba, h5py and cupy, and starts no MPI: each name below is fetched
when it is first used, so that ``import hpcdist`` works on a login node.
"""

from __future__ import annotations

import importlib
import os
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
    from hpcdist.autograd import fft
    from hpcdist.autograd.arrangement import *  # noqa: F403
    from hpcdist.autograd.functions import *  # noqa: F403
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
    "fft",
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

# not in __all__: "import *" would hide Python's abs, max and sum
_FUNCTIONS = [
    "abs", "amax", "amin", "argmax", "argmin", "argsort", "bmm", "clamp", "cos", "cumsum", "einsum", "eq", "erf",
    "exp", "ge", "gt", "le", "log", "lt", "masked_fill", "matmul", "max", "maximum", "mean", "min", "minimum", "ne",
    "norm", "outer", "sigmoid", "sin", "sort", "sqrt", "std", "sum", "tanh", "topk", "var", "where",
]  # fmt: skip
_ARRANGEMENT = [
    "broadcast_to", "cat", "complex", "conj", "flatten", "gather", "imag", "index_select", "pad", "permute", "real",
    "reshape", "scatter_add", "split", "squeeze", "stack", "take_along_dim", "unsqueeze", "view_as_complex",
    "view_as_real",
]  # fmt: skip

_HOMES = {
    "Tensor": "hpcdist.autograd",
    "fft": "hpcdist.autograd",
    "init": "hpcdist.comm.init",
    "init_device_mesh": "hpcdist.comm.mesh",
    "manual_seed": "hpcdist.autograd",
    "no_grad": "hpcdist.autograd",
    "tensor": "hpcdist.autograd",
    **dict.fromkeys(_FUNCTIONS, "hpcdist.autograd.functions"),
    **dict.fromkeys(_ARRANGEMENT, "hpcdist.autograd.arrangement"),
}


if {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"} & os.environ.keys():
    from hpcdist.backends.parent import is_worker as _is_worker
    from hpcdist.comm import exits as _exits
    from hpcdist.comm.launched import launched as _launched

    if _launched(os.environ) is not None and not _is_worker():
        _exits.listen()  # a rank of a job, which has to end as this one does


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
    return sorted({*globals(), *__all__, *_HOMES})
