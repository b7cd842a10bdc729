"""Groups of ranks and what they say to each other: communicators, collectives, meshes (torch.distributed).

Nothing is imported before it is used: no name here but the MPI communicator needs mpi4py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdist.comm.agreement import on_every_rank, on_one_rank
    from hpcdist.comm.communicator import Communicator
    from hpcdist.comm.dry import DryCommunicator
    from hpcdist.comm.file_store import FileStore
    from hpcdist.comm.init import get_default
    from hpcdist.comm.local import LocalCommunicator
    from hpcdist.comm.mesh import DeviceMesh, init_device_mesh
    from hpcdist.comm.reduce_op import ReduceOp
    from hpcdist.comm.store import HashStore, PrefixStore, Store
    from hpcdist.comm.work import Work
    from hpcdist.errors import CollectiveMismatchError, DistError, DistStoreError, DistTimeoutError, QueueEmptyError

__all__ = [
    "CollectiveMismatchError",
    "Communicator",
    "DeviceMesh",
    "DistError",
    "DistStoreError",
    "DistTimeoutError",
    "DryCommunicator",
    "FileStore",
    "HashStore",
    "LocalCommunicator",
    "PrefixStore",
    "QueueEmptyError",
    "ReduceOp",
    "Store",
    "Work",
    "get_default",
    "init_device_mesh",
    "on_every_rank",
    "on_one_rank",
]

_HOMES = {
    "CollectiveMismatchError": "hpcdist.errors",
    "Communicator": "hpcdist.comm.communicator",
    "DeviceMesh": "hpcdist.comm.mesh",
    "DistError": "hpcdist.errors",
    "DistStoreError": "hpcdist.errors",
    "DistTimeoutError": "hpcdist.errors",
    "DryCommunicator": "hpcdist.comm.dry",
    "FileStore": "hpcdist.comm.file_store",
    "HashStore": "hpcdist.comm.store",
    "LocalCommunicator": "hpcdist.comm.local",
    "PrefixStore": "hpcdist.comm.store",
    "QueueEmptyError": "hpcdist.errors",
    "ReduceOp": "hpcdist.comm.reduce_op",
    "Store": "hpcdist.comm.store",
    "Work": "hpcdist.comm.work",
    "get_default": "hpcdist.comm.init",
    "init_device_mesh": "hpcdist.comm.mesh",
    "on_every_rank": "hpcdist.comm.agreement",
    "on_one_rank": "hpcdist.comm.agreement",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hpcdist.comm' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
