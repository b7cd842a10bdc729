"""The state of a loader, saved by rank 0, goes on with other numbers of ranks and other batches; case 3 -> 2 -> 4."""

import itertools

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcdist.data import DataLoader, DistributedSampler

run = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 5))


class Identity:
    def batch(self, indices):
        return indices


def take(loaders, steps):
    """Let all ranks take ``steps`` batches, as many as there are; return samples and the state of rank 0."""
    seen, states = [], []
    for loader in loaders:
        iterator = iter(loader)
        seen += [int(i) for batch in itertools.islice(iterator, steps) for i in batch]
        states.append(loader.state_dict())
        iterator.close()
    return seen, states[0]


@settings(deadline=None, max_examples=150)
@given(
    n=st.integers(0, 60), runs=st.lists(run, min_size=1, max_size=4), shuffle=st.booleans(), prefetch=st.integers(0, 3)
)
@example(n=14, runs=[(4, 4, 1), (3, 1, 1)], shuffle=False, prefetch=0)
@example(n=10, runs=[(4, 2, 2), (1, 1, 1)], shuffle=False, prefetch=0)
def test_every_sample_once(n, runs, shuffle, prefetch):
    """However often ranks and batches change, also where some ranks have no last batch, or a shorter one."""
    state, seen = None, []
    for ranks, batch, steps in [*runs, (3, 2, n)]:
        samplers = [DistributedSampler(n, ranks, rank, shuffle=shuffle, pad=False) for rank in range(ranks)]
        loaders = [DataLoader(Identity(), batch, sampler=sampler, prefetch=prefetch) for sampler in samplers]
        for loader in loaders if state else ():
            loader.load_state_dict(state)
        samples, after = take(loaders, steps)
        seen += samples
        assert len(seen) == len(set(seen))
        if len(seen) == n:  # the epoch has ended
            break
        state = after
    assert sorted(seen) == list(range(n))


def test_three_two_four_with_workers():
    state, seen = None, []
    for ranks, steps in ((3, 2), (2, 3), (4, 99)):
        after = state
        for rank in range(ranks):
            sampler = DistributedSampler(61, ranks, rank, seed=5, pad=False)
            loader = DataLoader(range(61), 2, sampler=sampler, num_workers=2)
            if state:
                loader.load_state_dict(state)
            samples, mine = take([loader], steps)
            loader.close()
            seen += samples
            after = mine if rank == 0 else after
        state = after
    assert sorted(seen) == list(range(61))


def test_the_state_of_an_epoch_is_of_one_order():
    """What was left of the epoch is dealt in the order that it would have had."""
    whole = list(DistributedSampler(20, 1, 0, seed=3))
    saver = iter(sampler := DistributedSampler(20, 2, 0, seed=3))
    list(itertools.islice(saver, 4))
    dealt = []
    for rank in range(4):
        other = DistributedSampler(20, 4, rank, seed=3)
        other.load_state_dict(sampler.state_dict())
        dealt.append(list(other))
    assert np.ravel(dealt, order="F").tolist() == whole[8:]
