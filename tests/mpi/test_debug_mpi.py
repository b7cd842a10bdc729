"""CommDebugMode over MPI: the bodies of tests/debug_suite.py, on every lane a verb can take."""

import debug_suite
import numpy as np
import pytest

from hpcdist.dtensor.debug import CommDebugMode

RANKS = (2, 3)

LANES = {"checked": {"check": True}, "express": {"direct": True, "check": False}, "posted": {"direct": False}}


@pytest.fixture(params=LANES)
def comm(request, world):
    from hpcdist.comm.mpi.communicator import MpiCommunicator

    made = MpiCommunicator(world.dup().handle, timeout_s=world.timeout_s, **LANES[request.param])
    assert (made._express is not None) == (request.param == "express" and made.size > 1)
    return made


@pytest.mark.parametrize("check", debug_suite.CHECKS)
def test_on_ranks(comm, check):
    check(comm)


def test_values_and_classes_stay_what_they_are(comm):
    before = {name: vars(type(comm)).get(name) for name in dir(type(comm))}
    x = np.full(4, comm.rank + 1.0)
    with CommDebugMode() as mode:
        for _ in range(3):
            y = comm.all_reduce(x, out=x.copy())
    assert {name: vars(type(comm)).get(name) for name in dir(type(comm))} == before
    assert mode.get_comm_counts() == {"all_reduce": 3}
    np.testing.assert_array_equal(y, np.full(4, comm.size * (comm.size + 1) / 2))


def test_a_group_that_is_made_in_the_block(world):
    """What a new group exchanges about itself is not counted."""
    from hpcdist.comm.mpi.communicator import MpiCommunicator

    with CommDebugMode() as mode:
        made = MpiCommunicator.adopt(world.handle, timeout_s=world.timeout_s)
        made.barrier()
        made.free()
    assert mode.get_comm_counts() == {"barrier": 1}
