"""What decides about bits: it is told by name, and numbers below the smallest normal one are looked for."""

import ctypes
import mmap
import platform
from contextlib import contextmanager

import pytest

from hpcdist.backends import cpu, flags, rounding
from hpcdist.errors import LaunchError

FLUSH = 0x8040  # of the control word: results, and operands, that are subnormal count as zero
DEFAULT = 0x1F80


@contextmanager
def control_word(value):
    """Run a block with another control word of the vector unit (ldmxcsr [rdi]; ret)."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x0f\xae\x17\xc3")
    place = ctypes.c_char.from_buffer(code)
    load = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(place))
    words = [ctypes.c_uint32(word) for word in (value, DEFAULT)]
    load(ctypes.addressof(words[0]))
    try:
        yield
    finally:
        load(ctypes.addressof(words[1]))
        del place
        code.close()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the control word is that of x86")
def test_flushed_subnormals_are_seen():
    """As a library built with -ffast-math does when it is loaded."""
    assert rounding.keeps_subnormals()
    with control_word(DEFAULT | FLUSH):
        found = rounding.keeps_subnormals()
    assert not found
    assert rounding.keeps_subnormals()


def test_settings(monkeypatch):
    found = rounding.settings()
    assert found["threads"] == cpu.num_threads()
    assert found["subnormals"] == 1
    assert all(type(value) in (int, str) for value in found.values())
    with flags.kernels(off=("adam", "gelu")):
        assert rounding.settings()["kernels"] == found["kernels"] + " without adam, gelu"

    def missing(_):
        raise rounding.PackageNotFoundError

    monkeypatch.setattr(rounding, "version", lambda name: missing(name) if name == "numba" else "1")
    assert rounding.settings()["kernels"] == "generic"


def test_the_first_difference_is_named():
    mine = {"threads": 2, "blas": "x"}
    rounding.check_same("here", mine, dict(mine))
    with pytest.raises(LaunchError, match=r"threads is another one on this node\n *got +2\n *expected 1"):
        rounding.check_same("on this node", mine, {"threads": 1, "blas": "y"})
