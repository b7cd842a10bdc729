"""What the README promises, one test each; the list grows with the project."""

import json
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from reproducible_suite import looped

from hpcdist import checkpoint, dtensor, nn
from hpcdist.autograd import Tensor, manual_seed, random
from hpcdist.comm import init_device_mesh, local
from hpcdist.parallel import ColwiseParallel, parallelize_module, replicate


def launch(tmp_path, num_ranks, program):
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "hpcdist", "launch", "-n", str(num_ranks), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_any_communicator(tmp_path):
    """hd.init takes the host's communicator, of mpi4py or the handle of a Fortran one, and leaves it alone."""
    out = launch(
        tmp_path,
        3,
        """
        import numpy as np
        from mpi4py import MPI
        import hpcdist as hd

        half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank == 2)
        host = half.irecv(source=MPI.ANY_SOURCE)         # a receive of the host's that we must not steal from
        by_object, by_handle = hd.init(half), hd.init(half.py2f())
        for comm in (by_object, by_handle):
            assert comm.all_reduce(np.array([1 + MPI.COMM_WORLD.rank]))[0] == [3, 3, 3][MPI.COMM_WORLD.rank]
        half.send("to the host", dest=(half.rank + 1) % half.size)
        assert host.wait() == "to the host"
        if MPI.COMM_WORLD.rank == 0:
            print("any communicator")
        """,
    )
    assert "any communicator" in out


def test_same_bits_at_any_rank_count(tmp_path):
    """With ``reproducible=True`` losses and weights are bit-equal on 1 to 4 ranks, replicated or sharded."""

    def rank(comm, kind):
        found = looped(comm, kind, tmp_path / f"{kind}{comm.size}", 5, num_micro=12)
        return found.pop("losses"), {name: value.tobytes() for name, value in found.items()}

    expected = local.run(1, rank, "ddp", reproducible=True)[0]
    for kind, size in (("ddp", 2), ("ddp", 3), ("ddp", 4), ("fsdp", 1), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4)):
        for found in local.run(size, rank, kind, reproducible=True):
            assert found == expected, (kind, size)
    fast = local.run(2, rank, "ddp")[0]
    assert fast[1] != expected[1]


def test_same_start_on_any_mesh(tmp_path):
    """Initial weights, dropout masks and the order of data depend on the seed and on global indices only."""

    def rank(comm):
        manual_seed(3)
        model = nn.GPT(nn.GPTConfig(vocab_size=16, seq=8, num_layers=2, num_heads=2, width=16, dropout=0.2))
        replicate(model, comm)
        losses = {}
        for part in range(comm.rank, 6, comm.size):
            tokens = np.random.default_rng(part).integers(0, 16, (2, 9))
            with random.at(step=5, part=part):
                losses[part] = model(tokens[:, :-1], tokens[:, 1:]).item()
        return model.state_dict(), losses

    (weights, losses), *_ = local.run(1, rank)
    for size in (2, 3):
        for others, mine in local.run(size, rank):
            assert all(losses[part] == loss for part, loss in mine.items())
            for name, value in weights.items():
                np.testing.assert_array_equal(others[name], value)


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="h5dump is not installed (package hdf5-tools)")
def test_checkpoints_any_hpc_tool_reads(tmp_path):
    """h5dump shows a parameter as one whole array under its name."""
    manual_seed(0)
    model = nn.Linear(3, 2)
    checkpoint.save(tmp_path, model.state_dict(), step=7)
    command = ["h5dump", "-d", "/weight", "-m", "%.9g", str(tmp_path / "step-00000007" / "index.h5")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(":")[1].strip().rstrip(",") for line in shown.splitlines() if line.strip().startswith("(")]
    found = np.array([float(x) for row in rows for x in row.split(",")], np.float32)
    np.testing.assert_array_equal(found, model.weight.data.reshape(-1))


def test_a_checkpoint_counts_only_when_it_is_whole(tmp_path):
    """Without its manifest, or with another size, a folder is passed over for the one before it."""
    state = {"x": np.arange(1000.0)}
    for step in (1, 2, 3, 4):
        checkpoint.save(tmp_path, state, step=step)
    (tmp_path / "step-00000004" / "manifest.json").unlink()
    with (tmp_path / "step-00000003" / "index.h5").open("ab") as file:
        file.truncate(1000)
    assert checkpoint.latest(tmp_path) == 2
    np.testing.assert_array_equal(checkpoint.load(tmp_path)["x"], state["x"])
    data = (tmp_path / "step-00000002" / "index.h5").read_bytes()
    place = data.index(np.arange(1000.0).tobytes()) + 80
    (tmp_path / "step-00000002" / "index.h5").write_bytes(data[:place] + b"\xff" + data[place + 1 :])
    with pytest.raises(checkpoint.CheckpointError, match="x"):
        checkpoint.load(tmp_path)


def test_never_a_silent_hang(tmp_path):
    """A rank that does not come to a collective is an error on the others, within the limit, that names the call."""
    out = launch(
        tmp_path,
        2,
        """
        import json, time
        import hpcdist as hd
        comm = hd.init()
        if comm.rank == 0:
            start = time.monotonic()
            try:
                comm.ibarrier().wait(timeout_s=1.0)
            except TimeoutError as error:
                print(json.dumps([str(error), time.monotonic() - start]), flush=True)
        else:
            time.sleep(2)
            comm.ibarrier().wait()
        """,
    )
    message, seconds = json.loads(next(line for line in out.splitlines() if line.startswith("[")))
    assert "barrier" in message
    assert "job.py" in message
    assert seconds < 2


def test_nothing_silently_wrong():
    """What would be lost, counted twice or guessed is right, or an error that says what to do."""

    def rank(comm):
        mesh = init_device_mesh((comm.size,), ("ranks",), comm)
        x = np.arange(7.0)[:, None] - 2
        cut = dtensor.distribute_tensor(x, mesh, [dtensor.Shard(0)])  # uneven
        assert cut.sum().item() == x.sum()  # terms are added up before anybody reads them
        with pytest.raises(ValueError, match="redistribute"):
            cut.sort(0)
        model = nn.Sequential(nn.Linear(1, 1, bias=False))
        with pytest.raises(ValueError, match="first"):
            parallelize_module(model, mesh, {"first": ColwiseParallel()})
        replicate(model, comm)
        for _ in range(2):  # gradients that were reduced are added to, and not reduced again
            model(Tensor(x[comm.rank : comm.rank + 1].astype(np.float32))).sum().backward()
        return model[0].weight.grad.item()

    with pytest.raises(TypeError, match=r"\.numpy\(\)"):
        np.sqrt(Tensor(np.ones(2), True))
    assert local.run(3, rank) == [2 * np.mean([-2, -1, 0])] * 3
