"""Activation checkpointing of models on ranks: bodies of tests that take a communicator.

The oracle is the same strategy without checkpoints, bit for bit; fsdp_suite and tp_suite compare that with one process.
"""

import functools

import fsdp_suite
import ml_dtypes
import numpy as np
import pytest
import tp_suite

from hpcdist import manual_seed, nn, optim
from hpcdist.autograd import Tensor, random
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor import DTensor, Invariant, Replicate, Shard
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.nn import functional as F
from hpcdist.parallel import (
    MixedPrecisionPolicy,
    apply_activation_checkpointing,
    checkpoint,
    checkpoint_sequential,
    checkpoint_wrapper,
    create_selective_checkpoint_contexts,
    fully_shard,
    parallelize_module,
    replicate,
)

SIZES = {**fsdp_suite.SIZES, "dropout": 0.1}
KEEPING = functools.partial(create_selective_checkpoint_contexts, ["linear"])


def blocks(module):
    return isinstance(module, nn.TransformerBlock)


def branches(module):
    """Parts of a unit: their parameters are gathered by the block around them."""
    return isinstance(module, (nn.MLP, nn.MultiheadAttention)) or type(module).__name__.endswith("Attention")


def both(module):
    return blocks(module) or branches(module)


def gpt():
    manual_seed(0)
    return nn.GPT(nn.GPTConfig(**SIZES))


def wrap(model, chosen, **options):
    apply_activation_checkpointing(model, functools.partial(checkpoint_wrapper, **options), chosen)
    return model


# ---------------------------------------------------------------- fully_shard
def before(model, comm, chosen, **options):
    return fsdp_suite.shard(wrap(model, chosen), comm, **options)


def after(model, comm, chosen, **options):
    return wrap(fsdp_suite.shard(model, comm, **options), chosen)


def whole_model(model, comm, chosen):
    return checkpoint_wrapper(fsdp_suite.shard(model, comm))


def root_only(model, comm, chosen):
    return wrap(fully_shard(model, mesh=comm), chosen)


WAYS = {
    "before": before,
    "after": after,
    "stays whole": functools.partial(after, reshard_after_forward=False),
    "reshards the root": functools.partial(after, reshard_after_forward=True),
    "ahead": lambda model, comm, chosen: fsdp_suite.ahead(after(model, comm, chosen)),
    "root only": root_only,
    "whole model": whole_model,
}
PLAIN = {
    "reshards the root": functools.partial(fsdp_suite.shard, reshard_after_forward=True),
    "stays whole": functools.partial(fsdp_suite.shard, reshard_after_forward=False),
    "root only": lambda model, comm: fully_shard(model, mesh=comm),
}
CHOICES = {"blocks": blocks, "branches": branches, "both": both}


def steps(model, comm, num=3, num_micro=1):
    """Return the losses of AdamW steps, and the parameters they end with."""
    adamw = optim.AdamW(model.named_parameters(), lr=1e-2)
    losses = []
    for n in range(num):
        with random.at(step=n):
            for micro in range(num_micro):
                losses.append(fsdp_suite.forward_backward(model, *fsdp_suite.batch(n, comm, micro, num_micro)))
        adamw.step()
        adamw.zero_grad()
    return losses, {name: fsdp_suite.whole(p) for name, p in model.named_parameters()}


def assert_same(found, expected):
    assert found[0] == expected[0]
    assert list(found[1]) == list(expected[1])
    for name, value in expected[1].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


def check_sharded(comm, way, choice):
    """Losses, parameters and names are the same bits, and nothing more is communicated."""
    plain = PLAIN.get(way, fsdp_suite.shard)(gpt(), comm)
    model = WAYS[way](gpt(), comm, CHOICES[choice])
    assert_same(steps(model, comm), steps(plain, comm))
    with CommDebugMode() as mode:
        fsdp_suite.forward_backward(model, *fsdp_suite.batch(0, comm))
    with CommDebugMode() as expected:
        fsdp_suite.forward_backward(plain, *fsdp_suite.batch(0, comm))
    assert mode.get_comm_counts() == expected.get_comm_counts()
    for unit in {id(m.sharded_unit): m.sharded_unit for m in model.modules() if hasattr(m, "sharded_unit")}.values():
        assert unit.whole is None
        assert all(isinstance(owner.slots[key], DTensor) for owner, key, _ in unit.slots)


def check_two_forwards(comm):
    """Backward comes after two forwards: once for both, or once for each, the first one first."""
    tokens, targets = fsdp_suite.batch(0, comm)
    found = []
    for chosen in (None, blocks, branches):
        for together in (False, True):
            model = fsdp_suite.shard(gpt(), comm)
            if chosen:
                wrap(model, chosen)
            manual_seed(1)
            first, second = model(tokens, targets), model(targets, tokens)
            with CommDebugMode() as mode:
                if together:
                    (first + second).backward()
                else:
                    first.backward()
                    second.backward()
            found.append(([p.grad for p in model.parameters()], mode.get_comm_counts()))
    for together, (gradients, counts) in enumerate(found):
        expected = found[together % 2]
        assert counts == expected[1]
        for a, b in zip(gradients, expected[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


def check_memory(comm):
    """No more parameters are whole at once than those of a block and the root, in the recomputation neither."""
    model = wrap(fsdp_suite.shard(gpt(), comm), blocks)
    peak = []
    for block in model.blocks:
        block.post.append(lambda _: peak.append(sum(map(fsdp_suite.whole_bytes, fsdp_suite.units(model)))))
    loss = model(*fsdp_suite.batch(0, comm))
    checkpoint(lambda x: x * 2.0, loss).backward()  # knows nothing of units
    assert len(peak) == 2 * 3
    one = sum(p.size for p in model.blocks[0].parameters()) * 4
    root = sum(p.size for p in model.parameters()) * 4 - 3 * one
    assert max(peak) <= one + root


def check_ranks_without_gradients(comm, way):
    """Of checkpoints of two units, or within units, some ranks ask for no gradients, and so compute nothing again.

    Parameters are gathered there, too: for no other reason, as what is saved is not the parameters themselves.
    """
    found = []
    for segments, call in ((1, _at_once), (2, _at_once) if way == "of two" else (1, checkpoint)):
        manual_seed(0)
        layers = [fully_shard(_Layer(call), mesh=comm) for _ in range(5)]
        model = fully_shard(_Branches(layers, fully_shard(_Layer(call), mesh=comm), segments), mesh=comm)
        x = Tensor(np.random.default_rng(comm.rank).standard_normal((3, 4)), True)
        with CommDebugMode() as mode:
            deep, flat = model(x)
            (deep + flat if comm.rank == 0 else flat).sum().backward()
        found.append(([p.grad for p in model.parameters()], mode.get_comm_counts()))
    more = {"all_gather": 2 if way == "of two" else 6} if comm.size > 1 else {}
    assert found[1][1] - found[0][1] == more
    assert found[1][1]["reduce_scatter"] == found[0][1]["reduce_scatter"]
    for a, b in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_array_equal(a, b)


def _at_once(fn, *args):
    return fn(*args)


class _Layer(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.linear, self.call = nn.Linear(4, 4, dtype=np.float64), call

    def forward(self, x):
        return self.call(lambda x: F.gelu(F.linear(x, self.linear.weight + 1.0)), x)


class _Branches(nn.Module):
    """Five layers, in one segment or two, and a layer beside them."""

    def __init__(self, layers, beside, segments):
        super().__init__()
        self.layers, self.beside, self.segments = nn.ModuleList(layers), beside, segments

    def forward(self, x):
        return checkpoint_sequential(self.layers, self.segments, x), self.beside(x)


def check_part_of_a_unit(comm):
    """A call within a unit's forward, with a weight of the unit among its arguments, and one that it finds itself."""

    class Part(nn.Module):
        def __init__(self, recomputes):
            super().__init__()
            rng = np.random.default_rng(0)
            self.weight = nn.Parameter(rng.standard_normal((5, 4)))
            self.inner = nn.Parameter(rng.standard_normal((4, 5)))
            self.call = checkpoint if recomputes else _at_once

        def forward(self, x):
            return self.call(lambda x, w: F.gelu(F.linear(F.gelu(F.linear(x, w)), self.inner)), x, self.weight)

    x = np.random.default_rng(comm.rank).standard_normal((3, 4))
    found = []
    for recomputes in (False, True):
        model = fully_shard(nn.Sequential(*[fully_shard(Part(recomputes), mesh=comm) for _ in range(2)]), mesh=comm)
        with CommDebugMode() as mode:
            model(Tensor(x)).sum().backward()
        found.append(([p.grad for p in model.parameters()], mode.get_comm_counts()))
    assert found[0][1] == found[1][1]
    for a, b in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_array_equal(a, b)


def check_errors(comm):
    """An error when something is computed again costs that step only, and leaves slots as they rest."""
    model = fsdp_suite.shard(gpt(), comm)
    expected = steps(fsdp_suite.shard(gpt(), comm), comm)
    failing = []

    def fails(call):
        def run(*args):
            if failing:
                failing.pop()()
            return call(*args)

        return run

    model.blocks[1].mlp.around.append(fails)
    wrap(model, both)
    state = random.get_state()
    loss = model(*fsdp_suite.batch(0, comm))
    failing.append(lambda: 1 / 0)
    drawn = random.get_state()
    with pytest.raises(ZeroDivisionError) as error:
        loss.backward()
    assert "again" in error.value.__notes__[0]
    assert random.get_state() == drawn
    random.set_state(state)
    model.zero_grad()
    assert_same(steps(model, comm), expected)


def check_other_axes(comm):
    """Shards of what tensor parallelism has cut, in rounded numbers; blocks are computed again."""
    mesh = init_device_mesh((2, comm.size // 2), ("dp", "tp"), comm)
    found = []
    for chosen in (None, blocks):
        model = tp_suite.gpt("dropout")
        parallelize_module(model, mesh["tp"], tp_suite.gpt_plan(model))
        if chosen:
            wrap(model, chosen)
        policy = MixedPrecisionPolicy(param_dtype=ml_dtypes.bfloat16, cast_forward_inputs=False)
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
        fully_shard(model, mesh=mesh["dp"])
        row = mesh.get_local_rank("dp")
        manual_seed(5)
        loss = model(*tp_suite.batch(model.config, 0, slice(row, row + 1)))
        loss.backward()
        found.append([np.array(float(loss)), *(p.local.grad for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------- replicate
def check_replicated(comm, choice):
    """Also of micro-batches that are reduced together."""
    found = []
    for chosen in (None, CHOICES[choice]):
        model = gpt()
        if chosen:
            wrap(model, chosen)
        replica = replicate(model, comm)
        tokens, targets = fsdp_suite.batch(0, comm)
        manual_seed(2)
        with CommDebugMode() as mode:
            with replica.no_sync():
                model(targets, tokens).backward()
            loss = model(tokens, targets)
            loss.backward()
        found.append((loss.item(), [p.grad.copy() for p in model.parameters()], mode.get_comm_counts()))
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------- distributed tensors
def check_tensor_parallel(comm, sequence_parallel, **options):
    """Collectives of a block's forward run again, those of its backward do not; dropout masks are the same."""
    found = []
    for chosen in (None, blocks):
        model = tp_suite.gpt("dropout")
        mesh = tp_suite.mesh_of(comm)
        parallelize_module(model, mesh, tp_suite.gpt_plan(model, sequence_parallel))
        if chosen:
            wrap(model, chosen, **options)
        adamw = optim.AdamW(model.named_parameters(), lr=1e-2)
        losses = []
        for n in range(3):
            with random.at(step=n):
                loss = model(*tp_suite.batch(model.config, n))
            loss.backward()
            losses.append(float(loss))
            adamw.step()
            adamw.zero_grad()
        counts = tp_suite.counts(model, tp_suite.batch(model.config, 0))
        found.append((losses, {name: p.local.data for name, p in model.named_parameters()}, counts))
    (*plain, counts), (*again, more) = found
    assert_same(again, plain)
    nothing = []  # an axis of one rank posts nothing
    forward, backward = (counts.get(("block", phase), nothing) for phase in ("forward", "backward"))
    assert more.get(("block", "forward"), nothing) == forward
    return forward, backward, more.get(("block", "backward"), nothing)


def check_collectives_run_again(comm, sequence_parallel):
    forward, backward, both = check_tensor_parallel(comm, sequence_parallel)
    assert sorted(both) == sorted(forward + backward)


def check_collectives_that_are_kept(comm, sequence_parallel):
    """What operations that communicate return can be kept like that of any other."""
    keeping = functools.partial(create_selective_checkpoint_contexts, lambda name: True)
    _, backward, both = check_tensor_parallel(comm, sequence_parallel, context_fn=keeping)
    assert sorted(both) == sorted(backward)


def check_distributed_dropout(comm):
    """Layouts of arguments and results, and the masks of a dropout that ranks share."""
    mesh = init_device_mesh((comm.size,), ("tp",), comm)
    x = np.random.default_rng(0).standard_normal((6, 5))
    found = []
    for call in (_at_once, checkpoint):
        for placement in (Shard(0), Shard(1), Replicate(), Invariant()):
            manual_seed(4)
            leaf = Tensor(x, True)
            placed = DTensor.from_local(leaf, mesh, (Invariant(),)).redistribute(mesh, (placement,))
            y = call(lambda x: F.dropout(F.gelu(F.dropout(F.gelu(x), 0.5)), 0.5) * x, F.gelu(placed))
            (y * y).sum().redistribute(mesh, (Invariant(),)).backward()
            found.append((y.placements, y.local.data, leaf.grad, random.get_state()))
    for plain, again in zip(found[:4], found[4:], strict=True):
        assert (plain[0], plain[3]) == (again[0], again[3])
        np.testing.assert_array_equal(plain[1], again[1])
        np.testing.assert_array_equal(plain[2], again[2])
