"""The data file of a checkpoint: whole arrays under their names.

h5py lays the file out; the values go to their places by plain writes on one descriptor, hashed on the way. So
an error of the disk is an ordinary OSError that says what is wrong, and ``fsync`` on the descriptor that
wrote misses none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from hpcdist.array import Array, to_host
from hpcdist.checkpoint.entry import Entry, State, Value, as_value, raw_bytes
from hpcdist.errors import CheckpointError, explain

if TYPE_CHECKING:
    from hpcdist.checkpoint.hdf5 import Reader

__all__ = ["FILE_NAME", "damaged", "read", "write"]

FILE_NAME = "index.h5"
_BLOCK_BYTES = 1 << 23


def write(folder: Path, state: State, arrays: Mapping[str, Array]) -> dict[str, Entry]:
    """Write ``arrays``, the stored forms of ``state``, to ``folder/index.h5``, sync it, and describe them."""
    from hpcdist.checkpoint.hdf5 import lay_out

    path = folder / FILE_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        offsets = lay_out(path, arrays)
        entries = {}
        for name, array in arrays.items():
            ordered = np.asarray(to_host(array), order="C")
            checksum = _write_hashed(descriptor, raw_bytes(ordered), offsets.get(name, 0))
            entries[name] = Entry.of(state[name], ordered, checksum)
        os.fsync(descriptor)
    except BaseException:
        # HDF5 keeps a file open that it could not flush; without this its space would stay taken until the process ends
        os.ftruncate(descriptor, 0)
        raise
    finally:
        os.close(descriptor)
    return entries


def read(folder: Path, entries: Mapping[str, Entry]) -> Iterator[tuple[str, Value]]:
    """Yield the values of ``entries``.

    Raises
    ------
    CheckpointError
        At the first entry whose bytes are not those that were saved.
    """
    with _open(folder) as reader:
        for name, entry in entries.items():
            yield name, as_value(entry, _intact(reader, folder, name, entry))


def damaged(folder: Path, entries: Mapping[str, Entry]) -> list[str]:
    """Return the names of ``entries`` that cannot be read, or differ from what was saved."""
    bad = []
    with _open(folder) as reader:
        for name, entry in entries.items():
            try:
                _intact(reader, folder, name, entry)
            except CheckpointError:
                bad.append(name)
    return bad


def _open(folder: Path) -> Reader:
    from hpcdist.checkpoint.hdf5 import Reader

    try:
        return Reader(folder / FILE_NAME)
    except OSError as error:
        raise CheckpointError(
            explain("checkpoint file cannot be opened", got=f"{folder / FILE_NAME}: {error}", do=_remedy(folder))
        ) from error


def _intact(reader: Reader, folder: Path, name: str, entry: Entry) -> Array:
    """Read one entry and check its bytes."""
    try:
        array = reader.read(name, entry.shape, entry.numpy_dtype())
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(_damage(folder, name, str(error))) from error
    if not entry.fits(array):
        raise CheckpointError(_damage(folder, name, "bytes that do not fit their checksum"))
    return array


def _damage(folder: Path, name: str, got: str) -> str:
    return explain(f"checkpoint {folder}: entry {name!r} is damaged", got=got, do=_remedy(folder))


def _remedy(folder: Path) -> str:
    return f"load an earlier step, or remove {folder}: the one before it is the latest then"


def _write_hashed(descriptor: int, data: memoryview, offset: int) -> str:
    """Write ``data`` at ``offset`` and return its XXH3-64."""
    digest = xxhash.xxh3_64()
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        digest.update(block)
        while block:
            done = os.pwrite(descriptor, block, offset)
            block, offset = block[done:], offset + done
    return digest.hexdigest()
