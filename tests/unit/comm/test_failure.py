"""What a failing rank says reaches somebody, whatever the program has done to its streams and hooks."""

import io
import os
import subprocess
import sys

import pytest

from hpcdist.comm import failure
from hpcdist.errors import CollectiveMismatchError


@pytest.mark.parametrize("stderr", ["None", "closed()", "Broken()"])
def test_it_is_written_past_streams_that_are_gone(stderr):
    code = f"""
import io, sys
from hpcdist.comm import failure
def closed():
    stream = io.StringIO(); stream.close(); return stream
class Broken(io.StringIO):
    def write(self, text): raise OSError
sys.stdout = sys.stderr = {stderr}
failure.report_failure(ValueError("boom-41"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("ValueError: boom-41") == 1


def test_what_the_program_has_shown_is_not_repeated(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert failure.report_failure(KeyboardInterrupt(), shown=True) == 130
    assert sys.stderr.getvalue() == f"rank 0 of 1 ({os.uname().nodename}, pid {os.getpid()}): KeyboardInterrupt\n"


def test_a_hook_of_the_program_is_asked_and_may_fail(monkeypatch):
    told = []

    def hook(kind, error, trace):
        told.append((kind, error))
        raise OSError

    error = ValueError("boom")
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert not failure.told_by_program(error)
    monkeypatch.setattr(sys, "excepthook", hook)
    assert failure.told_by_program(error)
    assert told == [(ValueError, error)]


def test_of_ranks_that_find_out_the_same_the_first_tells(monkeypatch):
    slept = []
    monkeypatch.setattr(failure.time, "sleep", slept.append)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for rank in ("0", "2"):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
        failure.report_failure(CollectiveMismatchError("ranks disagree"))
    assert slept == [0.0, 1.0]
