"""The post-local SGD hook against NumPy that has all gradients: bodies of tests that take a communicator."""

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import PeriodicModelAverager, PostLocalSGDOptimizer, replicate
from hpcdist.parallel.comm_hooks import PostLocalSGDState, post_localSGD_hook

WARMUP, PERIOD = 3, 2


class Pair(nn.Module):
    """Two numbers whose gradients are what is passed, and what is passed twice over."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(np.zeros(1)), nn.Parameter(np.zeros(1))

    def forward(self, gradient):
        return (self.first * Tensor(np.array([gradient])) + self.second * Tensor(np.array([2 * gradient]))).sum()


def gradient(rank, step):
    return float((rank + 1) * (step + 1))


def check_averages(comm):
    """Over all ranks while warming up, and then over pairs of them, the node, or nobody."""
    pairs = comm.split(comm.rank // 2)
    of_pair = [rank for rank in range(comm.size) if rank // 2 == comm.rank // 2]
    cases = ((pairs, True, of_pair), (None, True, [*range(comm.size)]), (pairs, False, [comm.rank]))
    for subgroup, averages, members in cases:
        state = PostLocalSGDState(None, subgroup, WARMUP, averages)
        model = Pair()
        replicate(model, comm, bucket_bytes=1).register_comm_hook(state, post_localSGD_hook)
        for step in range(6):
            model.zero_grad()
            model(gradient(comm.rank, step)).backward()
            ranks = range(comm.size) if step < WARMUP else members
            expected = np.mean([gradient(rank, step) for rank in ranks])
            np.testing.assert_allclose([*model.first.grad, *model.second.grad], [expected, 2 * expected], rtol=1e-12)
            assert state.iter == step + 1


def check_counts(comm):
    """Later steps send what their hook needs: nothing, if gradients stay where they are."""
    model = Pair()
    replicate(model, comm).register_comm_hook(PostLocalSGDState(None, None, 1, False), post_localSGD_hook)
    for number in (1, 0):
        with CommDebugMode() as mode:
            model(1.0).backward()
        assert mode.get_comm_counts() == {"all_reduce": 2 + number}


class Trainer:
    """A model in two parameter groups, its hook and its averager."""

    def __init__(self, comm):
        self.comm, self.model = comm, Pair()
        self.state = PostLocalSGDState(None, comm.split(comm.rank), WARMUP)
        replicate(self.model, comm).register_comm_hook(self.state, post_localSGD_hook)
        groups = [{"params": [self.model.first]}, {"params": [self.model.second]}]
        averager = PeriodicModelAverager(PERIOD, WARMUP, comm)
        self.optimizer = PostLocalSGDOptimizer(optim.SGD(groups, lr=1.0), averager)

    def step(self, number):
        self.optimizer.zero_grad()
        pulls = (-1.0) ** self.comm.rank if number >= WARMUP else gradient(self.comm.rank, number)
        self.model(pulls).backward()
        self.optimizer.step()
        return float(self.model.first.data[0]), float(self.model.second.data[0])

    def save(self):
        return self.model.state_dict(), self.optimizer.state_dict(), self.state.state_dict()

    def load(self, saved):
        for part, state in zip((self.model, self.optimizer, self.state), saved, strict=True):
            part.load_state_dict(state)


def reference(size, steps):
    """Return what each rank has after each step: (steps, ranks)."""
    x, after = np.zeros(size), []
    for number in range(steps):
        warm = np.array([gradient(rank, number) for rank in range(size)])
        x = x - (warm.mean() if number < WARMUP else (-1.0) ** np.arange(size))
        if number in (3, 5, 7, 9):
            x = np.full(size, x.mean())
        after.append(x)
    return np.array(after)


def check_schedule(comm):
    """Warm-up 3, period 2, two groups, resumed after step 4: averages at 3, 5, 7 and 9, and no second warm-up."""
    expected = reference(comm.size, 10)[:, comm.rank]
    for resumes in (False, True):
        trainer = Trainer(comm)
        for number in range(10):
            if resumes and number == 5:
                saved, trainer = trainer.save(), Trainer(comm)
                trainer.load(saved)
            first, second = trainer.step(number)
            assert first == pytest.approx(expected[number], rel=1e-12), number
            assert second == pytest.approx(2 * expected[number], rel=1e-12), number
        assert trainer.state.iter == trainer.optimizer.averager.step == 10


def saved_after(comm, steps):
    trainer = Trainer(comm)
    for number in range(steps):
        trainer.step(number)
    return trainer.save()


def check_goes_on_on_other_ranks(comm, saved):
    """Averages come at the steps that they would have come at, and no warm-up."""
    trainer = Trainer(comm)
    trainer.load(saved)
    for number in range(5, 10):
        ranks = comm.all_gather_object(trainer.step(number)[0])
        assert (len(set(ranks)) == 1) is (number in (5, 7, 9)), number


CHECKS = [check_averages, check_counts, check_schedule]
