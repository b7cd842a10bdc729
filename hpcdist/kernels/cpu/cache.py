"""Compiled kernels on disk: shared by processes, machines and kinds of CPU, each kernel compiled once.

A kernel is one file, ``ROOT/hpcdist-SOURCES/CPU/KERNEL-SIGNATURE.kernel``: SOURCES stands for the state of these
sources and of the versions of Python, NumPy's BLAS, numba and LLVM, CPU for its name and instructions. There is no
index to keep consistent. Files are written aside and renamed, and carry a checksum.

ROOT is NUMBA_CACHE_DIR, else ``~/.cache/hpcdist`` (in XDG_CACHE_HOME). Where nothing can be written to NUMBA_CACHE_DIR,
kernels that are there are used, and others are kept in the user's folder.

Of processes that need a kernel at the same time one compiles, and the others wait for its file. So ranks leave their
first step together, and the time limit of a collective meets the differences between them, not the compilation.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import platform
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import llvmlite
import numba
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from hpcdist.backends import blas
from hpcdist.kernels.cpu.lock import FileLock

__all__ = ["STATISTICS", "KernelCache", "Statistics", "folder"]

POLL_S = 0.02
_HEADER = b"hpcdist kernel 1\n"
_settings: Any = numba.config
_log = logging.getLogger("hpcdist.kernels")


@dataclass
class Statistics:
    """What this process has got from where.

    Attributes
    ----------
    compiled, kept, loaded : int
        Kernels compiled here, written to the cache, and taken from it, each signature counted.
    compile_s, wait_s : float
        Seconds spent compiling, and waiting for others that compiled.
    """

    compiled: int = 0
    kept: int = 0
    loaded: int = 0
    compile_s: float = 0.0
    wait_s: float = 0.0


STATISTICS = Statistics()


class KernelCache(_Cache):
    """What numba asks for the compiled forms of one function, and gives new ones to.

    Parameters
    ----------
    name : str
        Different for every function, and for a parallel form.
    code : code object
        Of the function.
    """

    def __init__(self, name: str, code: CodeType) -> None:
        constants = [c for c in code.co_consts if not isinstance(c, CodeType)]
        self.name = f"{name}-{_short(code.co_code + repr((constants, code.co_names)).encode())}"
        self._lock: FileLock | None = None
        self._began = 0.0

    @property
    def cache_path(self) -> str:
        """Folder that is looked into first."""
        return str(folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled form for ``sig``; None if this process has to compile it."""
        target_context.refresh()
        folders = _folders(target_context.codegen())
        entry = f"{self.name}-{_short(repr(sig).encode())}.kernel"
        found = self._found(folders[0] / entry, target_context) or self._awaited(folders, entry, target_context)
        self._began = time.perf_counter()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:  # noqa: ARG002 (the lock's name has it)
        """Keep what was compiled, and let waiting processes go on."""
        STATISTICS.compiled += 1
        STATISTICS.compile_s += time.perf_counter() - self._began
        lock = self._lock
        try:
            if lock and not data.lifted and not data.library.has_dynamic_globals:
                _write(lock.path.with_suffix(""), dumps(data._reduce()))
                STATISTICS.kept += 1
        except OSError as error:
            _warn_once("compiled kernels cannot be kept: %s", error)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let waiting processes go on, if any wait for this one; nothing was compiled."""
        lock, self._lock = self._lock, None
        if lock:
            lock.release()

    def enable(self) -> None:
        """Do nothing: it is always on."""

    def disable(self) -> None:
        """Do nothing: it is always on."""

    def flush(self) -> None:
        """Do nothing: other processes may use what is kept."""

    def _found(self, path: Path, target_context: Any) -> Any:
        """Return the compiled form in ``path``, or None."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        form = _rebuilt(data, target_context)
        if form is None:
            _warn_once("a compiled kernel is damaged, and is compiled again: %s", path)
            with contextlib.suppress(OSError):
                path.unlink()
        else:
            STATISTICS.loaded += 1
        return form

    def _awaited(self, folders: tuple[Path, ...], entry: str, target_context: Any) -> Any:
        """Return what another process compiles; or None, with the lock where there is one."""
        home = _writable(folders)
        if home is None:
            return None
        if home != folders[0] and (kept := self._found(home / entry, target_context)):
            return kept
        lock, began = FileLock(home / f"{entry}.lock"), time.perf_counter()
        try:
            while not lock.acquire():
                time.sleep(POLL_S)
        except OSError as error:
            _warn_once("compiled kernels cannot be kept: %s", error)
            return None
        STATISTICS.wait_s += time.perf_counter() - began
        self._lock = lock
        found = self._found(home / entry, target_context)
        if found is not None:
            self.abandon()
        return found


# ---------------------------------------------------------------- where
def folder() -> Path:
    """Return the folder that is looked into first."""
    return _folders(cpu_target.target_context.codegen())[0]


def _folders(codegen: Any) -> tuple[Path, ...]:
    return tuple(root / _SOURCES / _cpu(codegen) for root in _roots())


def _roots() -> list[Path]:
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "hpcdist")
    return [Path(_settings.CACHE_DIR), user] if _settings.CACHE_DIR else [user]


def _writable(folders: tuple[Path, ...]) -> Path | None:
    """Return the first of ``folders`` in which files can be made; warn if that is not the first one."""
    reasons = []
    for folder in folders:
        probe = folder / f"probe-{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            reasons.append(str(error))
            continue
        if reasons:
            _warn_once("compiled kernels are kept in %s, since elsewhere nothing can be written: %s", folder, reasons)
        return folder
    _warn_once("compiled kernels cannot be kept, and every process compiles its own: %s", reasons)
    return None


def _cpu(codegen: Any) -> str:
    triple, name, features = codegen.magic_tuple()
    return f"{name}-{_short(f'{triple} {features}'.encode())}"


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _sources() -> str:
    """Return what tells one state of the kernels from another: all that is compiled into them, and compiles them."""
    found = blas.interface()
    versions = [platform.python_version(), numba.__version__, llvmlite.__version__, str(found and found.int_bits)]
    digest = hashlib.sha256(" ".join(versions).encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return f"hpcdist-{digest.hexdigest()[:12]}"


_SOURCES = _sources()


# ---------------------------------------------------------------- what
def _write(path: Path, data: bytes) -> None:
    """Write a file that appears whole, or not at all."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        aside.write_bytes(_HEADER + hashlib.sha256(data).digest() + data)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _rebuilt(data: bytes, target_context: Any) -> Any:
    """Return the compiled form in ``data``; None if it is damaged."""
    start = len(_HEADER) + hashlib.sha256().digest_size
    head, body = data[:start], data[start:]
    if head != _HEADER + hashlib.sha256(body).digest():
        return None
    return CompileResult._rebuild(target_context, *pickle.loads(body))


@functools.cache
def _told() -> set[str]:
    return set()


def _warn_once(text: str, *about: object) -> None:
    if text not in _told():
        _told().add(text)
        _log.warning(text, *about)
