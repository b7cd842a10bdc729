"""Samplers: every order against its definition, the same on any machine, with state."""

import numpy as np
import pytest

from hpcdist.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

MAKE = {
    "sequential": lambda: SequentialSampler(12),
    "random": lambda: RandomSampler(12, seed=3),
    "replacement": lambda: RandomSampler(12, True, 20, seed=3),
    "subset": lambda: SubsetRandomSampler([5, 7, 9, 11], seed=3),
    "weighted": lambda: WeightedRandomSampler([1, 2, 0, 4], 9, seed=3),
    "distinct": lambda: WeightedRandomSampler([1, 2, 0, 4], 3, False, seed=3),
}


def test_sequential():
    assert list(SequentialSampler("abcd")) == [0, 1, 2, 3]
    assert list(SequentialSampler(0)) == []


def test_random_is_a_permutation_and_another_one_each_epoch():
    sampler = RandomSampler(50)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert sampler.epoch == 2


def philox(count, seed, epoch, round=0):
    """Philox 4x64-10 in integers: Salmon et al. 2011; NumPy counts from 1."""
    words = []
    for block in range(1, count // 4 + 2):
        c, k = [block, 0, round, 0], [seed, epoch]
        for _ in range(10):
            (h0, l0), (h1, l1) = (divmod(m * x, 2**64) for m, x in ((M0, c[0]), (M1, c[2])))
            c = [h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0]
            k = [(k[0] + W0) % 2**64, (k[1] + W1) % 2**64]
        words += c
    return words[:count]


M0, M1, W0, W1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def test_orders_are_fixed_for_ever():
    """A checkpoint must find the same order under any NumPy: words of Philox, sorted, or scaled."""
    sampler = RandomSampler(9, num_samples=18, seed=6)
    sampler.set_epoch(2)
    rounds = [philox(9, 6, 2, i) for i in range(2)]
    assert list(sampler) == [i for words in rounds for i in sorted(range(9), key=words.__getitem__)]
    draws = [(word >> 11) / 2**53 for word in philox(7, 1, 0)]
    assert list(RandomSampler(8, True, 7, seed=1)) == [int(draw * 8) for draw in draws]
    edges = [0.25, 1, 1.5, 4]
    weighted = list(WeightedRandomSampler([0.25, 0.75, 0.5, 2.5], 7, seed=1))
    assert weighted == [sum(edge <= draw * 4 for edge in edges) for draw in draws]


def test_more_draws_than_samples_are_permutations_in_a_row():
    draws = list(RandomSampler(5, num_samples=13))
    assert sorted(draws[:5]) == sorted(draws[5:10]) == list(range(5))
    assert draws[:5] != draws[5:10]
    assert len(set(draws[10:])) == 3


def test_with_replacement_every_sample_is_as_likely():
    counts = np.bincount(list(RandomSampler(4, True, 40_000, seed=2)), minlength=4)
    assert abs(counts - 10_000).max() < 5 * np.sqrt(40_000 * 0.25 * 0.75)


def test_subset():
    assert sorted(SubsetRandomSampler([3, 1, 8])) == [1, 3, 8]
    assert list(SubsetRandomSampler([])) == []


def test_weights_are_frequencies():
    weights = np.array([0, 1, 0, 3, 0, 6, 0])
    counts = np.bincount(list(WeightedRandomSampler(weights, 50_000)), minlength=7)
    expected = 50_000 * weights / weights.sum()
    assert (counts[weights == 0] == 0).all()
    assert (abs(counts - expected) <= 5 * np.sqrt(expected) + 1e-9).all()


def test_without_replacement_the_first_draw_follows_the_weights():
    sampler, firsts = WeightedRandomSampler([1, 0, 4, 5], 3, False), []
    for _ in range(4000):
        draws = list(sampler)
        assert len(set(draws)) == 3
        assert 1 not in draws
        firsts.append(draws[0])
    counts = np.bincount(firsts, minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.1, 0, 0.4, 0.5], atol=0.04)


@pytest.mark.parametrize("name", MAKE)
def test_state_resumes_in_the_middle(name):
    whole = MAKE[name]()
    epochs = [list(whole), list(whole)]
    assert len(whole) == len(epochs[0])
    saver = MAKE[name]()
    list(saver)
    samples = iter(saver)
    head = [next(samples), next(samples)]
    loader = MAKE[name]()
    loader.load_state_dict(saver.state_dict())
    assert loader.state_dict() == {"epoch": 1, "position": 2, "num_samples": len(whole), "seed": whole.seed}
    assert head + list(loader) == epochs[1]


def test_set_epoch_chooses_the_order():
    sampler = RandomSampler(30)
    epochs = [list(sampler) for _ in range(3)]
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]


@pytest.mark.parametrize("name", MAKE)
def test_a_state_that_does_not_fit_is_refused(name):
    with pytest.raises(ValueError, match="position in the epoch"):
        MAKE[name]().load_state_dict({"epoch": 0, "position": 99})
    for other in ({"seed": 9}, {"num_samples": 99}):
        with pytest.raises(ValueError, match=r"state\n.*\n.*\n  do +load it with the dataset"):
            MAKE[name]().load_state_dict(MAKE[name]().state_dict() | other)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SequentialSampler(-1), "number of samples"),
        (lambda: RandomSampler(0, num_samples=3), "num_samples"),
        (lambda: RandomSampler(3, num_samples=-1), "num_samples"),
        (lambda: RandomSampler(3, seed=-1), "seed"),
        (lambda: WeightedRandomSampler([1, -1], 2), "weights"),
        (lambda: WeightedRandomSampler([1, np.nan], 2), "weights"),
        (lambda: WeightedRandomSampler([[1]], 2), "weights"),
        (lambda: WeightedRandomSampler([0, 0], 2), "num_samples"),
        (lambda: WeightedRandomSampler([1, 0], 2, False), "num_samples"),
        (lambda: BatchSampler([1], 0), "batch_size"),
    ],
)
def test_bad_arguments(make, says):
    with pytest.raises(ValueError, match=says):
        make()


class TestBatches:
    def test_cut(self):
        assert [b.tolist() for b in BatchSampler(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
        assert [b.tolist() for b in BatchSampler(range(7), 3, drop_last=True)] == [[0, 1, 2], [3, 4, 5]]
        assert [len(BatchSampler(range(7), 3, drop)) for drop in (False, True)] == [3, 2]
        assert list(BatchSampler([], 3)) == []
        with pytest.raises(TypeError, match="no length"):
            len(BatchSampler(iter([1]), 3))

    def test_state_is_that_of_the_sampler(self):
        batches = BatchSampler(RandomSampler(10, seed=1), 3)
        iterator = iter(batches)
        head = [next(iterator), next(iterator)]
        again = BatchSampler(RandomSampler(10, seed=1), 3)
        again.load_state_dict(batches.state_dict())
        tail = list(again)
        assert np.concatenate([*head, *tail]).tolist() == list(RandomSampler(10, seed=1))
        again.set_epoch(0)
        assert np.concatenate(list(again)).tolist() == list(RandomSampler(10, seed=1))
        assert BatchSampler([1, 2], 1).state_dict() == {}


class Identity:
    def __len__(self):
        return 23

    def batch(self, indices):
        return indices


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kw", [{"pad": False}, {}, {"drop_last": True}], ids=str)
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (3, 1), (1, 4)])
def test_a_loader_goes_on_with_another_number_of_ranks(before, after, kw, shuffle):
    """In exact mode every sample comes once, whatever the numbers; else none but padding twice."""

    def loaders(ranks):
        samplers = [DistributedSampler(23, ranks, rank, shuffle=shuffle, **kw) for rank in range(ranks)]
        return [DataLoader(Identity(), 2, sampler=sampler) for sampler in samplers]

    saved, seen = [], []
    for loader in loaders(before):
        iterator = iter(loader)
        seen += [*next(iterator), *next(iterator)]
        saved.append(loader.state_dict())
        iterator.close()
    assert all(state == saved[0] for state in saved)
    order = {"num_samples": 23, "seed": 0, "shuffle": shuffle}
    assert saved[0] == {"sampler": {"epoch": 0, "position": 4 * before, **order}}
    for loader in loaders(after):
        loader.load_state_dict(saved[0])
        seen += [sample for batch in loader for sample in batch]
    if kw == {"pad": False}:
        assert sorted(seen) == list(range(23))
    elif kw == {}:
        assert set(seen) == set(range(23))
        assert len(seen) == 23 + -(23 - 4 * before) % after
    else:
        assert len(set(seen)) == len(seen) == 23 - (23 - 4 * before) % after


class TestLoader:
    def test_torch_arguments(self):
        assert [b.tolist() for b in DataLoader(Identity(), 10)] == [list(range(10)), [*range(10, 20)], [20, 21, 22]]
        assert len(DataLoader(Identity(), 10, drop_last=True)) == 2
        loader = DataLoader(Identity(), 10, True, seed=5)
        epochs = [np.concatenate(list(loader)).tolist() for _ in range(2)]
        assert epochs[0] == list(RandomSampler(23, seed=5))
        assert epochs[0] != epochs[1]
        assert sorted(epochs[1]) == list(range(23))
        assert list(DataLoader(Identity(), batch_sampler=[[1, 2], [3]])) == [[1, 2], [3]]

    def test_samples_one_by_one(self):
        loader = DataLoader([(i, float(i)) for i in range(5)], 2)
        assert [(a.tolist(), b.tolist()) for a, b in loader] == [([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4], [4])]
        assert list(DataLoader([1, 2, 3], 2, collate_fn=sum)) == [3, 3]

    def test_epochs_of_a_left_loop(self):
        loader = DataLoader(Identity(), 4, True, prefetch=10)
        whole = np.concatenate(list(DataLoader(Identity(), 4, True))).tolist()
        first = next(iter(loader))
        assert first.tolist() + np.concatenate(list(loader)).tolist() == whole

    @pytest.mark.parametrize(
        "kw",
        [
            {"batch_sampler": [[1]], "batch_size": 2},
            {"batch_sampler": [[1]], "shuffle": True},
            {"batch_sampler": [[1]], "sampler": [1]},
            {"sampler": [1], "shuffle": True},
        ],
        ids=str,
    )
    def test_two_who_choose(self, kw):
        with pytest.raises(ValueError, match="one or the other"):
            DataLoader(Identity(), **kw)

    def test_a_state_of_another_kind(self):
        with pytest.raises(ValueError, match="state"):
            DataLoader(Identity(), [[1]]).load_state_dict({"sampler": {"epoch": 0, "position": 1}})
        with pytest.raises(ValueError, match="state"):
            DataLoader(Identity(), 2).load_state_dict({"delivered": 1})
