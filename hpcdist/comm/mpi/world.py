"""The MPI world of this process: MPI starts here, when a rank first needs others."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from hpcdist import config
from hpcdist.comm.launched import Launched, launched
from hpcdist.errors import LaunchError, explain

if TYPE_CHECKING:
    from hpcdist.comm.mpi.communicator import MpiCommunicator

__all__ = ["check_company", "runs_already", "world"]

_CURES = (
    "under srun choose what this MPI speaks: --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH, Intel), see srun --mpi=list; "
    "else start with the mpirun that belongs to the MPI that mpi4py loads; in a container the MPI inside must fit the "
    "host's launcher. HPCDIST_ALLOW_SINGLETONS=1 lets every process work alone"
)


def world(*, timeout_s: float, check: bool | None = None, reproducible: bool, owned: bool = False) -> MpiCommunicator:
    """Return all ranks that were started together. Starts MPI if nobody has. Collective over the world.

    Parameters
    ----------
    timeout_s, check, reproducible
        As for ``hd.init``.
    owned : bool
        Whether a failure of this rank ends the job, from the moment that MPI runs.

    Raises
    ------
    LaunchError
        If no MPI can be loaded, or if each process turns out to be a world of its own.
    """
    place = launched(os.environ)
    try:
        from hpcdist.comm.mpi.start import start

        MPI = start(place, timeout_s)
    except (ImportError, RuntimeError) as e:
        do = 'pip install "hpcdist[mpi]", or load the site\'s MPI module so that its library is found'
        raise LaunchError(explain("no MPI library can be loaded", got=e, do=do)) from e
    from hpcdist.comm.mpi.communicator import MpiCommunicator

    if not config.environment().allow_singletons:
        check_company(MPI.COMM_WORLD.Get_size(), place, MPI.Get_library_version())
    if owned and MPI.COMM_WORLD.Get_size() > 1:
        from hpcdist.comm.mpi import guard

        guard.hook()
    return MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=timeout_s, check=check, reproducible=reproducible)


def check_company(size: int, place: Launched | None, library: str) -> None:
    """Refuse a world of one rank where a launcher started several.

    Parameters
    ----------
    size : int
        Ranks in MPI's world.
    place : Launched or None
        What the launcher's variables say.
    library : str
        Which MPI this is.

    Raises
    ------
    LaunchError
        If every process would work alone, and write over the others' files.
    """
    if size > 1 or place is None or place.size == 1:
        return
    got = f"a world of 1 rank, from {library.strip().splitlines()[0].split(',')[0]}"
    expected = f"{place.size} ranks: {place.launcher} says that this is rank {place.rank} of {place.size}"
    raise LaunchError(explain("MPI: each process is alone", got=got, expected=expected, do=_CURES))


def runs_already() -> bool:
    """Say whether the program has started MPI itself and has several ranks, whatever launched them."""
    library = sys.modules.get("mpi4py.MPI")
    return library is not None and library.Is_initialized() and library.COMM_WORLD.Get_size() > 1
