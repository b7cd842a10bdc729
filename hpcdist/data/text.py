"""Text as bytes: one file, a folder, or the source of Python's standard library."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcdist.errors import explain

__all__ = ["Bytes", "file_bytes", "folder_bytes", "folder_files", "stdlib_bytes", "stdlib_files"]

Bytes = npt.NDArray[np.uint8]

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"})


def file_bytes(path: Path) -> Bytes:
    """Return the bytes of a regular file, memory-mapped.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is empty.
    """
    if path.stat().st_size == 0:
        raise ValueError(_empty(path, "file"))
    return np.memmap(path, np.uint8, mode="r")


def folder_bytes(folder: Path) -> tuple[Bytes, int]:
    """Return the bytes of all files below ``folder`` one after the other, and the number of files.

    Raises
    ------
    OSError
        If a file or folder cannot be read.
    ValueError
        If there is no file, or all are empty.
    """
    files = folder_files(folder)
    return _joined(folder, files), len(files)


def stdlib_bytes() -> tuple[Bytes, int]:
    """Return the source of the running Python's standard library as bytes, and the number of its files.

    Raises
    ------
    ValueError
        If this Python comes without sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = stdlib_files(folder)
    return _joined(folder, files), len(files)


def folder_files(folder: Path) -> list[Path]:
    """Return the regular files below ``folder``, ordered by relative path.

    Links to files are followed; links to folders are not, so that no loop can be entered.
    """
    return _ordered(folder, (path for path in _walk(folder, frozenset()) if path.is_file()))


def stdlib_files(folder: Path) -> list[Path]:
    """Return the library's Python files without installed packages, tests and IDLE, ordered by path."""
    return _ordered(folder, (path for path in _walk(folder, _NOT_LIBRARY) if path.suffix == ".py" and path.is_file()))


def _walk(folder: Path, left_out: frozenset[str]) -> Iterator[Path]:
    def stop(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if name not in left_out]
        yield from (Path(here, name) for name in names)


def _ordered(folder: Path, files: Iterator[Path]) -> list[Path]:
    return sorted(files, key=lambda path: os.fsencode(path.relative_to(folder)))


def _joined(folder: Path, files: Sequence[Path]) -> Bytes:
    """Read ``files`` into one array without a second copy."""
    sizes = [path.stat().st_size for path in files]
    whole = np.empty(sum(sizes), np.uint8)
    if not whole.size:
        raise ValueError(_empty(folder, "folder"))
    start = 0
    for path, size in zip(files, sizes, strict=True):
        with path.open("rb") as file:
            if file.readinto(whole.data[start : start + size]) != size:
                raise OSError(explain("training data: a file became shorter while it was read", got=path))
        start += size
    return whole


def _empty(path: Path, kind: str) -> str:
    return explain(f"training data: empty {kind}", got=path, expected="at least one byte of text")
