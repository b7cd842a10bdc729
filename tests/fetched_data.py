"""Datasets that workers can import."""

import os
import time
from pathlib import Path

import numpy as np

from hpcdist.data import IterableDataset


class Squares:
    """Sample i is i squared; fails at 13; sleeps a second at 99; ends its process at 66."""

    def batch(self, indices):
        if 13 in indices:
            raise KeyError("marker-13")
        if 66 in indices:
            os._exit(3)
        if 99 in indices:
            time.sleep(1)
        return np.square(indices)


class Rows:
    """Samples one by one, as dicts; large ones."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": np.full((256, 256), index, np.float32), "process": os.getpid()}


class UnfriendlyError(Exception):
    """Cannot be pickled and back: its constructor wants two."""

    def __init__(self, a, b):
        super().__init__(f"{a} {b}")


class Refuses:
    def batch(self, indices):
        raise UnfriendlyError("marker", "two")


class Environment:
    """Says what a worker is."""

    def batch(self, indices):
        import sys

        import hpcdist
        from hpcdist.backends import cpu

        try:
            hpcdist.init()
            said = "initialised"
        except hpcdist.comm.DistError as error:
            said = f"wrong class {error}"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        return "mpi4py" in sys.modules, cpu.num_threads(), said


class Draws:
    """Samples from NumPy's global generator."""

    def batch(self, indices):
        return os.getpid(), np.random.random(4).tolist()  # noqa: NPY002


class OpenFiles:
    """Rows of HDF5 data, with the process and the offset of its file handle."""

    def __init__(self, dataset):
        self.dataset = dataset

    def batch(self, indices):
        rows = self.dataset.batch(indices)["y"]
        handles = list(Path("/proc/self/fd").iterdir())
        same = [handle for handle in handles if handle.exists() and handle.samefile(self.dataset.path)]
        return os.getpid(), len(same), rows.tolist()


class Locked:
    """Travels, but cannot be opened where it arrives."""

    def __getstate__(self):
        return {"marker": 1}

    def __setstate__(self, state):
        raise OSError("marker-locked")

    def batch(self, indices):
        return indices


class Mapped:
    """What became of an array in a worker."""

    def __init__(self, array):
        self.array = array

    def batch(self, indices):
        kind, writeable = type(self.array).__name__, self.array.flags.writeable
        return kind, writeable, self.array.dtype.str, self.array.tolist()


class Numbers(IterableDataset):
    """0, 1, 2, ...; fails in the place of a number."""

    def __init__(self, count, broken=None):
        self.count, self.broken = count, broken

    def __iter__(self):
        for i in range(self.count):
            if i == self.broken:
                raise OSError(f"marker-{i}")
            yield i


def total(samples):
    return sum(int(sample["x"][0, 0]) for sample in samples)


JOB = """
import os, sys, time
import numpy as np
from hpcdist.data import DataLoader

class Slow:
    def batch(self, indices):
        time.sleep(0.05)
        return os.getpid(), np.ones(1 << 20)

if __name__ == "__main__":
    loader = DataLoader(Slow(), [np.arange(1)] * 1000, num_workers=2)
    batches = iter(loader)
    print(*sorted({next(batches)[0] for _ in range(4)}), flush=True)
    if "end" in sys.argv:
        sys.exit(0)
    if "raise" in sys.argv:
        raise ValueError("marker")
    time.sleep(60)
"""

STUCK = """
import sys, time
from hpcdist.data import DataLoader

class Stuck:
    def batch(self, indices):
        time.sleep(60)

if __name__ == "__main__":
    loader = DataLoader(Stuck(), [[0]], num_workers=int(sys.argv[1]))
    print("ready", flush=True)
    list(loader)
"""

ABANDONED = """
import sys
import h5py, numpy as np
from hpcdist.data import DataLoader, HDF5Dataset

if __name__ == "__main__":
    with h5py.File("d.h5", "w") as file:
        file.create_dataset("x", data=np.random.default_rng(0).random((20000, 32)), chunks=(64, 32), compression="gzip")
    data = HDF5Dataset("d.h5", "x")
    iterators = [iter(DataLoader(data, 256, True, num_workers=workers, prefetch=50)) for workers in (2, 0)]
    print(*(len(next(iterator)["x"]) for iterator in iterators))
"""
