"""Parameters that are averaged now and then, against plain NumPy: bodies of tests that take a communicator."""

import contextlib

import ml_dtypes
import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor, manual_seed
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor import Shard, distribute_tensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.optim.lr_scheduler import StepLR
from hpcdist.parallel import (
    HierarchicalModelAverager,
    PeriodicModelAverager,
    PostLocalSGDOptimizer,
    average_parameters,
    replicate,
)

WARMUP, PERIOD, STEPS = 3, 2, 10
RATES = {"a": 0.5, "b": 0.25}
"""Two parameters, each in a group of its own."""


# ---------------------------------------------------------------- the reference: a row a rank
def gradient(step, rank):
    """Return that of a rank: all are the same in the warm-up, as if averaged."""
    return 1.0 if step < WARMUP or rank % 2 == 0 else -1.0


def by_hand(size, values, steps, averaged):
    """Return parameters after ``steps``, (ranks,), by name, from ``values``."""
    values = {name: rows.copy() for name, rows in values.items()}
    for step in steps:
        for name, rate in RATES.items():
            values[name] -= rate * np.array([gradient(step, rank) for rank in range(size)])
            if step in averaged:
                values[name][:] = values[name].sum() / size
    return values


def start(size):
    return {"a": np.full(size, 1.0), "b": np.full(size, -2.0)}


# ---------------------------------------------------------------- the same, on ranks
def made(comm, values, warmup=WARMUP):
    params = {name: Tensor(np.full(3, values[name][comm.rank]), True) for name in RATES}
    groups = [{"params": [(name, p)], "lr": RATES[name]} for name, p in params.items()]
    return params, PostLocalSGDOptimizer(optim.SGD(groups), PeriodicModelAverager(PERIOD, warmup, comm))


def trained(comm, optimizer, params, steps):
    """Take steps; return those at which something was sent, and how many messages each time."""
    sent = {}
    for step in steps:
        for p in params.values():
            p.grad = np.full(3, gradient(step, comm.rank))
        with CommDebugMode() as counted:
            optimizer.step()
        optimizer.zero_grad()
        if counted.records:
            sent[step] = [record.verb for record in counted.records]
    return sent


def check_values(comm, params, expected):
    for name, p in params.items():
        np.testing.assert_allclose(p.data, expected[name][comm.rank], rtol=1e-13, atol=1e-13)


def check_when_it_averages(comm):
    """Warm-up 3, period 2, ten steps counted from 0: at 3, 5, 7 and 9, once a step whatever the groups."""
    params, optimizer = made(comm, start(comm.size))
    assert trained(comm, optimizer, params, range(WARMUP + 1)) == {3: ["all_reduce"]}
    alike = comm.all_gather_object([p.data.tobytes() for p in params.values()])
    assert all(one == alike[0] for one in alike)
    assert trained(comm, optimizer, params, range(WARMUP + 1, STEPS)) == {at: ["all_reduce"] for at in (5, 7, 9)}
    check_values(comm, params, by_hand(comm.size, start(comm.size), range(STEPS), (3, 5, 7, 9)))


def saved_after_step_4(comm):
    """Return the values of all ranks, and what one saved."""
    params, optimizer = made(comm, start(comm.size))
    trained(comm, optimizer, params, range(5))
    assert optimizer.state_dict()["step"] == 5
    return {name: comm.all_gather(p.data[:1]) for name, p in params.items()}, comm.broadcast_object(
        optimizer.state_dict()
    )


def check_goes_on(comm, values, state):
    """A run that is resumed after step 4 averages next at 5, and has no second warm-up."""
    values = {name: np.resize(rows, comm.size) for name, rows in values.items()}
    params, optimizer = made(comm, values)
    optimizer.load_state_dict(state)
    assert [*trained(comm, optimizer, params, range(5, STEPS))] == [5, 7, 9]
    check_values(comm, params, by_hand(comm.size, values, range(5, STEPS), (5, 7, 9)))


def check_replicated(comm):
    """Gradients that are averaged until the warm-up ends, and parameters from then on, against a loop by hand."""
    manual_seed(3)
    model = nn.Linear(2, 3, dtype=np.float64)
    replica = replicate(model, comm)
    averager = PeriodicModelAverager(PERIOD, WARMUP, comm)
    optimizer = PostLocalSGDOptimizer(optim.SGD(model.named_parameters(), lr=0.1, momentum=0.5), averager)
    weights = np.repeat(model.weight.data[None], comm.size, 0)
    bias, velocity = np.repeat(model.bias.data[None], comm.size, 0), [0.0, 0.0]
    for step in range(STEPS):
        replica.set_requires_gradient_sync(averager.step < averager.warmup_steps)
        xs = [np.random.default_rng((step, r)).standard_normal((4, 2)) for r in range(comm.size)]
        (model(Tensor(xs[comm.rank])) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outs = [x @ w.T + b for x, w, b in zip(xs, weights, bias, strict=True)]
        slopes = [
            np.stack([2 * o.T @ x for o, x in zip(outs, xs, strict=True)]),
            np.stack([2 * o.sum(0) for o in outs]),
        ]
        if step < WARMUP:
            slopes = [np.broadcast_to(g.mean(0), g.shape) for g in slopes]
        velocity = [0.5 * v + g for v, g in zip(velocity, slopes, strict=True)]
        weights, bias = weights - 0.1 * velocity[0], bias - 0.1 * velocity[1]
        if step in (3, 5, 7, 9):
            weights, bias = (np.broadcast_to(v.mean(0), v.shape) for v in (weights, bias))
    np.testing.assert_allclose(model.weight.data, weights[comm.rank], rtol=1e-9)
    np.testing.assert_allclose(model.bias.data, bias[comm.rank], rtol=1e-9)


def check_it_is_an_optimizer(comm):
    """Groups, hooks, clipping, schedules, closures and scales are those of the one inside."""
    params, optimizer = made(comm, start(comm.size), warmup=100)
    seen = []
    optimizer.pre.append(lambda: seen.append("pre"))
    optimizer.post.append(lambda: seen.append("post"))
    schedule = StepLR(optimizer, 1, gamma=0.5)
    later = Tensor(np.full(1, 1.0), True)
    optimizer.add_param_group({"params": [("c", later)], "lr": 0.0})
    for p in (*params.values(), later):
        p.grad = np.full(p.shape, 8.0)
    optimizer.grad_scale = 0.25
    assert optimizer.clip_grad_norm_(1e9) == 2.0 * 7**0.5
    assert optimizer.step(lambda: "loss") == "loss"
    assert (seen, optimizer.grad_scale, optimizer.optim.grad_scale) == (["pre", "post"], 1.0, 1.0)
    np.testing.assert_array_equal(params["a"].data, 1.0 - 0.5 * 2.0)
    np.testing.assert_array_equal(later.data, 1.0)
    del optimizer.param_groups[-1]
    schedule.step()
    assert [g["lr"] for g in optimizer.optim.param_groups] == [0.25, 0.125]
    assert optimizer.state is optimizer.optim.state


# ---------------------------------------------------------------- means
def check_means(comm):
    """One message a dtype; the mean divides by the ranks of the group; what needs no gradient stays."""
    dtypes = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.float64)
    params = [Tensor(np.full((2, i), comm.rank + i).astype(d), True) for i, d in enumerate(dtypes)]
    frozen = Tensor(np.full(2, float(comm.rank)))
    params[1].grad = np.ones((2, 1), np.float32) if comm.rank else None
    with CommDebugMode() as counted:
        average_parameters([*params, frozen], comm)
    assert [record.verb for record in counted.records] == ["all_reduce"] * 4
    for i, p in enumerate(params):
        assert p.dtype == dtypes[i]
        np.testing.assert_array_equal(p.data.astype(float), np.full((2, i), (comm.size - 1) / 2 + i))
    np.testing.assert_array_equal(frozen.data, comm.rank)
    half = comm.split(comm.rank // 2, comm.rank)
    one = Tensor(np.array(float(comm.rank)), True)
    average_parameters(iter([{"params": [one]}]), half)
    pair = [r for r in range(comm.size) if r // 2 == comm.rank // 2]
    assert one.data == sum(pair) / len(pair)


def check_levels(comm):
    """Four ranks: pairs at multiples of 2, all at multiples of 4, after a warm-up of 3; fewer have one level."""
    sizes = {2: 2, 4: 4} if comm.size == 4 else {2: comm.size}
    averager = HierarchicalModelAverager(sizes, 3, comm)
    values, p = np.arange(comm.size, dtype=float), Tensor(np.array([float(comm.rank)]), True)
    for step in range(11):
        values += np.arange(comm.size) ** 2
        p.data += comm.rank**2
        averager.average_parameters([p])
        width = next((s for period, s in reversed(sizes.items()) if step >= 3 and step % period == 0), 1)
        values = values.reshape(-1, width).mean(1).repeat(width)
        np.testing.assert_allclose(p.data, values[comm.rank], rtol=1e-14)


def check_nodes(comm):
    averager = HierarchicalModelAverager({1: "node", 5: comm.size} if comm.size > 1 else {1: "node"}, 0, comm)
    node = averager.period_process_group_dict[1]
    assert node.size == comm.split_node().size
    p = Tensor(np.array([float(node.rank)]), True)
    for _ in range(2):
        averager.average_parameters([p])
    assert p.data == (node.size - 1) / 2
    assert averager.step == 2


# ---------------------------------------------------------------- what is refused
def check_refused(comm):
    p = Tensor(np.ones(2), True)
    sgd = optim.SGD([p])
    averager = PeriodicModelAverager(2, process_group=comm)
    mesh = init_device_mesh(comm.size, "dp", comm)
    cut = distribute_tensor(nn.Parameter(np.ones(4)), mesh, [Shard(0)])
    size = comm.size
    for error, match, make in (
        (ValueError, "period", lambda: PeriodicModelAverager(0, process_group=comm)),
        (ValueError, "period", lambda: PeriodicModelAverager(-1, process_group=comm)),
        (TypeError, "period", lambda: PeriodicModelAverager(2.5, process_group=comm)),
        (ValueError, "warmup_steps", lambda: PeriodicModelAverager(2, -1, comm)),
        (TypeError, "warmup_steps", lambda: PeriodicModelAverager(2, True, comm)),
        (ValueError, "period_group_size_dict", lambda: HierarchicalModelAverager(process_group=comm)),
        (ValueError, "period_group_size_dict", lambda: HierarchicalModelAverager({}, 0, comm)),
        (ValueError, "warmup_steps", lambda: HierarchicalModelAverager({1: size}, -1, comm)),
        (ValueError, "period", lambda: HierarchicalModelAverager({0: size}, 0, comm)),
        (ValueError, "rise", lambda: HierarchicalModelAverager({4: 1, 2: size}, 0, comm)),
        (ValueError, "rise", lambda: HierarchicalModelAverager({2: size, 4: size}, 0, comm)),
        (ValueError, "divisor", lambda: HierarchicalModelAverager({2: 2, 4: 3}, 0, comm)),
        (ValueError, "average last", lambda: HierarchicalModelAverager({2: size + 1}, 0, comm)),
        (TypeError, "ranks that average", lambda: HierarchicalModelAverager({2: "rack"}, 0, comm)),
        (TypeError, "ranks that average", lambda: HierarchicalModelAverager({2: 1, 4: "node"}, 0, comm)),
        (TypeError, "averager", lambda: PostLocalSGDOptimizer(sgd, None)),
        (TypeError, "optim", lambda: PostLocalSGDOptimizer([p], averager)),
        (TypeError, "distributed", lambda: average_parameters([cut], comm)),
    ):
        with pytest.raises(error, match=match):
            make()
    with contextlib.ExitStack() as stack:
        if size > 1:
            stack.enter_context(pytest.raises(ValueError, match="average last"))
        HierarchicalModelAverager({3: 1}, 0, comm)


CHECKS = (
    check_when_it_averages,
    check_replicated,
    check_it_is_an_optimizer,
    check_means,
    check_levels,
    check_nodes,
    check_refused,
)
