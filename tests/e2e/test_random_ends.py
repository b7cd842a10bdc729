"""Random programs in which a rank ends, stops or hangs: the job ends soon, with a code, and leaves no process."""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, time

import hpcdist
from random_programs import Program
from random_runs import Run

HOW, SEED, ODD, AT = sys.argv[1], *map(int, sys.argv[2:])


class Ending(Run):
    def make(self, call):
        if self.index >= AT and self.world.rank == ODD:
            if HOW == "raise":
                raise ValueError("boom-41")
            if HOW == "leave":
                sys.exit(0)
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[HOW])
        super().make(call)


comm = hpcdist.init(timeout_s=3, check=SEED % 2 == 0)
with open(f"rank-{comm.rank}.pid", "w") as file:
    file.write(str(os.getpid()))
Ending(comm, Program(SEED, comm.size)).go()
comm.barrier()
print("the end", flush=True)
"""
NUM_RANKS = 3
SAYS = {
    "raise": "ValueError: boom-41",
    "leave": "has left it without taking part|others have not ended within 3 s",
    "kill": "killed by signal 9",
    "stop": "not done within 3 s",
}


def is_there(pid):
    """Say whether a process is there, and not only waits for its parent to take notice of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("how", SAYS)
def test_one_rank_ends_the_job(tmp_path, how, repeats):
    for turn in range(max(repeats // 2, 1)):
        draw = random.Random(f"{how} {turn}")
        numbers = [draw.randrange(1000), draw.randrange(NUM_RANKS), draw.randrange(8)]
        (tmp_path / "script.py").write_text(SCRIPT)
        start = time.monotonic()
        done = launch(tmp_path, how, *map(str, numbers))
        said = f"{how} {numbers}\n{done.stderr}"
        assert time.monotonic() - start < 25, said
        assert done.returncode != 0, said
        assert re.search(SAYS[how], done.stderr), said
        assert "the end" not in done.stdout, said
        pids = [int(path.read_text()) for path in tmp_path.glob("rank-*.pid")]
        limit = time.monotonic() + 5
        while any(map(is_there, pids)) and time.monotonic() < limit:
            time.sleep(0.05)
        assert len(pids) == NUM_RANKS, said
        assert not any(map(is_there, pids)), said


def launch(folder, *arguments):
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "hpcdist", "launch", "-n", str(NUM_RANKS), "script.py", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "HPCDIST_LATE_S": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
