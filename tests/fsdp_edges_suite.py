"""Unusual programs with fully_shard against a single process: bodies of tests that take a communicator."""

import contextlib
import gc
import weakref

import numpy as np
import pytest
from fsdp_suite import whole, whole_gradient

from hpcdist import autograd, manual_seed, nn, optim
from hpcdist.autograd import Tensor, no_grad
from hpcdist.dtensor import DTensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.errors import CollectiveMismatchError
from hpcdist.nn import functional as F
from hpcdist.parallel import fully_shard, replicate

ROWS, WIDTH = 12, 5


class Net(nn.Module):
    """Two layers, units of their own, and an output; ``program`` says how they are used."""

    def __init__(self, program):
        super().__init__()
        manual_seed(3)
        self.a = nn.Linear(WIDTH, WIDTH, dtype=np.float64)
        self.b = nn.Linear(WIDTH, WIDTH, dtype=np.float64)
        self.c = nn.Linear(WIDTH, 2, dtype=np.float64)
        self.program = program

    def forward(self, x, *args):
        return self.program(self, x, *args)


def sharded(net, comm, **options):
    for part in (net.a, net.b):
        if isinstance(part, nn.Module) and not hasattr(part, "sharded_unit"):
            fully_shard(part, mesh=comm, **options)
    return fully_shard(net, mesh=comm, **options)


def rows(comm=None):
    x = np.random.default_rng(5).standard_normal((ROWS, WIDTH))
    n = ROWS if comm is None else ROWS // comm.size
    start = 0 if comm is None else comm.rank * n
    return Tensor(x[start : start + n])


def check_program(comm, name):
    """Gradients after what the program does are those of a single process."""
    forward, train = PROGRAMS[name]
    plain, mine = Net(forward), sharded(Net(forward), comm)
    train(plain, rows())
    train(mine, rows(comm))
    for (key, p), q in zip(mine.named_parameters(), plain.parameters(), strict=True):
        gradient = whole_gradient(p)
        assert (gradient is None) == (q.grad is None), key
        if gradient is not None:
            np.testing.assert_allclose(gradient, q.grad, rtol=1e-10, atol=1e-13, err_msg=key)
    assert all(unit.whole is None for unit in (m.sharded_unit for m in (mine, mine.a, mine.b)))


# ---------------------------------------------------------------- forwards
def chain(net, x):
    return net.c(F.gelu(net.b(F.gelu(net.a(x)))))


def twice(net, x):
    return net.c(net.a(F.gelu(net.b(net.a(x)))) + net.b(x))


def recursive(net, x, depth=2):
    return net.c(net.a(x)) if depth == 0 else net(F.gelu(net.b(x)), depth - 1) * 0.5 + net.c(x)


def with_no_grad_inside(net, x):
    with no_grad():
        target = net.b(x)
    return net.c(net.a(x)) + target[:, :2]


def by_functions(net, x):
    y = x @ net.c.weight.T + net.c.weight[:1].sum() + net.c.bias[1:]
    return y + net.a(x)[:, :2] + net.b(x)[:, ::2][:, :2]


def penalised(net, x):
    y = net.b(F.gelu(net.a(x)))
    (slope,) = autograd.grad((y**2).sum(), [x], retain_graph=True)
    return net.c(y * Tensor(slope))


# ---------------------------------------------------------------- what is done with them
def once(net, x):
    (net(x) ** 2).mean().backward()


def again_in_the_same_graph(net, x):
    loss = (net(x) ** 2).mean()
    loss.backward(retain_graph=True)
    loss.backward()


def two_forwards_one_backward(net, x):
    ((net(x) ** 2).mean() + net(x * 2.0).mean()).backward()


def two_forwards_two_backwards(net, x):
    first, second = (net(x) ** 2).mean(), net(x * 2.0).mean()
    first.backward()
    second.backward()


def a_forward_for_nothing(net, x):
    net(x)
    once(net, x)
    once(net.eval(), x)
    with no_grad():
        net(x)
    once(net.train(), x)


def two_losses_of_one_forward(net, x):
    y = net(x)
    (y[:, 0] ** 2).mean().backward(retain_graph=True)
    y[:, 1].mean().backward()


def asked_for(net, x):
    """``autograd.grad`` of parameters gives what backward gives, and leaves gradients alone that wait."""
    if hasattr(net, "no_sync"):
        with net.no_sync():
            once(net, x)
    else:
        once(net, x)
    found = autograd.grad((net(x) ** 2).mean(), list(net.parameters()))
    once(net, x)
    for p, gradient in zip(net.parameters(), found, strict=True):
        one = gradient.full_tensor().data if isinstance(gradient, DTensor) else gradient
        np.testing.assert_allclose(one * 2, whole_gradient(p), rtol=1e-10, atol=1e-13)


def asked_for_inputs(net, x):
    """``autograd.grad`` of the input adds nothing to what parameters have."""
    x = Tensor(x.data, requires_grad=True)
    autograd.grad((net(x) ** 2).mean(), [x])
    once(net, x)


def with_grad_inside(net, x):
    once(net, Tensor(x.data, requires_grad=True))


def penalty(net, x):
    """A loss that has the gradient of the input in it."""
    x = Tensor(x.data, requires_grad=True)
    y = net(x)
    (slope,) = autograd.grad((y**2).mean() * len(x.data), [x], create_graph=True)
    ((slope**2).mean() + y.mean()).backward()


def unfrozen(net, x):
    net.a.weight.requires_grad = net.c.bias.requires_grad = False
    once(net, x)
    net.a.weight.requires_grad = True
    once(net, x)


def partly(net, x):
    """Unsynchronised, then synchronised."""
    for syncs in (False, False, True):
        if hasattr(net, "set_requires_gradient_sync"):
            net.set_requires_gradient_sync(syncs)
        once(net, x)
        if hasattr(net, "set_requires_gradient_sync") and not syncs:
            assert all(p.grad is None for p in net.parameters())


def hooked(net, x):
    seen = []
    net.a.weight.register_hook(lambda g: g * 3.0)
    net.b.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.shape))
    once(net, x)
    assert seen == [net.b.bias.data.shape]


PROGRAMS = {
    "once": (chain, once),
    "units twice": (twice, once),
    "units twice, backward twice": (twice, again_in_the_same_graph),
    "recursion": (recursive, once),
    "no_grad inside": (with_no_grad_inside, once),
    "functions of weights": (by_functions, once),
    "grad inside": (penalised, with_grad_inside),
    "backward twice": (chain, again_in_the_same_graph),
    "two forwards, one backward": (twice, two_forwards_one_backward),
    "two forwards, two backwards": (chain, two_forwards_two_backwards),
    "a forward for nothing": (chain, a_forward_for_nothing),
    "two losses": (chain, two_losses_of_one_forward),
    "grad of parameters": (twice, asked_for),
    "grad of inputs": (chain, asked_for_inputs),
    "penalty of a gradient": (twice, penalty),
    "unfrozen": (chain, unfrozen),
    "partly synchronised": (twice, partly),
    "hooks": (chain, hooked),
}


# ---------------------------------------------------------------- the same module in two places
def check_shared_module(comm):
    class Shared(Net):
        def __init__(self):
            super().__init__(lambda net, x: net.c(net.b(F.gelu(net.a(x)))))
            self.b = self.a

    plain, mine = Shared(), sharded(Shared(), comm)
    once(plain, rows())
    once(mine, rows(comm))
    assert len(list(mine.parameters())) == len(list(plain.parameters())) == 4
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(whole_gradient(p), q.grad, rtol=1e-10)


# ---------------------------------------------------------------- what the graph keeps
def check_views_are_not_kept(comm):
    """Transposes and slices of whole weights do not keep them alive, and backward sees the same values."""

    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(np.arange(200.0 * 60).reshape(200, 60) / 1000)

        def forward(self, x):
            watched.append(weakref.ref(self.weight.data))
            w = self.weight
            return ((x @ w.T) ** 2).sum() + (x[:, :20] @ w[3:50:2, 40:].T * x.sum()).sum() + (w[::-1] ** 2).sum()

    watched = []
    x = Tensor(np.ones((3, 60)))
    plain, mine = Views(), fully_shard(Views(), mesh=comm, reshard_after_forward=True)
    plain(x).backward()
    watched.clear()
    loss = mine(x)
    assert watched[0]() is None
    loss.backward()
    np.testing.assert_allclose(whole_gradient(mine.weight), plain.weight.grad, rtol=1e-12)


def check_result_that_is_a_parameter(comm):
    """A forward may return a parameter: it stays whole as long as somebody has it."""
    mine = sharded(Net(lambda net, x: net.c.weight), comm)
    plain = Net(None)
    y = mine(rows(comm))
    np.testing.assert_array_equal(y.data, plain.c.weight.data)
    (y**2).sum().backward()
    np.testing.assert_allclose(whole_gradient(mine.c.weight), 2 * plain.c.weight.data)


def check_values_are_those_of_now(comm):
    """What was gathered for a forward without backward is not used after parameters have changed."""
    mine = sharded(Net(chain), comm, reshard_after_forward=False)
    x = rows(comm)
    mine(x)
    with no_grad():
        for p in mine.parameters():
            p.data[...] = 0
    np.testing.assert_array_equal(mine(x).data, 0)
    mine.set_is_last_backward(False)
    once(mine, x)
    mine(x)
    with no_grad():
        for p in mine.parameters():
            p.data[...] = 1
    plain = Net(chain)
    for p in plain.parameters():
        p.data[...] = 1
    np.testing.assert_allclose(mine(x).data, plain(x).data, rtol=1e-12)


# ---------------------------------------------------------------- micro-batches that keep parameters
def check_last_backward(comm):
    """Until the last backward before a step parameters stay whole: micro-batches after the first gather nothing."""
    mine, plain = sharded(Net(chain), comm), Net(chain)
    sgd = optim.SGD(mine.named_parameters(), lr=0.1)
    for _ in range(2):
        gathers = []
        for is_last in (False, False, True):
            mine.set_is_last_backward(is_last)
            mine.set_reshard_after_forward(False)
            with CommDebugMode() as mode:
                once(mine, rows(comm))
            gathers.append(mode.get_comm_counts()["all_gather"])
        assert gathers == ([3, 0, 0] if comm.size > 1 else [0, 0, 0])
        for _ in range(3):
            once(plain, rows())
        for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
            np.testing.assert_allclose(whole_gradient(p), q.grad, rtol=1e-10)
            q.data -= 0.1 * q.grad
        sgd.step()
        sgd.zero_grad()
        plain.zero_grad()


# ---------------------------------------------------------------- errors
def check_failing_hooks(comm):
    """A hook that raises before or after a unit's own costs that call only."""
    mine, plain = sharded(Net(chain), comm), Net(chain)

    def fail(_):
        raise ZeroDivisionError

    for hooks in (mine.b.pre, mine.b.post, mine.pre, mine.post):
        for place in (0, len(hooks)):
            hooks.insert(place, fail)
            with pytest.raises(ZeroDivisionError):
                mine(rows(comm))
            hooks.remove(fail)
            assert all(isinstance(p, DTensor) for p in mine.parameters())
            mine.zero_grad()
            once(mine, rows(comm))
    once(plain, rows())
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(whole_gradient(p), q.grad, rtol=1e-10)


def check_failing_backward_forgets_all(comm):
    """After a backward that failed no parameter has a part of a gradient, also not one that was to be reduced later."""
    mine, plain = sharded(Net(chain), comm), Net(chain)

    def fail(_):
        raise ZeroDivisionError

    for syncs in (True, False):
        mine.set_requires_gradient_sync(syncs)
        x = Tensor(rows(comm).data, requires_grad=True)
        x.register_hook(fail)
        loss = (mine(x) ** 2).mean()
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        mine.set_requires_gradient_sync(True)
        mine.reset_iter_state()
        assert all(p.grad is None for p in mine.parameters())
        once(mine, rows(comm))
        plain.zero_grad()
        once(plain, rows())
        for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
            np.testing.assert_allclose(whole_gradient(p), q.grad, rtol=1e-10)
        mine.zero_grad()


def check_zero_grad(comm):
    """Gradients of ``no_sync`` that were not reduced are forgotten, as those that were."""
    mine, plain = sharded(Net(chain), comm), Net(chain)
    with mine.no_sync():
        once(mine, rows(comm))
    mine.zero_grad()
    once(mine, rows(comm))
    once(plain, rows())
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(whole_gradient(p), q.grad, rtol=1e-10)


def check_failing_on_one_rank(comm, place, syncs):
    """A backward that fails on one rank, which goes on: its next forward takes part in what others wait for."""
    mine, plain, fails = sharded(Net(chain), comm), Net(chain), [comm.rank == comm.size - 1]

    def fail(_):
        if fails[0]:
            raise ZeroDivisionError

    x = Tensor(rows(comm).data, requires_grad=True)
    y = mine(x)
    for where, tensor in (("first", y), ("shard", mine.b.weight), ("last", x)):
        if where == place:
            tensor.register_hook(fail)
    try:
        with contextlib.nullcontext() if syncs else mine.no_sync():
            (y**2).mean().backward()
    except ZeroDivisionError:
        assert fails[0]
    fails[0] = False
    mine.reset_iter_state()
    mine.zero_grad()
    once(mine, rows(comm))
    once(plain, rows())
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(whole_gradient(p), q.grad, rtol=1e-10)


def check_units_in_another_order(comm):
    """Case B29: units of the same shapes in opposite orders are an error, and no wrong value."""

    def program(net, x):
        first, second = (net.a, net.b) if comm.rank % 2 == 0 else (net.b, net.a)
        return net.c(second(first(x)))

    mine = sharded(Net(program), comm)
    if comm.size == 1:
        mine(rows(comm))
    else:
        with pytest.raises(CollectiveMismatchError, match=r"units \[1, 2"):
            mine(rows(comm))
        assert all(isinstance(p, DTensor) for p in mine.parameters())


def check_whole_parameters_are_freed(comm):
    """Nothing keeps what parameters were before."""
    net = Net(chain)
    before = [weakref.ref(p.data) for p in net.parameters()]
    assert all(ref() is not None for ref in before)
    sharded(net, comm)
    assert all(ref() is None for ref in before)


def check_model_is_freed(comm):
    """Nobody keeps a model that is gone, also right after its forward and backward."""
    mine = sharded(Net(chain), comm)
    once(mine, rows(comm))
    with no_grad():
        mine(rows(comm))
    once(mine, rows(comm))
    held = [weakref.ref(p.data) for p in mine.parameters()]
    del mine
    for rank in range(comm.size):  # one thread at a time: a second collection is skipped while one runs
        comm.barrier()
        if rank == comm.rank:
            gc.collect()
    assert all(ref() is None for ref in held)


def check_sharded_later(comm):
    """A module that has gradients, and an optimizer, is sharded: they go on with their parts of it."""
    plain, mine = Net(chain), Net(chain)
    adamw = [optim.AdamW(net.named_parameters(), lr=0.1) for net in (plain, mine)]
    once(plain, rows())
    once(mine, rows())
    sharded(mine, comm)
    for step in range(3):
        if step:
            once(plain, rows())
            once(mine, rows(comm))
        for optimizer in adamw:
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(mine.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(whole(p), q.data, rtol=1e-9)
    replicated = replicate(Net(chain), comm).module
    with pytest.raises(ValueError, match="replicate has already"):
        fully_shard(replicated, mesh=comm)


def check_what_is_replaced(comm):
    """Parameters of a sharded module are written into, and not replaced, cast or copied."""
    import copy

    mine = sharded(Net(chain), comm)
    names = [name for name, _ in Net(chain).named_parameters()]
    assert [*mine.state_dict()] == names
    mine.load_state_dict({name: array * 0 + 1 for name, array in mine.state_dict().items()})
    assert all((whole(p) == 1).all() for p in mine.parameters())
    with pytest.raises(ValueError, match="cast the module before"):
        mine.to(np.float32)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(mine)
    before = mine.b.weight
    mine.b.weight = nn.Parameter(np.zeros((WIDTH, WIDTH)))
    with pytest.raises(RuntimeError, match="not the one that was sharded"):
        mine(rows(comm))
    mine.b.weight = before
    own = mine.b.weight.data
    mine.b.weight.data = own.astype(np.float32)
    with pytest.raises(RuntimeError, match="float32"):
        mine(rows(comm))
    mine.b.weight.data = own * 2
    plain = Net(chain)
    for p in plain.parameters():
        p.data[...] = 1
    plain.b.weight.data *= 2
    np.testing.assert_allclose(mine(rows(comm)).data, plain(rows(comm)).data, rtol=1e-12)
