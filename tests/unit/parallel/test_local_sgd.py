"""Local SGD on thread ranks: the bodies of tests/model_averaging_suite.py."""

import model_averaging_suite
import numpy as np
import pytest

from hpcdist.autograd import Tensor
from hpcdist.comm import local, using_group
from hpcdist.comm.local import solo
from hpcdist.parallel import PeriodicModelAverager, average_parameters

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])


@SIZES
@pytest.mark.parametrize("check", model_averaging_suite.CHECKS, ids=lambda check: check.__name__)
def test_on_threads(check, size):
    local.run(size, check, timeout_s=20)


@pytest.mark.parametrize("size", [2, 3])
def test_resumed_at_another_number_of_ranks(size):
    values, state = local.run(2, model_averaging_suite.saved_after_step_4)[0]
    local.run(size, model_averaging_suite.check_goes_on, values, state)


def test_the_default_is_all_ranks():
    def main(comm):
        p = Tensor(np.array([float(comm.rank)]), True)
        with using_group(comm):
            average_parameters([p])
        assert p.data == 1.0

    local.run(3, main)


def test_a_state_without_a_step_is_told_and_counts_from_zero():
    comm = solo()
    params, optimizer = model_averaging_suite.made(comm, model_averaging_suite.start(1))
    model_averaging_suite.trained(comm, optimizer, params, range(5))
    with pytest.warns(UserWarning, match="the state has no step"):
        optimizer.load_state_dict(optimizer.optim.state_dict())
    assert optimizer.averager.step == 0
    assert [*model_averaging_suite.trained(comm, optimizer, params, range(5))] == [3]


def test_averaging_after_every_step_is_told():
    with pytest.warns(UserWarning, match="period 1"):
        PeriodicModelAverager(1, process_group=solo())
