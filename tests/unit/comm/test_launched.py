"""What launcher variables say: pure functions of a dictionary."""

import pytest

from hpcdist.comm.launched import Launched, launched, tasks_per_node

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
STEP = {
    **BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "2",
}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (OPEN_MPI, Launched(5, 8, 1, 4, "mpirun (Open MPI)")),
        (HYDRA, Launched(5, 8, 1, 4, "mpiexec (hydra)")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launched(1, 2, 1, 2, "mpiexec (hydra)")),
        (STEP, Launched(2, 4, 2, 3, "srun")),
        ({**STEP, "SLURM_NODEID": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": "0"}, Launched(3, 4, 0, 1, "srun")),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, Launched(0, 1, 2, 3, "srun")),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": ""}, Launched(2, 4, 2, 4, "srun")),
    ],
)
def test_launchers(variables, expected):
    assert launched(variables) == expected


@pytest.mark.parametrize(
    "variables",
    [
        BATCH,
        {**BATCH, "SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "4"},
        {**STEP, "SLURM_STEP_ID": "4294967290"},
        {key: value for key, value in STEP.items() if key != "SLURM_PROCID"},
        {"OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_RANK": "x", "PMI_SIZE": "2"},
    ],
    ids=["batch script", "batch step", "interactive step", "salloc shell", "half of them", "no numbers"],
)
def test_no_task_of_a_step(variables):
    assert launched(variables) is None


def test_mpirun_comes_before_slurm():
    """Under mpirun inside a Slurm job the step is that of the daemons."""
    daemon = {**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    assert launched({**daemon, **OPEN_MPI}).launcher == "mpirun (Open MPI)"
    assert launched({**daemon, **HYDRA}) == Launched(5, 8, 1, 4, "mpiexec (hydra)")


def test_srun_that_speaks_hydras_protocol():
    assert launched({**STEP, "PMI_RANK": "2", "PMI_SIZE": "4"}) == Launched(2, 4, 2, 3, "srun")


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("3,1", [3, 1]), ("2(x3)", [2, 2, 2]), ("4,2(x2),1", [4, 2, 2, 1]), ("8", [8]), ("", []), ("2(x", []), ("a", [])],
)
def test_tasks_per_node(text, tasks):
    assert tasks_per_node(text) == tasks
