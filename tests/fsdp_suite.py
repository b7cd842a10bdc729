"""fully_shard against a single process: bodies of tests that take a communicator."""

import weakref

import numpy as np
import pytest

from hpcdist import manual_seed, nn, optim
from hpcdist.autograd import Tensor, no_grad
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor import DTensor, Invariant, Shard
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.nn import functional as F
from hpcdist.parallel import MixedPrecisionPolicy, clip_grad_norm_, fully_shard

STEPS = 20
SIZES = {"vocab_size": 13, "seq": 7, "num_layers": 3, "num_heads": 3, "width": 12}
BATCH = 24
"""Sequences a step: all numbers of ranks from 1 to 4 divide it, and its halves; nothing else is divided by them."""


def gpt():
    manual_seed(0)
    return nn.GPT(nn.GPTConfig(**SIZES))


def shard(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def replicas(comm):
    return init_device_mesh((2, comm.size // 2), ("replica", "shard"), comm)


def batch(step, comm, micro=0, num_micro=1):
    rng = np.random.default_rng(step)
    tokens = rng.integers(0, SIZES["vocab_size"], (BATCH, SIZES["seq"] + 1))
    mine = tokens.reshape(num_micro, comm.size, -1, SIZES["seq"] + 1)[micro, comm.rank]
    return mine[:, :-1], mine[:, 1:]


def whole(p):
    return p.full_tensor().data if isinstance(p, DTensor) else p.data


def whole_gradient(p):
    return None if p.grad is None else p.gradient().full_tensor().data if isinstance(p, DTensor) else p.grad


def train(model, comm, steps=STEPS, num_micro=1, step=None):
    """Return losses and norms of AdamW steps; each is accumulated over micro-batches."""
    adamw = optim.AdamW(model.named_parameters(), lr=1e-2)
    found = []
    for n in range(steps):
        losses = [(step or forward_backward)(model, *batch(n, comm, m, num_micro)) for m in range(num_micro)]
        norm = clip_grad_norm_(model.parameters(), 0.5 * num_micro)
        adamw.step()
        adamw.zero_grad()
        found.append((np.mean(comm.all_gather_object(losses)), norm))
    return np.array(found)


def forward_backward(model, tokens, targets):
    loss = model(tokens, targets)
    loss.backward()
    return loss.item()


def expected_steps(found, expected):
    """Compare losses and norms with the first ones of a single process."""
    of_one = expected[0][: len(found)]
    np.testing.assert_allclose(found[:, 0], of_one[:, 0], rtol=1e-5)
    np.testing.assert_allclose(found[:, 1], of_one[:, 1], rtol=1e-4)


def alone(num_micro=1, steps=STEPS):
    """Return losses, norms and parameters of a single process."""
    from hpcdist.comm.local import run

    def main(comm):
        model = gpt()
        return train(model, comm, steps, num_micro), model.state_dict()

    return run(1, main)[0]


# ---------------------------------------------------------------- against a single process
WAYS = {
    "blocks": lambda model, comm: shard(model, comm),
    "root only": lambda model, comm: fully_shard(model, mesh=comm),
    "stays whole": lambda model, comm: shard(model, comm, reshard_after_forward=False),
    "reshards the root": lambda model, comm: shard(model, comm, reshard_after_forward=True),
    "last dimension": lambda model, comm: shard(model, comm, shard_placement_fn=lambda p: Shard(p.ndim - 1)),
    "policy": lambda model, comm: fully_shard(
        model, mesh=comm, auto_wrap_policy=lambda m: isinstance(m, (nn.MLP, nn.TransformerBlock))
    ),
    "ahead": lambda model, comm: ahead(shard(model, comm)),
    "groups": lambda model, comm: groups(model, comm),
}


def ahead(model):
    model.set_prefetch(True)
    assert all(unit.settings.prefetches for unit in units(model))
    return model


def groups(model, comm):
    """Two blocks are one unit, and the last one is one with the norm behind it."""
    fully_shard([model.blocks[0], model.blocks[1]], mesh=comm)
    fully_shard([model.blocks[2], model.ln_f], mesh=comm)
    return fully_shard(model, mesh=comm)


def check_equals_one_process(comm, way, expected):
    """Losses, norms, parameters and their names are those of a single process."""
    model = gpt()
    names = [name for name, _ in model.named_parameters()]
    WAYS[way](model, comm)
    assert [name for name, _ in model.named_parameters()] == names
    expected_steps(train(model, comm, len(expected[0])), expected)
    for name, p in model.named_parameters():
        assert not isinstance(p, DTensor) or p.local.shape == p.layout.local_shape
        np.testing.assert_allclose(whole(p), expected[1][name], atol=2e-3)


def check_copies_of_shards(comm, expected):
    """HSDP: shards along one axis, copies along the other."""
    model = shard(gpt(), replicas(comm))
    expected_steps(train(model, comm, len(expected[0])), expected)
    for p in model.parameters():
        copies = replicas(comm)["replica"].get_group().all_gather_object(p.local.data.tolist())
        assert all(copy == copies[0] for copy in copies)


def check_accumulation(comm, expected):
    """Two micro-batches: reduced each, or only the second time; the same in the end, by fewer messages."""

    def second_time(model, tokens, targets):
        calls.append(1)
        model.set_requires_gradient_sync(len(calls) % 2 == 0)
        return forward_backward(model, tokens, targets)

    calls = []
    for step in (forward_backward, second_time):
        model = shard(gpt(), comm)
        with CommDebugMode() as mode:
            found = train(model, comm, steps=4, num_micro=2, step=step)
        np.testing.assert_allclose(found, expected[0][:4], rtol=1e-4)
        syncs = 4 * (2 if step is forward_backward else 1)
        assert mode.get_comm_counts()["reduce_scatter"] == (syncs * 4 if comm.size > 1 else 0)


# ---------------------------------------------------------------- what is communicated, and what is kept
def check_counts(comm):
    """A unit is gathered twice and reduced once, the root once each; nothing else is communicated."""
    model = shard(gpt(), comm)
    forward_backward(model, *batch(0, comm))
    with CommDebugMode() as mode:
        forward_backward(model, *batch(0, comm))
    expected = {"all_gather": 3 * 2 + 1, "reduce_scatter": 3 + 1} if comm.size > 1 else {}
    assert mode.get_comm_counts() == expected
    num_bytes = sum(p.size for p in model.parameters()) * 4
    brought = mode.get_comm_bytes()
    if comm.size > 1:
        assert brought["reduce_scatter"] == num_bytes + 4 * comm.size * len(list(model.parameters()))
    with CommDebugMode() as mode, no_grad():
        model(*batch(0, comm))
    assert mode.get_comm_counts() == ({"all_gather": 4} if comm.size > 1 else {})


def check_whole_weights_are_freed(comm):
    """Between forward and backward, and after it, no whole parameter of a block is alive; nor is any gradient whole."""
    model = shard(gpt(), comm)
    watched = []
    for block in model.blocks:
        block.post.append(lambda m: watched.extend(weakref.ref(p.data) for p in m.mlp.parameters()))
    loss = model(*batch(0, comm))
    assert len(watched) == 3 * 4
    if comm.size > 1:
        assert all(ref() is None for ref in watched)
    loss.backward()
    assert all(unit.whole is None for unit in units(model))
    assert all(p.grad.shape == p.layout.local_shape for p in model.parameters())


def units(model):
    return [model.sharded_unit, *(block.sharded_unit for block in model.blocks)]


def check_memory(comm):
    """Parameters, gradients and moments take 16 P / N bytes a rank, and whole weights those of a unit and the root."""
    model = shard(gpt(), comm)
    adamw = optim.AdamW(model.named_parameters(), lr=1e-2)
    tokens = batch(0, comm)
    peak = []
    for block in model.blocks:
        block.post.append(lambda _: peak.append(sum(whole_bytes(unit) for unit in units(model))))
    forward_backward(model, *tokens)
    adamw.step()
    count = sum(p.size for p in model.parameters())
    held = sum(p.data.nbytes + p.grad.nbytes for p in model.parameters())
    held += sum(a.nbytes for state in adamw.state.values() for a in state.values() if hasattr(a, "nbytes"))
    everyone = comm.all_gather_object(held)
    assert sum(everyone) == 16 * count
    assert max(everyone) <= 16 * count / comm.size * 1.25  # ranks hold ceil(n / size) rows of small matrices
    block = sum(p.size for p in model.blocks[0].parameters()) * 4
    root = sum(p.size for p in model.parameters()) * 4 - 3 * block
    assert max(peak) <= block + root


def whole_bytes(unit):
    return sum(a.nbytes for a in unit.whole or ())


# ---------------------------------------------------------------- parameters of every kind
class Odd(nn.Module):
    """Parameters without dimensions, without elements, of three dtypes, frozen and unused ones, and a buffer."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(1)
        self.scale = nn.Parameter(np.array(1.5))
        self.nothing = nn.Parameter(np.zeros((0, 3)))
        self.weight = nn.Parameter(rng.standard_normal((5, 3)))
        self.single = nn.Parameter(rng.standard_normal((3, 2)).astype(np.float32))
        self.counts = nn.Parameter(np.array([1, 2, 3]), requires_grad=False)
        self.frozen = nn.Parameter(rng.standard_normal((2, 3)), requires_grad=False)
        self.unused = nn.Parameter(rng.standard_normal(4))
        self.register_buffer("seen", np.zeros(1))

    def forward(self, x):
        y = F.linear(x, self.weight) * self.scale
        z = F.linear(x.to(np.float32), self.single.T)
        w = F.linear(x, self.frozen) * self.counts.data.sum()
        return y.sum() + z.sum() * 1.0 + w.sum() + self.nothing.sum()


def check_odd_parameters(comm):
    x = np.arange(36.0).reshape(12, 3) / 10
    reference = Odd()
    expected = reference(Tensor(x))
    expected.backward()
    model = fully_shard(Odd(), mesh=comm)
    assert [type(p.placements[0]) for p in model.parameters()] == [Invariant] + [Shard] * 6
    n = 12 // comm.size
    loss = model(Tensor(x[comm.rank * n : (comm.rank + 1) * n]))
    loss.backward()
    np.testing.assert_allclose(sum(comm.all_gather_object(loss.item())), expected.item(), rtol=1e-5)
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        gradient = whole_gradient(p)
        if q.grad is None:
            assert gradient is None, name
        else:
            assert gradient.dtype == q.grad.dtype
            np.testing.assert_allclose(gradient * comm.size, q.grad, rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(model.seen.data, np.zeros(1))


def check_tied_parameters(comm, apart):
    """Case B24: a table that is an embedding and an output; also where each of them is a unit of its own."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 2, dtype=np.float64)
            self.output = nn.Linear(2, 5, bias=False, dtype=np.float64)
            self.table.weight = nn.Parameter(np.arange(10.0).reshape(5, 2) / 10)
            self.output.weight = self.table.weight

        def forward(self, ids):
            return self.output(self.table(ids)).sum()

    model = Tied()
    if apart:
        fully_shard(model.table, mesh=comm)
        fully_shard(model.output, mesh=comm)
    fully_shard(model, mesh=comm) if not apart else None
    assert len(list(model.parameters())) == 1
    sgd = optim.SGD(model.named_parameters(), lr=0.1)
    ids = [0, 4, 0, 4][comm.rank : comm.rank + 1] if comm.size in (2, 4) else [0, 4]
    total = model(np.array(ids)) * (1.0 if len(ids) == 1 else 0.5)
    total.backward()
    (p,) = model.parameters()
    np.testing.assert_allclose(
        whole_gradient(p), [[1.4, 1.75], [0.4, 0.5], [0.4, 0.5], [0.4, 0.5], [1.4, 1.75]], rtol=1e-12
    )
    sgd.step()
    after = [[-0.14, -0.075], [0.16, 0.25], [0.36, 0.45], [0.56, 0.65], [0.66, 0.725]]
    np.testing.assert_allclose(whole(p), after, rtol=1e-12)
    assert model.output.weight is model.table.weight


def check_frozen(comm):
    """Case B25: a frozen weight beside a bias that is trained, unfrozen later."""

    def steps(model, x, mesh):
        if mesh is not None:
            fully_shard(model, mesh=mesh)
        adamw = optim.AdamW(model.named_parameters(), lr=0.1, weight_decay=0.1)
        found = []
        for step in range(4):
            model.weight.requires_grad = step == 3
            (model(Tensor(x)) ** 2).mean().backward()
            found.append([None if p.grad is None else whole_gradient(p) for p in model.parameters()])
            adamw.step()
            adamw.zero_grad()
            found.append([whole(p).copy() for p in model.parameters()])
            if step < 3:
                assert "weight" not in adamw.state
        return found

    def linear():
        manual_seed(1)
        return nn.Linear(4, 3, dtype=np.float64)

    x = np.arange(48.0).reshape(12, 4) / 7
    expected = steps(linear(), x, None)
    n = 12 // comm.size
    found = steps(linear(), x[comm.rank * n : (comm.rank + 1) * n], comm)
    for some, others in zip(found, expected, strict=True):
        for a, b in zip(some, others, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-10)


def check_used_on_some_ranks(comm, apart):
    """Case B29: a branch that one rank takes, and one that nobody takes."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            for name in "abcd":
                setattr(self, name, nn.Linear(1, 1, bias=False, dtype=np.float64))
                getattr(self, name).weight.data[...] = 1

        def forward(self, x, used, dropped):
            total = self.a(x)
            for name in used:
                y = getattr(self, name)(x)
                total = total + (y.detach() if name in dropped else y)
            return total.sum()

    model = Branches()
    if apart:
        for name in "abcd":
            fully_shard(getattr(model, name), mesh=comm)
    fully_shard(model, mesh=comm)
    adamw = optim.AdamW(model.named_parameters(), lr=0.1, weight_decay=0.1)
    x = Tensor(np.ones((1, 1)))
    is_first = comm.rank == 0
    # units apart: ranks enter the same ones in the same order, and backward comes to some of them on some ranks
    called = ("bd", "d" if is_first else "bd") if apart else ("b" if is_first else "", "")
    loss = model(x, *called)
    (loss * (4.0 if is_first else 1.0)).backward()
    gradients = {name[0]: whole_gradient(p) for name, p in model.named_parameters()}
    np.testing.assert_allclose(gradients["b"], [[4.0 / comm.size]])
    np.testing.assert_allclose(gradients["a"], [[(4.0 + comm.size - 1) / comm.size]])
    assert gradients["c"] is None
    assert gradients["d"] is None
    adamw.step()
    np.testing.assert_array_equal(whole(model.c.weight), [[1.0]])


def check_micro_steps(comm):
    """Case B27: which micro-steps are reduced makes no difference to the sum, and is what is communicated."""
    for pattern in ((True, True), (False, True), (True, False, True)):
        weight = nn.Linear(1, 1, bias=False, dtype=np.float64)
        model = fully_shard(weight, mesh=comm)
        counts = []
        for step, sync in enumerate(pattern):
            model.set_requires_gradient_sync(sync)
            with CommDebugMode() as mode:
                model(Tensor(np.full((1, 1), 2.0 * step + 1 + comm.rank % 2))).sum().backward()
            counts.append(mode.get_comm_counts()["reduce_scatter"])
        assert counts == [int(sync and comm.size > 1) for sync in pattern]
        odd = np.mean([rank % 2 for rank in range(comm.size)])
        expected = sum(2.0 * step + 1 + odd for step in range(len(pattern)))
        np.testing.assert_allclose(whole_gradient(model.weight), [[expected]])
    with pytest.raises(ZeroDivisionError), model.no_sync():
        raise ZeroDivisionError
    assert model.sharded_unit.settings.syncs


# ---------------------------------------------------------------- what goes wrong
def check_errors_leave_the_model_usable(comm):
    """An exception on every rank, in forward or backward, costs that step only."""
    model = shard(gpt(), comm)
    tokens, targets = batch(0, comm)
    forward_backward(model, tokens, targets)
    expected = [whole_gradient(p) for p in model.parameters()]
    model.zero_grad()
    with pytest.raises(IndexError):
        model(tokens + 100, targets)
    loss = model(tokens, targets)

    def fail(_):
        raise ZeroDivisionError

    remove = model.blocks[1].mlp.fc1.bias.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    remove()
    model.zero_grad()
    forward_backward(model, tokens, targets)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        np.testing.assert_allclose(whole_gradient(p), gradient, rtol=1e-6, atol=1e-9)


def check_refusals(comm):
    model = gpt()
    fully_shard(model.blocks[0], mesh=comm)
    with pytest.raises(ValueError, match="sharded already"):
        fully_shard(model.blocks[0], mesh=comm)
    with pytest.raises(ValueError, match="ModuleList"):
        fully_shard(model.blocks, mesh=comm)
    if comm.size > 1:
        with pytest.raises(ValueError, match="differ"):
            fully_shard(nn.Linear(2, 2 + comm.rank), mesh=comm)
    with pytest.raises(ValueError, match="mesh"):
        fully_shard(gpt(), mesh="dp")
    with pytest.raises(TypeError, match="mp_policy"):
        fully_shard(gpt(), mesh=comm, mp_policy="float16")
    with pytest.raises(TypeError, match="a Module, or a list"):
        fully_shard("blocks", mesh=comm)
    with pytest.raises(ValueError, match=r"param_dtype(.|\n)*ml_dtypes"):
        MixedPrecisionPolicy(param_dtype="float17")
    sharded = fully_shard(gpt(), mesh=comm)
    with pytest.raises(ValueError, match="True or False"):
        sharded.set_reshard_after_forward(1)
    with pytest.raises(ValueError, match="sharded one"):
        sharded.set_modules_to_forward_prefetch([nn.Linear(1, 1)])
    with pytest.raises(ValueError, match="above 0"):
        sharded.set_gradient_divide_factor(0)


CHECKS = [
    check_counts,
    check_whole_weights_are_freed,
    check_memory,
    check_odd_parameters,
    check_frozen,
    check_micro_steps,
    check_errors_leave_the_model_usable,
    check_refusals,
]
"""What takes nothing but a communicator."""
