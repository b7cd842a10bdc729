"""SyncBatchNorm against batch norm of the whole batch in one process: bodies of tests that take a communicator."""

import copy

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh, using_group
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import (
    DistributedDataParallel,
    SyncBatchNorm,
    apply_activation_checkpointing,
    checkpoint,
    convert_sync_batchnorm,
    fully_shard,
    replicate,
)

PLAIN = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
SHAPES = [(3,), (3, 5), (3, 2, 4)]
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def sizes(comm, how):
    """Return how many samples each rank has."""
    uneven = [*range(1, comm.size), comm.size + 1]
    return {"even": [3] * comm.size, "uneven": uneven, "empty": [0, *[4] * (comm.size - 1)]}[how]


def whole(count, shape, dtype=np.float64, *, step=0, offset=3.0):
    rng = np.random.default_rng([count, len(shape), step])
    return (rng.standard_normal((count, *shape)) * 2 + offset).astype(dtype)


def part(comm, x, counts):
    start = sum(counts[: comm.rank])
    return slice(start, start + counts[comm.rank])


def filled(norm):
    rng = np.random.default_rng(7)
    norm.weight.data[...] = rng.standard_normal(norm.weight.shape)
    norm.bias.data[...] = rng.standard_normal(norm.bias.shape)
    return norm


def check_equals_one_process(comm, how, shape, dtype, momentum):
    """Values, gradients of input, gain and shift, and running statistics, over three steps."""
    counts = sizes(comm, how)
    if sum(counts) == 0:
        return
    plain = filled(PLAIN[len(shape) + 1](3, momentum=momentum, dtype=dtype))
    synced = filled(SyncBatchNorm(3, momentum=momentum, process_group=comm, dtype=dtype))
    close = CLOSE if dtype == np.float64 else {"rtol": 2e-5, "atol": 2e-5}
    for step in range(3):
        x, g = (whole(sum(counts), shape, dtype, step=10 * step + i) for i in range(2))
        mine = part(comm, x, counts)
        all_x, my_x = Tensor(x, requires_grad=True), Tensor(x[mine], requires_grad=True)
        plain.zero_grad(), synced.zero_grad()
        expected, found = plain(all_x), synced(my_x)
        np.testing.assert_allclose(found.data, expected.data[mine], **close)
        (expected * Tensor(g)).sum().backward()
        (found * Tensor(g[mine])).sum().backward()
        np.testing.assert_allclose(my_x.grad, all_x.grad[mine], **close)
        for name in ("weight", "bias"):
            total = comm.all_reduce(getattr(synced, name).grad)
            np.testing.assert_allclose(total, getattr(plain, name).grad, **close)
        for name, buffer in plain.named_buffers():
            mine_too = synced.buffers[name].data
            np.testing.assert_allclose(mine_too, buffer.data, **close)
            assert all((other == mine_too).all() for other in comm.all_gather_object(mine_too))
    with CommDebugMode() as mode:
        found = synced.eval()(Tensor(x[mine]))
    assert mode.get_total_counts() == 0
    np.testing.assert_allclose(found.data, plain.eval()(Tensor(x)).data[mine], **close)


def check_far_from_zero(comm):
    """A mean a million times the deviation costs no digits of the variance."""
    x = whole(4 * comm.size, (3,), offset=1e7)
    norm = SyncBatchNorm(3, affine=False, process_group=comm, dtype=np.float64)
    y = norm(Tensor(x[4 * comm.rank : 4 * comm.rank + 4]))
    expected = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    np.testing.assert_allclose(y.data, expected[4 * comm.rank : 4 * comm.rank + 4], rtol=1e-6, atol=1e-6)


def check_counts(comm):
    """One small message in forward and one in backward; none where gradients do not flow, nor on one rank."""
    norm = SyncBatchNorm(3, process_group=comm)
    x = Tensor(whole(2, (3,), np.float32), requires_grad=True)
    several = int(comm.size > 1)
    with CommDebugMode() as mode:
        y = norm(x)
    assert mode.get_comm_counts() == ({"all_gather": 1} if several else {})
    with CommDebugMode() as mode:
        y.sum().backward()
    assert mode.get_comm_counts() == ({"all_reduce": 1} if several else {})
    with CommDebugMode() as mode:
        norm(Tensor(x.data)).sum().backward()
    assert mode.get_comm_counts() == ({"all_gather": 1} if several else {})


def check_without_statistics(comm):
    """Without running statistics the batch's are used always: of all ranks while training, of this one otherwise."""
    x = whole(2 * comm.size, (3,))
    mine = x[2 * comm.rank : 2 * comm.rank + 2]
    norm = SyncBatchNorm(3, affine=False, track_running_stats=False, process_group=comm, dtype=np.float64)
    for used, y in ((x, norm(Tensor(mine))), (mine, norm.eval()(Tensor(mine)))):
        np.testing.assert_allclose(y.data, (mine - used.mean(0)) / np.sqrt(used.var(0) + 1e-5), rtol=1e-9)
    assert dict(norm.named_buffers()) == {}


def net():
    made = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    rng = np.random.default_rng(3)
    for p in made.parameters():
        p.data[...] = rng.standard_normal(p.shape)
    return made.to(np.float64)


def _steps(model, batches, forward):
    for x in batches:
        for p in model.parameters():
            p.grad = None
        (forward(Tensor(x)) ** 2).mean().backward()
        for p in model.parameters():
            p.data[...] -= 0.1 * p.grad
    return {name: t.data for name, t in (*model.named_parameters(), *model.named_buffers())}


def check_in_a_model(comm):
    """A converted model under DDP, or recomputed in backward, trains as the plain one does on all data."""
    batches = [whole(2 * comm.size, (2, 5, 5), step=i) for i in range(3)]
    mine = [x[2 * comm.rank : 2 * comm.rank + 2] for x in batches]
    plain = net()
    expected = _steps(plain, batches, plain)
    for again in (False, True):
        model = convert_sync_batchnorm(net(), comm)
        if again:
            apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, SyncBatchNorm))
        found = _steps(model, mine, DistributedDataParallel(model, process_group=comm))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, err_msg=name, **CLOSE)


def check_recomputed(comm):
    """What is computed again in backward moves no running statistics, and gradients are the same."""
    x = whole(2, (3,), step=comm.rank)
    results = []
    for run in (lambda norm, x: norm(x), checkpoint):
        norm = SyncBatchNorm(3, process_group=comm, dtype=np.float64)
        t = Tensor(x, requires_grad=True)
        (run(norm, t) ** 3).sum().backward()
        results.append([t.grad, norm.weight.grad, *(b.data for _, b in norm.named_buffers())])
    for once, again in zip(*results, strict=True):
        assert (once == again).all()


def check_converted(comm):
    model = net()
    inner = model.children["1"]
    model.children["4"].eval()
    names, parameters = [*model.state_dict()], [*map(id, model.parameters())]
    same = SyncBatchNorm.convert_sync_batchnorm(model, comm)
    assert same is model
    assert [type(m) for m in model] == [nn.Conv2d, SyncBatchNorm, nn.GELU, nn.Conv2d, SyncBatchNorm]
    assert [*model.state_dict()] == names
    assert [*map(id, model.parameters())] == parameters
    assert [m.training for m in model] == [True, True, True, True, False]
    assert model.children["1"].buffers["running_mean"] is inner.buffers["running_mean"]
    assert all(m.process_group is comm for m in model if isinstance(m, SyncBatchNorm))
    alone = convert_sync_batchnorm(nn.BatchNorm1d(2, affine=False), comm)
    assert isinstance(alone, SyncBatchNorm)
    assert alone.weight is None
    copied = copy.deepcopy(model)
    assert copied.children["1"].process_group is comm
    assert copied.children["1"].weight is not model.children["1"].weight
    twice = nn.Sequential(inner, inner)
    convert_sync_batchnorm(twice, comm)
    assert twice.children["0"] is twice.children["1"]
    held = net()
    replicate(held, comm)
    with pytest.raises(RuntimeError, match="convert before"):
        convert_sync_batchnorm(held, comm)
    with pytest.raises(RuntimeError, match="convert before"):
        convert_sync_batchnorm(fully_shard(net(), mesh=init_device_mesh(comm.size, "dp", comm)), comm)


def check_bad_input(comm):
    """What one rank alone passes is the same error on all; the next batch is fine."""
    last = comm.rank == comm.size - 1
    good = np.ones((2, 3), np.float32)
    norm = SyncBatchNorm(3, process_group=comm)
    wrong = {"channels": np.ones((2, 4), np.float32), "one axis": np.ones(3, np.float32)}
    for x in wrong.values():
        with pytest.raises(ValueError, match="input"):
            norm(Tensor(x if last else good))
    if comm.size > 1:
        with pytest.raises(TypeError, match="got      ndarray"):
            norm(good if last else Tensor(good))
        with pytest.raises(TypeError, match="floating"):
            norm(Tensor(good.astype("i4")) if last else Tensor(good))
        with pytest.raises(ValueError, match="on all ranks"):
            norm(Tensor(good[: comm.rank == 0][:1]))
        with pytest.raises(ValueError, match="on all ranks"):
            norm(Tensor(good[:0]))
    assert norm(Tensor(good)).shape == (2, 3)
    assert int(norm.num_batches_tracked) == 1


def check_default_group(comm):
    with using_group(comm):
        norm = SyncBatchNorm(1, affine=False)
        y = norm(Tensor(np.full((1, 1), float(comm.rank), np.float32))) if comm.size > 1 else None
    if y is not None:
        ranks = np.arange(comm.size)
        np.testing.assert_allclose(y.data[0, 0], (comm.rank - ranks.mean()) / np.sqrt(ranks.var() + 1e-5), rtol=1e-5)


CHECKS = [
    check_far_from_zero,
    check_counts,
    check_without_statistics,
    check_in_a_model,
    check_recomputed,
    check_converted,
    check_bad_input,
    check_default_group,
]
