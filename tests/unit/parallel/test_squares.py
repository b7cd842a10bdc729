"""The norm of gradients in reproducible runs: the bits of one process, however parameters are cut."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Invariant, Shard, distribute_tensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.optim.clip import get_total_norm
from hpcdist.parallel import clip_grad_norm_

SHAPES = [(33, 70), (5,), (2, 1024), (3000,), (1, 5000), (0, 4), (7, 3, 11), (1025,)]


def values(shape, seed=0, dtype=np.float32):
    rng = np.random.default_rng((seed, *shape))
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 3, shape)).astype(dtype)


def norm_on(size, arrays, placements, power=2.0, reproducible=True):
    """Return the norm that every rank finds, and the number of messages."""

    def rank(comm):
        mesh = init_device_mesh((size,), ("dp",), comm)
        params = []
        for x, placement in zip(arrays, placements, strict=True):
            p = distribute_tensor(Tensor(np.zeros_like(x), True), mesh, [placement])
            p.grad = distribute_tensor(Tensor(x), mesh, [placement]).data.copy()
            params.append(p)
        with CommDebugMode() as mode:
            found = clip_grad_norm_(params, 1e9, power)
        return found, mode.get_comm_counts()

    (found, counts), *others = run(size, rank, reproducible=reproducible)
    assert all(other == (found, counts) for other in others)
    return found, counts


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_rows_have_the_bits_of_the_whole(size, dtype):
    arrays = [values(shape, dtype=dtype) for shape in SHAPES]
    found, counts = norm_on(size, arrays, [Shard(0)] * len(arrays))
    assert found == get_total_norm([x.reshape(-1) for x in arrays])
    assert counts == ({"all_gather": 1, "all_to_all": 1} if size > 1 else {"all_gather": 1})


def test_the_fast_way_has_other_bits():
    """Else the tests here would show nothing."""
    different = 0
    for seed in range(8):
        arrays = [values(shape, seed) for shape in SHAPES]
        fast = {norm_on(size, arrays, [Shard(0)] * len(arrays), reproducible=False)[0] for size in (1, 2, 3)}
        different += len(fast) > 1
    assert different


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=4), st.integers(1, 7), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_any_lengths_on_any_number_of_ranks(lengths, size, seed):
    arrays = [values((n,), seed) for n in lengths]
    assert norm_on(size, arrays, [Shard(0)] * len(arrays))[0] == get_total_norm(arrays)


@pytest.mark.parametrize("size", [2, 3])
def test_other_cuts_are_gathered(size):
    arrays = [values(s) for s in [(33, 70), (12, 7), (4, 6), (40, 3)]]
    cuts = [Shard(1), Invariant(), Shard(0, sections=(2, 2)), Shard(0, unit=4)]
    found, counts = norm_on(size, arrays, cuts)
    assert found == get_total_norm([x.reshape(-1) for x in arrays])
    assert counts["all_gather"] == 3


@pytest.mark.parametrize("power", [1.0, 3.0, math.inf])
def test_other_norms(power):
    arrays = [values(s) for s in SHAPES]
    expected = get_total_norm([x.reshape(-1) for x in arrays], power)
    assert {norm_on(size, arrays, [Shard(0)] * len(arrays), power)[0] for size in (1, 2, 3)} == {expected}


def test_nothing_to_exchange_where_every_rank_has_whole_blocks():
    found, counts = norm_on(2, [values((4, 1024))], [Shard(0)])
    assert found == get_total_norm([values((4, 1024)).reshape(-1)])
    assert counts == {"all_gather": 1}
