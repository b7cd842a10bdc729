"""NumPy's own BLAS: where it is, its matrix products as C functions, and its number of threads."""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

__all__ = [
    "Interface", "describe", "interface", "num_threads", "set_num_threads", "single_threaded", "usual_threads",
]  # fmt: skip

_PRODUCTS = (  # how builds of BLAS name "sgemm" for C, and the bits of their integers
    ("scipy_cblas_{}64_", 64),
    ("cblas_{}64_", 64),
    ("cblas_{}_64", 64),
    ("scipy_cblas_{}", 32),
    ("cblas_{}", 32),
)
_THREADS = (  # (set, get); the first that exists
    ("scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_"),
    ("scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads"),
    ("openblas_set_num_threads64_", "openblas_get_num_threads64_"),
    ("openblas_set_num_threads", "openblas_get_num_threads"),
    ("MKL_Set_Num_Threads", "MKL_Get_Max_Threads"),
    ("bli_thread_set_num_threads", "bli_thread_get_num_threads"),
)
_CONFIG = (
    "scipy_openblas_get_config64_",
    "scipy_openblas_get_config",
    "openblas_get_config64_",
    "openblas_get_config",
)


class Interface(NamedTuple):
    """The C functions of a BLAS; calling them releases the GIL.

    Attributes
    ----------
    sgemm, dgemm : ctypes function
        ``cblas_sgemm`` and ``cblas_dgemm``: order, transpositions, extents, arrays as addresses.
    int_bits : int
        Size of its integers, 32 or 64.
    symbol : str
        The name of its ``sgemm``.
    """

    sgemm: Callable[..., None]
    dgemm: Callable[..., None]
    int_bits: int
    symbol: str

    @property
    def int_limit(self) -> int:
        """Largest extent it takes."""
        return int(2 ** (self.int_bits - 1) - 1)


@cache
def _library() -> ctypes.CDLL | None:
    # A symbol asked of NumPy's extension module is looked up in what that module was linked with:
    # the very BLAS that np.matmul calls, whatever its name and place.
    try:
        return ctypes.CDLL(str(importlib.import_module("numpy._core._multiarray_umath").__file__))
    except (ImportError, OSError):
        return None


def _first(*names: str) -> Any:
    library = _library()
    return next((getattr(library, name) for name in names if hasattr(library, name)), None)


@cache
def interface() -> Interface | None:
    """Return the matrix products of NumPy's BLAS, or None if its C interface is not found."""
    for name, bits in _PRODUCTS:
        sgemm, dgemm = _first(name.format("sgemm")), _first(name.format("dgemm"))
        if sgemm is not None and dgemm is not None:
            integer = ctypes.c_int64 if bits == 64 else ctypes.c_int32
            _declare(sgemm, ctypes.c_float, integer)
            _declare(dgemm, ctypes.c_double, integer)
            return Interface(sgemm, dgemm, bits, name.format("sgemm"))
    return None


def _declare(gemm: Any, scalar: type, integer: type) -> None:
    flag, address = ctypes.c_int, ctypes.c_void_p
    gemm.argtypes = [flag] * 3 + [integer] * 3 + [scalar, address, integer, address, integer]
    gemm.argtypes += [scalar, address, integer]
    gemm.restype = None


@cache
def _thread_functions() -> tuple[Callable[[int], None], Callable[[], int]] | None:
    for setter, getter in _THREADS:
        put, get = _first(setter), _first(getter)
        if put is not None and get is not None:
            put.argtypes, put.restype = [ctypes.c_int], None
            get.argtypes, get.restype = [], ctypes.c_int
            return put, get
    return None


def num_threads() -> int:
    """Return how many threads the BLAS uses for one product; 1 if it cannot be asked."""
    functions = _thread_functions()
    return 1 if functions is None else functions[1]()


def set_num_threads(n: int) -> None:
    """Let the BLAS use ``n`` threads for one product, in the whole process; ignored if it cannot be told."""
    functions = _thread_functions()
    if functions is not None:
        functions[0](n)


_lock = threading.Lock()
_inside, _before = 0, 1


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run a block whose threads each call the BLAS: while any such block runs, a product uses one thread."""
    global _inside, _before
    with _lock:
        if not _inside:
            _before = num_threads()
            set_num_threads(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                set_num_threads(_before)


def usual_threads() -> int:
    """Return :func:`num_threads` as it is outside of blocks that are :func:`single_threaded`, on any thread."""
    with _lock:
        return _before if _inside else num_threads()


def describe() -> dict[str, object]:
    """Return what was found: symbol, integer bits, threads, and the build's own description."""
    found = interface()
    return {
        "symbol": found.symbol if found else None,
        "int_bits": found.int_bits if found else None,
        "num_threads": num_threads(),
        "config": _config(),
    }


def _config() -> str | None:
    """Return the build's own description, which it puts together in one place for all threads."""
    config = _first(*_CONFIG)
    if config is None:
        return None
    config.argtypes, config.restype = [], ctypes.c_char_p
    with _lock:
        return str(config().decode(errors="replace"))
