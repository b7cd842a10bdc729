"""Data on MPI ranks: case B40's metric, workers beside MPI, and a file that one rank lacks."""

import itertools

import h5py
import numpy as np
import pytest
from fetched_data import Environment, Numbers

from hpcdist.data import DataLoader, DistributedSampler, HDF5Dataset, StreamSampler


@pytest.fixture
def folder(world, tmp_path):
    """A folder that all ranks see."""
    return world.broadcast_object(tmp_path)


@pytest.mark.parametrize("count", [10, 2, 0])
def test_the_mean_over_exact_ranks_is_that_over_samples(world, count):
    sampler = DistributedSampler(count, world.size, world.rank, pad=False)
    seen = list(itertools.chain.from_iterable(DataLoader(range(count), 3, sampler=sampler)))
    total, samples = world.all_reduce(np.array([sum(seen), len(seen)]))
    assert (total, samples) == (sum(range(count)), count)


def test_workers_never_call_mpi_and_their_batches_can_be_reduced(world):
    sampler = DistributedSampler(20, world.size, world.rank, pad=False)
    loader = DataLoader(range(20), 3, sampler=sampler, num_workers=2)
    mine = np.concatenate([np.empty(0, np.int64), *loader])
    loader.close()
    assert world.all_reduce(np.bincount(mine, minlength=20)).tolist() == [1] * 20
    other = DataLoader(Environment(), [[0]], num_workers=1)
    mpi, _, said = next(iter(other))
    other.close()
    assert not mpi
    assert "LaunchError" in said


def test_a_stream_gives_all_ranks_equally_many_batches(world):
    """A loop that communicates in every batch ends on all ranks at once."""
    loader = DataLoader(Numbers(23), 2, sampler=StreamSampler(world.size, world.rank), drop_last=True)
    total = sum(int(world.all_reduce(batch).sum()) for batch in loader)
    assert total == sum(range(23 - 23 % (2 * world.size)))


def test_a_loader_goes_on_with_fewer_ranks(world):
    """The state of rank 0, saved where the epoch ends on some ranks only."""
    first = DataLoader(range(23), 2, sampler=DistributedSampler(23, world.size, world.rank, pad=False), prefetch=3)
    iterator = iter(first)
    seen = [int(i) for batch in itertools.islice(iterator, 2) for i in batch]
    state = world.broadcast_object(first.state_dict())
    iterator.close()
    fewer = max(world.size - 1, 1)
    if world.rank < fewer:
        second = DataLoader(range(23), 3, sampler=DistributedSampler(23, fewer, world.rank, pad=False))
        second.load_state_dict(state)
        seen += [int(i) for batch in second for i in batch]
    assert world.all_reduce(np.bincount(seen, minlength=23)).tolist() == [1] * 23


def test_a_file_that_one_rank_lacks_is_the_same_error_on_all(world, folder):
    path = folder / "d.h5"
    if world.rank == 0:
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(4)
    world.barrier()
    last = world.size - 1
    with pytest.raises(FileNotFoundError) as caught, world.agreed():
        HDF5Dataset(folder / "none.h5" if world.rank == last else path, "x")
    assert str(caught.value) == f"[Errno 2] No such file or directory: '{folder / 'none.h5'}'"
    assert len(HDF5Dataset(path, "x")) == 4
    world.barrier()
