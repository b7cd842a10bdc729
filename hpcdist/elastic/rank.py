"""A job as one rank: run it as ``python`` would, and when it fails make the whole job end.

All of this happens before the job's own imports, so that thread counts reach libraries before these load.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from pathlib import Path

from hpcdist import config
from hpcdist.backends import cpu
from hpcdist.backends.parent import die_with_parent
from hpcdist.comm import exits, failure, leftovers
from hpcdist.comm.launched import launched
from hpcdist.elastic.job import Job

__all__ = ["run_job"]

_STDERR = 2


def run_job(job: Job) -> int:
    """Run ``job`` in this process and return its exit code; starts no processes.

    If the job fails after MPI has been initialised this does not return: the whole MPI job is aborted.
    """
    place = launched(os.environ)
    folder = config.environment().error_dir
    if folder:
        die_with_parent(signal.SIGKILL)
    cpu.set_threads(None, place.local_size if place else 1)
    _trace_crashes(folder, place.rank if place else 0)
    rank = os.getpid()
    try:
        _execute(job)
    except BaseException as error:
        if os.getpid() != rank:  # a process that the job has forked
            raise
        if not failure.exit_code(error):
            return 0
        shown = not isinstance(error, SystemExit) and failure.told_by_program(error)
        return _end(failure.report_failure(error, shown=shown))
    return 0


def _execute(job: Job) -> None:
    sys.argv = [job.target, *job.arguments]
    if job.kind == "module":
        _import_first_from(Path.cwd())
        runpy.run_module(job.target, run_name="__main__", alter_sys=True)
    else:
        _import_first_from(Path(job.target).resolve().parent)
        runpy.run_path(job.target, run_name="__main__")


def _import_first_from(folder: Path) -> None:
    """Put ``folder`` where Python puts the folder of its script, unless the user does not want that."""
    if os.environ.get("PYTHONSAFEPATH"):
        return
    if sys.flags.safe_path:
        sys.path.insert(0, str(folder))
    else:
        sys.path[0] = str(folder)


def _trace_crashes(folder: str | None, rank: int) -> None:
    """Let a crash (SIGSEGV and the like) leave the Python stack: for the launcher, else on stderr."""
    try:
        stream = os.open(Path(folder, f"rank-{rank}.fault"), os.O_CREAT | os.O_WRONLY) if folder else _STDERR
    except OSError:
        stream = _STDERR
    faulthandler.enable(stream)


def _end(code: int) -> int:
    """End the whole job: through MPI if it runs here, else by the exit code that the launcher sees."""
    library = sys.modules.get("mpi4py.MPI")
    if library is not None and library.Is_initialized() and not library.Is_finalized():
        leftovers.remove()
        library.COMM_WORLD.Abort(code)
    exits.abandon(code)
    return code
