"""SIGUSR2: stacks without harm, and nothing of a host is taken."""

import subprocess
import sys

import pytest

BEGIN = """
import os, signal, threading, time
from hpcdist.comm import stacks
"""
ALIVE = """
def come_and_go():
    while True:
        thread = threading.Thread(target=sorted, args=(range(100),))
        thread.start()
        thread.join()

stacks.install(0, 1)
threading.Thread(target=come_and_go, name="the maker of threads", daemon=True).start()
for _ in range(300):
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(0.001)
print("alive", flush=True)
os._exit(0)
"""
WAKEUP = """
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
stacks.install(0, 1)
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
assert signal.set_wakeup_fd(-1) == writer
"""
HANDLER = """
mine = lambda *_: None
signal.signal(signal.SIGUSR2, mine)
stacks.install(0, 1)
assert signal.getsignal(signal.SIGUSR2) is mine
assert signal.set_wakeup_fd(-1) == -1
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""
THREAD = """
thread = threading.Thread(target=stacks.install, args=(0, 1))
thread.start()
thread.join()
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
"""
CRASHES = """
import faulthandler
assert not faulthandler.is_enabled()
stacks.install(0, 1)
assert faulthandler.is_enabled()
"""


def run(code):
    return subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=60)


def test_many_signals_among_threads_that_come_and_go():
    done = run(ALIVE)
    assert (done.returncode, done.stdout) == (0, "alive\n")
    assert "rank 0 of 1 (" in done.stderr
    assert "): in no call\n" in done.stderr
    assert "thread the maker of threads:\n" in done.stderr


@pytest.mark.parametrize("code", [WAKEUP, HANDLER, THREAD, CRASHES], ids=["wakeup", "handler", "thread", "crashes"])
def test_what_a_program_has_set_up_stays(code):
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")
