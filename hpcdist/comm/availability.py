"""What can carry messages here, in PyTorch's words."""

from __future__ import annotations

import importlib.util

from hpcdist import config
from hpcdist.comm.addressing import check_device
from hpcdist.errors import DistBackendError, explain

__all__ = [
    "check_backend",
    "get_default_backend_for_device",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
]


def is_available() -> bool:
    """Say True: this package is always complete."""
    return True


def is_mpi_available() -> bool:
    """Say whether mpi4py is installed. Does not start MPI."""
    return importlib.util.find_spec("mpi4py") is not None


def is_gloo_available() -> bool:
    """Say False: messages go by MPI."""
    return False


def is_nccl_available() -> bool:
    """Say False: messages go by MPI, those of arrays on GPUs, too."""
    return False


def is_ucc_available() -> bool:
    """Say False: messages go by MPI, which may use UCC itself."""
    return False


def is_xccl_available() -> bool:
    """Say False: messages go by MPI."""
    return False


def is_backend_available(backend: str) -> bool:
    """Say whether messages can go by ``backend``: "mpi", or "threads", where ranks are threads."""
    return backend.lower() == "threads" or (backend.lower() == "mpi" and is_mpi_available())


def is_torchelastic_launched() -> bool:
    """Say whether the launcher of hpcdist started this process."""
    return config.environment().error_dir is not None


def get_default_backend_for_device(device: object) -> str:
    """Return "mpi", for "cpu" and "cuda" alike."""
    check_device("get_default_backend_for_device", device)
    return "mpi"


def check_backend(verb: str, backend: str | None) -> None:
    """Refuse what cannot carry messages; "cpu:mpi,cuda:mpi" names one for each device.

    Raises
    ------
    DistBackendError
        If one is not there.
    """
    for name in (backend or "threads").split(","):
        if not is_backend_available(name.rpartition(":")[2]):
            do = "leave it out: messages go by MPI, those of arrays on GPUs, too"
            raise DistBackendError(explain(f"{verb}: backend", got=repr(backend), expected="'mpi'", do=do))
