"""Communication hooks of replicated models: bodies of tests that take a communicator."""

import contextlib
import warnings

import ml_dtypes
import numpy as np
import pytest
from ddp_suite import Branches, data, mlp

import hpcdist.comm as dist
from hpcdist import nn, optim
from hpcdist.autograd import Tensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import DistributedDataParallel, comm_hooks, replicate

SMALL = 100
"""Bytes of a bucket: each layer of :func:`ddp_suite.mlp` has one of its own."""


def model_on(comm, hook=None, state=None, **options):
    """Return a replicated model with a hook."""
    made = DistributedDataParallel(mlp(), process_group=comm, bucket_cap_mb=SMALL / 2**20, **options)
    if hook is not None:
        made.register_comm_hook(state, hook)
    return made


def step(model, *key):
    """Return the gradients of one backward on what this key draws."""
    model.zero_grad()
    (model(data(*key)) ** 2).sum().backward()
    return [p.grad.copy() for p in model.parameters()]


def alone(*key):
    """Return the gradients of this rank by itself."""
    return step(mlp(), *key)


def everywhere(comm, value):
    """Return the value of every rank, stacked."""
    return np.stack(comm.all_gather_object(value))


def mean_of(comm, *key):
    """Return the mean of what ranks get by themselves."""
    return [everywhere(comm, g).mean(0) for g in alone(comm.rank, *key)]


def assert_all_close(found, expected, **tolerance):
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, **tolerance)


def assert_same_everywhere(comm, arrays):
    for x in arrays:
        assert (everywhere(comm, x) == x).all()


# ---------------------------------------------------------------- hooks that come along
def check_allreduce_is_what_happens_without(comm):
    model, other = model_on(comm, comm_hooks.allreduce_hook), model_on(comm)
    for i in range(3):
        assert_all_close(step(model, comm.rank, i), step(other, comm.rank, i), rtol=1e-14, atol=1e-14)
        assert_all_close(step(model, comm.rank, i), mean_of(comm, i), rtol=1e-12, atol=1e-12)


def check_counts(comm):
    """A hook costs two small messages a backward; without one nothing changes."""
    model, plain = model_on(comm, comm_hooks.allreduce_hook), model_on(comm)
    step(model, comm.rank), step(plain, comm.rank)
    for made, extra in ((model, 2), (plain, 0)):
        with CommDebugMode() as mode:
            step(made, comm.rank)
        assert mode.get_comm_counts() == {"all_reduce": 4 + extra}


def check_a_group_of_the_state(comm):
    """The state of the plain hooks is a communicator: here one of this rank alone."""
    model = model_on(comm, comm_hooks.allreduce_hook, comm.split(comm.rank))
    assert_all_close(step(model, comm.rank), alone(comm.rank), rtol=1e-14)


def check_sixteen_bits(comm):
    cases = (
        (comm_hooks.fp16_compress_hook, np.float16, 2e-3),
        (comm_hooks.bf16_compress_hook, ml_dtypes.bfloat16, 2e-2),
    )
    for hook, dtype, tolerance in cases:
        found = step(model_on(comm, hook), comm.rank)
        expected = mean_of(comm)
        for f, e in zip(found, expected, strict=True):
            assert f.dtype == np.float64
            assert (f.astype(dtype).astype(np.float64) == f).all()
            np.testing.assert_allclose(f, e, atol=tolerance * max(abs(g).max() for g in expected))
        assert_same_everywhere(comm, found)


def check_wrappers(comm):
    """A hook inside a wrapper sees 16 bits, and what it makes comes back in those of the gradients."""
    seen = []

    def inner(factor, bucket):
        seen.append(bucket.buffer().dtype)
        assert all(np.shares_memory(g, bucket.buffer()) for g in bucket.gradients())
        return bucket.buffer() * bucket.buffer().dtype.type(factor)

    wrappers = ((comm_hooks.fp16_compress_wrapper, np.float16), (comm_hooks.bf16_compress_wrapper, ml_dtypes.bfloat16))
    for wrapper, dtype in wrappers:
        seen.clear()
        found = step(model_on(comm, wrapper(inner), 2.0), comm.rank)
        assert seen == [np.dtype(dtype)] * 4
        assert_all_close(found, [g.astype(dtype).astype(np.float64) * 2 for g in alone(comm.rank)])


def check_out_of_range(comm):
    """What float16 cannot hold is infinite, for a scaler to see, and no warning."""
    model = replicate(nn.Linear(1, 1, bias=False), comm)
    model.register_comm_hook(None, comm_hooks.fp16_compress_hook)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.module(Tensor(np.full((1, 1), 1e6, np.float32))).sum().backward()
    assert np.isinf(model.module.weight.grad).all()


def check_noop(comm):
    model = model_on(comm, comm_hooks.noop_hook)
    assert_all_close(step(model, comm.rank), alone(comm.rank), rtol=0)
    with CommDebugMode() as mode:
        step(model, comm.rank)
    assert mode.get_comm_counts() == {"all_reduce": 2}


# ---------------------------------------------------------------- what a hook gets, and may return
def check_buckets(comm):
    """Buckets come in the order of backward, each once, with views of what lies in them."""
    seen = []

    def hook(state, bucket):
        seen.append((state, bucket.index(), bucket.is_last(), [p.shape for p in bucket.parameters()]))
        for g, p in zip(bucket.gradients(), bucket.parameters(), strict=True):
            assert g.shape == p.shape
            assert np.shares_memory(g, bucket.buffer())
            g *= 2
        assert bucket.buffer().size == sum(g.size for g in bucket.gradients())
        with pytest.raises(ValueError, match="set_buffer"):
            bucket.set_buffer(bucket.buffer()[1:])
        return bucket.buffer()

    model = model_on(comm, hook, "mine")
    for _ in range(2):
        found = step(model, comm.rank)
        assert seen == [("mine", i, i == 3, [(6, 6), (6,)]) for i in range(4)]
        seen.clear()
    assert_all_close(found, [2 * g for g in alone(comm.rank)], rtol=1e-14)


def _future(_, bucket):
    work = dist.all_reduce(bucket.buffer(), group=bucket.group, async_op=True)
    return work.get_future().then(lambda future: future.wait()[0] / bucket.group.size)


ANSWERS = {
    "array": lambda _, bucket: bucket.group.all_reduce(bucket.buffer()) / bucket.group.size,
    "work": lambda _, bucket: bucket.group.iall_reduce(bucket.buffer(), dist.ReduceOp.AVG),
    "torch's work": lambda _, bucket: dist.all_reduce(bucket.buffer(), "avg", bucket.group, async_op=True),
    "future": _future,
    "future of a list": lambda _, bucket: dist.all_reduce(
        bucket.buffer(), "avg", bucket.group, async_op=True
    ).get_future(),
}


def check_answers(comm):
    for hook in ANSWERS.values():
        assert_all_close(step(model_on(comm, hook), comm.rank), mean_of(comm), rtol=1e-12, atol=1e-12)


def check_gradients_that_are_not_there(comm):
    """A parameter that got a gradient on some rank has one everywhere, and one that got none has none."""
    for hook in (comm_hooks.allreduce_hook, comm_hooks.fp16_compress_hook, comm_hooks.noop_hook):
        model = Branches("abc")
        replica = replicate(model, comm, warns_of_unused=False)
        replica.register_comm_hook(None, hook)
        last = comm.size - 1
        model([("a", Tensor(np.ones(1)))] + [("b", Tensor(np.ones(1)))] * (comm.rank == last)).backward()
        of_b = float(comm.rank == last) if hook is comm_hooks.noop_hook else 1 / comm.size
        grads = model.grads()
        assert grads == {"a": 1.0, "b": pytest.approx(of_b, rel=1e-3), "c": None}
        assert replica.unused_parameters().anywhere == ("branches.2.weight",)


def check_only_when_reduced(comm):
    """The sum of micro-batches comes to a hook once, and what was reduced already is not reduced again."""
    calls = []

    def hook(state, bucket):
        calls.append(bucket.index())
        return comm_hooks.allreduce_hook(state, bucket)

    model = model_on(comm, hook)
    with model.no_sync():
        step(model, comm.rank, 0)
    assert calls == []
    for i in (1, 2):
        (model(data(comm.rank, i)) ** 2).sum().backward()
        assert calls == [0, 1, 2, 3] * i
    expected = np.sum([[g.sum() for g in mean_of(comm, i)] for i in range(3)], 0)
    np.testing.assert_allclose([p.grad.sum() for p in model.parameters()], expected, rtol=1e-10)


# ---------------------------------------------------------------- hooks that fail
def _raises(bucket):
    raise ZeroDivisionError("a hook of mine")


def _averaged(bucket):
    """Post what the hooks of other ranks post."""
    return dist.all_reduce(bucket.buffer(), "avg", bucket.group, async_op=True)


def _later(make):
    return lambda bucket: _averaged(bucket).get_future().then(lambda future: make(future.wait()[0]))


WRONG = {
    "raises": (_raises, ZeroDivisionError, "a hook of mine"),
    "raises in a future": (_later(_raises), ZeroDivisionError, "a hook of mine"),
    "shape": (_later(lambda x: x[1:]), ValueError, r"float64 \(41,\)"),
    "dtype": (_later(lambda x: x.astype("f4")), ValueError, r"float32 \(42,\)"),
    "nothing": (lambda bucket: _averaged(bucket) and None, TypeError, "NoneType"),
    "a future of nothing": (_later(lambda _: None), TypeError, "NoneType"),
    "two arrays": (_later(lambda x: [x, x]), TypeError, "list"),
}


def check_fails(comm, how, ranks):
    """What fails on some ranks, in the second bucket, is the same error on all; then all goes on as if it had not."""
    function, kind, message = WRONG[how]
    failing = {"all": range(comm.size), "first": [0], "last": [comm.size - 1]}[ranks]
    state = {"fails": True}

    def hook(state, bucket):
        if state["fails"] and bucket.index() == 1 and comm.rank in failing:
            return function(bucket)
        return comm_hooks.allreduce_hook(None, bucket)

    model = model_on(comm, hook, state)
    before = [p.data.copy() for p in model.parameters()]
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        with pytest.raises(kind, match=message):
            step(model, comm.rank)
        assert all(p.grad is None for p in model.parameters())
    optimizer.step()
    assert_all_close([p.data for p in model.parameters()], before, rtol=0)
    state["fails"] = False
    for i in range(2):
        assert_all_close(step(model, comm.rank, i), mean_of(comm, i), rtol=1e-12, atol=1e-12)


def check_blocks_where_another_rank_raises(comm):
    """A hook that waits itself waits for its group's limit, and then the error is that of the rank that has one."""
    if comm.size == 1:
        return

    def hook(_, bucket):
        bucket.group.timeout_s = 0.3
        if comm.rank == comm.size - 1:
            raise ZeroDivisionError("a hook of mine")
        return bucket.group.all_reduce(bucket.buffer())

    model = model_on(comm, hook)
    with pytest.raises(ZeroDivisionError, match="a hook of mine"):
        step(model, comm.rank)


def check_after_a_backward_that_failed(comm):
    """The next forward takes part in the reductions of a backward that failed here: its hooks are called."""
    model = model_on(comm, comm_hooks.allreduce_hook)

    def fail(_):
        raise ZeroDivisionError

    y = model(data(comm.rank))
    if comm.rank == 0:
        y.register_hook(fail)
    with pytest.raises(ZeroDivisionError) if comm.rank == 0 else contextlib.nullcontext():
        y.sum().backward()
    assert_all_close(step(model, comm.rank, 1), mean_of(comm, 1), rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- what is refused
def check_refused(comm):
    """The same error on every rank, also where only the last one is wrong."""
    last = comm.rank == comm.size - 1
    good = comm_hooks.allreduce_hook
    model = model_on(comm)
    for wrong in (lambda bucket: bucket, lambda: None, lambda a, b, c: None):
        with pytest.raises(TypeError, match=r"hook\(state, bucket\)"):
            model.register_comm_hook(None, wrong if last else good)
    with pytest.raises(TypeError, match="got      str"):
        model.register_comm_hook(None, "allreduce" if last else good)
    if comm.size > 1:
        with pytest.raises(ValueError, match="noop_hook"):
            model.register_comm_hook(None, comm_hooks.noop_hook if last else good)
    model.register_comm_hook(None, good)
    with pytest.raises(RuntimeError, match="a hook already"):
        model.register_comm_hook(None, good)
    with pytest.raises(RuntimeError, match="divide in the hook"):
        model.set_gradient_divide_factor(2)
    divided = model_on(comm)
    divided.set_gradient_divide_factor(7)
    with pytest.raises(RuntimeError, match="set_gradient_divide_factor was called"):
        divided.register_comm_hook(None, good)
    model.replica.free()


CHECKS = [
    check_allreduce_is_what_happens_without,
    check_counts,
    check_a_group_of_the_state,
    check_sixteen_bits,
    check_wrappers,
    check_out_of_range,
    check_noop,
    check_buckets,
    check_answers,
    check_gradients_that_are_not_there,
    check_only_when_reduced,
    check_after_a_backward_that_failed,
    check_refused,
]
