"""State on disk that any HDF5 tool reads, and that counts only when it is whole [torch.distributed.checkpoint]."""

from hpcdist.checkpoint.directory import latest, steps
from hpcdist.checkpoint.store import load, save, verify
from hpcdist.errors import CheckpointError

__all__ = ["CheckpointError", "latest", "load", "save", "steps", "verify"]
