"""A stand-in for CuPy and a card: memory that the host cannot read by accident, and work that is done late.

Whatever is launched on a stream (fills, copies, arithmetic) is only queued; results hold garbage until the stream, or
an event after it, or the device is waited for. So code that forgets to wait gives wrong numbers, always. Pointers are
numbers that mean nothing on the host unless the memory is made with ``real_pointers``: that is how a CUDA-aware MPI,
which may read device memory, is played by one that can only read the host's.
"""

import contextlib
import ctypes
import itertools
import types
import weakref

import numpy as np

GARBAGE = 0xAB
DEFAULT_STREAM, TO_DEVICE, TO_HOST, WITHIN = 0, 1, 2, 3


class Card:
    """One device: its memory, its streams, and what was done to them."""

    def __init__(self, *, real_pointers=False):
        self.real_pointers = real_pointers
        self.memories = weakref.WeakValueDictionary()  # start: bytes of one allocation
        self.next_pointer = 0x7000_0000_0000
        self.numbers = itertools.count(16)
        self.default = Stream(card=self, handle=DEFAULT_STREAM)
        self.streams = {DEFAULT_STREAM: self.default}
        self.current = self.default
        self.num_synchronised = 0
        self.copies = []  # (kind, bytes) in the order of calls
        self.num_pinned = 0

    def allocate(self, num_bytes):
        memory = np.full(max(num_bytes, 1), GARBAGE, np.uint8)
        start = memory.ctypes.data if self.real_pointers else self.next_pointer
        self.next_pointer += memory.nbytes + 4096
        self.memories[start] = memory
        return memory, start

    def find(self, pointer, num_bytes):
        """Return the bytes that a pointer shows."""
        for start, memory in list(self.memories.items()):
            if start <= pointer and pointer + num_bytes <= start + memory.nbytes:
                return memory[pointer - start : pointer - start + num_bytes]
        raise RuntimeError(f"cudaErrorIllegalAddress: {pointer:#x}")

    def launch(self, work, *arrays):
        """Queue what reads and writes ``arrays``."""
        self.current.queue.append((work, [x._memory for x in arrays]))

    def busy_with(self, x):
        """Say whether something is under way on the memory of ``x``."""
        return any(m is x._memory for stream in self.streams.values() for _, used in stream.queue for m in used)

    def synchronize(self):
        self.num_synchronised += 1
        for stream in self.streams.values():
            stream.run()


class Stream:
    """Work in order; it happens when somebody waits for it."""

    def __init__(self, card=None, handle=None):
        self.card, self.ptr, self.queue, self.num_done = card, handle, [], 0

    def run(self, end=None):
        while self.queue and (end is None or self.num_done < end):
            self.num_done += 1
            self.queue.pop(0)[0]()

    def synchronize(self):
        self.card.num_synchronised += 1
        self.run()

    def __enter__(self):
        self.before, self.card.current = self.card.current, self
        return self

    def __exit__(self, *_):
        self.card.current = self.before


class Event:
    def __init__(self, disable_timing=False):
        self.stream = None

    def record(self, stream):
        self.stream, self.end = stream, stream.num_done + len(stream.queue)

    def synchronize(self):
        self.stream.card.num_synchronised += 1
        self.stream.run(self.end)


class Device:
    """What ``x.device`` is."""

    def __init__(self, card):
        self.card, self.id = card, 0

    def synchronize(self):
        self.card.synchronize()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Flags:
    def __init__(self, x):
        self.c_contiguous = x.flags.c_contiguous


class DeviceArray:
    """An array on the card. Its values are seen by ``get`` only, which waits for the current stream only."""

    card = None  # set by a subclass for each card

    def __init__(self, array, start, memory):
        self._array, self._start, self._memory = array, start, memory

    # ---- what is known without looking at values
    shape, dtype, ndim = (
        property(lambda self, name=name: getattr(self._array, name)) for name in ("shape", "dtype", "ndim")
    )
    size, nbytes = (property(lambda self, name=name: getattr(self._array, name)) for name in ("size", "nbytes"))
    strides, itemsize = (
        property(lambda self, name=name: getattr(self._array, name)) for name in ("strides", "itemsize")
    )

    def __len__(self):
        return len(self._array)

    @property
    def flags(self):
        return Flags(self._array)

    @property
    def device(self):
        return Device(self.card)

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self._start + self._array.ctypes.data - self._memory.ctypes.data)

    @property
    def __cuda_array_interface__(self):
        data = (self.data.ptr, False)
        stream = self.card.current.ptr or 1
        strides = None if self._array.flags.c_contiguous else self.strides
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": data,
            "strides": strides,
            "stream": stream,
            "version": 3,
        }

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __dlpack__(self, **_):
        raise AssertionError("device memory was handed out")

    def __dlpack_device__(self):
        return (2, 0)

    # ---- work on the card
    def get(self):
        self.card.current.synchronize()
        return self._array.copy()

    def copy(self):
        return asarray(self, order="C", copy=True)

    def astype(self, dtype, copy=True):
        return asarray(self, dtype=dtype, copy=copy)

    def _view(self, array):
        return type(self)(array, self._start, self._memory)

    def reshape(self, *shape):
        array = self._array.reshape(*shape)
        assert np.shares_memory(array, self._array) or not array.size, "a reshape that copies"
        return self._view(array)

    def __getitem__(self, key):
        return self._view(self._array[key])

    def __setitem__(self, key, value):
        on_card = isinstance(value, DeviceArray)
        target, source = self._array[key], value._array if on_card else np.array(value)
        self.card.launch(lambda: np.copyto(target, source, casting="unsafe"), self, *([value] if on_card else []))

    def __itruediv__(self, value):
        self.card.launch(lambda: np.copyto(self._array, self._array / value, casting="unsafe"), self)
        return self

    real = property(lambda self: self._view(self._array.real))
    imag = property(lambda self: self._view(self._array.imag))


class Foreign:
    """Another library's array on the same card: nothing but an interface."""

    def __init__(self, x, stream):
        self._x, self._stream = x, stream
        self.dtype, self.shape = x.dtype, x.shape

    @property
    def __cuda_array_interface__(self):
        return {**self._x.__cuda_array_interface__, "stream": self._stream}


class DlpackOnly:
    """Another library's array on the same card, known by DLPack alone."""

    def __init__(self, x):
        self._x = x

    def __dlpack__(self, **_):
        return self._x

    def __dlpack_device__(self):
        return (2, 0)


def asarray(x, dtype=None, order=None, copy=None):
    """Return ``x`` on its card: itself if nothing has to change."""
    if isinstance(x, Foreign):
        x = x._x
    array = x._array
    dtype = array.dtype if dtype is None else np.dtype(dtype)
    if not copy and dtype == array.dtype and (order is None or array.flags.c_contiguous):
        return x
    result = empty(type(x), array.shape, dtype)
    x.card.launch(lambda: np.copyto(result._array, array, casting="unsafe"), x, result)
    return result


def empty(kind, shape, dtype):
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    memory, start = kind.card.allocate(count * dtype.itemsize)
    return kind(memory[: count * dtype.itemsize].view(dtype).reshape(shape), start, memory)


def cupy(card):
    """Return a module that does on ``card`` what the real one does, as far as hpcdist needs it."""
    kind = type("ndarray", (DeviceArray,), {"card": card})

    def stream(non_blocking=False):
        made = Stream(card=card, handle=next(card.numbers))
        card.streams[made.ptr] = made
        return made

    def upload(x, dtype=None, order=None):
        if isinstance(x, (DeviceArray, Foreign)):
            return asarray(x, dtype, order)
        x = np.array(x, dtype, order=order or "K")
        result = empty(kind, x.shape, x.dtype)
        card.launch(lambda: np.copyto(result._array, x), result)
        return result

    def memcpy_async(target, source, num_bytes, which, handle):
        card.copies.append((which, num_bytes))

        def copy():
            there = host_bytes(target, num_bytes) if which == TO_HOST else card.find(target, num_bytes)
            here = host_bytes(source, num_bytes) if which == TO_DEVICE else card.find(source, num_bytes)
            np.copyto(there, here)

        card.streams[handle].queue.append((copy, []))

    runtime = types.SimpleNamespace(
        memcpyHostToDevice=TO_DEVICE,
        memcpyDeviceToHost=TO_HOST,
        memcpyDeviceToDevice=WITHIN,
        memcpyAsync=memcpy_async,
        getDeviceCount=lambda: 1,
        streamSynchronize=lambda handle: card.streams[handle].synchronize(),
    )
    cuda = types.SimpleNamespace(
        runtime=runtime,
        Device=lambda number: contextlib.nullcontext(),
        Stream=stream,
        Event=Event,
        get_current_stream=lambda: card.current,
        PinnedMemory=lambda n: pin(card, n),
        PinnedMemoryPointer=lambda memory, offset: memory,
    )
    module = types.ModuleType("cupy")
    module.ndarray, module.cuda = kind, cuda
    module.asarray, module.from_dlpack = upload, lambda x: x.__dlpack__()
    module.empty = lambda shape, dtype: empty(kind, shape, dtype)
    module.moveaxis = lambda x, source, target: x._view(np.moveaxis(x._array, source, target))
    module.may_share_memory = lambda a, b: np.may_share_memory(a._array, b._array)
    return module


def pin(card, num_bytes):
    card.num_pinned += 1
    return bytearray(num_bytes)


def host_bytes(pointer, num_bytes):
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(pointer))
