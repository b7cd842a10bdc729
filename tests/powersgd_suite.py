"""PowerSGD against NumPy that has the gradients of all ranks: bodies of tests that take a communicator."""

import itertools

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import comm_hooks, replicate
from hpcdist.parallel.comm_hooks import PowerSGDState, powerSGD_hook

SHAPES = {"square": (9, 9), "wide": (6, 20), "flat": (7,), "kernel": (12, 3, 3, 2), "small": (2, 2), "number": ()}
START = 2


class Given(nn.Module):
    """Parameters whose gradients are what is passed."""

    def __init__(self, shapes, dtype=np.float64):
        super().__init__()
        self.names = [*shapes]
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(np.zeros(shape, dtype)))

    def forward(self, grads):
        return sum((getattr(self, name) * Tensor(grads[name])).sum() for name in self.names)


def gradients(size, step, shapes=SHAPES, dtype=np.float64):
    """Return the gradients of each rank: what they have in common changes slowly."""
    rng, common = np.random.default_rng([step, size]), np.random.default_rng(size)
    made = []
    for _ in range(size):
        made.append({k: rng.standard_normal(s).astype(dtype) for k, s in shapes.items()})
    shared = {k: 3 * common.standard_normal(s).astype(dtype) for k, s in shapes.items()}
    return [{k: np.asarray(g + shared[k], dtype) for k, g in mine.items()} for mine in made]


# ---------------------------------------------------------------- the reference: all ranks in one process
def orthogonal(x, epsilon):
    if epsilon == 0:
        return np.linalg.qr(x)[0]
    columns = []
    for column in x.T.copy():
        for other in columns:
            column = column - other * (other @ column)
        columns.append(column / (np.linalg.norm(column) + epsilon))
    return np.stack(columns, 1)


class Reference:
    """Algorithms 1 and 2 of the paper for one matrix, of which every rank has a term."""

    def __init__(self, size, shape, place, *, rank, feedback, warm, epsilon, seed):
        self.rows, self.columns = shape[0], int(np.prod(shape[1:]))
        self.errors = np.zeros((size, self.rows, self.columns))
        self.rank, self.feedback, self.warm, self.epsilon = rank, feedback, warm, epsilon
        self.key, self.q = lambda step: [seed, step, 0, place], None

    def step(self, terms, number):
        terms = np.stack([t.reshape(self.rows, self.columns) for t in terms]) + self.errors
        if self.q is None or not self.warm:
            r = min(self.rank, self.rows, self.columns)
            self.q = np.random.default_rng(self.key(number)).standard_normal((self.columns, r))
        p = orthogonal(terms.mean(0) @ orthogonal(self.q, self.epsilon), self.epsilon)
        self.q = terms.mean(0).T @ p
        found = p @ self.q.T
        if self.feedback:
            self.errors = terms - found
        return found


def is_thin(shape, rank, rate):
    n, m = (shape[0], int(np.prod(shape[1:]))) if len(shape) > 1 else (1, 1)
    return rank * (n + m) * rate < n * m


def replicated(comm, state, dtype=np.float64):
    made = replicate(Given(SHAPES, dtype), comm)
    made.register_comm_hook(state, powerSGD_hook)
    return made


def stepped(replica, grads):
    module = replica.module
    module.zero_grad()
    module(grads[replica.comm.rank]).backward()
    return {name: getattr(module, name).grad.copy() for name in module.names}


OPTIONS = [
    {"rank": rank, "feedback": feedback, "warm": warm, "epsilon": epsilon, "seed": 3}
    for rank, feedback, warm, epsilon in itertools.product((1, 2), (True, False), (True, False), (0, 1e-8))
]


def check_equals_numpy(comm, options):
    """Each step, of whole gradients and then of products, on every rank; and the same bits everywhere."""
    rate = 1.2
    state = PowerSGDState(
        None,
        options["rank"],
        START,
        rate,
        options["feedback"],
        options["warm"],
        options["epsilon"],
        options["seed"],
    )
    replica = replicated(comm, state)
    thin = [name for name, shape in SHAPES.items() if is_thin(shape, options["rank"], rate)]
    assert thin == ["square", "wide", "kernel"]
    references = {name: Reference(comm.size, SHAPES[name], i, **options) for i, name in enumerate(thin)}
    for step in range(5):
        grads = gradients(comm.size, step)
        found = stepped(replica, grads)
        for name, value in found.items():
            terms = [g[name] for g in grads]
            expected = np.mean(terms, 0)
            if name in thin and step >= START:
                expected = references[name].step(terms, step).reshape(value.shape)
                assert np.linalg.matrix_rank(value.reshape(len(value), -1)) == options["rank"]
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9, err_msg=f"{name} at {step}")
            assert all((other == value).all() for other in comm.all_gather_object(value))
    assert state.iter == 5


def check_nothing_is_lost(comm):
    """What was returned and what is left as an error add up to the gradients there were."""
    state = PowerSGDState(None, 1, START, 1)
    replica = replicated(comm, state)
    total, returned = 0.0, 0.0
    for step in range(12):
        grads = gradients(comm.size, step)
        total = total + np.mean([g["wide"] for g in grads], 0)
        returned = returned + stepped(replica, grads)["wide"]
    errors = [e["errors"]["0"] for e in comm.all_gather_object(state.state_dict())]
    sizes = [int(np.prod(s)) for s in SHAPES.values()]
    left = np.mean(errors, 0)[sizes[0] : sizes[0] + sizes[1]].reshape(6, 20)
    assert abs(left).max() > 0.1
    np.testing.assert_allclose(returned + left, total, rtol=1e-9, atol=1e-9)


def check_low_rank_is_exact(comm):
    """A matrix of rank r is what comes out, from the second step of its kind on."""
    state = PowerSGDState(None, 2, START, 1)
    replica = replicated(comm, state)
    rng = np.random.default_rng(0)
    thin = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 20))
    for step in range(4):
        grads = [{**g, "wide": thin * (rank + 1)} for rank, g in enumerate(gradients(comm.size, step))]
        found = stepped(replica, grads)["wide"]
        np.testing.assert_allclose(found, thin * (comm.size + 1) / 2, rtol=1e-9, atol=1e-9)


def check_messages(comm):
    """One message a bucket, and two once gradients are products; two more are the hook's own."""
    sent = []
    replica = replicated(comm, PowerSGDState(None, 1, START, 1))
    for step in range(4):
        with CommDebugMode() as mode:
            stepped(replica, gradients(comm.size, step))
        sent.append(mode.get_comm_counts())
    assert sent == [{"all_reduce": 3}] * 2 + [{"all_reduce": 4}] * 2


def check_resumes(comm):
    """A state that goes on from a state dict gives the bits of one that was not interrupted."""
    state = PowerSGDState(None, 2, START, 1)
    replica = replicated(comm, state)
    for step in range(4):
        stepped(replica, gradients(comm.size, step))
    again = PowerSGDState(None, 2, START, 1)
    again.load_state_dict(state.state_dict())
    resumed = replicated(comm, again)
    for step in (4, 5):
        grads = gradients(comm.size, step)
        expected, found = stepped(replica, grads), stepped(resumed, grads)
        assert all((found[name] == g).all() for name, g in expected.items())
    assert again.iter == 6


def check_float32_and_wrapped(comm):
    """Gradients of 32 bits, and 16 bits by a wrapper, are near those of 64."""
    results = []
    for hook, dtype in (
        (powerSGD_hook, np.float64),
        (powerSGD_hook, np.float32),
        (comm_hooks.fp16_compress_wrapper(powerSGD_hook), np.float32),
        (comm_hooks.bf16_compress_wrapper(powerSGD_hook), np.float32),
    ):
        replica = replicate(Given(SHAPES, dtype), comm)
        replica.register_comm_hook(PowerSGDState(None, 2, START, 1), hook)
        for step in range(4):
            found = stepped(replica, gradients(comm.size, step, dtype=dtype))
        results.append(found)
    for other, tolerance in zip(results[1:], (1e-4, 3e-2, 2e-1), strict=True):
        for name, value in results[0].items():
            assert other[name].dtype == np.float32
            np.testing.assert_allclose(other[name], value, atol=tolerance, err_msg=name)


def check_other_buckets(comm):
    """Where others are trained from some step on, errors of buckets that are no more are forgotten."""
    replica = replicated(comm, PowerSGDState(None, 1, START, 1))
    for step in range(4):
        replica.module.wide.requires_grad = step < 3
        grads = gradients(comm.size, step)
        replica.module.zero_grad()
        replica.module(grads[comm.rank]).backward()
    assert replica.module.wide.grad is None
    np.testing.assert_allclose(replica.module.flat.grad, np.mean([g["flat"] for g in grads], 0), rtol=1e-9)


def check_bytes(comm):
    """What is sent is P, Q and what is not thin."""
    sizes = []

    class Counted:
        def __init__(self, group):
            self.group = group

        def __getattr__(self, name):
            return getattr(self.group, name)

        def iall_reduce(self, x, *args):
            sizes.append(x.size)
            return self.group.iall_reduce(x, *args)

        def all_reduce(self, x, *args):
            sizes.append(x.size)
            return self.group.all_reduce(x, *args)

    replica = replicated(comm, PowerSGDState(Counted(comm.dup()), 2, 0, 1, False, False))
    stepped(replica, gradients(comm.size, 0))
    assert sizes == [2 * (9 + 6 + 12) + 7 + 4 + 1, 2 * (9 + 20 + 18)]


CHECKS = [
    check_bytes,
    check_nothing_is_lost,
    check_low_rank_is_exact,
    check_messages,
    check_resumes,
    check_float32_and_wrapped,
    check_other_buckets,
]

REFUSED = [
    ({"start_powerSGD_iter": 1}, "start_powerSGD_iter"),
    ({"start_powerSGD_iter": 0, "warm_start": False}, "start_powerSGD_iter"),
    ({"start_powerSGD_iter": 1, "use_error_feedback": False}, "start_powerSGD_iter"),
    ({"matrix_approximation_rank": 0}, "rank"),
    ({"min_compression_rate": 0}, "min_compression_rate"),
    ({"orthogonalization_epsilon": -1.0}, "orthogonalization_epsilon"),
]


def check_refused():
    for options, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            PowerSGDState(**options)
    state = PowerSGDState(start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
    assert (state.start, state.iter) == (0, 0)
