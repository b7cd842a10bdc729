"""The registry: a kernel is a reference form in plain array calls, and perhaps a compiled form beside it.

The reference forms (``hpcdist/kernels/<noun>.py``) define what a kernel computes, run for every float type
and on every device, and are what tests compare with. The compiled forms (``hpcdist/kernels/cpu/<noun>.py``,
numba) take contiguous float32 arrays on the host, those they only read writable too, since a loop does not ask before
it writes. They are imported, and compiled or loaded from the cache, when first called. Deleting that folder leaves
everything working, slower.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.array import is_device
from hpcdist.backends import flags

__all__ = ["KERNELS", "Kernel", "kernel"]

KERNELS: dict[str, Kernel] = {}
_log = logging.getLogger("hpcdist.kernels")
_CPU = "hpcdist.kernels.cpu"
_COMPILED_DTYPES = frozenset(np.dtype(d) for d in ("float32", "int32", "int64", "uint32", "uint64"))


class Kernel:
    """A named computation on arrays it is given, results included: ``kernel(*arrays_and_scalars)``.

    Parameters
    ----------
    reference : function
        The generic form.
    module : str
        Module under ``hpcdist.kernels.cpu`` that has a function of the same name.
    """

    def __init__(self, reference: Callable[..., Any], module: str) -> None:
        self.name, self.reference, self.module = reference.__name__, reference, module
        self.__doc__ = reference.__doc__
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """Run the compiled form where it fits the arguments and is switched on, else the reference form."""
        if flags.kernel_enabled(self.name) and _compiled_fits(args):
            compiled = self._compiled or self._load()
            if compiled is not None:
                return compiled(*args)
        return self.reference(*args)

    def _load(self) -> Callable[..., Any] | None:
        """Import the compiled form; where that fails, warn, and switch off what cannot run."""
        try:
            importlib.import_module(f"{_CPU}.compiled")
        except Exception as error:  # a numba that does not fit its NumPy or LLVM fails in many ways
            _switch_off("*", error)
            return None
        try:
            self._compiled = getattr(importlib.import_module(f"{_CPU}.{self.module}"), self.name)
        except ImportError as error:
            _switch_off(self.name, error)
        return self._compiled


def _switch_off(name: str, error: Exception) -> None:
    _log.warning("compiled kernels (%s) are not available, the generic forms run instead: %s", name, error)
    flags.disable_kernel(name)


def kernel(module: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Register the decorated reference form; ``hpcdist.kernels.cpu.<module>.<same name>`` is compiled."""

    def register(reference: Callable[..., Any]) -> Kernel:
        KERNELS[reference.__name__] = Kernel(reference, module)
        return KERNELS[reference.__name__]

    return register


def _compiled_fits(args: tuple[Any, ...]) -> bool:
    """Say whether all arrays are contiguous, aligned, writable, on the host, and of float32 or an integer type."""
    for a in args:
        if isinstance(a, np.ndarray):
            if a.dtype not in _COMPILED_DTYPES or not a.flags.carray:
                return False
        elif is_device(a):
            return False
    return True
