"""Replicated training on ranks that are threads, against one process that sees everything."""

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor, manual_seed, no_grad
from hpcdist.comm import local
from hpcdist.parallel import replicate

SIZES = [1, 2, 3, 4]


class Net(nn.Module):
    """Three repeated layers around which the first one's weight is used twice (tied), and a frozen scale."""

    def __init__(self, dtype=np.float64):
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(6, 6, dtype=dtype) for _ in range(3))
        self.outer = nn.Linear(6, 6, dtype=dtype)
        self.outer.weight = self.inner[0].weight
        self.scale = nn.Parameter(np.full(6, 1.5, dtype), requires_grad=False)

    def forward(self, x, skip=()):
        for i, layer in enumerate(self.inner):
            if i not in skip:
                x = layer(x).tanh()
        return (self.outer(x * self.scale) ** 2).sum()


def build(dtype=np.float64):
    manual_seed(5)
    return Net(dtype)


def grads_of(model):
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def data(rank, part=0):
    return Tensor(np.random.default_rng((rank, part)).standard_normal((4, 6)))


def summed(inputs, **kwargs):
    """Return gradients of the sum of losses over inputs, by one process."""
    model = build()
    for x in inputs:
        model(x, **kwargs).backward()
    return grads_of(model)


def assert_close(found, expected, factor=1.0):
    assert found.keys() == expected.keys()
    for name, g in found.items():
        if expected[name] is None:
            assert g is None, name
        else:
            np.testing.assert_allclose(g, expected[name] * factor, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_gradients_are_the_average_over_ranks(size, bucket_bytes):
    expected = summed([data(r) for r in range(size)])

    def rank(comm):
        model = build()
        names = [name for name, _ in model.named_parameters()]
        replicate(model, comm, bucket_bytes=bucket_bytes)
        model(data(comm.rank)).backward()
        assert [name for name, _ in model.named_parameters()] == names
        return grads_of(model)

    for found in local.run(size, rank):
        assert_close(found, expected, 1 / size)


@pytest.mark.parametrize("size", SIZES)
def test_micro_batches_are_reduced_once_and_may_be_uneven(size):
    def parts(rank):
        return range(1 + rank % 2)

    expected = summed([data(r, k) for r in range(size) for k in parts(r)])

    def rank(comm):
        model = build()
        replica = replicate(model, comm, bucket_bytes=1 << 20)
        replica.set_gradient_divide_factor(1)
        *early, last = parts(comm.rank)
        before = replica.comm.counts.copy()
        for k in early:
            with replica.no_sync():
                model(data(comm.rank, k)).backward()
        model(data(comm.rank, last)).backward()
        return grads_of(model), replica.comm.counts - before

    for found, log in local.run(size, rank):
        assert_close(found, expected)
        assert log == {"all_reduce": 1}


@pytest.mark.parametrize("size", [2, 3])
def test_a_unit_that_is_unused_on_one_rank_takes_part(size):
    expected = [summed([data(r)], skip=(1,) if r == 0 else ()) for r in range(size)]
    total = {name: sum(e[name] for e in expected if e[name] is not None) for name in expected[0]}

    def rank(comm):
        model = build()
        replicate(model, comm, bucket_bytes=1).set_gradient_divide_factor(1)
        model(data(comm.rank), skip=(1,) if comm.rank == 0 else ()).backward()
        return grads_of(model)

    for found in local.run(size, rank):
        assert_close(found, total)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
@pytest.mark.parametrize("factor", [None, 1024])
def test_what_no_rank_used_has_no_gradient(size, bucket_bytes, factor):
    """So that it is not moved, nor its steps counted, by what optimizers do with zeros."""

    def rank(comm):
        model = build(np.float16)
        replica = replicate(model, comm, bucket_bytes=bucket_bytes)
        if factor:
            replica.set_gradient_divide_factor(factor)
        seen = []
        for skip in ((1,), (2,), ()):
            model(Tensor(np.ones((2, 6), np.float16)), skip=skip).backward()
            seen.append({name for name, g in grads_of(model).items() if g is None})
            model.zero_grad()
        return seen

    for one, two, none in local.run(size, rank):
        assert one == {"inner.1.weight", "inner.1.bias"}
        assert two == {"inner.2.weight", "inner.2.bias"}
        assert none == set()


def test_ranks_start_from_the_first():
    def rank(comm):
        manual_seed(comm.rank)
        model = nn.Linear(3, 2)
        replicate(model, comm)
        return model.weight.data

    one, two = local.run(2, rank)
    np.testing.assert_array_equal(one, two)


def test_different_models_are_the_same_error_everywhere():
    def rank(comm):
        with pytest.raises(ValueError, match="differ") as error:
            replicate(nn.Linear(3, 2 + (comm.rank == 1)), comm)
        return str(error.value)

    for message in local.run(3, rank):
        assert "(3, 3)" in message or "(2, 3)" in message


def test_several_dtypes_in_one_unit():
    def build_mixed():
        manual_seed(1)
        return nn.Sequential(nn.Linear(4, 4, dtype=np.float64), nn.Linear(4, 4, dtype=np.float32))

    def rank(comm):
        model = build_mixed()
        replicate(model, comm)
        (model(Tensor(np.full((2, 4), 1.0 + comm.rank))) ** 2).sum().backward()
        return {n: p.grad for n, p in model.named_parameters()}

    reference = build_mixed()
    for r in range(2):
        (reference(Tensor(np.full((2, 4), 1.0 + r))) ** 2).sum().backward()
    for found in local.run(2, rank):
        for name, p in reference.named_parameters():
            assert found[name].dtype == p.dtype
            np.testing.assert_allclose(found[name], p.grad / 2, rtol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("factor", [None, 1, 7])
def test_what_was_reduced_already_is_added_to_and_not_reduced_again(size, factor):
    expected = summed([data(r, k) for r in range(size) for k in range(2)])

    def rank(comm):
        model = build()
        replica = replicate(model, comm)
        if factor:
            replica.set_gradient_divide_factor(factor)
        for k in range(2):
            model(data(comm.rank, k)).backward()
        return grads_of(model)

    for found in local.run(size, rank):
        assert_close(found, expected, 1 / (factor or size))


def test_a_parameter_used_outside_its_unit_before_it_is_an_error():
    model = Net()
    replicate(model, local.solo(), bucket_bytes=1)
    early = (model.inner[2].bias * 1.0).sum()
    loss = model(data(0)) + early
    with pytest.raises(RuntimeError, match="being reduced"):
        loss.backward()


def test_hooks_of_parameters_see_what_was_reduced():
    def rank(comm):
        model, seen = nn.Linear(3, 2), []
        model.bias.register_hook(lambda g: seen.append(g.copy()) or g * 2)
        replicate(model, comm)
        model(Tensor(np.ones((1 + comm.rank, 3), np.float32))).sum().backward()
        return seen, model.bias.grad

    for seen, grad in local.run(2, rank):
        np.testing.assert_array_equal(seen, [[1.5, 1.5]])
        np.testing.assert_array_equal(grad, [3, 3])


def test_an_exception_in_forward_leaves_the_model_usable():
    expected = summed([data(0)])
    model = build()
    replicate(model, local.solo())
    with pytest.raises(ValueError, match="linear"):
        model(Tensor(np.ones((2, 5))))
    model(data(0)).backward()
    assert_close(grads_of(model), expected)


def test_evaluation_does_not_communicate():
    model = build()
    replica = replicate(model, local.solo())
    before = replica.comm.counts.copy()
    with no_grad():
        value = model(data(0))
    assert not value.requires_grad
    assert replica.comm.counts == before


def test_reductions_start_while_backward_runs():
    model, posted = Net(), []
    replica = replicate(model, local.solo(), bucket_bytes=1)
    for layer in model.inner:
        forward = layer.forward

        def watched(x, forward=forward):
            y = forward(x)
            y.register_hook(lambda g: posted.append(replica.comm.counts["all_reduce"]))
            return y

        layer.forward = watched
    before = replica.comm.counts["all_reduce"]
    model(data(0)).backward()
    # backward goes through layers 2, 1, 0: what lies behind is on its way
    assert [n - before for n in posted] == [0, 1, 2]
    assert replica.comm.counts["all_reduce"] - before == 4


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_frozen_afterwards_gets_no_gradient(whole):
    expected = summed([data(r) for r in range(2)])

    def rank(comm):
        model = build()
        replicate(model, comm)
        frozen = model.inner[1].weight
        if whole:
            model.inner[1].requires_grad_(False)
        frozen.requires_grad = False
        model(data(comm.rank)).backward()
        assert frozen.grad is None
        return {n: g for n, g in grads_of(model).items() if not n.startswith("inner.1")}

    for found in local.run(2, rank):
        assert_close(found, {n: expected[n] for n in found}, 0.5)


def test_what_was_unfrozen_afterwards_is_reduced():
    reference = build()
    reference.scale.requires_grad = True
    for r in range(3):
        reference(data(r)).backward()

    def rank(comm):
        model = build()
        replicate(model, comm)
        model(data(comm.rank)).backward()
        assert model.scale.grad is None
        model.zero_grad()
        model.scale.requires_grad = True
        model(data(comm.rank)).backward()
        return grads_of(model)

    for found in local.run(3, rank):
        assert_close(found, grads_of(reference), 1 / 3)


def test_buffers_and_buckets_that_differ_are_the_same_error_everywhere():
    def buffers(comm):
        model = build()
        model.register_buffer("seen", np.zeros(2 + comm.rank))
        return lambda: replicate(model, comm)

    def buckets(comm):
        model = build()
        return lambda: replicate(model, comm, bucket_bytes=1 + comm.rank * 10_000)

    for make in (buffers, buckets):

        def rank(comm, make=make):
            with pytest.raises(ValueError, match=f"{make.__name__} of rank"):
                make(comm)()
            return True

        assert local.run(2, rank) == [True, True]


def test_averages_of_16_bit_gradients_stay_in_range():
    def rank(comm):
        model = nn.LayerNorm(2, dtype=np.float16)
        replicate(model, comm)
        model(Tensor(np.ones((1, 2), np.float16))).backward(np.full((1, 2), 30000, np.float16))
        return model.bias.grad

    for grad in local.run(3, rank):
        np.testing.assert_array_equal(grad, np.float16(30000))
