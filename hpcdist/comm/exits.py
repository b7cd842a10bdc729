"""How this process ends, as far as that can be known before it is gone; and what others are told if MPI never ran.

Python keeps an exit code to itself until the end. So ``sys.exit``, ``exit`` and ``quit`` are replaced by one function
that does the same, and remembers what it was told. In ``sys.exit(main())`` Python looks ``sys.exit`` up before it calls
``main``: the ranks of a job listen from the moment they import this package.

A rank that ends before it starts MPI leaves the others waiting in MPI_Init. Open MPI's launcher then ends them if its
exit code says that it failed; hydra, the one of MPICH and Intel, has to be told so in the language of its ranks, PMI.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

__all__ = ["abandon", "came_to_its_end", "listen", "told", "uncaught"]

_listens = False
_told: SystemExit | None = None
_outermost: FrameType | None = None
_RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
_HELLO = b"cmd=init pmi_version=1 pmi_subversion=1\n"
_ANSWER_S = 1.0


def listen() -> None:
    """Remember, from now on, what ``sys.exit`` is told, and see how the program's outermost frame is left.

    Where the program has put functions of its own in their places, these stay.
    """
    global _outermost, _listens
    if _listens:
        return
    _listens = True
    for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
        if _is_pythons(getattr(module, name, None)):
            setattr(module, name, _exit)
    if threading.current_thread() is threading.main_thread():
        _outermost = sys._getframe()
        while _outermost.f_back is not None:
            _outermost = _outermost.f_back
    atexit.register(_at_end, os.getpid())


def _is_pythons(function: object) -> bool:
    return getattr(function, "__module__", "") in ("sys", "_sitebuiltins")


def told() -> SystemExit | None:
    """Return the last exit of the main thread, although the program may have caught it; None if there was none."""
    return _told


def uncaught() -> BaseException | None:
    """Return the exception that ends the program, once Python has given it to ``sys.excepthook``; else None."""
    return getattr(sys, "last_value", None)


def came_to_its_end() -> bool:
    """Say, when it is over, whether the program's outermost frame returned, and was not left by an exception."""
    if _outermost is None:
        return True
    from dis import opname

    return opname[_outermost.f_code.co_code[_outermost.f_lasti]] in _RETURNS


def abandon(code: int) -> None:
    """Let hydra end the other ranks with exit code ``code``, if it started this one, which has not started MPI."""
    from hpcdist.comm.launched import launched

    place, line, library = launched(os.environ), os.environ.get("PMI_FD", ""), sys.modules.get("mpi4py.MPI")
    is_alone = library is None or not library.Is_initialized()
    if place is not None and "hydra" in place.launcher and line.isdecimal() and is_alone:
        with suppress(OSError):
            _tell_hydra(int(line), code)


def _tell_hydra(line: int, code: int) -> None:
    from select import select

    os.write(line, _HELLO)
    if select([line], [], [], _ANSWER_S)[0]:
        os.read(line, 1024)
        os.write(line, b"cmd=abort exitcode=%d\n" % code)


def _at_end(pid: int) -> None:
    """End the other ranks if this one, and not a child of it, has failed."""
    from hpcdist.comm.failure import exit_code

    error = None if came_to_its_end() else uncaught() or told()
    if os.getpid() == pid and error is not None and exit_code(error):
        abandon(exit_code(error))


def _exit(status: Any = None, /) -> NoReturn:
    """Raise SystemExit(status)."""
    global _told
    error = SystemExit(status)
    if threading.current_thread() is threading.main_thread():
        _told = error
    raise error
