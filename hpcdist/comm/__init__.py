"""Groups of ranks and what they say to each other: communicators, collectives, meshes (torch.distributed).

Nothing is imported before it is used: no name here but the MPI communicator needs mpi4py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdist.comm.communicator import Communicator
    from hpcdist.comm.dry import DryCommunicator
    from hpcdist.comm.init import get_default
    from hpcdist.comm.local import LocalCommunicator
    from hpcdist.comm.mesh import DeviceMesh, init_device_mesh
    from hpcdist.comm.reduce_op import ReduceOp
    from hpcdist.comm.work import Work
    from hpcdist.errors import CollectiveMismatchError, DistError, DistTimeoutError

__all__ = [
    "CollectiveMismatchError",
    "Communicator",
    "DeviceMesh",
    "DistError",
    "DistTimeoutError",
    "DryCommunicator",
    "LocalCommunicator",
    "ReduceOp",
    "Work",
    "get_default",
    "init_device_mesh",
]

_HOMES = {
    "CollectiveMismatchError": "hpcdist.errors",
    "Communicator": "hpcdist.comm.communicator",
    "DeviceMesh": "hpcdist.comm.mesh",
    "DistError": "hpcdist.errors",
    "DistTimeoutError": "hpcdist.errors",
    "DryCommunicator": "hpcdist.comm.dry",
    "LocalCommunicator": "hpcdist.comm.local",
    "ReduceOp": "hpcdist.comm.reduce_op",
    "Work": "hpcdist.comm.work",
    "get_default": "hpcdist.comm.init",
    "init_device_mesh": "hpcdist.comm.mesh",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hpcdist.comm' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
