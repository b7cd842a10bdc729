"""How a kernel is compiled: once for one thread, once more for several, each when first called."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba.np.ufunc.parallel import threading_layer

from hpcdist.backends import cpu
from hpcdist.errors import explain
from hpcdist.kernels.cpu.cache import KernelCache

__all__ = ["Compiled", "compiled", "fits", "inline", "single"]

_settings: Any = numba.config
if _settings.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set")

single = np.float32

# Bits come from the order written in the source, so no fast-math; overflow gives inf, division by zero too.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

inline = numba.njit(**_OPTIONS)
"""Make a function that kernels call."""


class Compiled:
    """A kernel whose last argument is the number of threads, over which it loops with ``prange``.

    Called without that argument: it uses ``cpu.num_threads()`` threads. A kernel for one thread has no parallel
    region: it compiles in a fraction of the time, and needs no threading layer.
    """

    def __init__(self, source: Callable[..., Any]) -> None:
        self.source, self.__doc__ = source, source.__doc__
        self._serial = _jit(source, "serial", parallel=False)
        self._threaded = _jit(source, "threaded", parallel=True)

    def __call__(self, *args: Any) -> Any:
        n = cpu.num_threads()
        twin, n = (self._threaded, n) if n > 1 and _may_fork(n) else (self._serial, 1)
        try:
            return twin(*args, n)
        except BaseException as error:
            twin._cache.abandon()  # others may wait for what was not compiled
            if isinstance(error, ValueError):
                raise ValueError(_misfit(self.source.__name__.lstrip("_"), args)) from None
            raise


@inline
def fits(condition):
    """Refuse arrays whose shapes do not fit together: what follows computes addresses from them."""
    if not condition:
        raise ValueError("the shapes do not fit together")


def _misfit(name: str, args: tuple[Any, ...]) -> str:
    shapes = ", ".join(str(a.shape) for a in args if isinstance(a, np.ndarray))
    return explain(f"{name}: the shapes of the arrays do not fit together", got=shapes)


def compiled(source: Callable[..., Any]) -> Compiled:
    """Make a kernel of ``source(*arrays_and_scalars, num_threads)``."""
    return Compiled(source)


def _jit(source: Any, kind: str, parallel: bool) -> Any:
    assert source.__closure__ is None, "a kernel on disk is found by its code, which does not show a closure"
    name = f"{source.__name__}_{kind}"
    twin = FunctionType(source.__code__, source.__globals__, name, source.__defaults__)
    twin.__qualname__, twin.__module__ = name, source.__module__
    dispatcher = numba.njit(parallel=parallel, **_OPTIONS)(twin)
    dispatcher._cache = KernelCache(f"{source.__module__.rpartition('.')[2]}.{name}", source.__code__)
    return dispatcher


# ---------------------------------------------------------------- threads
_FORKED = "the parent's"
_layer: str | None = None
_told = threading.local()


def _choose_layer() -> str:
    """Return the threading layer that will be used: the user's choice, else the first that several may enter."""
    if _settings.THREADING_LAYER != "default":
        return str(_settings.THREADING_LAYER)
    for layer, module in (("omp", "omppool"), ("tbb", "tbbpool")):
        try:
            importlib.import_module(f"numba.np.ufunc.{module}")
        except ImportError:
            continue
        _settings.THREADING_LAYER = layer
        return layer
    return "workqueue"


def _may_fork(n: int) -> bool:
    """Prepare this Python thread for kernels with ``n`` threads; say whether it may run them."""
    global _layer
    if _layer == _FORKED:
        return False
    if getattr(_told, "n", 0) != n:
        _layer = _layer or _choose_layer()
        numba.set_num_threads(min(n, _settings.NUMBA_NUM_THREADS))
        _layer = threading_layer()
        _told.n = n
    # two Python threads in numba's own layer end the process
    return _layer != "workqueue" or threading.current_thread() is threading.main_thread()


def _after_fork() -> None:
    """Keep to one thread in a forked child: threads stay behind, and GNU OpenMP ends a child that asks for them."""
    global _layer
    if _layer:
        _layer = _FORKED


os.register_at_fork(after_in_child=_after_fork)
