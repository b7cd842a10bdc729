"""Save a state as one HDF5 file of whole arrays with a manifest, and load it back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hpcdist.checkpoint import index
from hpcdist.checkpoint.directory import committing, find, latest
from hpcdist.checkpoint.entry import State, Value, stored
from hpcdist.checkpoint.manifest import Manifest
from hpcdist.checkpoint.names import check_names
from hpcdist.comm.agreement import on_one_rank
from hpcdist.errors import CheckpointError, explain

if TYPE_CHECKING:
    from hpcdist.comm.communicator import Communicator

__all__ = ["load", "save", "verify"]

PathLike: TypeAlias = str | os.PathLike[str]

_REMEDIES = {
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some of your quota, or choose another folder",
    errno.EACCES: "choose a folder you may write to",
    errno.EPERM: "choose a folder you may write to",
    errno.EROFS: "choose a folder you may write to",
    errno.ENOTDIR: "choose a folder; there is a file of this name",
    errno.EEXIST: "choose a folder; there is a file of this name",
}


def save(folder: PathLike, state: State, *, step: int, comm: Communicator | None = None) -> None:
    """Write ``state`` as the checkpoint of ``step``; when this returns, it is on the disk.

    Collective over ``comm``: the state is the same on every rank, and rank 0 writes it. An error on rank 0 is
    the same error on every rank. A checkpoint of the same step is replaced; all others stay as they are, also
    when this fails.

    Parameters
    ----------
    folder : path
        Holds the checkpoints of a run; made if missing.
    state : mapping of str to array, int, float, str or bool
        Names may have groups (``optim/step``). Arrays of any layout; bool, integer, float, complex, bfloat16.
    step : int
        At least 0.
    comm : Communicator, optional
        None: this process writes.

    Raises
    ------
    CheckpointError
        If it cannot be written.
    ValueError, TypeError
        If ``state`` holds a name or value that a checkpoint cannot hold.
    """
    if comm is None:
        _save(Path(folder), state, step)
    else:
        on_one_rank(comm, lambda: _save(Path(folder), state, step))


def load(folder: PathLike, names: Iterable[str] | None = None, *, step: int | None = None) -> dict[str, Value]:
    """Read a checkpoint, and compare every entry with its checksum.

    Parameters
    ----------
    folder : path
        As given to :func:`save`.
    names : iterable of str, optional
        Entries to read; None: all.
    step : int, optional
        None: the latest.

    Returns
    -------
    dict
        Name to value, as saved: arrays are new, in C order (a NumPy scalar is one of no dimension); Python's scalars
        have their type.

    Raises
    ------
    CheckpointError
        If there is no such checkpoint, it is not whole, lacks a name, or an entry is damaged.
    """
    if isinstance(names, str):
        raise TypeError(explain("load: names", got=repr(names), expected="an iterable of names"))
    home, manifest = _chosen(Path(folder), step)
    wanted = list(manifest.entries) if names is None else list(names)
    missing = [name for name in wanted if name not in manifest.entries]
    if missing:
        some = ", ".join(list(manifest.entries)[:10])
        raise CheckpointError(
            explain(f"checkpoint {home} lacks entries", got=", ".join(missing[:10]), expected=f"names such as {some}")
        )
    return dict(index.read(home, {name: manifest.entries[name] for name in wanted}))


def verify(folder: PathLike, step: int | None = None) -> None:
    """Read all of a checkpoint (None: the latest) and compare every entry with its checksum.

    Raises
    ------
    CheckpointError
        If there is none, or it is not whole; names the damaged entries.
    """
    home, manifest = _chosen(Path(folder), step)
    bad = index.damaged(home, manifest.entries)
    if bad:
        raise CheckpointError(
            explain(f"checkpoint {home} is damaged", got=", ".join(bad[:10]), expected="the bytes that were saved")
        )


def _save(folder: Path, state: State, step: int) -> None:
    if step < 0:
        raise ValueError(explain("checkpoint: step", got=step, expected="at least 0"))
    check_names(state)
    arrays = {name: stored(name, value) for name, value in state.items()}
    try:
        with committing(folder, step) as home:
            entries = index.write(home, state, arrays)
            Manifest.of(home, step, entries).write(home)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(_write_failure(folder, step, error)) from error


def _chosen(folder: Path, step: int | None) -> tuple[Path, Manifest]:
    chosen = latest(folder) if step is None else step
    if chosen is None:
        raise CheckpointError(explain("no checkpoint to load", got=folder, expected="a folder with step-00000000"))
    return find(folder, chosen)


def _write_failure(folder: Path, step: int, error: Exception) -> str:
    try:
        kept = latest(folder)
    except OSError:
        kept = None
    intact = "no earlier one exists" if kept is None else f"earlier ones are intact, the latest is of step {kept}"
    remedy = _REMEDIES.get(getattr(error, "errno", None) or 0, "look at the folder's file system")
    return explain(f"checkpoint of step {step} not written to {folder} ({intact})", got=error, do=remedy)
