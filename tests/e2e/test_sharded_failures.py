"""An exception of one rank in the forward or backward of a model that ranks share: all end, and say why."""

import os
import re
import subprocess
import sys
import time

import pytest

LIMIT_S = 20
SCRIPT = """
import os
import sys
import time
import numpy as np
import hpcdist as hd
from hpcdist import nn, parallel
from hpcdist.autograd import Tensor

kind, place, start = sys.argv[1:]
if start == "host":
    from mpi4py import MPI
    comm = hd.init(MPI.COMM_WORLD, timeout_s=2, abort_on_error=False)
else:
    comm = hd.init(timeout_s=600)

def boom(*_):
    raise ValueError("boom-41")

model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
fails = comm.rank == 1
if fails and place == "forward":
    model[1].pre.append(boom)
if kind == "ddp":
    parallel.replicate(model, comm, bucket_bytes=1)
else:
    mesh = comm if kind == "fsdp" else hd.comm.init_device_mesh((2, comm.size // 2), ("copy", "shard"), comm)
    for layer in model:
        parallel.fully_shard(layer, mesh=mesh)
    parallel.fully_shard(model, mesh=mesh)

def steps():
    for step in range(2):
        y = model(Tensor(np.ones((2, 8), np.float32)))
        if fails and place == "backward":
            y.register_hook(boom)
        y.sum().backward()
    print("the end", flush=True)

if start == "alone":
    steps()
begin = time.monotonic()
try:
    steps()
except Exception as error:
    took = time.monotonic() - begin
    print(f"rank {comm.rank} after {took:.1f} s: {type(error).__name__}: {error}".splitlines()[0], flush=True)
    time.sleep(5 - took)
os._exit(0)
"""


def run(tmp_path, size, *arguments):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcdist", "launch", "-n", str(size), str(tmp_path / "script.py"), *arguments]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ})
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begin


@pytest.mark.parametrize(
    ("kind", "size", "place"),
    [("fsdp", 3, "forward"), ("fsdp", 3, "backward"), ("hsdp", 4, "backward"), ("ddp", 3, "backward")],
)
def test_all_ranks_end(tmp_path, kind, size, place):
    code, output, seconds = run(tmp_path, size, kind, place, "alone")
    assert code == 1
    assert output.count("ValueError: boom-41") == 1, output
    assert "rank 1 of" in output
    assert "the end" not in output
    assert seconds < LIMIT_S


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_rank_that_catches_its_error_is_waited_for_no_longer_than_the_limit(tmp_path, place):
    _, output, _ = run(tmp_path, 3, "fsdp", place, "host")
    told = dict(re.findall(r"rank (\d) after [0-3]\.\d s: (\w+)", output))
    assert told == {"0": "DistTimeoutError", "1": "ValueError", "2": "DistTimeoutError"}, output
    assert "the end" not in output
