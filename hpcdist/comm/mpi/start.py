"""MPI starts: MPI_Init returns when all ranks have called it, which is a wait like any other.

mpi4py starts MPI when it is imported, and keeps Python's lock meanwhile: no thread could say that this takes long, or
give it up. So MPI_Init is called past mpi4py where nobody has set up mpi4py otherwise. This module imports without MPI.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hpcdist import config
from hpcdist.comm import failure
from hpcdist.errors import DistTimeoutError, explain

if TYPE_CHECKING:
    from hpcdist.comm.launched import Launched

__all__ = ["start"]

_VARIABLE = "MPI4PY_RC_"
_TELLERS = 2
"""So many ranks tell of a wait first; twice as many next, and so on."""

_log = logging.getLogger("hpcdist.comm")


def start(place: Launched | None, limit_s: float) -> Any:
    """Return ``mpi4py.MPI``, with MPI running. Collective over the ranks that were started together.

    Says after HPCDIST_LATE_S that some of them have not come, and ends this process after ``limit_s`` seconds.
    """
    import mpi4py

    rc = mpi4py.rc
    is_plain = rc.initialize and rc.threads and rc.thread_level == "multiple" and rc.finalize is None
    if "mpi4py.MPI" in sys.modules or place is None or not is_plain or any(_VARIABLE in name for name in os.environ):
        from mpi4py import MPI

        return MPI
    rc.initialize, rc.finalize = False, True
    try:
        from mpi4py import MPI
    finally:
        rc.initialize, rc.finalize = True, None
    if not MPI.Is_initialized():
        come = threading.Event()
        threading.Thread(target=_watch, args=(come, place, limit_s), name="hpcdist-start", daemon=True).start()
        try:
            _initialize(MPI)
        finally:
            come.set()
    return MPI


def _initialize(mpi: Any) -> None:
    """Do what mpi4py does; without Python's lock if the library's function can be found."""
    function = None
    for name in (None, mpi.__file__):  # a profiler that was loaded first goes before the library
        with suppress(OSError, AttributeError):
            function = function or ctypes.CDLL(name).MPI_Init_thread
    if function is None:
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        return
    function(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
    for comm in (mpi.COMM_SELF, mpi.COMM_WORLD):
        comm.Set_errhandler(mpi.ERRORS_RETURN)


def _watch(come: threading.Event, place: Launched, limit_s: float) -> None:
    began, late_s, tellers = time.monotonic(), config.environment().late_s, _TELLERS
    what = f"rank {place.rank} of {place.size}: MPI_Init"
    while not come.wait(min(late_s, max(began + limit_s - time.monotonic(), 0.0))):
        waited_s = time.monotonic() - began
        if waited_s >= limit_s:
            do = "see whether a rank has ended, or is busy, before hd.init(); or allow more time (timeout_s)"
            what = f"{what}: not all ranks have come within {limit_s:g} s"
            failure.report_failure(DistTimeoutError(explain(what, do=do)))
            os._exit(1)
        if place.rank < tellers:
            _log.warning("%s, in hd.init(): has waited for %.0f s for ranks that are not there", what, waited_s)
        late_s, tellers = max(waited_s, late_s), 2 * tellers
