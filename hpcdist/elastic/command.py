"""The command that starts the ranks: which options this MPI needs here, and why. A pure function of what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdist.backends import cpu
from hpcdist.backends.mpi import Launcher
from hpcdist.elastic.hosts import Host
from hpcdist.elastic.job import Job
from hpcdist.errors import LaunchError, explain

__all__ = ["Command", "Site", "compose"]

_VADER = ("3.", "4.")
"""Versions of Open MPI in which the transport through shared memory has a name of its own."""

_BINDING = ("PRTE_MCA_hwloc_default_binding_policy", "OMPI_MCA_hwloc_base_binding_policy")
_SESSION = "PRTE_MCA_prte_tmpdir_base"
"""Else mpirun keeps its files in /tmp/ompi.PID, and what a killed one leaves there stops a later one of that number."""
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_NEXT_PROGRAM = ":"
_SENT = ("HPCDIST_", "MPI4PY_", "NUMBA_", "PYTHON")


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where the ranks are to run.

    Attributes
    ----------
    variables : mapping
        The environment of the launcher.
    cores, slots : int
        Cores that this process may use, and ranks that Open MPI starts here without being told to overload it.
    root : bool
        Whether the launcher runs as root.
    folder : str, optional
        A temporary folder of this job, on this node.
    hostfile : Path, optional
        Names ``hosts``; without one the ranks run on this node, or in the allocation of the batch system.
    """

    variables: Mapping[str, str]
    cores: int
    slots: int
    root: bool = False
    folder: str | None = None
    hostfile: Path | None = None
    hosts: tuple[Host, ...] = ()


@dataclass(frozen=True)
class Command:
    """What to start, in which environment, and what the user should know about it."""

    argv: list[str]
    variables: dict[str, str]
    notes: list[str] = field(default_factory=list)


def compose(launcher: Launcher, job: Job, num_ranks: int, site: Site) -> Command:
    """Return the command that starts ``num_ranks`` ranks of ``job``.

    Raises
    ------
    LaunchError
        If an argument of the job is ``:``, after which the launcher would start another program.
    """
    if _NEXT_PROGRAM in job.arguments:
        do = "choose another spelling, or let the job read it from a file"
        what = f"an argument that {launcher.path.name} keeps for itself"
        raise LaunchError(explain(what, got=repr(_NEXT_PROGRAM), expected="anything else", do=do))
    family = _open_mpi if launcher.family == "openmpi" else _hydra
    command = Command([str(launcher.path), "-n", str(num_ranks)], dict(site.variables))
    if not _several_nodes(site):
        command.variables.update(cpu.thread_variables(num_ranks, site.variables, site.cores))
    family(command, launcher, num_ranks, site)
    command.argv.extend(job.command())
    return command


def _open_mpi(command: Command, launcher: Launcher, num_ranks: int, site: Site) -> None:
    if site.hostfile:
        command.argv.extend(["--hostfile", str(site.hostfile)])
    if _several_nodes(site):
        for name in _exported(site.variables):
            command.argv.extend(["-x", name])
    else:
        for name, value in _transports(launcher).items():
            if f"OMPI_MCA_{name}" not in site.variables:
                command.argv.extend(["--mca", name, value])
        if site.folder is not None:
            command.variables.setdefault(_SESSION, site.folder)
    if not any(name in site.variables for name in _BINDING):
        command.argv.extend(["--bind-to", "none"])
    _overload(command, num_ranks, site)
    if site.root and not all(name in site.variables for name in _AS_ROOT):
        command.variables.update(dict.fromkeys(_AS_ROOT, "1"))
        command.notes.append("running as root: OMPI_ALLOW_RUN_AS_ROOT set")


def _transports(launcher: Launcher) -> dict[str, str]:
    """Choose shared memory and sockets: probing for networks makes MPI_Init ten times slower, for nothing on a node."""
    shared = "vader" if launcher.version.startswith(_VADER) else "sm"
    return {"pml": "ob1", "btl": f"self,{shared},tcp"}


def _overload(command: Command, num_ranks: int, site: Site) -> None:
    slots = _slots(site)
    if slots is not None and num_ranks > slots:
        command.argv.append("--oversubscribe")
        command.notes.append(f"{num_ranks} ranks on {slots} cores or slots: --oversubscribe set")


def _hydra(command: Command, launcher: Launcher, num_ranks: int, site: Site) -> None:  # noqa: ARG001  (as _open_mpi)
    if site.hostfile:
        command.argv.extend(["-f", str(site.hostfile)])


def _slots(site: Site) -> int | None:
    """Return how many ranks fit without overloading; None if only the hosts themselves know."""
    if not site.hosts:
        return site.slots
    given = [host.slots for host in site.hosts if host.slots is not None]
    return sum(given) if len(given) == len(site.hosts) else None


def _several_nodes(site: Site) -> bool:
    return bool(site.hostfile) or site.variables.get("SLURM_JOB_NUM_NODES", "1") != "1"


def _exported(variables: Mapping[str, str]) -> list[str]:
    """Return the variables that Open MPI is to carry to other nodes; threads that are not set are counted there."""
    return sorted(name for name in variables if name in cpu.THREAD_VARIABLES or name.startswith(_SENT))
