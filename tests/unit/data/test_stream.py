"""Streams shared by ranks and workers, against lists."""

import itertools
import pickle
import traceback

import numpy as np
import pytest
from fetched_data import Numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.data import DataLoader, IterableDataset, StreamSampler


def loaders(count, ranks, batch, **kw):
    return [DataLoader(Numbers(count), batch, sampler=StreamSampler(ranks, rank), **kw) for rank in range(ranks)]


def read(loader):
    return [batch.tolist() for batch in loader]


def test_one_rank_reads_all_again_and_again():
    loader = DataLoader(Numbers(5), 2)
    for _ in range(2):
        assert read(loader) == [[0, 1], [2, 3], [4]]
    assert read(DataLoader(Numbers(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    assert read(DataLoader(Numbers(0), 2)) == []


@settings(deadline=None)
@given(count=st.integers(0, 25), ranks=st.integers(1, 4), batch=st.integers(1, 5), prefetch=st.integers(0, 3))
def test_ranks_share_it(count, ranks, batch, prefetch):
    exact = [read(loader) for loader in loaders(count, ranks, batch, prefetch=prefetch)]
    assert [list(itertools.chain(*mine)) for mine in exact] == [list(range(r, count, ranks)) for r in range(ranks)]
    even = [read(loader) for loader in loaders(count, ranks, batch, prefetch=prefetch, drop_last=True)]
    assert [len(mine) for mine in even] == [count // (ranks * batch)] * ranks
    assert even == [mine[: len(e)] for mine, e in zip(exact, even, strict=True)]


@settings(deadline=None)
@given(
    count=st.integers(0, 60),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=3),
)
def test_it_goes_on_with_other_numbers_of_ranks_and_other_batches(count, runs):
    state, seen = {"sampler": {"position": 0}}, []
    for ranks, batch, steps in runs:
        group = loaders(count, ranks, batch, drop_last=True)
        steps = min(steps, (count - len(seen)) // (ranks * batch))
        for loader in group:
            loader.load_state_dict(state)
            iterator = iter(loader)
            seen += [int(i) for some in itertools.islice(iterator, steps) for i in some]
            if loader is group[0]:
                after = loader.state_dict()
            assert loader.state_dict() == after
            iterator.close()
        state = after
        assert sorted(seen) == list(range(len(seen)))
        assert state["sampler"]["position"] == len(seen)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_share_it(workers):
    group = loaders(23, 2, 3, num_workers=workers)
    try:
        for _ in range(2):
            seen = [read(loader) for loader in group]
            assert list(itertools.chain(*seen[0])) == list(range(0, 23, 2))
            assert list(itertools.chain(*seen[1])) == list(range(1, 23, 2))
        iterator = iter(group[0])
        head = [next(iterator).tolist(), next(iterator).tolist()]
        assert group[0].state_dict() == {"sampler": {"position": 12}}
        iterator.close()
        assert head + read(group[0]) == seen[0]  # goes on where it was left
        assert group[0].state_dict() == {"sampler": {"position": 0}}
    finally:
        for loader in group:
            loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_no_end(workers):
    loader = DataLoader(Numbers(9, broken=5), 2, num_workers=workers)
    for _ in range(2):
        seen = []
        loader.load_state_dict({"sampler": {"position": 0}})
        with pytest.raises(OSError, match="marker-5") as caught:
            seen.extend(batch.tolist() for batch in loader)
        assert seen == [[0, 1], [2, 3]]
        assert "raise OSError" in "".join(traceback.format_exception(caught.value))
    loader.close()


def test_what_can_skip_is_not_read():
    class Seek:
        def __init__(self):
            self.place, self.made = 0, []

        def __iter__(self):
            return self

        def __next__(self):
            if self.place >= 20:
                raise StopIteration
            self.made.append(self.place)
            self.place += 1
            return self.made[-1]

        def skip(self, n):
            self.place += n

    class Source(IterableDataset):
        def __iter__(self):
            made.append(Seek())
            return made[-1]

    made = []
    loader = DataLoader(Source(), 2, sampler=StreamSampler(3, 1))
    loader.load_state_dict({"sampler": {"position": 9}})
    assert read(loader) == [[10, 13], [16, 19]]
    assert made[0].made == [10, 13, 16, 19]


def test_samples_are_collated_or_not():
    class Pairs(IterableDataset):
        def __iter__(self):
            yield from ({"x": np.ones(2) * i, "name": str(i)} for i in range(3))

    first, second = DataLoader(Pairs(), 2)
    assert first["x"].tolist() == [[0, 0], [1, 1]]
    assert second["name"] == ["2"]
    assert list(DataLoader(Numbers(5), 2, collate_fn=sum)) == [1, 5, 4]


def test_the_place_of_a_reader_stays_in_its_process():
    loader = DataLoader(Numbers(5), 2)
    list(loader)
    assert pickle.loads(pickle.dumps(loader._source[0])).batch((1, np.array([0, 1]))).batch[0].tolist() == [0, 1]


def test_bad():
    for kw in ({"shuffle": True}, {"sampler": [1, 2]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError, match="samples of a stream have no numbers"):
            DataLoader(Numbers(5), **kw)
    with pytest.raises(ValueError, match="rank 2 of num_replicas 2"):
        StreamSampler(2, 2)
    with pytest.raises(ValueError, match="position"):
        StreamSampler().load_state_dict({"position": -1})
    with pytest.raises(TypeError, match="no length"):
        len(DataLoader(Numbers(5), 2))
