"""Which form of a kernel runs, and what happens where numba is missing or broken."""

import logging
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from hpcdist.backends import flags
from hpcdist.kernels import activation, registry
from hpcdist.kernels.gemm import gemm
from hpcdist.kernels.registry import Kernel


def doubled(x, y):
    y[...] = 2 * x
    return "generic"


def both_forms(monkeypatch):
    kernel = Kernel(doubled, "activation")
    monkeypatch.setattr(kernel, "_compiled", lambda *args: "compiled")
    return kernel


def test_compiled_form_takes_contiguous_float32(monkeypatch):
    kernel, x = both_forms(monkeypatch), np.ones((4, 6), np.float32)
    assert kernel(x, x) == "compiled"
    assert kernel(x, np.ones(3, np.int64), 1.5, True) == "compiled"
    fixed, shifted = x.copy(), np.zeros(4 * x.size + 1, np.uint8)[1:].view(np.float32)
    fixed.flags.writeable = False
    for other in (x.astype(float), x[:, ::2], x.T, x.astype(np.float16), x.astype(">f4"), fixed, shifted):
        assert kernel(other, other.copy()) == "generic"
    assert kernel(x, x.copy().astype(float)) == "generic"


def test_arrays_of_a_device_take_the_generic_form(monkeypatch):
    class Device:
        __cuda_array_interface__ = None

    kernel = both_forms(monkeypatch)
    monkeypatch.setattr(kernel, "reference", lambda *args: "generic")
    assert kernel(Device()) == "generic"


def test_flags_choose(monkeypatch):
    kernel, x = both_forms(monkeypatch), np.ones(4, np.float32)
    for off in (("doubled",), ("*",)):
        with flags.kernels(off=off):
            assert kernel(x, x.copy()) == "generic"
    with flags.kernels(off=("tripled",)):
        assert kernel(x, x) == "compiled"


def test_what_cannot_be_written_is_refused_by_the_generic_form():
    x, y = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
    y.flags.writeable = False
    for compute in (lambda: activation.silu(x, y), lambda: gemm(x, x.T, y[:, :4])):
        with pytest.raises(ValueError, match="read-only"):
            compute()
    assert not y.any()


@pytest.fixture
def keep_flags():
    with flags.kernels(off=()):
        yield


def test_broken_numba_is_one_warning(monkeypatch, caplog, keep_flags):
    def broken(name):
        raise SystemError(f"no {name}")

    monkeypatch.setattr(registry.importlib, "import_module", broken)
    x, y = np.ones(4, np.float32), np.empty(4, np.float32)
    with caplog.at_level(logging.WARNING, "hpcdist.kernels"):
        assert [Kernel(doubled, m)(x, y) for m in ("activation", "norm", "norm")] == ["generic"] * 3
    assert len(caplog.records) == 1
    assert "no hpcdist.kernels.cpu.compiled" in caplog.text
    assert (y == 2).all()


def test_one_module_that_fails_leaves_the_others(monkeypatch, caplog, keep_flags):
    importing = registry.importlib.import_module

    def fails(name):
        if name.endswith(".attention"):
            raise ImportError("no BLAS")
        return importing(name)

    monkeypatch.setattr(registry.importlib, "import_module", fails)
    x, y = np.ones(4, np.float32), np.empty(4, np.float32)
    with caplog.at_level(logging.WARNING, "hpcdist.kernels"):
        assert Kernel(doubled, "attention")(x, y) == "generic"
    assert "(doubled)" in caplog.text
    assert not flags.kernel_enabled("doubled")
    assert flags.kernel_enabled("gelu")


@pytest.mark.parametrize(
    "without",
    ["import sys; sys.modules['numba'] = None", "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'"],
    ids=["numba", "its compiler"],
)
def test_without(without):
    program = f"""
        {without}
        import numpy as np
        from hpcdist.kernels.activation import silu
        x, y = np.ones((2, 3), np.float32), np.empty((2, 3), np.float32)
        silu(x, y)
        assert abs(y - 1 / (1 + np.exp(-1))).max() < 1e-6
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "generic forms run instead" in done.stderr


def test_importing_kernels_does_not_load_numba():
    program = "import sys, hpcdist.kernels.attention, hpcdist.kernels.gemm; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
