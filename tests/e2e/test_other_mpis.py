"""Jobs on MPIs beside the one of this Python: the main job, and how a failure ends."""

import gpt_job
import pytest
from other_mpis import OTHER_MPIS

RAISES = """
import hpcdist

comm = hpcdist.init()
if comm.rank == 1:
    raise ValueError("boom-41")
comm.barrier()
"""


@pytest.fixture(params=OTHER_MPIS, ids=lambda mpi: mpi.name)
def variables(request):
    return request.param.variables()


def test_main_job_has_the_losses_of_one_process(ran, text, tmp_path, variables):
    options = ("--data", str(text), "--out", "out")
    done = gpt_job.run(tmp_path, "launch 2", *gpt_job.TINY, *options, variables=variables)
    assert done.code == 0, done.said
    gpt_job.assert_same_losses(tmp_path / "out", ran("python")[1])


def test_exception_of_one_rank_ends_the_job_with_its_traceback(tmp_path, variables):
    done = gpt_job.run(tmp_path, "launch 2", job=RAISES, variables=variables)
    assert done.code == 1
    assert "first failure: rank 1 of 2" in done.err
    assert done.err.splitlines()[-1] == "ValueError: boom-41"
    assert done.seconds < 15
