"""FullyShardedDataParallel against a single process: bodies of tests that take a communicator."""

import copy
import functools

import fsdp_suite
import ml_dtypes
import numpy as np
import pytest
from fsdp_suite import batch, expected_steps, forward_backward, gpt, train, whole_gradient

from hpcdist import manual_seed, nn, optim
from hpcdist.autograd import Tensor, no_grad
from hpcdist.comm import init_device_mesh
from hpcdist.comm.init import using_group
from hpcdist.dtensor import DTensor, Shard
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import (
    BackwardPrefetch,
    CPUOffload,
    CustomPolicy,
    FSDPModule,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ModuleWrapPolicy,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
    full_state_dict,
    fully_shard,
    load_full_state_dict,
    replicate,
)
from hpcdist.parallel import FullyShardedDataParallel as FSDP  # noqa: N817 (as everybody does)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BLOCKS = ModuleWrapPolicy({nn.TransformerBlock})
STRATEGIES = [strategy.name for strategy in ShardingStrategy]


def wrapped(comm, strategy="FULL_SHARD", model=None, **options):
    strategy = ShardingStrategy[strategy]
    ranks = {"device_mesh": fsdp_mesh(comm)} if strategy.is_hybrid else {"process_group": comm}
    options = {"auto_wrap_policy": BLOCKS} | options
    return FSDP(model or gpt(), sharding_strategy=strategy, **ranks, **options)


def fsdp_mesh(comm):
    if "test mesh" not in comm.memo:
        copies = 2 - comm.size % 2
        comm.memo["test mesh"] = init_device_mesh((copies, comm.size // copies), ("replica", "shard"), comm)
    return comm.memo["test mesh"]


# ---------------------------------------------------------------- against a single process
def check_equals_one_process(comm, strategy, expected):
    """Losses, norms, parameters and their names are those of a single process."""
    names = [name for name, _ in gpt().named_parameters()]
    model = wrapped(comm, strategy)
    assert [name for name, _ in model.named_parameters()] == names
    expected_steps(train(model, comm, len(expected[0])), expected)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value, expected[1][name], atol=2e-3)


def check_counts(comm, strategy):
    """Gathered twice a step, the root once; once where parameters stay; never where they are copies."""
    model = wrapped(comm, strategy)
    forward_backward(model, *batch(0, comm))
    with CommDebugMode() as mode:
        forward_backward(model, *batch(0, comm))
    copies = {"NO_SHARD": comm.size}.get(strategy, fsdp_mesh(comm).shape[0] if "HYBRID" in strategy else 1)
    gathered = 7 if strategy in ("FULL_SHARD", "HYBRID_SHARD") else 4
    expected = {"all_gather": gathered, "reduce_scatter": 4} if comm.size > copies else {}
    expected |= {"all_reduce": 4} if copies > 1 else {}
    assert mode.get_comm_counts() == expected


def check_shares(comm, strategy):
    """A rank holds its share of parameters, in its group of ranks; with NO_SHARD all of them."""
    model = wrapped(comm, strategy)
    held = comm.all_gather_object(sum(p.local.data.nbytes for p in model.parameters()))
    copies = {"NO_SHARD": comm.size}.get(strategy, fsdp_mesh(comm).shape[0] if "HYBRID" in strategy else 1)
    assert sum(held) == copies * sum(p.data.nbytes for p in gpt().parameters())


def check_accumulation(comm, strategy, expected):
    """Gradients of two micro-batches, of which only the second one is reduced."""

    def second_time(model, tokens, targets):
        calls.append(1)
        if len(calls) % 2:
            with model.no_sync():
                return forward_backward(model, tokens, targets)
        return forward_backward(model, tokens, targets)

    calls = []
    found = train(wrapped(comm, strategy), comm, steps=4, num_micro=2, step=second_time)
    np.testing.assert_allclose(found, expected[0][:4], rtol=1e-4)


def check_clipping(comm):
    """The norm is that of the whole gradient; parts of another refuse to give one, or to wait."""
    model, plain = wrapped(comm), gpt()
    forward_backward(model, *batch(0, comm))
    gradients = [whole_gradient(p).copy() for p in model.parameters()]
    expected = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in gradients))
    assert model.clip_grad_norm_(expected / 2) == pytest.approx(expected, rel=1e-6)
    for p, g in zip(model.parameters(), gradients, strict=True):
        np.testing.assert_allclose(whole_gradient(p), g / 2, rtol=1e-5, atol=1e-9)
    plain.blocks[0].mlp = FSDP(plain.blocks[0].mlp, process_group=comm)
    assert plain.blocks[0].mlp.check_is_root()
    outer = FSDP(plain, process_group=comm)
    assert outer.check_is_root()
    inner = plain.blocks[0].mlp
    assert not inner.check_is_root()
    for call in (inner.no_sync, lambda: inner.clip_grad_norm_(1.0)):
        with pytest.raises(RuntimeError, match="outermost"):
            call()


def check_wrapped_by_hand(comm, expected):
    """Wrapped bottom-up, names are clean, and training is that of one process."""
    model = gpt()
    names = [name for name, _ in model.named_parameters()]
    for key, block in model.blocks.children.items():
        model.blocks.children[key] = FSDP(block, process_group=comm)
    outer = FSDP(model, process_group=comm)
    assert [name for name, _ in outer.named_parameters()] == names
    assert FSDP.fsdp_modules(outer) == [outer, *model.blocks.children.values()]
    assert FSDP.fsdp_modules(outer, root_only=True) == [outer]
    expected_steps(train(outer, comm, 4), expected)
    assert [*full_state_dict(outer)] == names


def check_delegation(comm):
    model = wrapped(comm)
    assert model.blocks is model.module.blocks
    assert [type(m).__name__ for m in FSDP.fsdp_modules(model)] == ["FullyShardedDataParallel"] + [
        "FSDPTransformerBlock"
    ] * 3
    model.set_gradient_divide_factor(7.0)  # a method of FSDPModule
    assert model.blocks[0].sharded_unit.settings.factor == 7.0
    with pytest.raises(AttributeError, match="nothing_of_the_name"):
        model.nothing_of_the_name  # noqa: B018
    stack = FSDP(nn.Sequential(nn.Linear(2, 2), nn.GELU()), process_group=comm)
    assert isinstance(stack[1], nn.GELU)


def check_default_ranks(comm):
    """Neither group nor mesh: all ranks; for hybrid strategies, nodes."""
    with using_group(comm):
        full = FSDP(nn.Linear(12, 12))
        hybrid = FSDP(nn.Linear(12, 12), sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    assert full.weight.device_mesh.shape == (comm.size,)
    node = comm.split_node()
    assert hybrid.weight.device_mesh.shape == (comm.size // node.size, node.size)


def check_pair_of_groups(comm, expected):
    """Ranks that share a copy, and ranks that hold the same part."""
    mesh = fsdp_mesh(comm)
    inter, intra = mesh.get_all_groups()
    with using_group(comm):
        model = FSDP(gpt(), (intra, inter), ShardingStrategy.HYBRID_SHARD, auto_wrap_policy=BLOCKS)
    assert model.ln_f.weight.device_mesh.shape == mesh.shape
    expected_steps(train(model, comm, 4), expected)


# ---------------------------------------------------------------- whole parameters in a block
def check_summon(comm, strategy):
    """Inside, plain whole tensors under clean names; afterwards each rank has its part of what was written."""
    model = wrapped(comm, strategy)
    forward_backward(model, *batch(0, comm))
    before, gradients = model.state_dict(), [whole_gradient(p).copy() for p in model.parameters()]
    parameters = dict(model.named_parameters())
    with FSDP.summon_full_params(model, with_grads=True):
        shown = dict(model.named_parameters())
        assert [*shown] == [*parameters]
        for (name, p), gradient in zip(shown.items(), gradients, strict=True):
            assert type(p) is Tensor
            assert p.requires_grad
            np.testing.assert_array_equal(p.data, before[name])
            np.testing.assert_array_equal(p.grad, gradient)
            p.data *= 2
            p.grad *= 3
        with pytest.raises(RuntimeError, match="not the one that was sharded"):
            model(*batch(0, comm))
    assert all(p is parameters[name] for name, p in model.named_parameters())
    for (name, value), p, gradient in zip(model.state_dict().items(), model.parameters(), gradients, strict=True):
        np.testing.assert_array_equal(value, before[name] * 2)
        np.testing.assert_array_equal(whole_gradient(p), gradient * 3)
    with FSDP.summon_full_params(model, writeback=False):
        for p in model.parameters():
            p.data[...] = 0
            assert p.grad is None
    assert all(np.array_equal(value, before[name] * 2) for name, value in model.state_dict().items())


def check_summon_of_some(comm):
    """One unit, or one rank."""
    model = wrapped(comm)
    with FSDP.summon_full_params(model, recurse=False):
        kinds = {name: type(p) for name, p in model.named_parameters()}
    assert {name for name, kind in kinds.items() if kind is DTensor} == {n for n in kinds if n.startswith("blocks")}
    with FSDP.summon_full_params(model.blocks[1]):
        kinds = {name: type(p) for name, p in model.named_parameters()}
    assert {name for name, kind in kinds.items() if kind is Tensor} == {n for n in kinds if n.startswith("blocks.1.")}
    before = model.state_dict()
    with FSDP.summon_full_params(model, writeback=False, rank0_only=True, offload_to_cpu=True):
        for name, p in model.named_parameters():
            assert type(p) is (DTensor if comm.rank else Tensor)
            if not comm.rank:
                np.testing.assert_array_equal(p.data, before[name])


def check_summon_refusals(comm):
    model = wrapped(comm)
    with pytest.raises(ValueError, match="both"), FSDP.summon_full_params(model, rank0_only=True):
        pass
    model.blocks[0].pre.append(lambda m: FSDP.summon_full_params(m).__enter__())
    with pytest.raises(RuntimeError, match="is running"):
        model(*batch(0, comm))
    model.blocks[0].pre.pop()
    with pytest.raises(ValueError, match="after the block"), FSDP.summon_full_params(model):
        model.ln_f.weight = nn.Parameter(np.ones(5, np.float32))
    forward_backward(model, *batch(0, comm))


def check_failing_block(comm):
    """What was written before an error is kept, and shards are back in place."""
    model = wrapped(comm)
    parameters = [*model.parameters()]
    with pytest.raises(ZeroDivisionError):
        write_and_fail(model)
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    np.testing.assert_array_equal(model.state_dict()["ln_f.weight"], np.full(12, 7))
    forward_backward(model, *batch(0, comm))


def write_and_fail(model):
    with FSDP.summon_full_params(model):
        model.ln_f.weight.data[...] = 7
        raise ZeroDivisionError


def check_what_it_cannot_do(comm):
    model = wrapped(comm)
    with pytest.raises(ValueError, match="before fully_shard"):
        model.to(np.float64)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(model)
    assert all(p.dtype == np.float32 for p in model.parameters())


def bits(comm, strategy, steps=3):
    """Return parameters after steps of micro-batches, in which sums do not depend on the number of ranks."""
    model = wrapped(comm, strategy)
    sgd = optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        for index in model.turns(of=4):
            tokens = np.random.default_rng([step, index or 0]).integers(0, 13, (2, 8))
            with model.micro_batch(index, of=4):
                forward_backward(model, tokens[:, :-1], tokens[:, 1:])
        model.clip_grad_norm_(0.5)
        sgd.step()
        sgd.zero_grad()
    return {name: value.tobytes() for name, value in model.state_dict().items()}


def check_apply(comm):
    """A function that sets up whole parameters, of every module inside."""

    def set_up(module):
        seen.append(type(module).__name__)
        if isinstance(module, nn.Linear):
            module.weight.data[...] = np.arange(module.weight.size).reshape(module.weight.shape)

    model, seen = wrapped(comm), []
    assert model.apply(set_up) is model
    name = next(name for name, m in model.named_modules() if isinstance(m, nn.Linear))
    weight = model.state_dict()[f"{name}.weight"]
    np.testing.assert_array_equal(weight, np.arange(weight.size).reshape(weight.shape))
    assert len(seen) == len([*model.modules()])


# ---------------------------------------------------------------- precision
def check_mixed_precision(comm):
    """bfloat16 travels, inputs of the root are rounded, masters stay; sums of rounded values are the oracle."""
    manual_seed(0)
    linear, x = nn.Linear(12, 12, bias=False), np.random.default_rng(0).normal(size=(12, 12)).astype(np.float32)
    weight = linear.weight.data.copy()
    model = FSDP(linear, comm, mixed_precision=MixedPrecision(BFLOAT16, np.float32))
    with CommDebugMode() as mode:
        y = model(x[comm.rank :: comm.size])
        y.sum().backward()
    rounded = (a.astype(BFLOAT16).astype(np.float32) for a in (x, weight))
    x16, w16 = rounded
    np.testing.assert_allclose(y.data, x16[comm.rank :: comm.size] @ w16.T, rtol=1e-5, atol=1e-6)
    expected = np.tile(x16.sum(0), (12, 1)) / comm.size
    np.testing.assert_allclose(whole_gradient(model.weight), expected, rtol=1e-5, atol=1e-6)
    assert model.weight.dtype == np.float32
    plain = FSDP(nn.Linear(12, 12, bias=False), comm)
    with CommDebugMode() as wide:
        plain(Tensor(x)).sum().backward()
    narrow, wide = mode.get_comm_bytes(), wide.get_comm_bytes()
    assert narrow["all_gather"] * 2 == wide["all_gather"]
    assert narrow["reduce_scatter"] == wide["reduce_scatter"]


def check_casts(comm):
    """Only inputs of the outermost module are rounded, unless it says otherwise."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1, 1, bias=False)

        def forward(self, x):
            seen.append(x.data.item())
            return self.inner(x * 1.001)

    for root, every in ((True, False), (False, False), (False, True)):
        seen, model = [], Scaled()
        precision = MixedPrecision(BFLOAT16, cast_forward_inputs=every, cast_root_forward_inputs=root)
        model.inner.weight.data[...] = 1
        outer = FSDP(model, comm, mixed_precision=precision, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
        y = outer(Tensor(np.array([[1.001]], np.float32)))
        assert (seen[0] == 1.0) is (root or every)
        assert (y.data.item() == 1.0) is every


def check_ignored_classes_and_buffers(comm):
    """BatchNorm stays in full precision, in a unit of its own; other buffers are rounded once."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.register_buffer("offset", np.full(4, 1.001, np.float32))
            self.register_buffer("count", np.arange(4))

        def forward(self, x):
            return self.norm(self.linear(x) + self.offset)

    model = FSDP(Normed(), comm, mixed_precision=MixedPrecision(BFLOAT16, buffer_dtype=BFLOAT16))
    model.norm.running_mean.data[...] = 1.001
    bundles = [bundle for bundle, _ in model.norm.sharded_unit.bundles]
    assert {bundle.travels for bundle in bundles} == {np.dtype(np.float32)}
    assert {bundle.travels for bundle, _ in model.module.sharded_unit.bundles} == {BFLOAT16}
    np.testing.assert_array_equal(model.offset.data, np.ones(4))
    np.testing.assert_array_equal(model.count.data, np.arange(4))
    model(np.random.default_rng(comm.rank).normal(size=(4, 4)).astype(np.float32)).sum().backward()


# ---------------------------------------------------------------- options
def check_prefetching(comm):
    for backward, forward in (
        (BackwardPrefetch.BACKWARD_PRE, False),
        (BackwardPrefetch.BACKWARD_POST, True),
        (None, False),
    ):
        model = wrapped(comm, backward_prefetch=backward, forward_prefetch=forward)
        forward_backward(model, *batch(0, comm))
        posted = []
        for n, block in enumerate(model.blocks):
            watch_posts(block.sharded_unit.gathered, n, posted)
        loss = model(*batch(0, comm))
        assert posted == ([0, 1, 2] if forward else [])
        posted.clear()
        loss.backward()
        assert posted == ([2, 1, 0] if backward is BackwardPrefetch.BACKWARD_PRE else [])


def watch_posts(gathered, n, posted):
    post = gathered.post
    gathered.post = lambda: (posted.append(n), post())


def check_options_of_units(comm):
    """A policy replaces options of one unit."""

    def choose(module):
        if module is model.blocks[0]:
            return {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "mixed_precision": MixedPrecision(BFLOAT16)}
        return module is model.blocks[1]

    model = gpt()
    wrapped(comm, model=model, auto_wrap_policy=CustomPolicy(choose))
    units = [block.__dict__.get("sharded_unit") for block in model.blocks]
    assert [units[0].settings.reshards_after_forward, units[1].settings.reshards_after_forward] == [False, None]
    assert units[2] is None
    assert [units[0].bundles[0][0].travels, units[1].bundles[0][0].travels] == [BFLOAT16, np.float32]


def check_same_first_values(comm):
    """Rank 0 sends what it has, before it is cut."""
    manual_seed(comm.rank)
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    model.children["1"].running_mean.data[...] = comm.rank
    manual_seed(0)
    expected = nn.Linear(5, 3).weight.data
    model = FSDP(model, comm, sync_module_states=True)
    np.testing.assert_array_equal(model.state_dict()["0.weight"], expected)
    np.testing.assert_array_equal(model.state_dict()["1.running_mean"], np.zeros(3))
    if comm.size > 1:
        with pytest.raises(ValueError, match="differ"):
            FSDP(nn.Linear(5, 3 + comm.rank), comm, sync_module_states=True)


def check_ignored(comm):
    """What is ignored stays plain and whole, and nobody reduces its gradient."""
    for how in ("ignored_modules", "ignored_states", "parameters"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        part = model.children["1"]
        states = [*part.parameters()] if how == "parameters" else [part]
        name = "ignored_states" if how == "parameters" else how
        model = FSDP(
            model,
            comm,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}) if how != "parameters" else None,
            **{name: states},
        )
        assert type(part.weight) is Tensor
        assert isinstance(model.children["module"].children["0"].weight, DTensor)
        with CommDebugMode() as mode:
            model(Tensor(np.full((1, 4), comm.rank, np.float32))).sum().backward()
        assert "all_reduce" not in mode.get_comm_counts()
        assert not isinstance(part, FSDPModule)


def check_init_of_deferred(comm):
    """A function sets up modules without storage, each that has deferred parameters of its own, once."""

    def set_up(module):
        seen.append(module)
        nn.materialize(module)
        for p in module.slots.values():
            p.data[...] = 3

    seen = []
    with nn.deferred():
        model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    parts = [*model.children.values()]
    made = FSDP(model, comm, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), param_init_fn=set_up)
    assert seen == [parts[2], parts[0]]
    assert all(np.all(value == 3) for value in made.state_dict().values())
    with nn.deferred():
        manual_seed(0)
        drawn = nn.Linear(4, 4)
    manual_seed(0)
    np.testing.assert_array_equal(FSDP(drawn, comm).state_dict()["weight"], nn.Linear(4, 4).weight.data)


def check_offload(comm):
    model = wrapped(comm, cpu_offload=CPUOffload(offload_params=True))
    forward_backward(model, *batch(0, comm))
    assert all(isinstance(p.local.data, np.ndarray) for p in model.parameters())


# ---------------------------------------------------------------- state
def check_state(comm):
    """Whole arrays, or distributed tensors; either is loaded again."""
    model, plain = wrapped(comm), gpt()
    full = model.state_dict()
    assert all(np.array_equal(value, full[name]) for name, value in plain.state_dict().items())
    sharded = model.state_dict(mode=StateDictType.SHARDED_STATE_DICT)
    assert all(isinstance(value, DTensor) for value in sharded.values())
    assert all(value.layout == p.layout for value, p in zip(sharded.values(), model.parameters(), strict=True))
    copies = {name: DTensor(Tensor(v.local.data * 2), v.layout) for name, v in sharded.items()}
    columns = {
        name: v.redistribute(placements=[Shard(v.ndim - 1)]) if name.endswith("weight") else v
        for name, v in copies.items()
    }
    doubled = {name: value * 2 for name, value in full.items()}
    for state in (doubled, copies, columns):
        model.load_state_dict(full)
        model.load_state_dict(state)
        assert all(np.array_equal(value, doubled[name]) for name, value in model.state_dict().items())
    load_full_state_dict(model, full)
    assert all(np.array_equal(value, full[name]) for name, value in full_state_dict(model).items())
    with pytest.raises(ValueError, match=r"ln_f\.weight"):
        model.load_state_dict(full | {"ln_f.weight": np.ones(5, np.float32)})


def check_state_types(comm):
    model = wrapped(comm)
    kind, config = StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, kind, config):
        assert FSDP.get_state_dict_type(model).state_dict_config is config
        assert (model.state_dict() == {}) is (comm.rank > 0)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        assert FSDP.get_state_dict_type(model).state_dict_config == ShardedStateDictConfig()
        assert isinstance(model.state_dict()["ln_f.weight"], DTensor)
    assert isinstance(model.state_dict()["ln_f.weight"], np.ndarray)
    with pytest.raises(RuntimeError, match="FullStateDictConfig"):
        FSDP.set_state_dict_type(model, kind, ShardedStateDictConfig())
    with pytest.raises(TypeError, match="StateDictType"):
        FSDP.set_state_dict_type(model, "FULL")


def steps(model, comm, optimizer, numbers):
    for n in numbers:
        forward_backward(model, *batch(n, comm))
        optimizer.step()
        optimizer.zero_grad()


def saved(comm, named=True, settings=()):
    """Return the whole state after two steps, and what two more make of it."""
    model = wrapped(comm)
    adamw = optim.AdamW(model.named_parameters() if named else model.parameters(), lr=1e-2)
    steps(model, comm, adamw, (0, 1))
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *settings):
        state, kept = model.state_dict(), FSDP.optim_state_dict(model, adamw)
    steps(model, comm, adamw, (2, 3))
    return state, kept, model.state_dict()


def check_optimizer_state(comm, elsewhere):
    """The state of another number of ranks is gone on from; names are those of the model, arrays have its shapes."""
    state, kept, expected = elsewhere
    for named in (True, False):
        model = wrapped(comm)
        shapes = {name: p.shape for name, p in model.named_parameters()}
        assert {n: e["exp_avg"].shape for n, e in kept["state"].items()} == shapes
        model.load_state_dict(state)
        adamw = optim.AdamW(model.named_parameters() if named else model.parameters(), lr=1.0)
        FSDP.optim_state_dict_to_load(model, adamw, kept, load_directly=True)
        assert adamw.param_groups[0]["lr"] == 1e-2
        steps(model, comm, adamw, (2, 3))
        for name, value in model.state_dict().items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)


def check_sharded_optimizer_state(comm):
    """Distributed tensors: nothing is communicated, and it is loaded as it is."""
    model = wrapped(comm)
    adamw = optim.AdamW(model.parameters(), lr=1e-2)
    steps(model, comm, adamw, (0,))
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT), CommDebugMode() as mode:
        kept = FSDP.optim_state_dict(model, adamw)
        again = FSDP.optim_state_dict_to_load(model, adamw, kept)
    assert mode.get_comm_counts() == {}
    assert kept["state"]["ln_f.weight"]["exp_avg"].layout == model.ln_f.weight.layout
    for name, entries in adamw.state.items():
        np.testing.assert_array_equal(again["state"][name]["exp_avg"], entries["exp_avg"])
    config = FullOptimStateDictConfig(rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, None, config):
        assert (FSDP.optim_state_dict(model, adamw) == {}) is (comm.rank > 0)
    with pytest.raises(ValueError, match="on every rank"):
        FSDP.optim_state_dict_to_load(model, adamw, {})
    with pytest.raises(ValueError, match="unknown"):
        FSDP.optim_state_dict_to_load(model, adamw, {"state": {"unknown": {}}, "param_groups": []})
    with pytest.raises(ValueError, match="of the optimizer"):
        FSDP.optim_state_dict(model, optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))


# ---------------------------------------------------------------- what is refused
def refusals(comm):
    """Yield (error, words, arguments)."""
    one, two = init_device_mesh((comm.size,), ("x",), comm), init_device_mesh((1, comm.size), ("x", "y"), comm)
    hybrid, part = ShardingStrategy.HYBRID_SHARD, nn.Linear(2, 2)
    stack = nn.Sequential(part, nn.ModuleList([nn.Linear(2, 2)]))
    yield ValueError, "process_group and device_mesh", {"process_group": comm, "device_mesh": one}
    yield ValueError, "one axis", {"device_mesh": two}
    yield ValueError, "one axis", {"device_mesh": two, "sharding_strategy": ShardingStrategy.NO_SHARD}
    yield ValueError, "two axes", {"device_mesh": one, "sharding_strategy": hybrid}
    yield ValueError, "device_mesh", {"device_mesh": "dp"}
    yield ValueError, "process_group for HYBRID_SHARD", {"process_group": comm, "sharding_strategy": hybrid}
    yield ValueError, "process_group for FULL_SHARD", {"process_group": (comm, comm)}
    yield ValueError, "device_id", {"device_id": 0}
    yield ValueError, "ignored_modules and ignored_states", {"ignored_modules": [part], "ignored_states": [part]}
    yield ValueError, "parts, none of them sharded", {"module": part, "ignored_modules": [part]}
    yield TypeError, "ignored_modules", {"ignored_modules": [part.weight]}
    yield TypeError, "ignored_states", {"ignored_states": ["weight"]}
    yield ValueError, "ignored_states", {"ignored_states": [nn.Linear(2, 2).weight]}
    yield TypeError, "module", {"module": nn.Linear(2, 2).weight}
    yield TypeError, "sharding_strategy", {"sharding_strategy": "FULL_SHARD"}
    yield TypeError, "cpu_offload", {"cpu_offload": True}
    yield TypeError, "backward_prefetch", {"backward_prefetch": "BACKWARD_PRE"}
    yield TypeError, "forward_prefetch", {"forward_prefetch": 1}
    yield TypeError, "mixed_precision", {"mixed_precision": BFLOAT16}
    yield TypeError, "auto_wrap_policy", {"auto_wrap_policy": {nn.Linear}}
    yield TypeError, "param_init_fn", {"param_init_fn": "zeros"}
    yield ValueError, "never called", {"module": stack, "auto_wrap_policy": ModuleWrapPolicy({nn.ModuleList})}
    yield ValueError, "returned", {"module": stack, "auto_wrap_policy": CustomPolicy(lambda _: None)}
    for own in ({"process_group": comm}, {"sharding_strategy": hybrid}):
        yield ValueError, "CustomPolicy", {"module": stack, "auto_wrap_policy": CustomPolicy(lambda _, own=own: own)}


def check_refusals(comm):
    """The same error on every rank, and nothing has changed."""
    with using_group(comm):
        for error, words, arguments in refusals(comm):
            arguments = {"module": nn.Linear(2, 2)} | arguments
            with pytest.raises(error, match=words):
                FSDP(**arguments)
        if comm.size > 1:
            with pytest.raises(ValueError, match="device_id"):
                FSDP(nn.Linear(2, 2), device_id=0 if comm.rank else None)
            with pytest.raises(ValueError, match="differ"):
                FSDP(nn.Linear(2, 2), sharding_strategy=list(ShardingStrategy)[min(comm.rank, 1)])


def check_sharded_before(comm):
    model = wrapped(comm)
    with pytest.raises(ValueError, match="wrapped one"):
        FSDP(model, comm)
    with pytest.raises(ValueError, match="sharded already"):
        FSDP(model.module, comm)
    stack = nn.Sequential(fully_shard(nn.Linear(2, 2), mesh=comm), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="auto_wrap_policy"):
        FSDP(stack, comm, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
    with pytest.raises(ValueError, match="none of them sharded"):
        FSDP(stack, comm, ignored_modules=[stack.children["0"]])
    replicated = nn.Linear(2, 2)
    replicate(replicated, comm)
    with pytest.raises(ValueError, match="replicate has already"):
        FSDP(replicated, comm)
    for wrong in ({"keep_low_precision_grads": True}, {"param_dtype": np.int32}, {"buffer_dtype": np.int32}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MixedPrecision(**wrong)


def check_inference(comm):
    model = wrapped(comm)
    with no_grad():
        loss = model(*batch(0, comm)).item()
    assert loss == pytest.approx(gpt()(*batch(0, comm)).item(), rel=1e-5)


CHECKS = [
    check_clipping,
    check_delegation,
    check_default_ranks,
    check_summon_of_some,
    check_summon_refusals,
    check_failing_block,
    check_what_it_cannot_do,
    check_apply,
    check_mixed_precision,
    check_casts,
    check_ignored_classes_and_buffers,
    check_prefetching,
    check_options_of_units,
    check_same_first_values,
    check_ignored,
    check_init_of_deferred,
    check_offload,
    check_state,
    check_state_types,
    check_sharded_optimizer_state,
    check_refusals,
    check_sharded_before,
    check_inference,
]
alone = functools.cache(fsdp_suite.alone)
