"""CUDA devices, by way of CuPy, which is imported when a device array first needs it."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcdist.errors import explain

__all__ = [
    "Event",
    "adopt",
    "copy_to_device",
    "copy_to_host",
    "copy_within",
    "device_count",
    "is_available",
    "pinned",
    "settle",
]

_LAST_DEFAULT = 2
"""Handles up to here are the default streams: the null stream, and the one of each thread."""


class Event(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None:
        """Block until the work before this point is done."""


def is_available() -> bool:
    """Say whether there is a device that arrays can live on."""
    return device_count() > 0


def device_count() -> int:
    """Return how many devices this process sees: 0 also without a driver, or without a CuPy that works."""
    try:
        return int(_cupy().cuda.runtime.getDeviceCount())
    except (ImportError, RuntimeError, OSError):
        return 0


def adopt(x: Any) -> Any:
    """Return a CuPy array that is the same memory as device array ``x``, on which nothing is under way any more.

    Parameters
    ----------
    x : array
        CuPy's, or any with ``__cuda_array_interface__`` or, on a device, ``__dlpack__``.

    Raises
    ------
    ImportError
        Without CuPy.
    """
    cupy = _cupy()
    if isinstance(x, cupy.ndarray):
        settle(x)
        return x
    if not hasattr(type(x), "__cuda_array_interface__"):
        view = cupy.from_dlpack(x)
        settle(view)
        return view
    view, stream = cupy.asarray(x), x.__cuda_array_interface__.get("stream")
    if stream is None or stream <= _LAST_DEFAULT:
        view.device.synchronize()
    else:
        cupy.cuda.runtime.streamSynchronize(stream)
    return view


def settle(x: Any) -> None:
    """Block until what was launched on CuPy array ``x`` is done.

    Notes
    -----
    A program that works on a stream of its own is taken to use ``x`` on that stream. On a default stream, which is
    meant to wait for all others but not for those made non-blocking, the whole device is waited for.
    """
    with x.device:
        stream = _cupy().cuda.get_current_stream()
        if stream.ptr <= _LAST_DEFAULT:
            x.device.synchronize()
        else:
            stream.synchronize()


def pinned(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return page-locked memory of the host: only from there do copies run beside the program."""
    cuda = _cupy().cuda
    return np.frombuffer(cuda.PinnedMemoryPointer(cuda.PinnedMemory(num_bytes), 0), np.uint8, num_bytes)


def copy_to_host(device: int, pointer: int, host: npt.NDArray[Any]) -> Event:
    """Begin to fill ``host`` (contiguous, pinned) with what ``pointer`` shows on ``device``; return its end."""
    runtime = _cupy().cuda.runtime
    return _copy(device, host.ctypes.data, pointer, host.nbytes, runtime.memcpyDeviceToHost)


def copy_to_device(device: int, pointer: int, host: npt.NDArray[Any]) -> Event:
    """Begin to copy ``host`` (contiguous, pinned) to where ``pointer`` shows on ``device``; return its end."""
    runtime = _cupy().cuda.runtime
    return _copy(device, pointer, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice)


def copy_within(device: int, target: int, source: int, num_bytes: int) -> None:
    """Copy ``num_bytes`` from one place on ``device`` to another; done when this returns."""
    _copy(device, target, source, num_bytes, _cupy().cuda.runtime.memcpyDeviceToDevice).synchronize()


def _copy(device: int, target: int, source: int, num_bytes: int, kind: int) -> Event:
    """Copy in the order of calls of one kind; copies of different kinds run side by side."""
    cuda = _cupy().cuda
    with cuda.Device(device):
        stream, event = _stream(device, kind), cuda.Event(disable_timing=True)
        if num_bytes:
            cuda.runtime.memcpyAsync(target, source, num_bytes, kind, stream.ptr)
        event.record(stream)
    return event


@functools.cache
def _stream(device: int, kind: int) -> Any:  # noqa: ARG001 (one a device and a kind)
    """Return a stream for copies on the current ``device``."""
    return _cupy().cuda.Stream(non_blocking=True)


def _cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as e:
        do = 'pip install "hpcdist[gpu]", or move the array to the host first'
        raise ImportError(explain("arrays on a GPU need CuPy", got=e, do=do)) from e
    return cupy
