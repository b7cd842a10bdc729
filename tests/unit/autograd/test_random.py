"""Random numbers: known answers, places, statistics."""

import math

import numpy as np
import pytest

from hpcdist.autograd import Tensor, random
from hpcdist.backends import flags
from hpcdist.nn import functional as F

KEY = random.key(7, "test", 3)
FROZEN_KEY = (3657571038, 2667021264, 1970727435, 1048455547)
FROZEN_WORDS = [[1802898256, 2352440453, 2907832404, 3809090766], [2920453816, 1137593110, 636537789, 429091839]]


@pytest.mark.parametrize("off", [(), ("*",)], ids=["compiled", "generic"])
def test_frozen_numbers(off):
    """The values are part of what a checkpoint means: they never change."""
    with flags.kernels(off=off):
        assert random.words(KEY, (2,)).tolist() == FROZEN_WORDS
    assert KEY == FROZEN_KEY


@pytest.mark.parametrize("draw", [random.uniform, random.normal, random.words])
def test_a_part_draws_what_the_whole_has_there(draw):
    whole = draw(KEY, (5, 6))
    index = random.box_index((5, 6), (1, 2), (3, 4))
    np.testing.assert_array_equal(index, np.arange(30).reshape(5, 6)[1:4, 2:6])
    np.testing.assert_array_equal(draw(KEY, (3, 4), index=index), whole[1:4, 2:6])


def test_indices_beyond_32_bits_differ():
    low, high = (random.words(KEY, (1,), index=np.array([i], np.uint64)) for i in (5, 5 + 2**32))
    assert (low != high).all()


def test_keys_differ_in_every_part():
    keys = {random.key(s, n, *p) for s in (0, 1) for n in ("a", "b") for p in ((), (0,), (1,), (0, 1), (1, 0))}
    assert len(keys) == 2 * 2 * 5


def test_uniform_numbers():
    u = random.uniform(KEY, (200_000,))
    assert u.dtype == np.float32
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, 64, (0, 1))[0]
    chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi2 < 63 + 5 * math.sqrt(2 * 63)
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(u.size)


def test_normal_numbers():
    x = random.normal(KEY, (200_000,), np.float64)
    n = math.sqrt(x.size)
    assert abs(x.mean()) < 5 / n
    assert abs((x**2).mean() - 1) < 5 * math.sqrt(2) / n
    assert abs((x**4).mean() - 3) < 5 * math.sqrt(96) / n
    assert np.isfinite(x).all()
    np.testing.assert_array_equal(random.normal(KEY, (10,)), x[:10].astype(np.float32))


def test_draws_depend_on_step_and_part_not_on_what_came_before():
    x = Tensor(np.ones(1000, np.float32))

    def draw(step, part):
        with random.at(step=step, part=part):
            return F.dropout(x, 0.5).data

    random.manual_seed(1)
    first = draw(4, 2)
    for _ in range(3):
        F.dropout(x, 0.5)
    np.testing.assert_array_equal(draw(4, 2), first)
    assert (draw(4, 3) != first).any()
    assert (draw(5, 2) != first).any()
    random.manual_seed(2)
    assert (draw(4, 2) != first).any()


def test_dropout_keeps_the_mean_and_does_nothing_outside_training():
    x = Tensor(np.ones(100_000, np.float32))
    dropped = F.dropout(x, 0.25).data
    assert set(np.unique(dropped)) == {0, np.float32(1 / 0.75)}
    assert abs(dropped.mean() - 1) < 5 * math.sqrt(0.25 / 0.75 / x.size)
    assert F.dropout(x, 0.25, training=False) is x
    assert F.dropout(x, 0.0) is x
    assert (F.dropout(x, 1.0).data == 0).all()
    with pytest.raises(ValueError, match="probability"):
        F.dropout(x, 1.5)


def test_state_goes_on_where_it_was():
    random.manual_seed(3)
    random.next_key("a")
    state = random.get_state()
    expected = [random.next_key("a") for _ in range(2)]
    random.manual_seed(9)
    random.set_state(state)
    assert [random.next_key("a") for _ in range(2)] == expected
