"""The watchdog: when it speaks, and what it says."""

import logging
import time

import numpy as np
import pytest

from hpcdist.comm import watchdog
from hpcdist.comm.operation import Operation
from hpcdist.comm.recorder import Recorder
from hpcdist.comm.watchdog import Watchdog


def operation(number=1):
    what = ("all_reduce", 0, 2, "world", number, (4,), np.dtype(np.float32), (), "all 2 ranks of the group")
    return Operation(*what, "/home/me/job.py:12")


@pytest.fixture
def clock(monkeypatch):
    """Let ``clock(seconds)`` set the time that has passed since now."""
    real, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: real() + ahead[0])
    return lambda seconds: ahead.__setitem__(0, seconds)


@pytest.fixture
def dog(caplog):
    return Watchdog(Recorder(), 0, 2, 10.0)


def looks(dog, clock, seconds):
    for second in seconds:
        clock(second)
        dog.look()


def test_it_warns_after_ten_seconds_and_each_time_these_have_doubled(dog, clock, caplog):
    dog._recorder.begin(operation(), "0-1", limit_s=100)
    looks(dog, clock, range(9))
    assert caplog.records == []
    looks(dog, clock, range(10, 79))
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * 3
    assert [r.getMessage().partition(" in ")[0] for r in caplog.records] == [
        f"rank 0 of 2: has waited for {s}.0 s" for s in (10, 20, 40)
    ]
    assert "all_reduce no. 1 of group 'world' (float32 (4,), job.py:12) for all 2 ranks of the group" in caplog.text


def test_calls_that_nobody_waits_for_are_never_late(dog, clock, caplog):
    ticket = dog._recorder.begin(operation(), "0-1")
    looks(dog, clock, (50,))
    assert caplog.records == []
    dog._recorder.wait(ticket, 5.0)
    looks(dog, clock, (6,))
    assert len(caplog.records) == 1


def test_after_one_call_has_ended_the_next_has_its_own_time(dog, clock, caplog):
    ticket = dog._recorder.begin(operation(), "0-1", limit_s=100)
    looks(dog, clock, (11,))
    dog._recorder.end(ticket)
    looks(dog, clock, (30,))
    assert len(caplog.records) == 1


def test_the_missing_rank_is_named_from_its_file_by_the_one_that_has_waited_longest(tmp_path, clock, caplog):
    recorders = [Recorder() for _ in range(3)]
    for rank, recorder in enumerate(recorders):
        recorder.move_to(tmp_path, rank, 3)
        recorder.end(recorder.begin(operation(1), "0-2", limit_s=100))
        if rank != 1:
            recorder.begin(operation(2), "0-2", limit_s=100)
    dogs = [Watchdog(recorder, rank, 3, 10.0) for rank, recorder in enumerate(recorders)]
    clock(11)
    for dog in reversed(dogs):
        dog.look()
    (said,) = [r.getMessage() for r in caplog.records]
    assert said.startswith("rank 0 of 3: Rank 1 has not come to all_reduce no. 2 of group 'world'")
    assert "in which ranks 0 and 2 have waited" in said
    assert "its last call was all_reduce no. 1 at job.py:12" in said


def test_of_many_ranks_few_read_and_speak_first(clock, caplog):
    dogs = [Watchdog(Recorder(), rank, 100, 10.0) for rank in range(100)]
    for rank, dog in enumerate(dogs):
        dog._recorder.begin(operation()._replace(rank=rank), "0-99", limit_s=100)
    for seconds, told in ((11, 8), (21, 64), (41, 100)):
        caplog.clear()
        clock(seconds)
        for dog in dogs:
            dog.look()
        assert len(caplog.records) == told


def test_what_a_wait_found_out_is_passed_on_where_there_are_no_files(dog, clock, caplog, tmp_path):
    dog._recorder.begin(operation(), "0-1", limit_s=100)
    clock(10.5)
    dog.remark("rank 1 has not come")
    looks(dog, clock, (11,))
    assert [r.getMessage() for r in caplog.records] == ["rank 0 of 2: rank 1 has not come"]
    dog._recorder.move_to(tmp_path, 0, 2)
    dog.remark("rank 1 has still not come")
    assert len(caplog.records) == 1


def test_what_goes_wrong_in_it_harms_nobody(dog, monkeypatch, caplog):
    looked = []

    def look():
        looked.append(1)
        if len(looked) == 3:
            raise SystemExit
        raise KeyError("torn")

    monkeypatch.setattr(dog, "look", look)
    monkeypatch.setattr(watchdog.time, "sleep", lambda _: None)
    with pytest.raises(SystemExit):
        dog.run()
    assert [record.getMessage() for record in caplog.records] == ["rank 0 of 2: the watchdog stumbled"] * 2


def test_a_call_that_outlives_its_limit_ends_the_job_where_that_is_ours(dog, clock, caplog):
    dog._recorder.begin(operation(), "0-1", limit_s=30)
    looks(dog, clock, (34, 36))
    assert len(caplog.records) == 1
    ends = []
    dog.end_job = ends.append
    looks(dog, clock, (34, 36))
    (error,) = ends
    assert "all_reduce of float32 (4,) on rank 0 of 2" in str(error)
    assert "not done within 30 s, and MPI does not return" in str(error)
    assert "job.py:12" in str(error)


def test_a_host_without_logging_is_not_spoken_to(dog, clock, monkeypatch, capsys):
    monkeypatch.setattr(watchdog._log, "hasHandlers", lambda: False)
    monkeypatch.setattr(watchdog._log, "propagate", False)
    dog._recorder.begin(operation(), "0-1", limit_s=100)
    looks(dog, clock, (11,))
    assert capsys.readouterr().err == ""
    dog.end_job = print
    looks(dog, clock, (21,))
    assert "has waited for 21.0 s" in capsys.readouterr().err


def test_it_gives_signs_of_life(dog, tmp_path):
    from hpcdist.comm.recorder import read

    path = dog._recorder.move_to(tmp_path, 0, 2)
    before = read(path).beat
    time.sleep(0.01)
    dog.look()
    assert read(path).beat > before
