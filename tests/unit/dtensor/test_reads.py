"""Reading values of distributed tensors, and printing them, on thread ranks."""

import dtensor_suite as suite
import numpy as np
import pytest
from move_suite import S0, P, R

from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run, solo
from hpcdist.dtensor import DTensor, distribute_tensor

SIZES = (1, 2, 3, 4)


@pytest.mark.parametrize("size", SIZES)
def test_reads_reduce_first(size):
    run(size, suite.check_reads)


@pytest.mark.parametrize("size", SIZES)
def test_texts_communicate_nothing(size, capsys):
    run(size, suite.check_texts)
    assert capsys.readouterr().out.count("not reduced") == size


@pytest.mark.parametrize("size", SIZES)
def test_case_b12(size):
    run(size, suite.check_mean)


def test_reads_on_two_axes():
    """A sum over one axis of what the other has cut; a sum over both."""

    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        rank = comm.rank + 1.0
        assert DTensor.from_local(np.array(rank), mesh, [P, P]).item() == 10
        assert DTensor.from_local(np.array(rank), mesh, [R, P]).item() == (3 if comm.rank < 2 else 7)
        one = DTensor.from_local(np.full((1 - comm.rank // 2, 1), rank), mesh, [S0, P])
        assert one.item() == 3
        np.testing.assert_array_equal(DTensor.from_local(np.full(2, rank), mesh, [P, P]).numpy(), [10, 10])

    run(4, main)


def test_reads_leave_no_trace_in_the_graph():
    def main(comm):
        mesh = init_device_mesh(2, "tp", comm)
        x = distribute_tensor(np.arange(4.0), mesh, [S0])
        x.requires_grad = True
        loss = (x * x).sum()
        assert loss.item() == 14
        assert f"{loss}".count("not reduced") == 1
        loss.backward()
        np.testing.assert_array_equal(x.grad, 2 * x.data)

    run(2, main)


def test_length_and_kind():
    with init_device_mesh(1, "tp", solo()):
        x = DTensor.from_local(np.ones((3, 2), np.float32))
        assert (len(x), x.ndim, x.size, x.dtype) == (3, 2, 6, np.float32)
        with pytest.raises(TypeError, match=r"len\(\)"):
            len(x.sum())
