"""What ranks agree on about arrays on GPUs: whether MPI is given pointers into them."""

from __future__ import annotations

import os
from typing import NamedTuple

from mpi4py import MPI

from hpcdist import config
from hpcdist.backends.awareness import cuda_aware
from hpcdist.comm.agreement import on_every_rank
from hpcdist.comm.communicator import Communicator

__all__ = ["Cuda", "agree_on_cuda"]


class Cuda(NamedTuple):
    """How device arrays are treated, alike on all ranks of a group.

    Attributes
    ----------
    aware : bool
        Whether MPI reads and writes device memory; else arrays go through the host.
    nonblocking_reductions : bool
        Whether that holds for non-blocking reductions too.
    """

    aware: bool = False
    nonblocking_reductions: bool = False


def agree_on_cuda(comm: Communicator) -> Cuda:
    """Return what the environment asks for and MPI says it can do, on all ranks. Collective over ``comm``.

    Raises
    ------
    LaunchError
        On every rank, if one asks for what its MPI does not offer.
    """
    wanted = config.environment()
    aware = on_every_rank(comm, lambda: cuda_aware(wanted.cuda_aware, MPI.Get_library_version(), os.environ))
    trusted = comm.all_gather_object(wanted.cuda_nonblocking_reductions) if all(aware) else [False]
    return Cuda(all(aware), all(trusted))
