"""Training data as one stream of token ids, whatever it comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.data.mapped import is_npy, map_npy, map_raw, token_dtype
from hpcdist.data.text import file_bytes, folder_bytes, stdlib_bytes
from hpcdist.errors import explain

__all__ = ["TokenData", "open_tokens", "split"]

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class TokenData:
    """A stream of token ids.

    Attributes
    ----------
    tokens : integer array, shape (n,)
        In memory or memory-mapped, read-only.
    vocab_size : int
        Ids lie in ``range(vocab_size)``.
    description : str
        What it is, for people.
    """

    tokens: Array
    vocab_size: int
    description: str


def open_tokens(path: str | os.PathLike[str] | None = None, dtype: npt.DTypeLike | None = None) -> TokenData:
    """Open training data.

    Parameters
    ----------
    path : path, optional
        None: the source of the running Python's standard library, as bytes. A text file: its bytes. A folder:
        the bytes of all regular files by relative path. An HDF5 file: its 1-D integer dataset ``tokens``;
        FILE:NAME names another one. A ``.npy`` file: its 1-D integer array. FILE:DTYPE, as ``data.bin:uint16``: nothing
        but ids. The last two are memory-mapped, and their largest id + 1 is the size of the vocabulary.
    dtype : dtype, optional
        Of a file that holds nothing but ids, instead of FILE:DTYPE.

    Raises
    ------
    FileNotFoundError
        If there is no such file or folder.
    OSError
        If it cannot be read.
    ValueError
        If it is empty, or does not hold tokens.
    """
    try:
        data = _stdlib() if path is None else _open(os.fspath(path), dtype)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(
            explain(
                "training data cannot be read",
                got=f"{error.filename or path}: {error.strerror}",
                expected="a readable text file, folder, .npy file, or HDF5 file (FILE or FILE:NAME)",
            )
        ) from error
    data.tokens.flags.writeable = False
    return data


def split(tokens: Array, fraction: float = 0.05) -> tuple[Array, Array]:
    """Return ``tokens`` without their last ``fraction``, and that part, held out of training; both views.

    Raises
    ------
    ValueError
        If ``fraction`` is not in [0, 1).
    """
    if not 0 <= fraction < 1:
        raise ValueError(explain("split: fraction held out", got=fraction, expected="at least 0, below 1"))
    cut = len(tokens) - int(len(tokens) * fraction)
    return tokens[:cut], tokens[cut:]


def _open(text: str, dtype: npt.DTypeLike | None) -> TokenData:
    path, name = Path(text), ""
    if not path.exists() and ":" in text:
        file, _, name = text.rpartition(":")
        path = Path(file)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(explain("training data", got=path, expected="a regular file or a folder"))
    if path.is_dir() and not name:
        return _folder(path)
    if dtype is not None:
        return _ids(path, *map_raw(path, np.dtype(dtype)))
    if _is_hdf5(path):
        return _hdf5(path, name or "tokens")
    stated = token_dtype(name) if name else None
    if stated:
        return _ids(path, *map_raw(path, stated))
    if name:
        raise ValueError(
            explain("training data: FILE:NAME", got=text, expected="FILE in HDF5 format, or an integer type")
        )
    return _ids(path, *map_npy(path)) if is_npy(path) else _text(path)


def _stdlib() -> TokenData:
    tokens, count = stdlib_bytes()
    return TokenData(tokens, 256, f"Python's standard library, {count} files, {_size(tokens)}")


def _text(path: Path) -> TokenData:
    tokens = file_bytes(path)
    return TokenData(tokens, 256, f"text file {path}, {_size(tokens)}")


def _folder(path: Path) -> TokenData:
    tokens, count = folder_bytes(path)
    return TokenData(tokens, 256, f"folder {path}, {count} files, {_size(tokens)}")


def _hdf5(path: Path, name: str) -> TokenData:
    from hpcdist.data.hdf5 import read_tokens

    tokens, vocab_size = read_tokens(path, name)
    return TokenData(tokens, vocab_size, f"{path}:{name}, {len(tokens):,} tokens of {vocab_size:,}")


def _ids(path: Path, tokens: Array, vocab_size: int) -> TokenData:
    return TokenData(tokens, vocab_size, f"{path}, {len(tokens):,} tokens of {vocab_size:,}")


def _is_hdf5(path: Path) -> bool:
    """Look for the signature where the format allows it: at 0, 512, 1024, 2048, ..."""
    size, offset = path.stat().st_size, 0
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            if file.read(len(_HDF5_SIGNATURE)) == _HDF5_SIGNATURE:
                return True
            offset = 2 * offset or 512
    return False


def _size(tokens: Array) -> str:
    return f"{tokens.nbytes / 1e6:,.1f} MB" if tokens.nbytes >= 1e6 else f"{tokens.nbytes:,} bytes"
