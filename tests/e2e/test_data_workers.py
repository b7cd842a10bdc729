"""Cases B06 and B43 with worker processes: however a rank ends, the job ends, and no process of it stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
import numpy as np
import hpcdist as hd

class Slow:
    def batch(self, indices):
        if os.environ["MODE"] == "worker" and 40 in indices:
            raise ValueError("marker-40")
        time.sleep(0.05)
        return os.getpid()

if __name__ == "__main__":
    hd.data.start_server()  # before MPI
    assert "mpi4py" not in sys.modules
    comm = hd.init(timeout_s=60)
    sampler = hd.data.DistributedSampler(1000, comm.size, comm.rank, shuffle=False)
    batches = iter(hd.data.DataLoader(Slow(), 2, sampler=sampler, num_workers=2))
    mine = sorted({next(batches) for _ in range(4)})
    server = int(open(f"/proc/{mine[0]}/stat").read().rpartition(")")[2].split()[1])
    everyone = sum(comm.all_gather_object([os.getpid(), server, *mine]), [])
    if comm.rank == 0:
        print("PROCESSES", *everyone, flush=True)
    for batch in batches:
        comm.barrier()
        if comm.rank == 1 and os.environ["MODE"] == "rank":
            raise RuntimeError("marker-7f3")
        if comm.rank == 1 and os.environ["MODE"] == "kill":
            os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("mode", "says"), [("worker", "ValueError: marker-40"), ("rank", "RuntimeError: marker-7f3"), ("kill", "SIGKILL")]
)
def test_nothing_stays(tmp_path, mode, says):
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcdist", "launch", "-n", "2", str(path)]
    job = subprocess.Popen(
        command,
        env={**os.environ, "MODE": mode},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = job.communicate(timeout=60)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGTERM)
    assert job.returncode != 0
    assert says in said
    assert ("in worker " in said) == (mode == "worker")  # with its own traceback
    processes = [line.split()[-8:] for line in said.splitlines() if "PROCESSES" in line]
    assert len(processes) == 1
    deadline = time.monotonic() + 10
    while (left := [pid for pid in processes[0] if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
