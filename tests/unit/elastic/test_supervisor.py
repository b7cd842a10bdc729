"""A child and all that it starts: passed signals, an end within its limits, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from hpcdist.elastic import processes, supervisor
from hpcdist.elastic.supervisor import Supervisor

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.DEVNULL)"


@pytest.fixture
def start():
    mark = f"HPCDIST_TEST_MARK={uuid.uuid4().hex}"

    def make(program, *, has_failed=lambda: False):
        variables = {**os.environ, "HPCDIST_TEST_MARK": mark.partition("=")[2]}
        return Supervisor([sys.executable, "-c", program], variables, mark=mark, has_failed=has_failed)

    yield make
    assert processes.marked(mark) == []


@pytest.mark.parametrize(("program", "status"), [("pass", 0), ("raise SystemExit(5)", 5)])
def test_status_of_the_child(start, program, status):
    assert start(program).run() == status


def test_signal_of_the_child(start):
    assert start("import os; os.kill(os.getpid(), 9)").run() == -9


def test_child_is_in_a_session_of_its_own(start):
    assert start(f"import os; raise SystemExit(os.getsid(0) == {os.getsid(0)})").run() == 0


def test_orphans_are_ended(start, monkeypatch):
    monkeypatch.setattr(supervisor, "_ORPHANS_S", 0.1)
    assert start(ORPHAN).run() == 0


def test_after_a_failure_the_others_end_within_limits(start, monkeypatch):
    monkeypatch.setattr(supervisor, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(supervisor, "_GRACE_S", 0.2)
    began = time.monotonic()
    assert start(STUBBORN, has_failed=lambda: True).run() == -signal.SIGKILL
    assert time.monotonic() - began < 2


def test_signal_to_this_process_is_passed_on_and_remembered(start):
    child = start("import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)")
    assert child.run() == -signal.SIGTERM
    assert child.ended_by == signal.SIGTERM


def test_handlers_are_given_back_and_ignored_signals_stay_ignored(start):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = start("import os, signal; os.kill(os.getppid(), signal.SIGHUP); raise SystemExit(6)")
        assert child.run() == 6
        assert child.ended_by is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ranks_below_a_process_manager():
    mark = uuid.uuid4().hex
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, "HPCDIST_TEST_MARK": mark})
    try:
        with open(f"/proc/{os.getpid()}/comm") as stream:  # noqa: PTH123
            manager = stream.read().strip()
        time.sleep(0.1)
        assert processes.ranks_below(f"HPCDIST_TEST_MARK={mark}", manager) == [child.pid]
        assert processes.ranks_below(f"HPCDIST_TEST_MARK={mark}", "hydra_pmi_proxy") == []
    finally:
        child.kill()
        child.wait()
