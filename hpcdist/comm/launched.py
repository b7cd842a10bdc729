"""Who started this process: what the variables of a launcher say about its rank and the size of its world."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Launched", "launched", "tasks_per_node"]

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm numbers its batch, interactive and external steps from here up."""


@dataclass(frozen=True)
class Launched:
    """A process's place among those that one launcher started together.

    Attributes
    ----------
    rank, size : int
        Position, and number of processes, in the whole job or job step.
    local_rank, local_size : int
        The same among the processes of this node.
    launcher : str
        ``"mpirun (Open MPI)"``, ``"mpiexec (hydra)"`` or ``"srun"``.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: str


def launched(variables: Mapping[str, str]) -> Launched | None:
    """Return what ``variables`` (an environment) say about this process; None if no launcher started it.

    The variables of ``mpirun`` come before Slurm's: under ``mpirun`` inside a Slurm job those describe the daemon.
    """
    return _open_mpi(variables) or _hydra(variables) or _slurm(variables)


def _open_mpi(variables: Mapping[str, str]) -> Launched | None:
    world = "OMPI_COMM_WORLD_"
    rank, size = _number(variables, world + "RANK"), _number(variables, world + "SIZE")
    if rank is None or size is None:
        return None
    local_rank, local_size = (
        _number(variables, world + "LOCAL_RANK"),
        _number(variables, world + "LOCAL_SIZE"),
    )
    return _place(rank, size, local_rank, local_size, "mpirun (Open MPI)")


def _hydra(variables: Mapping[str, str]) -> Launched | None:
    rank, size = _number(variables, "PMI_RANK"), _number(variables, "PMI_SIZE")
    if rank is None or size is None:
        return None
    step = _slurm(variables)
    if step is not None and (step.rank, step.size) == (rank, size):
        return step  # srun --mpi=pmi2 speaks hydra's protocol, but does not set its local variables
    local_rank, local_size = _number(variables, "MPI_LOCALRANKID"), _number(variables, "MPI_LOCALNRANKS")
    return _place(rank, size, local_rank, local_size, "mpiexec (hydra)")


def _slurm(variables: Mapping[str, str]) -> Launched | None:
    """Return the place in a Slurm step; None in a batch script or an ``salloc`` shell, which are no task of a step."""
    step, rank = _number(variables, "SLURM_STEP_ID"), _number(variables, "SLURM_PROCID")
    size = _number(variables, "SLURM_STEP_NUM_TASKS")
    if step is None or step >= _FIRST_SPECIAL_STEP or rank is None or size is None:
        return None
    nodes = tasks_per_node(variables.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(variables, "SLURM_NODEID") or 0
    local_size = nodes[node] if node < len(nodes) else None
    return _place(rank, size, _number(variables, "SLURM_LOCALID"), local_size, "srun")


def _place(rank: int, size: int, local_rank: int | None, local_size: int | None, launcher: str) -> Launched:
    """Fill in what a launcher leaves out: all ranks are then taken to be on this node."""
    if local_rank is None or local_size is None:
        local_rank, local_size = rank, size
    return Launched(rank, size, local_rank, local_size, launcher)


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's run-length form: ``"3,2(x2)"`` is ``[3, 2, 2]``; anything else is ``[]``."""
    if not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", text):
        return []
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, repeat in runs for _ in range(int(repeat or 1))]


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else None
