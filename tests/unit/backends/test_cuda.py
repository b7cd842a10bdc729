"""CUDA devices: none without CuPy or a card; with a stand-in for both, what is waited for and what is copied."""

import sys

import device_stand_in as stand_in
import numpy as np
import pytest

from hpcdist.array import is_array, is_device, namespace, to_host
from hpcdist.backends import cuda


@pytest.fixture
def card(monkeypatch):
    made = stand_in.Card()
    made.cupy = stand_in.cupy(made)
    monkeypatch.setitem(sys.modules, "cupy", made.cupy)
    cuda._stream.cache_clear()
    yield made
    cuda._stream.cache_clear()


def filled(card, values):
    """Return an array that is still being filled, on a stream of its own, and the stream."""
    x = card.cupy.empty(values.shape, values.dtype)
    stream = card.cupy.cuda.Stream(non_blocking=True)
    with stream:
        x[...] = values
    return x, stream


def values(x):
    """Look at memory without waiting for anything."""
    return x._array.copy()


def test_the_stand_in_is_late_and_private(card):
    x, stream = filled(card, np.arange(3.0))
    assert not np.array_equal(values(x), np.arange(3.0))
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError):
        memoryview(x)
    assert not np.array_equal(x.get(), np.arange(3.0)), "the default stream does not wait for others"
    stream.synchronize()
    assert np.array_equal(x.get(), np.arange(3.0))
    with pytest.raises(RuntimeError, match="IllegalAddress"):
        card.find(x.data.ptr + 1, x.nbytes)


def test_what_lives_on_a_device(card):
    x = card.cupy.asarray(np.ones(2))
    for array in (x, stand_in.Foreign(x, 1), stand_in.DlpackOnly(x)):
        assert is_device(array)
        assert is_array(array)
    for other in (np.ones(2), np.ones(2).view(np.matrix), 1.0, np.float32(1), None, [x], "x"):
        assert not is_device(other)
    assert namespace(x) is card.cupy
    assert np.array_equal(to_host(x), np.ones(2))


def test_arrays_of_other_libraries_on_the_host_stay_there():
    class HostTensor:
        """Has all interfaces; DLPack tells where it is."""

        def __dlpack_device__(self):
            return (1, 0)

        @property
        def __cuda_array_interface__(self):
            raise AttributeError("not on a GPU")

    assert not is_device(HostTensor())


def test_settle_waits_for_the_stream_one_works_on(card):
    x, stream = filled(card, np.arange(3.0))
    other, _ = filled(card, np.arange(3.0))
    with stream:
        cuda.settle(x)
    assert np.array_equal(values(x), np.arange(3.0))
    assert not np.array_equal(values(other), np.arange(3.0)), "other streams go on"


def test_settle_on_the_default_stream_waits_for_the_device(card):
    x, _ = filled(card, np.arange(3.0))
    cuda.settle(x)
    assert np.array_equal(values(x), np.arange(3.0))


@pytest.mark.parametrize("stream", [None, 1, 2, "its own"])
def test_adopted_arrays_are_ready_and_the_same_memory(card, stream):
    x, own = filled(card, np.arange(3.0))
    adopted = cuda.adopt(stand_in.Foreign(x, own.ptr if stream == "its own" else stream))
    assert adopted.data.ptr == x.data.ptr
    assert np.array_equal(values(adopted), np.arange(3.0))


def test_dlpack_alone_is_enough(card):
    x, _ = filled(card, np.arange(3.0))
    adopted = cuda.adopt(stand_in.DlpackOnly(x))
    assert adopted.data.ptr == x.data.ptr
    assert np.array_equal(values(adopted), np.arange(3.0))


def test_copies(card):
    x, y = card.cupy.asarray(np.arange(4.0)), card.cupy.empty((4,), np.dtype("f8"))
    cuda.settle(x)
    host = cuda.pinned(32)
    cuda.copy_to_host(0, x.data.ptr, host).synchronize()
    assert np.array_equal(host.view("f8"), np.arange(4.0))
    host.view("f8")[:] += 1
    event = cuda.copy_to_device(0, y.data.ptr, host)
    assert not np.array_equal(values(y), np.arange(4.0) + 1)
    event.synchronize()
    assert np.array_equal(values(y), np.arange(4.0) + 1)
    cuda.copy_within(0, y.data.ptr, x.data.ptr, 16)
    assert values(y).tolist() == [0, 1, 3, 4]
    cuda.copy_to_host(0, 0, host[:0]).synchronize()


def test_devices_are_counted(card, monkeypatch):
    assert (cuda.device_count(), cuda.is_available()) == (1, True)

    def broken():
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(card.cupy.cuda.runtime, "getDeviceCount", broken)
    assert (cuda.device_count(), cuda.is_available()) == (0, False)


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert cuda.device_count() == 0
    with pytest.raises(ImportError, match=r"arrays on a GPU need CuPy(.|\n)*hpcdist\[gpu\]"):
        cuda.adopt(object())
