"""Replicated training against a single process: bodies of tests that take a communicator."""

import contextlib
import copy
import functools
import logging
import pickle
import threading

import numpy as np
import pytest

import hpcdist as hd
from hpcdist import autograd, manual_seed, nn, optim
from hpcdist.autograd import Tensor, no_grad
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.nn import functional as F
from hpcdist.parallel import (
    DistributedDataParallel,
    ShardedGradScaler,
    apply_activation_checkpointing,
    fully_shard,
    replicate,
)

STEPS = 20
SIZES = {"vocab_size": 13, "seq": 7, "num_layers": 3, "num_heads": 3, "width": 12}
BATCH = 12
"""Sequences a step: all numbers of ranks from 1 to 4 divide it."""


# ---------------------------------------------------------------- models
class Scale(nn.Module):
    """One number: its gradient is what it is multiplied by."""

    def __init__(self, value=1.0):
        super().__init__()
        self.weight = nn.Parameter(np.array([value]))

    def forward(self, x):
        return self.weight * x


class Branches(nn.Module):
    """Numbers, of which a call uses some, in the order in which they are named."""

    def __init__(self, names="abcd"):
        super().__init__()
        self.branches = nn.ModuleList(Scale() for _ in names)
        self.place = {name: i for i, name in enumerate(names)}

    def forward(self, uses):
        total = 0.0
        for name, x in uses:
            total = total + self.branches[self.place[name]](x)
        return total.sum()

    def grads(self):
        return {name: _number(self.branches[i].weight.grad) for name, i in self.place.items()}


class Counting(nn.Module):
    """A layer with buffers of two dtypes, which each training forward changes by what it sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=np.float64)
        self.register_buffer("sum", np.zeros(3))
        self.register_buffer("last", np.zeros(1))
        self.register_buffer("calls", np.zeros((), np.int64))

    def forward(self, x):
        if self.training:
            self.sum.data += x.data.sum(0)
            self.calls.data += 1
        return (self.layer(x + self.sum) ** 2).sum()


def _number(grad):
    return None if grad is None else float(grad[0])


def gpt():
    manual_seed(0)
    return nn.GPT(nn.GPTConfig(**SIZES))


def mlp():
    manual_seed(3)
    return nn.Sequential(*(nn.Linear(6, 6, dtype=np.float64) for _ in range(4)))


def data(*key):
    return Tensor(np.random.default_rng(key).standard_normal((4, 6)))


def grads_of(model):
    return {name: None if p.grad is None else p.grad.copy() for name, p in model.named_parameters()}


def assert_close(found, expected, factor=1.0):
    assert found.keys() == expected.keys()
    for name, g in expected.items():
        assert (found[name] is None) == (g is None), name
        if g is not None:
            np.testing.assert_allclose(found[name], g * factor, rtol=1e-10, atol=1e-12, err_msg=name)


def alone(*batches):
    """Return gradients of the sum of losses over batches, by one process."""
    model = mlp()
    for x in batches:
        (model(x) ** 2).sum().backward()
    return grads_of(model)


@contextlib.contextmanager
def warnings_here():
    """Yield the list of what this rank's thread logs in the block."""
    log, seen = logging.getLogger("hpcdist.parallel"), []
    handler = logging.Handler()
    handler.emit = seen.append
    here = threading.get_ident()
    handler.addFilter(lambda record: record.thread == here)
    log.addHandler(handler)
    try:
        yield seen
    finally:
        log.removeHandler(handler)


# ---------------------------------------------------------------- training
def tokens_of(step):
    tokens = np.random.default_rng(step).integers(0, SIZES["vocab_size"], (BATCH, SIZES["seq"] + 1))
    return tokens[:, :-1], tokens[:, 1:]


def losses_alone():
    return _train(gpt(), slice(None))


def _train(model, part):
    adamw = optim.AdamW(model.named_parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        tokens, targets = (a[part] for a in tokens_of(step))
        loss = model(tokens, targets)
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        losses.append(loss.item())
    return losses


def check_equals_one_process(comm, expected):
    model = DistributedDataParallel(gpt(), process_group=comm, bucket_cap_mb=0.001)
    share = BATCH // comm.size
    mine = slice(comm.rank * share, (comm.rank + 1) * share)
    with CommDebugMode() as mode:
        losses = _train(model, mine)
    together = np.mean(comm.all_gather_object(losses), 0)
    np.testing.assert_allclose(together, expected, rtol=1e-5)
    num_buckets = len(model.replica._buckets)
    assert num_buckets > 3
    assert mode.get_comm_counts() == {"all_reduce": STEPS * num_buckets}


def check_names_are_clean(comm):
    plain = gpt()
    model = DistributedDataParallel(gpt(), process_group=comm)
    outer = nn.ModuleList([model])
    names = [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in model.named_parameters()] == names
    assert [*model.state_dict()] == [*plain.state_dict()] == [*model.module.state_dict()]
    assert [name for name, _ in outer.named_parameters()] == [f"0.{name}" for name in names]
    assert next(iter(model.modules())) is model
    assert {id(m) for m in plain.eval().modules() if m.training} == set()
    assert not any(m.training for m in model.eval().modules())
    for prefix in ("", "module."):
        changed = {prefix + name: value + 1 for name, value in plain.state_dict().items()}
        model.load_state_dict(changed)
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(value, changed[prefix + name])
    with pytest.raises(ValueError, match="names do not match"):
        model.load_state_dict({"module.nothing": np.ones(2)})


def check_arguments(comm):
    model = DistributedDataParallel(
        mlp(),
        device_ids=[],
        output_device=None,
        dim=0,
        bucket_cap_mb=1e-6,
        gradient_as_bucket_view=True,
        static_graph=True,
        find_unused_parameters=True,
        device_mesh=init_device_mesh((comm.size,), ("dp",), comm),
    )
    assert len(model.replica._buckets) == 4
    for wrong in ({"device_ids": [0]}, {"output_device": 1}, {"dim": 1}, {"mixed_precision": "float16"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DistributedDataParallel(mlp(), process_group=comm, **wrong)
    with pytest.raises(ValueError, match="fully_shard"):
        DistributedDataParallel(mlp(), process_group=comm, mixed_precision="float16")
    mesh = init_device_mesh((comm.size,), ("dp",), comm)
    with pytest.raises(ValueError, match="both"):
        DistributedDataParallel(mlp(), process_group=comm, device_mesh=mesh)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="bucket_bytes"):
            DistributedDataParallel(mlp(), process_group=comm, bucket_cap_mb=bad)


# ---------------------------------------------------------------- when gradients are reduced (cases B27, B21)
MICRO = [(1.0, 2.0, 5.0, 4.0), (3.0, 4.0, 1.0, 6.0), (6.0, 8.0, 2.0, 9.0)]
"""Gradients of micro-steps, of ranks; on two ranks, B27: 5.0, 5.0 and 12.0."""
PATTERNS = {"all": "ss", "last": "ns", "mixed": "sns", "first": "sn", "never": "nn"}


def check_pattern(comm, pattern, factor=None):
    model = DistributedDataParallel(Scale(), process_group=comm)
    if factor:
        model.set_gradient_divide_factor(factor)
    else:
        factor = comm.size
    steps = PATTERNS[pattern]
    total, pending = 0.0, np.zeros(comm.size)
    for grads, how in zip(MICRO, steps, strict=False):
        pending += grads[: comm.size]
        with contextlib.nullcontext() if how == "s" else model.no_sync(), CommDebugMode() as mode:
            model(Tensor(np.array([grads[comm.rank]]))).sum().backward()
        assert mode.get_comm_counts() == ({"all_reduce": 1} if how == "s" else {})
        if how == "s":
            total += pending.sum() / factor
            pending[:] = 0
        np.testing.assert_allclose(model.module.weight.grad, [total + pending[comm.rank]], rtol=1e-14)
    if comm.size == 2 and factor == 2:
        ends = {"all": 5.0, "last": 5.0, "mixed": 12.0}
        assert _number(model.module.weight.grad) == ends.get(pattern, _number(model.module.weight.grad))


def check_no_sync_is_left_after_an_error(comm):
    model = DistributedDataParallel(Scale(), process_group=comm)
    with contextlib.suppress(ZeroDivisionError), model.no_sync():
        raise ZeroDivisionError
    with CommDebugMode() as mode:
        model(Tensor(np.array([2.0]))).sum().backward()
    assert mode.get_total_counts() == 1


def check_mean_over_accumulation_steps(comm):
    """B21: micro-batches with mean gradients 1, 2 and 3, 4 make 2.5."""
    model = DistributedDataParallel(Scale(), process_group=comm)
    with model.no_sync():
        (model(Tensor(np.array([1.0, 2.0]))).mean() / 2).backward()
    (model(Tensor(np.array([3.0, 4.0]))).mean() / 2).backward()
    assert _number(model.module.weight.grad) == 2.5


def check_steps_on_unreduced_gradients_are_told(comm):
    model = DistributedDataParallel(Scale(), process_group=comm)
    sgd = optim.SGD(model.parameters(), lr=1.0)
    x = Tensor(np.array([1.0 + comm.rank]))
    with warnings_here() as seen:
        with model.no_sync():
            model(x).sum().backward()
        model(x).sum().backward()
        sgd.step()
        sgd.zero_grad()
        model(x)
        assert seen == []
        with model.no_sync():
            model(x).sum().backward()
        sgd.step()
        sgd.zero_grad()
        model(x)
        model(x)
    assert ["never reduced" in record.getMessage() for record in seen] == [True]


def check_gradients_that_were_changed_or_zeroed_in_between(comm):
    """What lies in .grad when the next reduction begins is what it adds to: clipped, zeroed one by one, or replaced."""
    model = DistributedDataParallel(Branches(), process_group=comm)
    model.set_gradient_divide_factor(1)
    inner = model.module
    model([(name, 1.0) for name in "abcd"]).backward()
    a, b, c, _ = (branch.weight for branch in inner.branches)
    a.grad *= 0.5
    b.grad = None
    c.grad[...] = 0
    model([(name, 1.0) for name in "abcd"]).backward()
    n = comm.size
    assert inner.grads() == {"a": 1.5 * n, "b": n, "c": n, "d": 2 * n}


# ---------------------------------------------------------------- unused parameters (case B29)
def check_branches(comm, bucket_cap_mb):
    model = Branches()
    ddp = DistributedDataParallel(
        model, process_group=comm, bucket_cap_mb=bucket_cap_mb, find_unused_parameters=bucket_cap_mb is None
    )
    adamw = optim.AdamW(ddp.named_parameters(), lr=0.1, weight_decay=0.1)
    uses = [("a", 2.0), ("b", 4.0)] if comm.rank == 0 else [("a", 2.0)]
    with warnings_here() as seen:
        ddp(uses).backward()
        adamw.step()
        ddp.module.zero_grad()
        ddp(uses).backward()
    assert model.grads() == {"a": 2.0, "b": 4.0 / comm.size, "c": None, "d": None}
    assert [_number(model.branches[i].weight.data) for i in (2, 3)] == [1.0, 1.0]
    assert "branches.2.weight" not in adamw.state or not adamw.state["branches.2.weight"]
    unused = ddp.unused_parameters()
    assert sorted(unused.anywhere) == ["branches.2.weight", "branches.3.weight"]
    assert unused.here == (() if comm.rank == 0 else ("branches.1.weight",))
    warns = comm.rank == 0 and bucket_cap_mb is not None
    assert ["branches.2.weight" in record.getMessage() for record in seen] == [True] * warns


def check_opposite_orders(comm, bucket_cap_mb):
    model = Branches()
    DistributedDataParallel(model, process_group=comm, bucket_cap_mb=bucket_cap_mb)
    uses = [("b", 4.0), ("a", 1.0), ("d", 8.0)]
    model(uses if comm.rank % 2 else uses[::-1]).backward()
    assert model.grads() == {"a": 1.0, "b": 4.0, "c": None, "d": 8.0}


# ---------------------------------------------------------------- buffers
def check_buffers_come_from_the_first(comm):
    model = Counting()
    model.sum.data[...] = comm.rank
    ddp = DistributedDataParallel(model, process_group=comm)
    np.testing.assert_array_equal(model.sum.data, np.zeros(3))
    x = Tensor(np.full((2, 3), 1.0 + comm.rank))
    sends = {"broadcast": 2} if comm.size > 1 else {}  # one message a dtype
    for step in range(2):
        with CommDebugMode() as mode:
            with ddp.no_sync():
                ddp(x).backward()
                assert mode.get_comm_counts() == sends  # once, before the first forward of a step
            ddp(x).backward()
        assert mode.get_comm_counts() == {**sends, "all_reduce": 1}
        np.testing.assert_array_equal(model.sum.data, 4.0 * (step + comm.rank + 1))
        assert model.calls.item() == 2 * step + 2
    with CommDebugMode() as mode, no_grad():
        ddp.eval()(x)
    assert mode.get_total_counts() == 0
    np.testing.assert_array_equal(model.sum.data, 4.0 * (2 + comm.rank))


def check_buffers_stay(comm):
    model = Counting()
    model.sum.data[...] = comm.rank
    ddp = DistributedDataParallel(model, process_group=comm, broadcast_buffers=False, init_sync=False)
    ddp(Tensor(np.zeros((2, 3)))).backward()
    np.testing.assert_array_equal(model.sum.data, np.full(3, comm.rank))


# ---------------------------------------------------------------- models that differ
def _other_name(model):
    model.other = model.layer
    del model.layer


def _frozen_on_one(model):
    model.requires_grad_(False)


CHANGES = {
    "layer.weight": _other_name,
    "(3, 3)": lambda model: setattr(model, "layer", nn.Linear(3, 3, dtype=np.float64)),
    "float32": lambda model: model.to(np.float32),
    "False": _frozen_on_one,
    "extra": lambda model: setattr(model, "extra", nn.Parameter(np.ones(2))),
    "nothing more": lambda model: setattr(model.layer, "bias", None),
    "another": lambda model: model.register_buffer("another", np.ones(2)),
}


def check_models_that_differ(comm, named, init_sync):
    """The last rank's model is another one: all raise the same."""
    if comm.size == 1:
        return
    model = Counting()
    if comm.rank == comm.size - 1:
        CHANGES[named](model)
    with pytest.raises(ValueError, match="differ") as error:
        DistributedDataParallel(model, process_group=comm, init_sync=init_sync)
    messages = comm.all_gather_object(str(error.value))
    assert messages == [messages[0]] * comm.size
    assert named in messages[0]
    assert f"rank {comm.size - 1} and rank 0" in messages[0]
    assert not model.pre  # nothing was changed


def check_what_is_refused(comm):
    frozen = mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter"):
        replicate(frozen, comm)
    with pytest.raises(TypeError, match="Module"):
        replicate([mlp()] if comm.rank == comm.size - 1 else mlp(), comm)
    twice = mlp()
    replicate(twice, comm)
    for again in (twice, nn.ModuleList([twice]), twice[0]):
        with pytest.raises(RuntimeError, match="replicated already"):
            replicate(again, comm)
    sharded = fully_shard(mlp(), mesh=comm)
    with pytest.raises(RuntimeError, match="sharded already"):
        replicate(sharded, comm)


def check_init_sync(comm):
    for init_sync in (True, False):
        manual_seed(comm.rank)
        model = nn.Linear(3, 2)
        before = model.weight.data.copy()
        DistributedDataParallel(model, process_group=comm, init_sync=init_sync)
        expected = comm.all_gather_object(before)[0 if init_sync else comm.rank]
        np.testing.assert_array_equal(model.weight.data, expected)


def check_deferred(comm, init_sync):
    manual_seed(3)
    with nn.deferred():
        model = nn.Sequential(*(nn.Linear(6, 6, dtype=np.float64) for _ in range(4)))
    with CommDebugMode() as mode:
        DistributedDataParallel(model, process_group=comm, init_sync=init_sync)
    assert init_sync or "broadcast" not in mode.get_comm_counts()
    for (name, p), (_, drawn) in zip(model.named_parameters(), mlp().named_parameters(), strict=True):
        np.testing.assert_array_equal(p.data, drawn.data, err_msg=name)
    (model(data(comm.rank)) ** 2).sum().backward()
    assert_close(grads_of(model), alone(*(data(r) for r in range(comm.size))), 1 / comm.size)


# ---------------------------------------------------------------- autograd.grad, hooks
def check_gradients_as_values_are_local(comm):
    model = DistributedDataParallel(mlp(), process_group=comm)
    loss = (model(data(comm.rank)) ** 2).sum()
    names = [name for name, _ in model.named_parameters()]
    with CommDebugMode() as mode:
        found = autograd.grad(loss, list(model.parameters()), retain_graph=True)
        (last,) = autograd.grad(loss, [model.module[3].weight], retain_graph=True)
    assert mode.get_total_counts() == 0
    assert all(p.grad is None for p in model.parameters())
    expected = alone(data(comm.rank))
    assert_close(dict(zip(names, found, strict=True)), expected)
    np.testing.assert_allclose(last, expected["3.weight"], rtol=1e-12)
    loss.backward()
    assert_close(grads_of(model), alone(*(data(r) for r in range(comm.size))), 1 / comm.size)


def check_gradients_of_gradients(comm, of_inputs):
    """Penalties of gradients are reduced as any other loss."""

    def penalize(model, rank):
        x = Tensor(data(rank).data, requires_grad=True)
        loss = (model(x).tanh() ** 2).sum()
        wanted = [x] if of_inputs else list(model.parameters())
        sum((g**2).sum() for g in autograd.grad(loss, wanted, create_graph=True)).backward()

    reference, model = mlp(), mlp()
    for rank in range(comm.size):
        penalize(reference, rank)
    replicate(model, comm, bucket_bytes=1)
    with CommDebugMode() as mode:
        penalize(model, comm.rank)
    assert mode.get_comm_counts() == {"all_reduce": 4}
    assert_close(grads_of(model), grads_of(reference), 1 / comm.size)


def check_hooks(comm):
    """Hooks of parameters run once a reduction; those that see a gradient see what it adds, and may change it."""
    model, seen, done = Scale(), [], []
    ddp = DistributedDataParallel(model, process_group=comm)
    model.weight.register_hook(lambda g: seen.append(float(g[0])) or g * 10)
    model.weight.register_post_accumulate_grad_hook(lambda p: done.append(float(p.grad[0])))
    mean = np.mean([r + 1.0 for r in range(comm.size)])
    x = Tensor(np.array([1.0 + comm.rank]))
    with ddp.no_sync():
        ddp(x).sum().backward()
    assert (seen, done) == ([], [])
    ddp(x).sum().backward()
    ddp(x).sum().backward()
    np.testing.assert_allclose(seen, [2 * mean, mean], rtol=1e-14)
    np.testing.assert_allclose(done, [20 * mean, 30 * mean], rtol=1e-14)


# ---------------------------------------------------------------- frozen and tied parameters (cases B25, B24)
def _run_b25(model, comm_size, rank, is_alone):
    adamw = optim.AdamW(model.named_parameters(), lr=0.1, weight_decay=0.1)
    grads = []
    for step in range(5):
        if step == 3:
            model.weight.requires_grad = True
        if step == 4:
            model.bias.requires_grad = False
        for r in range(comm_size) if is_alone else [rank]:
            x = np.random.default_rng((step, r)).standard_normal((2, 4))
            (F.mse_loss(model(Tensor(x)), Tensor(np.ones((2, 3)))) / (comm_size if is_alone else 1)).backward()
        grads.append((None if model.weight.grad is None else model.weight.grad.dtype, model.bias.grad is None))
        adamw.step()
        adamw.zero_grad()
    return model.weight.data, model.bias.data, grads


def check_unfreezing(comm):
    def frozen():
        manual_seed(1)
        model = nn.Linear(4, 3, dtype=np.float64)
        model.weight.requires_grad = False
        return model

    expected = _run_b25(frozen(), comm.size, 0, is_alone=True)
    model = frozen()
    DistributedDataParallel(model, process_group=comm)
    found = _run_b25(model, comm.size, comm.rank, is_alone=False)
    assert found[2] == expected[2]
    for a, b in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def check_unfreezing_keeps_gradients(comm):
    """A parameter is unfrozen between two reductions whose gradients add up."""
    model = Branches()
    ddp = DistributedDataParallel(model, process_group=comm)
    ddp.set_gradient_divide_factor(1)
    model.branches[1].weight.requires_grad = False
    with CommDebugMode() as mode:
        ddp([("a", 1.0), ("b", 1.0), ("c", 2.0)]).backward()
    assert mode.get_comm_counts() == {"object": 1, "all_reduce": 1}
    assert model.grads() == {"a": comm.size, "b": None, "c": 2 * comm.size, "d": None}
    model.branches[1].weight.requires_grad = True
    ddp([("a", 1.0), ("b", 1.0)]).backward()
    assert model.grads() == {"a": 2 * comm.size, "b": comm.size, "c": 2 * comm.size, "d": None}


def check_unfreezing_and_evaluation(comm):
    """Buckets change when training goes on; a part that is called by itself does not know."""
    model = mlp()
    model[1].requires_grad_(False)
    replicate(model, comm)
    model[1].requires_grad_(True)
    with no_grad(), CommDebugMode() as mode:
        model(data(0))
    assert mode.get_total_counts() == 0
    with pytest.raises(RuntimeError, match="called by itself"):
        model[1](data(0))
    (model(data(comm.rank)) ** 2).sum().backward()
    assert_close(grads_of(model), alone(*(data(r) for r in range(comm.size))), 1 / comm.size)


def check_all_frozen(comm):
    model = mlp()
    replicate(model, comm)
    model.requires_grad_(False)
    with CommDebugMode() as mode:
        assert not model(data(0)).requires_grad
    assert mode.get_comm_counts() == {"object": 1}
    with CommDebugMode() as mode:
        model(data(0))
    assert mode.get_total_counts() == 0


def check_replaced_parameters_are_refused(comm):
    model = mlp()
    replicate(model, comm)
    model[1].weight = nn.Parameter(np.zeros((6, 6)))
    with pytest.raises(RuntimeError, match=r"1\.weight was put in"):
        model(data(0))


class Tied(nn.Module):
    """An embedding whose table is also the output layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 2)
        self.table.weight = nn.Parameter(np.arange(10.0).reshape(5, 2) / 10)
        self.out = nn.Linear(2, 5, bias=False)
        self.out.weight = self.table.weight

    def forward(self, token):
        return self.out(self.table(token)).sum()


def check_tied(comm):
    model = DistributedDataParallel(Tied(), process_group=comm)
    assert [name for name, _ in model.named_parameters()] == ["table.weight"]
    assert [bucket.gradients.size for bucket in model.replica._buckets] == [10]
    sgd = optim.SGD(model.named_parameters(), lr=0.1)
    model(np.array([4 if comm.rank % 2 else 0])).backward()
    if comm.size % 2 == 0:
        gradient = [[1.4, 1.75], [0.4, 0.5], [0.4, 0.5], [0.4, 0.5], [1.4, 1.75]]
        np.testing.assert_allclose(model.module.table.weight.grad, gradient, rtol=1e-12)
        sgd.step()
        after = [[-0.14, -0.075], [0.16, 0.25], [0.36, 0.45], [0.56, 0.65], [0.66, 0.725]]
        np.testing.assert_allclose(model.module.out.weight.data, after, rtol=1e-12)
    assert model.module.out.weight is model.module.table.weight


# ---------------------------------------------------------------- graphs of other forms
def check_two_forwards_one_backward(comm):
    model = mlp()
    replicate(model, comm, bucket_bytes=1)
    (sum((model(data(comm.rank, k)) ** 2).sum() for k in range(2))).backward()
    expected = alone(*(data(r, k) for r in range(comm.size) for k in range(2)))
    assert_close(grads_of(model), expected, 1 / comm.size)


def check_forwards_of_which_some_come_later(comm):
    """Three forwards; backward of the first, then of the other two together."""
    model = mlp()
    replicate(model, comm, bucket_bytes=1)
    first, *others = [(model(data(comm.rank, k)) ** 2).sum() for k in range(3)]
    first.backward()
    sum(others).backward()
    expected = alone(*(data(r, k) for r in range(comm.size) for k in range(3)))
    assert_close(grads_of(model), expected, 1 / comm.size)


def check_one_forward_two_backwards(comm):
    model = mlp()
    replicate(model, comm, bucket_bytes=1)
    loss = (model(data(comm.rank)) ** 2).sum() + (model(data(comm.rank, 1)) ** 2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    expected = alone(*(data(r, *k) for r in range(comm.size) for k in ((), (1,))))
    assert_close(grads_of(model), expected, 2 / comm.size)


def check_outputs_that_nothing_uses(comm):
    """Some ranks make forwards, with and without a graph, that come to nothing, and still overlap."""
    model = mlp()
    replicate(model, comm, bucket_bytes=1)
    kept = [model(data(9, k)) for k in range(comm.rank + 1)]
    with no_grad():
        model.eval()(data(8))
    model.train()
    (model(data(comm.rank)) ** 2).sum().backward()
    assert_close(grads_of(model), alone(*(data(r) for r in range(comm.size))), 1 / comm.size)
    assert len(kept) == comm.rank + 1


def check_complex(comm):
    weight = np.array([1 + 1j, 2 - 1j, 0.5j])

    def gradient(model, rank):
        y = model(Tensor(np.array([1.0 + rank, 2j, 1 - 1j])))
        (hd.real(y) ** 2 + hd.imag(y) ** 2).sum().backward()
        return model.weight.grad

    def made():
        model = Scale()
        model.weight = nn.Parameter(weight.copy())
        return model

    model = made()
    replicate(model, comm)
    found = gradient(model, comm.rank)
    np.testing.assert_allclose(found, np.mean([gradient(made(), r) for r in range(comm.size)], 0), rtol=1e-12)


def check_checkpointed(comm):
    """What is computed again in backward is gathered again, and reduced once."""
    model = mlp()
    apply_activation_checkpointing(model, check_fn=lambda m: type(m) is nn.Linear)
    replicate(model, comm, bucket_bytes=1)
    with CommDebugMode() as mode:
        (model(data(comm.rank)) ** 2).sum().backward()
    assert mode.get_comm_counts() == {"all_reduce": 4}
    found = dict(zip(alone(data(0)), grads_of(model).values(), strict=True))
    assert_close(found, alone(*(data(r) for r in range(comm.size))), 1 / comm.size)


# ---------------------------------------------------------------- errors
def check_error_in_forward(comm, everywhere):
    model = DistributedDataParallel(Counting(), process_group=comm)
    good = Tensor(np.ones((2, 3)) * (1 + comm.rank))
    if everywhere or comm.rank == comm.size - 1:
        for _ in range(2):
            with pytest.raises(ValueError, match="broadcast"):
                model(Tensor(np.ones((2, 3, 4))))
            model.module.sum.data[...] = 0
    model.module.sum.data[...] = 0
    model(good).backward()
    grads = comm.all_gather_object(grads_of(model))
    for other in grads:
        assert_close(other, grads[0])
    model.module.zero_grad()
    with CommDebugMode() as mode:
        model(good).backward()
    assert mode.get_comm_counts()["all_reduce"] == 1


def check_error_in_backward(comm, everywhere, place=1):
    """Every backward counts, also one that failed: what it has not reduced the next forward makes up for."""
    model = mlp()
    armed = [everywhere or comm.rank == comm.size - 1]
    replicate(model, comm, bucket_bytes=1)
    layer = model[place]

    def forward(x):
        y = nn.Linear.forward(layer, x)
        y.register_hook(lambda _: 1 / 0 if armed[0] else None)
        return y

    layer.forward = forward
    try:
        (model(data(comm.rank, 1)) ** 2).sum().backward()
    except ZeroDivisionError:
        assert armed[0]
        armed[0] = False
    model.zero_grad()
    (model(data(comm.rank)) ** 2).sum().backward()
    assert_close(grads_of(model), alone(*(data(r) for r in range(comm.size))), 1 / comm.size)


def check_error_in_backward_with_buffers(comm):
    """The rank that failed makes up for its reductions before it takes part in sending buffers."""
    model = Counting()
    ddp = DistributedDataParallel(model, process_group=comm)
    armed = [comm.rank == comm.size - 1]
    forward = model.layer.forward

    def failing(x):
        y = forward(x)
        y.register_hook(lambda _: 1 / 0 if armed[0] else None)
        return (model.layer.weight * 0).sum() + y

    model.layer.forward = failing
    x = Tensor(np.full((2, 3), 1.0 + comm.rank))
    with contextlib.suppress(ZeroDivisionError):
        ddp(x).backward()
    armed[0] = False
    for _ in range(2):
        model.zero_grad()
        ddp(x).backward()
    grads = comm.all_gather_object((grads_of(model), model.sum.data - 2.0 * (1 + comm.rank)))
    for other, buffer in grads:
        assert_close(other, grads[0][0])
        np.testing.assert_array_equal(buffer, grads[0][1])


def check_copies(comm):
    model = DistributedDataParallel(mlp(), process_group=comm)
    for wrong in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copied or pickled"):
            wrong(model.module)
    for given in (model, model.module):
        averaged = optim.AveragedModel(given)
        averaged.update_parameters(model)
        with CommDebugMode() as mode:
            (averaged(data(0)) ** 2).sum().backward()
        assert mode.get_total_counts() == 0
        assert_close(grads_of(averaged.module), alone(data(0)))


def check_free(comm):
    """A model is a plain one afterwards, and can be replicated again; the group it was given may go before."""
    given = comm.dup()
    model = mlp()
    replica = replicate(model, given, bucket_bytes=1)
    given.free()
    (model(data(comm.rank)) ** 2).sum().backward()
    assert_close(grads_of(model), alone(*(data(r) for r in range(comm.size))), 1 / comm.size)
    replica.free()
    assert all(not m.pre and not m.post for m in model.modules())
    model.zero_grad()
    with CommDebugMode() as mode:
        (model(data(comm.rank)) ** 2).sum().backward()
    assert mode.get_total_counts() == 0
    assert_close(grads_of(model), alone(data(comm.rank)))
    model.zero_grad()
    replicate(model, comm)
    (model(data(comm.rank)) ** 2).sum().backward()
    assert_close(grads_of(model), alone(*(data(r) for r in range(comm.size))), 1 / comm.size)


# ---------------------------------------------------------------- scaled losses
def check_plain_scaler(comm):
    """Gradients that were reduced are the same everywhere: all skip, though one rank alone met infinity."""
    model = DistributedDataParallel(Scale(), process_group=comm)
    sgd, scaler = optim.SGD(model.parameters(), lr=1.0), optim.GradScaler(init_scale=2.0)
    x = Tensor(np.array([np.inf if comm.rank == comm.size - 1 else 1.0]))
    scaler.scale(model(x).sum()).backward()
    scaler.step(sgd)
    scaler.update()
    assert (scaler.get_scale(), _number(model.module.weight.data)) == (1.0, 1.0)


def check_scaler(comm, unscale, enabled=True):
    """Only the last rank's shard of a gradient is not finite: all skip the step, and halve the scale."""
    manual_seed(2)
    model = fully_shard(nn.Linear(3, max(comm.size, 2), bias=False, dtype=np.float64), mesh=comm)
    sgd = optim.SGD(model.named_parameters(), lr=0.5)
    scaler = ShardedGradScaler(init_scale=8.0, growth_interval=1, process_group=comm, enabled=enabled)
    before = model.weight.data.copy()
    x = Tensor(np.ones((2, 3)))
    for is_bad, scale in ((True, 4.0), (False, 8.0)):
        y = model(x)
        scaler.scale(y.sum()).backward()
        if is_bad and comm.rank == comm.size - 1:
            model.weight.grad[...] = np.inf
        with CommDebugMode() as mode:
            if unscale:
                scaler.unscale_(sgd)
            if enabled or not is_bad:
                scaler.step(sgd)
        assert mode.get_comm_counts() == ({"all_reduce": 1} if enabled else {})
        scaler.update()
        assert scaler.get_scale() == (scale if enabled else 1.0)
        np.testing.assert_array_equal(model.weight.data, before - (0.0 if is_bad else 0.5 * 2.0))
        sgd.zero_grad()


def _with(check, *args):
    @functools.wraps(check)
    def called(comm):
        check(comm, *args)

    called.__name__ = "-".join([check.__name__, *map(str, args)])
    return called


CHECKS = [
    check_names_are_clean,
    check_arguments,
    check_no_sync_is_left_after_an_error,
    check_mean_over_accumulation_steps,
    check_steps_on_unreduced_gradients_are_told,
    check_gradients_that_were_changed_or_zeroed_in_between,
    *(_with(check, mb) for check in (check_branches, check_opposite_orders) for mb in (None, 1e-6)),
    check_buffers_come_from_the_first,
    check_buffers_stay,
    check_what_is_refused,
    check_init_sync,
    *(_with(check_deferred, init_sync) for init_sync in (True, False)),
    check_gradients_as_values_are_local,
    *(_with(check_gradients_of_gradients, of_inputs) for of_inputs in (True, False)),
    check_hooks,
    check_unfreezing,
    check_unfreezing_keeps_gradients,
    check_unfreezing_and_evaluation,
    check_all_frozen,
    check_replaced_parameters_are_refused,
    check_tied,
    check_two_forwards_one_backward,
    check_forwards_of_which_some_come_later,
    check_one_forward_two_backwards,
    check_outputs_that_nothing_uses,
    check_complex,
    check_checkpointed,
    *(_with(check_error_in_forward, everywhere) for everywhere in (False, True)),
    *(_with(check_error_in_backward, everywhere, place) for everywhere in (False, True) for place in (0, 1, 3)),
    check_error_in_backward_with_buffers,
    check_copies,
    check_free,
    check_plain_scaler,
    *(_with(check_scaler, unscale) for unscale in (True, False)),
    _with(check_scaler, False, False),
]
