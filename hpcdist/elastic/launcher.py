"""Start a job on several ranks, stay with it, and say what went wrong first."""

from __future__ import annotations

import os
import pwd
import signal
import sys
import tempfile
from pathlib import Path

from hpcdist import config
from hpcdist.backends import cpu, mpi
from hpcdist.comm import flight, flight_folder, flight_report, leftovers
from hpcdist.comm.launched import tasks_per_node
from hpcdist.elastic import processes, verdict
from hpcdist.elastic.command import Site, compose
from hpcdist.elastic.hosts import read_hosts
from hpcdist.elastic.job import Job
from hpcdist.elastic.supervisor import Supervisor
from hpcdist.errors import LaunchError

__all__ = ["launch"]

_REPORTS = "HPCDIST_ERROR_DIR"
_LONG_S = 1.0
"""Who ends a job by hand is told where its ranks stood only if one of them waited this long."""


def launch(job: Job, num_ranks: int, *, hostfile: Path | None = None) -> int:
    """Run ``job`` on ``num_ranks`` new processes and return the exit code of the first that failed, 0 if none did.

    Parameters
    ----------
    job : Job
        What every rank runs.
    num_ranks : int
        At least 1.
    hostfile : Path, optional
        Hosts to use. Default: this one, or those that the batch system has allocated.

    Returns
    -------
    int
        128 + n if the first failure was signal n, or if signal n asked this process to end the job.

    Raises
    ------
    LaunchError
        If the job, the host file or an MPI cannot be found.
    """
    job.check()
    _check_variables()
    hosts = read_hosts(hostfile) if hostfile else ()
    launcher = mpi.find()
    with tempfile.TemporaryDirectory(prefix="hpcdist-", ignore_cleanup_errors=True) as folder:
        mark = f"{_REPORTS}={folder}"
        site = Site(
            # Open MPI does not start without a home, and cron may give none
            variables={"HOME": pwd.getpwuid(os.getuid()).pw_dir, **os.environ, _REPORTS: folder},
            cores=cpu.affinity(),
            slots=_slots(),
            root=os.geteuid() == 0,
            folder=folder,
            hostfile=hostfile,
            hosts=hosts,
        )
        command = compose(launcher, job, num_ranks, site)
        for note in command.notes:
            print(f"hpcdist launch: {note}", file=sys.stderr, flush=True)  # noqa: T201
        supervisor = Supervisor(
            command.argv,
            command.variables,
            mark=mark,
            has_failed=lambda: verdict.any_report(Path(folder)),
            deliver=_Delivery(launcher.family, mark),
            # MPICH's would only pass SIGTERM on to ranks, which may catch it
            last_signal=signal.SIGTERM if launcher.family == "openmpi" else signal.SIGKILL,
        )
        status = supervisor.run()
        leftovers.remove_noted(Path(folder))
        end = verdict.judge(Path(folder), status, hydra=launcher.family == "mpich" and job.kind != "program")
        if supervisor.ended_by and status:
            number = supervisor.ended_by
            end = verdict.Verdict(128 + number, f"hpcdist launch: ended by {number.name}", is_open=True)
        where = _where_ranks_stood(Path(folder), _LONG_S if supervisor.ended_by else 0.0) if end.is_open else ""
    return _conclude(end, where)


def _check_variables() -> None:
    """Object to variables of ours that make no sense once, and not on every rank."""
    try:
        config.environment()
    except ValueError as error:
        raise LaunchError(str(error)) from error


def _where_ranks_stood(folder: Path, least_s: float) -> str:
    """Return what the flight recorders tell, if some rank has waited for ``least_s`` seconds or more."""
    given = config.environment().flight_dir
    try:
        found = flight.load(given or folder / flight_folder.FOLDER)
    except OSError:
        return ""
    if not found.rings or max((found.now - wait.since for wait in found.waits()), default=-1.0) < least_s:
        return ""
    home = next(iter(found.folders))
    more = "" if home.is_relative_to(folder) else f"\nhpcdist doctor --flight {home} shows the last calls"
    return f"{flight_report.paragraph(found)}{more}"


def _conclude(end: verdict.Verdict, where: str) -> int:
    """Say how the job ended, and where its ranks stood then; return its exit code."""
    if end.text:
        print("\n".join(["", end.text, *filter(None, [where])]), file=sys.stderr, flush=True)  # noqa: T201
    return end.exit_code


class _Delivery:
    """Passes signals on to the launcher of the ranks, or past it to the ranks where it would die of them."""

    def __init__(self, family: mpi.Family, mark: str) -> None:
        self.family, self.mark = family, mark

    def __call__(self, child: int, number: signal.Signals) -> None:
        if self.family == "mpich" and number == signal.SIGUSR2:
            for rank in processes.ranks_below(self.mark, "hydra_pmi_proxy"):
                os.kill(rank, number)
        else:
            os.kill(child, number)


def _slots() -> int:
    """Return how many ranks Open MPI starts here of itself: the allocation's tasks, else one a physical core."""
    allocated = tasks_per_node(os.environ.get("SLURM_TASKS_PER_NODE", ""))
    return sum(allocated) or cpu.physical_cores()
