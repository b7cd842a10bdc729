"""The array-library switch, with a stand-in for a device array that refuses implicit copies."""

import sys
import types

import numpy as np
import pytest

from hpcdist.array import is_device, namespace, to_host


class OnDevice:
    """What CuPy's arrays look like from outside: only ``get`` brings values to the host."""

    __cuda_array_interface__ = {}

    def __init__(self, values):
        self.values = values

    def __array__(self, *_, **__):
        raise TypeError("implicit copy to the host")

    def get(self):
        return self.values.copy()


@pytest.fixture
def cupy(monkeypatch):
    module = types.ModuleType("cupy")
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_host_arrays_belong_to_numpy():
    assert namespace(np.ones(2), 3.0) is np
    assert not is_device(np.ones(2))
    x = np.ones(2)
    assert to_host(x) is x


def test_device_arrays_belong_to_cupy_and_come_back_only_when_asked(cupy):
    x = OnDevice(np.arange(3))
    assert is_device(x)
    assert namespace(x, 1.0) is cupy
    np.testing.assert_array_equal(to_host(x), [0, 1, 2])


def test_mixing_is_an_error(cupy):
    with pytest.raises(TypeError, match="mixed"):
        namespace(np.ones(2), OnDevice(np.ones(2)))
