"""A journal: changes that processes on several hosts agree on, in a folder that all of them see, without a lock.

Every change is a file with the next number. It is written under a name of its own, and then linked to the number, which
only one process can do: who comes second reads what the first one wrote, and tries the number after it. Nobody holds
anything in between, so a process may be killed at any point. All processes make the same changes to their own copy of
the contents.

After a number of changes a new chapter begins, with a file of the contents at that point, its base. Old chapters are
cleared away a while later: the base is emptied first, and stays as an empty file, so that nobody can begin the chapter
again. Who has taken a number knows that it was not one of those cleared away if the base is whole afterwards.

Needed of the file system: hard links that fail if the name exists, as POSIX and NFS have them.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from contextlib import suppress
from pathlib import Path

from hpcdist.comm.contents import Change, Contents, pack, unpack
from hpcdist.errors import DistStoreError, explain

__all__ = ["Journal"]

_CHANGES = 512
"""In a chapter."""
_KEPT_S = 120.0
"""How long a process may be stopped in the middle of a change without getting an error."""
_BASE, _DRAFT = ".base", ".draft"
_WHOLE = b"\1"
"""Begins a base; one that was emptied has not even that."""


class Journal:
    """One process's view of a journal. Not for several threads at a time.

    Parameters
    ----------
    folder : Path
        Made if missing.
    changes, kept_s : int, float
        Changes in a chapter, and seconds that an old one is kept.

    Attributes
    ----------
    contents : Contents
        After the changes that this process knows of; :meth:`catch_up` learns of more.
    """

    def __init__(self, folder: Path, *, changes: int = _CHANGES, kept_s: float = _KEPT_S) -> None:
        self.folder, self._length, self._kept_s = folder, changes, kept_s
        folder.mkdir(parents=True, exist_ok=True)
        if not self._bases():
            self._publish(self._base(0), _WHOLE)
        self._chapter, self._number, self.contents = self._open_last()

    def make(self, change: Change) -> bytes | None:
        """Make a change, and return what it yields.

        Raises
        ------
        ValueError
            If it cannot be made.
        DistStoreError
            If the folder is gone, or if this process stood still so long that nobody can say whether it was made.
        """
        mark = secrets.token_bytes(16)
        draft = self._draft(_encode(change, mark))
        try:
            while True:
                results = self.catch_up()
                if mark in results:
                    break
                self._link(draft, self._page())
                if not self._is_whole():
                    raise self._too_slow()
        finally:
            draft.unlink(missing_ok=True)
        result = results[mark]
        if isinstance(result, ValueError):
            raise result
        return result

    def catch_up(self) -> dict[bytes, bytes | ValueError | None]:
        """Make the changes of others; return what each of them, by its mark, yielded."""
        results: dict[bytes, bytes | ValueError | None] = {}
        self._look_again()
        while True:
            data = _read(self._page())
            if data is not None:
                change, mark = _decode(data)
                results[mark] = _attempt(self.contents, change)
                self._number += 1
                if self._number == self._length:
                    self._turn()
            elif self._is_whole():
                return results
            else:  # this process was behind by chapters
                self._chapter, self._number, self.contents = self._open_last()

    # ---- chapters
    def _turn(self) -> None:
        """Begin the next chapter, as every process does that comes to the end of one; clear old ones away."""
        self._chapter, self._number = self._chapter + 1, 0
        base, whole = self._base(self._chapter), pack(_encode(change, b"") for change in self.contents.changes())
        if self._publish(base, _WHOLE + whole):
            with suppress(OSError):  # another may be clearing away too
                self._clear(base.stat().st_mtime - self._kept_s)

    def _clear(self, before: float) -> None:
        """Remove chapters that ended before a time of the file system's clock, and what killed processes left."""
        whole = [base for base in self._bases() if base.stat().st_size]
        ended = [base for base, after in itertools.pairwise(whole) if after.stat().st_mtime < before]
        for base in ended:
            self._draft(b"").replace(base)
        last = ended[-1].stem if ended else ""
        for path in self.folder.iterdir():
            if path.suffix == _DRAFT:
                outdated = path.stat().st_mtime < before
            else:
                outdated = path.suffix != _BASE and path.stem <= last
            if outdated:
                path.unlink(missing_ok=True)

    def _open_last(self) -> tuple[int, int, Contents]:
        """Return the last chapter, the number of its first change, and the contents there."""
        contents, data = Contents(), b""
        while not data:  # a listing may be old, and show only chapters that have been cleared away
            self._look_again()
            bases = self._bases()
            if not bases:
                raise self._removed()
            data = _read(bases[-1]) or b""
        for change in unpack(data[len(_WHOLE) :]):
            contents.apply(_decode(change)[0])
        return int(bases[-1].stem), 0, contents

    def _bases(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{_BASE}"))

    def _is_whole(self) -> bool:
        """Say whether the chapter is still there."""
        return bool(_read(self._base(self._chapter), len(_WHOLE)))

    # ---- files
    def _base(self, chapter: int) -> Path:
        return self.folder / f"{chapter:08}{_BASE}"

    def _page(self) -> Path:
        return self.folder / f"{self._chapter:08}.{self._number:04}"

    def _look_again(self) -> None:
        """Let NFS forget which names did not exist: to open a folder asks the server whether it has changed."""
        try:
            os.close(os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY))
        except FileNotFoundError:
            raise self._removed() from None

    def _too_slow(self) -> DistStoreError:
        what = f"journal {self.folder}: nobody can tell whether a change was made"
        got = f"this process stood still for {self._kept_s:g} s in the middle of it"
        return DistStoreError(explain(what, got=got, do="look at the value before it is tried again"))

    def _removed(self) -> DistStoreError:
        return DistStoreError(explain(f"journal {self.folder}: the folder has been removed"))

    def _draft(self, data: bytes) -> Path:
        path = self.folder / f"{secrets.token_hex(8)}{_DRAFT}"
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:
            raise self._removed() from None
        return path

    def _publish(self, page: Path, data: bytes) -> bool:
        """Let ``page`` have this content, all at once, unless it exists; say whether it did not."""
        draft = self._draft(data)
        try:
            return self._link(draft, page)
        finally:
            draft.unlink(missing_ok=True)

    def _link(self, draft: Path, page: Path) -> bool:
        try:
            page.hardlink_to(draft)
        except FileExistsError:  # by another process, or by us if an answer of the server was lost on the way
            return False
        except FileNotFoundError:  # an old draft was taken for one that a dead process left
            raise self._too_slow() from None
        except OSError as error:
            do = "use a folder on a file system that has hard links"
            raise DistStoreError(explain(f"journal {self.folder}: cannot link", got=error.strerror, do=do)) from error
        return True


def _read(path: Path, num_bytes: int = -1) -> bytes | None:
    """Return what is in a file, or its first bytes; None if there is no such file."""
    while True:
        try:
            with path.open("rb") as file:
                return file.read(num_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ESTALE:  # NFS: it was replaced just now
                raise


def _encode(change: Change, mark: bytes) -> bytes:
    return pack([mark, change.verb.encode(), change.key.encode(), *change.values])


def _decode(data: bytes) -> tuple[Change, bytes]:
    mark, verb, key, *values = unpack(data)
    return Change(verb.decode(), key.decode(), tuple(values)), mark


def _attempt(contents: Contents, change: Change) -> bytes | ValueError | None:
    try:
        return contents.apply(change)
    except ValueError as error:
        return error
