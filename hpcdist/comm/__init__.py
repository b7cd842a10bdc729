"""Groups of ranks and what they say to each other: communicators, collectives, meshes (torch.distributed).

Functions have PyTorch's names and arguments. Nothing is imported before it is used: no name here but the MPI
communicator needs mpi4py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdist.comm.addressing import NonMember
    from hpcdist.comm.agreement import on_every_rank, on_one_rank
    from hpcdist.comm.availability import (
        get_default_backend_for_device,
        is_available,
        is_backend_available,
        is_gloo_available,
        is_mpi_available,
        is_nccl_available,
        is_torchelastic_launched,
        is_ucc_available,
        is_xccl_available,
    )
    from hpcdist.comm.barriers import barrier, breakpoint, monitored_barrier
    from hpcdist.comm.coalescing import coalescing_manager
    from hpcdist.comm.collectives import (
        all_gather,
        all_gather_into_tensor,
        all_gather_single,
        all_to_all,
        all_to_all_single,
        broadcast,
        gather,
        scatter,
    )
    from hpcdist.comm.communicator import Communicator
    from hpcdist.comm.debug import DebugLevel, get_debug_level, set_debug_level, set_debug_level_from_env
    from hpcdist.comm.dry import DryCommunicator
    from hpcdist.comm.file_store import FileStore
    from hpcdist.comm.future import Future
    from hpcdist.comm.groups import new_group, new_subgroups, new_subgroups_by_enumeration, split_group
    from hpcdist.comm.hash_store import HashStore
    from hpcdist.comm.init import get_default, using_group
    from hpcdist.comm.label import record_comm
    from hpcdist.comm.local import LocalCommunicator
    from hpcdist.comm.membership import (
        get_backend,
        get_backend_config,
        get_global_rank,
        get_group_rank,
        get_node_local_rank,
        get_process_group_ranks,
        get_rank,
        get_world_size,
    )
    from hpcdist.comm.mesh import DeviceMesh, init_device_mesh
    from hpcdist.comm.messages import P2POp, batch_isend_irecv, irecv, isend, recv, send
    from hpcdist.comm.object_collectives import (
        all_gather_object,
        broadcast_object_list,
        gather_object,
        recv_object_list,
        scatter_object_list,
        send_object_list,
    )
    from hpcdist.comm.prefix_store import PrefixStore
    from hpcdist.comm.process_group import (
        GroupMember,
        ProcessGroup,
        default_pg_timeout,
        destroy_process_group,
        get_pg_count,
        group,
        init_process_group,
        is_initialized,
    )
    from hpcdist.comm.reduce_op import ReduceOp
    from hpcdist.comm.reducing import (
        all_reduce,
        all_reduce_coalesced,
        reduce,
        reduce_scatter,
        reduce_scatter_single,
        reduce_scatter_tensor,
        supports_complex,
    )
    from hpcdist.comm.store import Store
    from hpcdist.comm.work import Work
    from hpcdist.errors import (
        CollectiveMismatchError,
        DistBackendError,
        DistError,
        DistNetworkError,
        DistStoreError,
        DistTimeoutError,
        QueueEmptyError,
    )

__all__ = [
    "CollectiveMismatchError",
    "Communicator",
    "DebugLevel",
    "DeviceMesh",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "DistTimeoutError",
    "DryCommunicator",
    "FileStore",
    "Future",
    "GroupMember",
    "HashStore",
    "LocalCommunicator",
    "NonMember",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "ReduceOp",
    "Store",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "breakpoint",
    "broadcast",
    "broadcast_object_list",
    "coalescing_manager",
    "default_pg_timeout",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_backend_config",
    "get_debug_level",
    "get_default",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_device_mesh",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "on_every_rank",
    "on_one_rank",
    "record_comm",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_debug_level",
    "set_debug_level_from_env",
    "split_group",
    "supports_complex",
    "using_group",
]

_NAMES = {
    "hpcdist.comm.agreement": "on_every_rank on_one_rank",
    "hpcdist.comm.addressing": "NonMember",
    "hpcdist.comm.availability": (
        "get_default_backend_for_device is_available is_backend_available is_gloo_available is_mpi_available "
        "is_nccl_available is_torchelastic_launched is_ucc_available is_xccl_available"
    ),
    "hpcdist.comm.barriers": "barrier breakpoint monitored_barrier",
    "hpcdist.comm.coalescing": "coalescing_manager",
    "hpcdist.comm.collectives": (
        "all_gather all_gather_into_tensor all_gather_single all_to_all all_to_all_single broadcast gather scatter"
    ),
    "hpcdist.comm.communicator": "Communicator",
    "hpcdist.comm.debug": "DebugLevel get_debug_level set_debug_level set_debug_level_from_env",
    "hpcdist.comm.dry": "DryCommunicator",
    "hpcdist.comm.file_store": "FileStore",
    "hpcdist.comm.future": "Future",
    "hpcdist.comm.groups": "new_group new_subgroups new_subgroups_by_enumeration split_group",
    "hpcdist.comm.hash_store": "HashStore",
    "hpcdist.comm.init": "get_default using_group",
    "hpcdist.comm.label": "record_comm",
    "hpcdist.comm.local": "LocalCommunicator",
    "hpcdist.comm.membership": (
        "get_backend get_backend_config get_global_rank get_group_rank get_node_local_rank "
        "get_process_group_ranks get_rank get_world_size"
    ),
    "hpcdist.comm.mesh": "DeviceMesh init_device_mesh",
    "hpcdist.comm.messages": "P2POp batch_isend_irecv irecv isend recv send",
    "hpcdist.comm.object_collectives": (
        "all_gather_object broadcast_object_list gather_object recv_object_list scatter_object_list send_object_list"
    ),
    "hpcdist.comm.prefix_store": "PrefixStore",
    "hpcdist.comm.process_group": (
        "GroupMember ProcessGroup default_pg_timeout destroy_process_group get_pg_count group "
        "init_process_group is_initialized"
    ),
    "hpcdist.comm.reduce_op": "ReduceOp",
    "hpcdist.comm.reducing": (
        "all_reduce all_reduce_coalesced reduce reduce_scatter reduce_scatter_single reduce_scatter_tensor "
        "supports_complex"
    ),
    "hpcdist.comm.store": "Store",
    "hpcdist.comm.work": "Work",
    "hpcdist.errors": (
        "CollectiveMismatchError DistBackendError DistError DistNetworkError DistStoreError DistTimeoutError "
        "QueueEmptyError"
    ),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hpcdist.comm' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
