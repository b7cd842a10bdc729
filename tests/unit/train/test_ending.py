"""Errors that ranks share end the program with their message alone; others keep their traceback."""

import pytest

from hpcdist.comm import local
from hpcdist.train import told_once


def ends(num_ranks, error, *, shared=True):
    """Return what leaves the block on every rank."""

    def rank(comm):
        try:
            with told_once("job.py"):
                if shared:
                    comm.agree(error if comm.rank == comm.size - 1 else None)
                elif error:
                    raise error
        except BaseException as end:
            return end
        return None

    return local.run(num_ranks, rank)


@pytest.mark.parametrize("error", [ValueError("bad"), FileNotFoundError("bad"), FloatingPointError("bad")])
def test_the_rank_that_failed_tells(error):
    first, second, third = ends(3, error)
    assert [type(end) for end in (first, second, third)] == [SystemExit] * 3
    assert third.code == "job.py: bad"
    assert (first.code, second.code) == (1, 1)
    assert [end.echo for end in (first, second, third)] == [True, True, False]


def test_mistakes_in_the_program_pass():
    assert [type(end) for end in ends(2, TypeError("bad"))] == [TypeError] * 2
    assert [type(end) for end in ends(1, ValueError("bad"), shared=False)] == [ValueError]
    assert ends(2, None) == [None, None]
