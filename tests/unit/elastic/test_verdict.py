"""Which failure came first, and the exit code that follows."""

import json
import os

import pytest

from hpcdist.elastic.verdict import any_report, judge


@pytest.fixture
def report(tmp_path):
    def write(rank, time, code, kind="ValueError"):
        content = {"rank": rank, "size": 3, "host": "n1", "pid": 70 + rank, "time": time, "signal": None}
        content |= {"kind": kind, "exit_code": code, "traceback": f"Traceback\n{kind}: boom-{rank}\n"}
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(content))

    return write


def test_first_in_time_is_shown_last(tmp_path, report):
    report(0, 20.0, 1)
    report(1, 10.0, 3)
    end = judge(tmp_path, 1, hydra=False)
    assert end.exit_code == 3
    lines = end.text.splitlines()
    assert lines[0] == "also failed: rank 0 of 3 (n1, pid 70): ValueError: boom-0"
    assert lines[-3:] == ["first failure: rank 1 of 3 (n1, pid 71): ValueError", "Traceback", "ValueError: boom-1"]


@pytest.mark.parametrize(
    ("status", "hydra", "code", "says"),
    [
        (0, False, 0, ""),
        (5, False, 5, "ended with status 5"),
        (137, False, 137, "killed by signal 9 (SIGKILL)"),
        (9, True, 137, "killed by signal 9 (SIGKILL)"),
        (5, True, 5, "ended with status 5"),
        (9, False, 9, "ended with status 9"),
        (-9, False, 137, "mpirun was killed by signal 9 (SIGKILL)"),
    ],
)
def test_without_reports_the_status_speaks(tmp_path, status, hydra, code, says):
    (tmp_path / "rank-0.fault").touch()
    end = judge(tmp_path, status, hydra=hydra)
    assert end.exit_code == code
    assert says in end.text
    assert bool(end.text) is bool(says)


@pytest.mark.parametrize(("first_line", "code"), [("Segmentation fault", 139), ("Aborted", 134), ("Bus error", 135)])
def test_crash_leaves_its_stack(tmp_path, first_line, code):
    (tmp_path / "rank-2.fault").write_text(f"Fatal Python error: {first_line}\n  File job.py\n")
    end = judge(tmp_path, 11, hydra=True)
    assert end.exit_code == code
    assert end.text.startswith("first failure: rank 2: killed by signal")
    assert end.text.endswith("File job.py")


def test_crash_before_a_report_is_the_first(tmp_path, report):
    (tmp_path / "rank-2.fault").write_text("Fatal Python error: Segmentation fault\n")
    os.utime(tmp_path / "rank-2.fault", (10, 10))
    report(0, 20.0, 1)
    assert judge(tmp_path, 1, hydra=False).exit_code == 139
    os.utime(tmp_path / "rank-2.fault", (30, 30))
    assert judge(tmp_path, 1, hydra=False).exit_code == 1


def test_half_written_report_is_left_out(tmp_path, report):
    (tmp_path / "rank-1.json").write_text('{"rank": 1')
    report(0, 20.0, 4)
    assert judge(tmp_path, 1, hydra=False).exit_code == 4


def test_any_report(tmp_path, report):
    (tmp_path / "rank-0.fault").touch()
    assert not any_report(tmp_path)
    report(0, 1.0, 1)
    assert any_report(tmp_path)


@pytest.mark.parametrize(
    ("kind", "is_open"), [("DistTimeoutError", True), ("ValueError", False), ("SystemExit", False)]
)
def test_a_time_out_leaves_open_where_ranks_stood(tmp_path, report, kind, is_open):
    report(0, 10.0, 1, kind)
    assert judge(tmp_path, 1, hydra=False).is_open is is_open


@pytest.mark.parametrize(("status", "is_open"), [(0, False), (137, True), (5, True)])
def test_an_end_without_a_report_leaves_it_open(tmp_path, status, is_open):
    assert judge(tmp_path, status, hydra=False).is_open is is_open
