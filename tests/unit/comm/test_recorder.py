"""The flight recorder: what a ring says, in memory and in a file."""

import math
import os
import time

import numpy as np
import pytest

from hpcdist.comm.operation import Operation
from hpcdist.comm.recorder import NUM_RECORDS, Recorder, read


def operation(number, verb="all_reduce", site="job.py:12"):
    what = (verb, 1, 3, "world", number, (4, 2), np.dtype(np.float32), (), "all 3 ranks of the group")
    return Operation(*what, site)


@pytest.fixture
def recorder():
    return Recorder()


def test_what_a_file_says(recorder, tmp_path):
    before = time.time()
    first = recorder.begin(operation(1), "0-2", limit_s=5)
    path = recorder.move_to(tmp_path / "new", 1, 3)
    second = recorder.begin(operation(2, "recv"), "0-2#2")
    recorder.begin(operation(3), "0-2")
    recorder.end(first)
    recorder.end(second, failed=True)
    ring = read(path)
    assert path == tmp_path / "new" / "rank-1.flight"
    assert (ring.rank, ring.size, ring.pid, ring.ended) == (1, 3, os.getpid(), 0)
    done, failed, open_ = ring.entries
    assert [entry.ticket for entry in ring.entries] == [1, 2, 3]
    assert done[4:] == (
        "all_reduce",
        "world",
        "0-2",
        "(4, 2)",
        "float32",
        "32",
        "all 3 ranks of the group",
        "job.py:12",
    )
    assert (failed.verb, failed.members, failed.number) == ("recv", "0-2#2", 2)
    assert before <= done.start <= done.end <= time.time()
    assert before <= failed.start <= -failed.end <= time.time()
    assert open_.end == 0


def test_calls_under_way(recorder):
    blocking, posted = recorder.begin(operation(1), "0-2", limit_s=5), recorder.begin(operation(2), "0-2")
    assert recorder.under_way[blocking].limit_s == 5
    assert time.monotonic() - recorder.under_way[blocking].since < 1
    assert recorder.under_way[posted].since == math.inf
    recorder.wait(posted, 3.0)
    assert 3 <= time.monotonic() - recorder.under_way[posted].since < 4
    recorder.end(posted)
    recorder.end(posted)
    recorder.wait(posted, 3.0)
    assert list(recorder.under_way) == [blocking]


def test_the_last_thousand_are_kept_and_an_old_end_harms_no_new_record(recorder, tmp_path):
    old = recorder.begin(operation(1), "0-2")
    for number in range(NUM_RECORDS):
        recorder.begin(operation(2 + number), "0-2")
    recorder.end(old)
    entries = read(recorder.move_to(tmp_path, 0, 1)).entries
    assert [entry.number for entry in entries] == list(range(2, NUM_RECORDS + 2))
    assert all(entry.end == 0 for entry in entries)


@pytest.mark.parametrize("made", [0, 1, 5, 998, 999, 1000, 1001, 1500, 2000, 2003])
@pytest.mark.parametrize("wanted", [1, 7, 999])
def test_the_newest_are_found_without_reading_all(recorder, tmp_path, made, wanted):
    for number in range(made):
        recorder.begin(operation(number), "0-2")
    path = recorder.move_to(tmp_path, 0, 1)
    entries = read(path).entries[-wanted:]
    assert read(path, wanted).entries == entries
    assert len(entries) == min(made, wanted)


def test_long_words_are_cut_and_a_site_keeps_its_end(recorder, tmp_path):
    recorder.begin(operation(1, site="/far" * 100 + "/away.py:7"), "0-2")
    entry = read(recorder.move_to(tmp_path, 0, 1)).entries[0]
    assert entry.site.endswith("/far/far/away.py:7")
    assert (entry.verb, entry.shape) == ("all_reduce", "(4, 2)")


def test_signs_of_life(recorder, tmp_path):
    path = recorder.move_to(tmp_path, 0, 1)
    start = read(path).beat
    time.sleep(0.01)
    recorder.beat()
    assert start < read(path).beat <= time.time()
    recorder.close()
    assert read(path).ended >= read(path).beat


def test_moving_leaves_one_file_and_discarding_none(recorder, tmp_path):
    recorder.begin(operation(1), "0-2")
    first, second = recorder.move_to(tmp_path / "a", 0, 1), recorder.move_to(tmp_path / "b", 0, 1)
    assert (first.exists(), len(read(second).entries)) == (False, 1)
    recorder.discard()
    recorder.begin(operation(2), "0-2")
    assert (second.exists(), recorder.path) == (False, None)


def test_a_folder_that_cannot_be_written_changes_nothing(recorder, tmp_path):
    path = recorder.move_to(tmp_path, 0, 1)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        recorder.move_to(tmp_path / "file", 0, 1)
    recorder.begin(operation(1), "0-2")
    assert len(read(path).entries) == 1


def test_a_forked_child_does_not_write_to_the_file_of_its_parent(recorder, tmp_path):
    path = recorder.move_to(tmp_path, 0, 1)
    os.register_at_fork(after_in_child=recorder.leave)
    child = os.fork()
    if child == 0:
        recorder.begin(operation(1), "0-2")
        os._exit(0 if recorder.path is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(path).entries == []


@pytest.mark.parametrize("content", [b"", b"hpcdist flight 2\n", b"x" * 300_000])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "rank-0.flight").write_bytes(content)
    with pytest.raises(ValueError, match=r"rank-0.flight: not a flight recorder's file"):
        read(tmp_path / "rank-0.flight")


def test_begin_and_end_are_cheap(recorder, tmp_path):
    """A figure for a quiet core is 1 us; this finds out what would be ten times that."""
    recorder.move_to(tmp_path, 0, 1)
    o, best = operation(1), math.inf
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            recorder.end(recorder.begin(o, "0-2", limit_s=5))
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 10e-6
