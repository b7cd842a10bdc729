"""Case B40 and the rules around it."""

import numpy as np
import pytest

from hpcdist.data import DistributedSampler


def deal(n, ranks, epoch=0, **kw):
    samplers = [DistributedSampler(n, ranks, rank, **kw) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    dealt = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(mine) for mine in dealt]
    return dealt


class TestB40:
    def test_padding_repeats_the_first_samples(self):
        dealt = deal(10, 4, shuffle=False)
        assert dealt == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
        assert np.mean(np.concatenate(dealt)) == pytest.approx(46 / 12)  # the biased metric that exact mode avoids

    def test_drop_last_drops_the_tail(self):
        assert deal(10, 4, shuffle=False, drop_last=True) == [[0, 4], [1, 5], [2, 6], [3, 7]]

    def test_exact_mode_gives_each_sample_once(self):
        dealt = deal(10, 4, shuffle=False, pad=False)
        assert dealt == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
        assert sum(map(sum, dealt)) / sum(map(len, dealt)) == 4.5

    def test_fewer_samples_than_ranks(self):
        assert deal(2, 4, shuffle=False) == [[0], [1], [0], [1]]
        assert deal(2, 4, shuffle=False, pad=False) == [[0], [1], [], []]
        assert deal(2, 4, shuffle=False, drop_last=True) == [[], [], [], []]

    @pytest.mark.parametrize("kw", [{}, {"pad": False}, {"drop_last": True}], ids=str)
    def test_no_samples_at_all(self, kw):
        assert deal(0, 4, **kw) == [[], [], [], []]

    def test_epochs_differ_and_ranks_are_disjoint(self):
        first, second = deal(100, 4, pad=False), deal(100, 4, epoch=1, pad=False)
        assert first != second
        for dealt in (first, second):
            assert sorted(np.concatenate(dealt)) == list(range(100))


def test_one_sample_many_ranks_pads_in_rounds():
    assert deal(1, 5, shuffle=False) == [[0]] * 5


def test_order_depends_on_seed_and_epoch_only():
    assert deal(50, 1, epoch=3, seed=7) == deal(50, 1, epoch=3, seed=7)
    assert deal(50, 1, seed=7) != deal(50, 1, seed=8)
    one, four = deal(48, 1)[0], deal(48, 4)
    assert [four[i % 4][i // 4] for i in range(48)] == one


def test_a_dataset_counts_by_its_length():
    assert list(DistributedSampler("abcde", 2, 1, shuffle=False, pad=False)) == [1, 3]
    assert list(DistributedSampler(np.int64(5), 2, 1, shuffle=False, pad=False)) == [1, 3]
    with pytest.raises(TypeError, match="number of samples"):
        DistributedSampler(2.5, 2, 1)


def test_state_resumes_in_the_middle_and_the_next_epoch_is_whole():
    whole = DistributedSampler(20, 2, 1)
    whole.set_epoch(3)
    expected = list(whole)

    saver = DistributedSampler(20, 2, 1)
    saver.set_epoch(3)
    samples = iter(saver)
    head = [next(samples) for _ in range(4)]

    loader = DistributedSampler(20, 2, 1)
    loader.load_state_dict(saver.state_dict())
    loader.set_epoch(3)  # as a loop does; must not lose the position
    assert head + list(loader) == expected
    assert list(loader) == expected
    loader.set_epoch(4)
    assert len(list(loader)) == 10


def test_state_after_the_last_sample_leaves_nothing():
    saver = DistributedSampler(3, 1, 0, shuffle=False)
    samples = iter(saver)
    assert [next(samples) for _ in range(3)] == [0, 1, 2]
    loader = DistributedSampler(3, 1, 0, shuffle=False)
    loader.load_state_dict(saver.state_dict())
    assert list(loader) == []
    assert list(loader) == [0, 1, 2]


def test_state_of_a_larger_dataset_is_refused():
    with pytest.raises(ValueError, match=r"position in the epoch\n  got +11"):
        DistributedSampler(10, 2, 0).load_state_dict({"epoch": 0, "position": 11})


@pytest.mark.parametrize("other", [{"seed": 1}, {"shuffle": False}], ids=str)
def test_state_of_another_order_is_refused(other):
    state = DistributedSampler(10, 2, 0).state_dict()
    with pytest.raises(ValueError, match=f"state\n(?s:.*){next(iter(other))}"):
        DistributedSampler(10, 2, 0, **other).load_state_dict(state)
    with pytest.raises(ValueError, match="num_samples"):
        DistributedSampler(12, 2, 0).load_state_dict(state)
    DistributedSampler(10, 3, 1, pad=False).load_state_dict(state)  # other ranks, another mode


@pytest.mark.parametrize(("ranks", "rank"), [(2, 2), (2, -1), (0, 0)])
def test_bad_rank(ranks, rank):
    with pytest.raises(ValueError, match=f"rank {rank} of num_replicas {ranks}"):
        DistributedSampler(10, ranks, rank)


def test_bad_seed():
    with pytest.raises(ValueError, match="seed"):
        list(DistributedSampler(10, 1, 0, seed=-1))
