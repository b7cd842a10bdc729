"""The registry: a kernel is a reference form in plain array calls, and perhaps a compiled form beside it.

The reference forms (``hpcdist.kernels.reference``) define what a kernel computes, run for every dtype and on every
device, and are what tests compare with. The compiled forms for CPU (``hpcdist.kernels.cpu``, numba) take contiguous float32
arrays on the host; they are imported, and compiled or loaded from numba's cache, when first called. Deleting
that folder leaves everything working, slower.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.backends import flags

__all__ = ["KERNELS", "Kernel", "kernel"]

KERNELS: dict[str, Kernel] = {}
_log = logging.getLogger("hpcdist.kernels")
_FLOAT32, _INTS = np.dtype(np.float32), (np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.uint32), np.dtype(np.float64))


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
        """Run the compiled form where it fits the arguments and is switched on, the reference form otherwise."""
        if flags.kernel_enabled(self.name) and _compiled_fits(args):
            compiled = self._compiled or self._load()
            if compiled is not None:
                return compiled(*args)
        return self.reference(*args)

    def _load(self) -> Callable[..., Any] | None:
        try:
            found = importlib.import_module(f"hpcdist.kernels.cpu.{self.module}")
        except ImportError as error:
            _log.warning("compiled kernel %r is not available (%s); the generic form runs instead", self.name, error)
            flags.disable_kernel(self.name)
            return None
        self._compiled = getattr(found, self.name)
        return self._compiled


def kernel(module: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Register the decorated reference form; its compiled form is ``hpcdist.kernels.cpu.<module>.<same name>``."""

    def register(reference: Callable[..., Any]) -> Kernel:
        KERNELS[reference.__name__] = Kernel(reference, module)
        return KERNELS[reference.__name__]

    return register


def _compiled_fits(args: tuple[Any, ...]) -> bool:
    """Say whether all arrays are contiguous, on the host, and float32 (or an integer or statistics array)."""
    floats = 0
    for a in args:
        if isinstance(a, np.ndarray):
            if not a.flags.c_contiguous:
                return False
            if a.dtype == _FLOAT32:
                floats += 1
            elif a.dtype not in _INTS:
                return False
        elif hasattr(a, "__cuda_array_interface__"):
            return False
    return floats > 0
