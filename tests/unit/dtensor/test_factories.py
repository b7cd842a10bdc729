"""New distributed tensors: the same values in every layout, and memory for what a rank holds only."""

import tracemalloc

import dtensor_suite as suite
import ml_dtypes
import numpy as np
import pytest
from move_suite import INV, S0, S1, P, R

import hpcdist as hd
from hpcdist import dtensor
from hpcdist.autograd import random
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run, solo
from hpcdist.dtensor import Partial, Shard

SIZES = (1, 2, 3, 4)


@pytest.mark.parametrize("size", SIZES)
def test_the_same_values_in_every_layout(size):
    run(size, suite.check_factories)


def test_heads_and_sections():
    def main(comm):
        mesh = init_device_mesh(3, "tp", comm)
        for shard in (Shard(0, unit=4), Shard(0, sections=(6, 6)), Shard(1, sections=(3, 2))):
            hd.manual_seed(5)
            x = dtensor.randn(12, 5, device_mesh=mesh, placements=[shard])
            hd.manual_seed(5)
            suite.assert_is(x, random.normal(random.next_key("randn"), (12, 5)))
            suite.assert_is(dtensor.eye(12, 5, device_mesh=mesh, placements=[shard]), np.eye(12, 5, dtype=np.float32))

    run(3, main)


@pytest.mark.parametrize(
    ("make", "largest"),
    [
        (dtensor.zeros, 1.1),
        (dtensor.ones, 1.1),
        (dtensor.empty, 1.1),
        (lambda *size, **o: dtensor.full(size, 2.5, **o), 1.1),
        (lambda *size, **o: dtensor.eye(*size, **o), 1.4),
        (lambda *size, **o: dtensor.from_function(lambda i, j: i + j, size, dtype=np.float32, **o), 3.1),
        (dtensor.rand, 14),  # four words and an index an element
        (dtensor.randn, 35),
    ],
)
def test_only_the_local_part_is_allocated(make, largest):
    """Peaks are multiples of the local part, an eighth of the whole."""

    def part(rank):
        mesh = init_device_mesh(8, "tp", hd.comm.DryCommunicator(8, rank))
        make(8, 8, device_mesh=mesh, placements=[S0])
        tracemalloc.start()
        try:
            x = make(4096, 64, device_mesh=mesh, placements=[S0])
            return x.data.nbytes, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    held, peak = part(3)
    assert held == 4096 * 64 * 4 // 8
    assert peak < largest * held


def test_dtypes():
    with init_device_mesh(1, "tp", solo()):
        assert dtensor.zeros(2).dtype == dtensor.rand(2).dtype == dtensor.eye(2).dtype == np.float32
        assert dtensor.full(2, 1).dtype == np.int64
        assert dtensor.full(2, 1.5).dtype == np.float32
        assert dtensor.full(2, True).dtype == np.bool_
        assert dtensor.full(2, 1j).dtype == np.complex64
        assert dtensor.full(2, np.float64(1)).dtype == np.float64
        assert dtensor.arange(3).dtype == np.int64
        assert dtensor.arange(3.0).dtype == np.float32
        assert dtensor.from_function(lambda i: i / 2, 3).dtype == np.float64
        for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
            assert dtensor.randn(2, 2, dtype=dtype).dtype == dtype
        assert dtensor.ones(2, dtype="int8").dtype == np.int8


def test_sizes():
    with init_device_mesh(1, "tp", solo()):
        assert dtensor.zeros().shape == ()
        assert dtensor.zeros(3).shape == dtensor.zeros((3,)).shape == dtensor.full(3, 1).shape == (3,)
        assert dtensor.zeros(2, 0).shape == dtensor.zeros([2, 0]).shape == (2, 0)
        assert dtensor.full((), 4).item() == 4
        with pytest.raises(ValueError, match="negative"):
            dtensor.zeros(-1)
        with pytest.raises(ValueError, match="step"):
            dtensor.arange(1, 2, 0)


@pytest.mark.parametrize("arguments", [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (3, 3), (4, 1), (0.5, 3), (0, 1, 0.3)])
def test_arange_is_that_of_numpy(arguments):
    with init_device_mesh(1, "tp", solo()):
        expected = np.arange(*arguments)
        got = dtensor.arange(*arguments).numpy()
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_leaves():
    with init_device_mesh(1, "tp", solo()):
        x = dtensor.ones(3, requires_grad=True, placements=[S0])
        (x * x).sum().backward()
        np.testing.assert_array_equal(x.grad, [2, 2, 2])
        assert not dtensor.ones(3).requires_grad
        with pytest.raises(TypeError, match="floating"):
            dtensor.arange(3, requires_grad=True)
        with pytest.raises(TypeError, match="rand: dtype"):
            dtensor.rand(3, dtype=np.int64)
        with pytest.raises(ValueError, match="product"):
            dtensor.ones(3, placements=[Partial("product")])


# ---------------------------------------------------------------- dropout
def test_case_b17():
    run(4, suite.check_b17)


@pytest.mark.parametrize("size", SIZES)
def test_dropout_is_that_of_one_process(size):
    run(size, suite.check_dropout)


def test_dropout_of_a_sum_masks_its_terms_alike():
    def main(comm):
        mesh = init_device_mesh(3, "tp", comm)
        whole = np.random.default_rng(0).normal(size=(8, 8))
        for op, kept in (("sum", True), ("avg", True), ("max", False)):
            x = hd.dtensor.DTensor.from_local(whole, mesh, [Partial(op)])
            hd.manual_seed(4)
            y = hd.nn.functional.dropout(x, 0.5)
            assert y.placements[0].is_partial(op) == kept
            total = whole * 3 if op == "sum" else whole
            hd.manual_seed(4)
            expected = hd.nn.functional.dropout(hd.tensor(total), 0.5).data
            np.testing.assert_allclose(y.full_tensor().data, expected, rtol=1e-12)

    run(3, main)


def test_a_layout_costs_no_message():
    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        with suite.silent():
            for placements in ([S0, S1], [P, R], [INV, P], [S0, S0]):
                x = dtensor.rand(5, 7, device_mesh=mesh, placements=placements)
                hd.nn.functional.dropout(x, 0.5)

    run(4, main)
