"""Memory that the ranks of one node share: pages without a name, which go when the last of them does."""

from __future__ import annotations

import mmap
import os
import secrets
import socket
from pathlib import Path

from hpcdist.comm.communicator import Communicator

__all__ = ["node_name", "share"]

_FOLDER = Path("/dev/shm")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def node_name() -> str:
    """Return what all processes of one running system have in common, and others have not."""
    return f"{socket.gethostname()} {_BOOT.read_text().strip() if _BOOT.exists() else ''}"


def share(comm: Communicator, num_bytes: int) -> mmap.mmap | None:
    """Return ``num_bytes`` of zeroed memory that all ranks of ``comm`` see; None on all if that fails on any.

    Collective over ``comm``, whose ranks must be on one node. The file behind it has no name any more when this
    returns, so nothing is left behind however the ranks end.
    """
    path = _FOLDER / f"hpcdist-{os.getpid()}-{secrets.token_hex(8)}"
    memory = _create(path, num_bytes) if comm.rank == 0 else None
    name, fine = comm.broadcast_object((str(path), memory is not None))
    if fine and memory is None:
        memory = _attach(Path(name), num_bytes)
    everyone = all(comm.all_gather_object(memory is not None))
    if comm.rank == 0:
        path.unlink(missing_ok=True)
    return memory if everyone else None


def _create(path: Path, num_bytes: int) -> mmap.mmap | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)  # a full file system is an error here, not a signal later
            return mmap.mmap(descriptor, num_bytes)
        finally:
            os.close(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        return None


def _attach(path: Path, num_bytes: int) -> mmap.mmap | None:
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(descriptor, num_bytes)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
