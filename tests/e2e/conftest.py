"""Runs of the main job that several files look at, each started once."""

import gpt_job
import pytest

from hpcdist.backends import mpi


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    return gpt_job.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="session")
def ran(tmp_path_factory, text):
    """Return a function that runs the job to its end, each (way, flavour) once; what it said, and its folder."""
    done = {}

    def get(way, flavour="plain"):
        if (way, flavour) not in done:
            folder = tmp_path_factory.mktemp(way.replace(" ", ""))
            options = ("--data", str(text), "--out", "out", *gpt_job.FLAVOURS[flavour])
            done[way, flavour] = gpt_job.run(folder, way, *gpt_job.TINY, *options), folder / "out"
        said, out = done[way, flavour]
        assert said.code == 0, said.said
        return said, out

    return get


@pytest.fixture(scope="session")
def whole_lines():
    """Skip what needs lines of ranks unmixed, where the MPI mixes them."""
    reason = mpi.find().lacks().get("whole lines")
    if reason:
        pytest.skip(reason)
