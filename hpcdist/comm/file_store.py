"""A store in a folder that all its holders see: processes of one host or of several, without a server or a port."""

from __future__ import annotations

import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hpcdist.comm.contents import Change, Contents
from hpcdist.comm.journal import Journal
from hpcdist.comm.store import Store

__all__ = ["FileStore"]

T = TypeVar("T")

_LEFT = "\0left"
"""Key under which holders count who leaves; no caller's key begins like that."""
_FIRST_NAP_S, _LAST_NAP_S = 1e-3, 0.1


class FileStore(Store):
    """A store in a folder.

    It works on NFS, and no holder that is killed, or stands still, keeps the others waiting. Nothing in it is a pickle.

    Parameters
    ----------
    path : path
        A folder, made if missing. One that an earlier job has left behind still has that job's keys.
    world_size : int
        How many holders there will be: the last one that ends, or calls :meth:`close`, removes the folder. Clones do
        not count. -1: nobody removes it.
    """

    def __init__(self, path: str | os.PathLike[str], world_size: int = -1) -> None:
        super().__init__()
        self.path, self.world_size = Path(path), world_size
        self._journal, self._lock = Journal(self.path), threading.Lock()
        self._leave = weakref.finalize(self, _leave, self._journal, world_size, os.getpid())

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r})"

    def close(self) -> None:
        """Leave the store, which cannot be used any more; the last of ``world_size`` holders removes the folder."""
        self._leave()

    def clone(self) -> FileStore:
        """Return another holder of the same keys and values, with a time limit of its own."""
        twin = FileStore(self.path)
        twin.timeout = self.timeout
        return twin

    def list_keys(self) -> list[str]:
        """Return all keys, of values and of queues, sorted."""
        return [key for key in super().list_keys() if key != _LEFT]

    def _apply(self, change: Change) -> bytes | None:
        with self._lock:
            return self._journal.make(change)

    def _await(self, question: Callable[[Contents], T], limit_s: float) -> T | None:
        end, nap_s = time.monotonic() + limit_s, _FIRST_NAP_S
        while True:
            with self._lock:
                self._journal.catch_up()
                answer = question(self._journal.contents)
            left_s = end - time.monotonic()
            if answer or left_s <= 0:
                return answer or None
            time.sleep(min(nap_s, left_s))
            nap_s = min(2 * nap_s, _LAST_NAP_S)


def _leave(journal: Journal, world_size: int, pid: int) -> None:
    """Count a holder out; remove the folder if all are. A forked child is not the holder."""
    if world_size < 1 or os.getpid() != pid or not journal.folder.exists():
        return
    if int(journal.make(Change("add", _LEFT, (b"1",))) or 0) >= world_size:
        shutil.rmtree(journal.folder, ignore_errors=True)
