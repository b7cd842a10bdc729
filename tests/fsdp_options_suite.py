"""Options and methods of fully_shard: bodies of tests that take a communicator."""

import ml_dtypes
import numpy as np
import pytest
import tp_suite
from fsdp_suite import batch, expected_steps, forward_backward, gpt, shard, train, whole, whole_gradient

from hpcdist import manual_seed, nn, optim
from hpcdist.autograd import Tensor, no_grad
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor import DTensor, Shard
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.nn import functional as F
from hpcdist.parallel import (
    CPUOffloadPolicy,
    DataParallelMeshDims,
    MixedPrecisionPolicy,
    clip_grad_norm_,
    fully_shard,
    parallelize_module,
    register_fsdp_forward_method,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def num_bytes(model):
    return sum(p.size * p.dtype.itemsize for p in model.parameters())


# ---------------------------------------------------------------- shards among neighbours
def check_neighbours(comm, expected):
    """Whole parameters are shared out among two ranks after the forward, and gathered among these."""
    model = shard(gpt(), comm, reshard_after_forward=2)
    with CommDebugMode() as mode:
        loss = model(*batch(0, comm))
        kept = [sum(b._kept.nbytes for b, _ in m.sharded_unit.bundles) for m in model.blocks]
        loss.backward()
    model.zero_grad()
    assert mode.get_comm_counts() == {"all_gather": 8, "reduce_scatter": 4}
    sizes = [record.size for record in mode.records if record.verb == "all_gather"]
    assert sizes == [comm.size] * 4 + [2] * 4
    block = num_bytes(model.blocks[0])
    assert all(block * 0.4 < n < block * 0.6 for n in kept)
    assert all(b._kept is None for m in (model, *model.blocks) for b, _ in m.sharded_unit.bundles)
    expected_steps(train(model, comm, steps=len(expected[0])), expected)
    with no_grad():
        model(*batch(0, comm))
    assert all(unit.whole is None for unit in (model.sharded_unit, model.blocks[0].sharded_unit))


def check_numbers_of_neighbours(comm):
    for value in (0, -1, comm.size + 1, 2.0, "node"):
        with pytest.raises(ValueError, match="divisor"):
            fully_shard(nn.Linear(2, 2), mesh=comm, reshard_after_forward=value)
    for value, same in ((1, False), (comm.size, True)):
        if comm.size > 1:
            model = fully_shard(nn.Linear(2, 2), mesh=comm, reshard_after_forward=value)
            assert model.sharded_unit.settings.reshards_after_forward is same
    if comm.size > 1:
        with pytest.raises(ValueError, match="differ"):
            fully_shard(nn.Linear(2, 2), mesh=comm, reshard_after_forward=[False, True][comm.rank % 2])


# ---------------------------------------------------------------- precision
class Small(nn.Module):
    def __init__(self, dtype=np.float32):
        super().__init__()
        manual_seed(2)
        self.linear = nn.Linear(4, 6, dtype=dtype)
        self.register_buffer("scale", np.array([1.0001], dtype))

    def forward(self, x):
        return self.linear(x) * self.scale


def rounded(a):
    return a.astype(BFLOAT16).astype(np.float32)


def inputs(comm):
    x = np.random.default_rng(1).standard_normal((12, 4)).astype(np.float32)
    return x.reshape(comm.size, -1, 4)


def by_hand(model, xs, cast_inputs, reduce_in):
    """Return outputs of all ranks and the mean gradients of sum(y ** 2), in NumPy."""
    w, b = (rounded(p.data) for p in (model.linear.weight, model.linear.bias))
    outputs, dws, dbs = [], [], []
    for x in xs:
        x = rounded(x) if cast_inputs else x
        y = (x @ w.T + b) * model.scale.data
        dy = 2 * y * model.scale.data
        outputs.append(y)
        dws.append((dy.T @ x).astype(reduce_in))
        dbs.append(dy.sum(0).astype(reduce_in))
    return outputs, np.mean(np.array(dws, np.float32), 0), np.mean(np.array(dbs, np.float32), 0)


def check_rounded_parameters(comm, cast_inputs, reduce_dtype):
    """What is computed with are values rounded to bfloat16, in float32; what is trained keeps float32."""
    policy = MixedPrecisionPolicy(BFLOAT16, reduce_dtype, cast_forward_inputs=cast_inputs)
    plain, model = Small(), fully_shard(Small(), mesh=comm, mp_policy=policy)
    xs = inputs(comm)
    outputs, dw, db = by_hand(plain, xs, cast_inputs, reduce_dtype or np.float32)
    adamw = optim.AdamW(model.named_parameters(), lr=0.1)
    y = model(Tensor(xs[comm.rank]))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.data, outputs[comm.rank], rtol=1e-5, atol=1e-6)
    (y**2).sum().backward()
    rtol = 1e-5 if reduce_dtype is None else 2.0**-6
    np.testing.assert_allclose(whole_gradient(model.linear.weight), dw, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(whole_gradient(model.linear.bias), db, rtol=rtol, atol=rtol)
    if reduce_dtype is not None and comm.size > 1:
        gradient = whole_gradient(model.linear.weight)
        np.testing.assert_array_equal(gradient, rounded(gradient))
    adamw.step()
    for p in model.parameters():
        assert p.dtype == p.grad.dtype == np.float32
        assert all(a.dtype == np.float32 for a in adamw.state[_name(model, p)].values() if hasattr(a, "shape"))
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert (np.abs(whole(p) - q.data) < 0.2).all()
    assert model.scale.dtype == np.float32
    np.testing.assert_array_equal(model.scale.data, np.float32([1.0001]))


def _name(model, p):
    return next(name for name, q in model.named_parameters() if q is p)


def check_bytes_of_rounded_parameters(comm):
    """Gathers move half as many bytes; reductions as many as before, or half."""

    def brought(policy):
        model = shard(gpt(), comm, mp_policy=policy)
        forward_backward(model, *batch(0, comm))
        with CommDebugMode() as mode:
            loss = forward_backward(model, *batch(0, comm))
        return mode.get_comm_bytes(), loss

    plain, loss = brought(None)
    half, near = brought(MixedPrecisionPolicy(BFLOAT16))
    both, _ = brought(MixedPrecisionPolicy(BFLOAT16, BFLOAT16))
    assert half["all_gather"] * 2 == plain["all_gather"]
    assert half["reduce_scatter"] == plain["reduce_scatter"] == both["reduce_scatter"] * 2
    assert loss != near
    np.testing.assert_allclose(near, loss, rtol=1e-2)


def check_output_dtype(comm):
    policy = MixedPrecisionPolicy(output_dtype=np.float64)
    model = fully_shard(Small(), mesh=comm, mp_policy=policy)
    x = inputs(comm)[comm.rank]
    y = model(Tensor(x))
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y.data, Small()(Tensor(x)).data)
    y.sum().backward()
    assert model.linear.weight.grad.dtype == np.float32
    for name in ("param_dtype", "reduce_dtype", "output_dtype"):
        with pytest.raises(ValueError, match=name):
            MixedPrecisionPolicy(**{name: np.int32})


def check_masters_of_several_dtypes(comm):
    """float64 parameters rest as they were, also beside float32 ones that travel in the same dtype."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.single = nn.Parameter(np.float32([1 / 3, 2 / 3, 1, 5 / 3]))
            self.double = nn.Parameter(np.array([1 / 3, 2 / 3, 1, 5 / 3]))

        def forward(self):
            return (self.single * self.double).sum()

    model = fully_shard(Both(), mesh=comm, mp_policy=MixedPrecisionPolicy(BFLOAT16))
    np.testing.assert_array_equal(whole(model.double), [1 / 3, 2 / 3, 1, 5 / 3])
    third = rounded(np.float32([1 / 3, 2 / 3, 1, 5 / 3]))
    loss = model()
    np.testing.assert_allclose(loss.item(), (third**2).sum(), rtol=1e-6)
    loss.backward()
    assert model.double.grad.dtype == np.float64
    np.testing.assert_allclose(whole_gradient(model.double), third, rtol=1e-6)


# ---------------------------------------------------------------- where it rests
def check_offload_on_a_host(comm, expected):
    """On a CPU what rests is on the host already."""
    model = shard(gpt(), comm, offload_policy=CPUOffloadPolicy())
    expected_steps(train(model, comm, steps=4), expected)


# ---------------------------------------------------------------- axes
def check_named_axes(comm, expected):
    mesh = init_device_mesh((2, comm.size // 2), ("copies", "shards"), comm)
    for dims, axes in (
        (DataParallelMeshDims(shard="shards", replicate="copies"), ("copies", "shards")),
        (DataParallelMeshDims(shard=("copies", "shards")), ("copies_shards",)),
    ):
        model = shard(gpt(), mesh, dp_mesh_dims=dims)
        assert model.ln_f.weight.device_mesh.axis_names == axes
        expected_steps(train(model, comm, steps=3), expected)
    with pytest.raises(ValueError, match="names of axes"):
        DataParallelMeshDims()


def check_with_tensor_parallel(comm, axes, shape, expected):
    """Shards of what tensor parallelism left: layouts, losses, norms and parameters of a single process."""
    mesh = init_device_mesh(shape, axes, comm)
    manual_seed(0)
    model = nn.GPT(tp_config())
    parallelize_module(model, mesh["tp"], tp_suite.gpt_plan(model))
    data = mesh[axes[:-1]] if len(axes) > 2 else mesh[axes[0]]
    for block in model.blocks:
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)
    weight = model.blocks[0].mlp.fc1.weight
    assert weight.device_mesh.axis_names == axes
    assert weight.layout.cutters(0) == (len(axes) - 1, len(axes) - 2)
    losses, norms, parameters = tp_train(model, comm, data)
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    np.testing.assert_allclose(norms, expected[1], rtol=1e-4)
    for name, array in parameters.items():
        np.testing.assert_allclose(array, expected[2][name], atol=2e-3, err_msg=name)


def tp_config():
    sizes = {"vocab_size": 17, "seq": 8, "num_layers": 2, "num_heads": 4, "width": 16}
    return nn.GPTConfig(**sizes, activation="swiglu", norm="rms")


def tp_train(model, comm, data=None, steps=20):
    group = None if data is None else data.get_mesh_group()
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    adamw = optim.AdamW(model.named_parameters(), lr=1e-2)
    losses, norms = [], []
    for step in range(steps):
        tokens = np.random.default_rng(step).integers(0, 17, (12, 9)).reshape(size, -1, 9)[rank]
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        norms.append(clip_grad_norm_(model.parameters(), 0.5))
        losses.append(np.mean(comm.all_gather_object(loss.item())))
        adamw.step()
        adamw.zero_grad()
    return losses, norms, {name: whole(p).copy() for name, p in model.named_parameters()}


# ---------------------------------------------------------------- models without storage
class Wide(nn.Module):
    """Extents that nothing divides; two layers share a table."""

    def __init__(self):
        super().__init__()
        manual_seed(9)
        self.table = nn.Embedding(23, 7)
        self.fc1 = nn.Linear(7, 13)
        self.fc2 = nn.Linear(13, 7)
        self.head = nn.Linear(7, 23, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.fc2(F.gelu(self.fc1(self.table(ids)))))


def check_drawn_shards(comm, apart, dim):
    """A rank draws its shards alone, and they have the bits of the full draw; what is tied stays tied."""
    with nn.deferred():
        model = Wide()
    whole_model = Wide()
    place = {"shard_placement_fn": lambda p: Shard(min(dim, p.ndim - 1))}
    for part in (model.table, model.fc1, model.head) if apart else ():
        fully_shard(part, mesh=comm, **place)
    fully_shard(model, mesh=comm, **place)
    assert model.head.weight is model.table.weight
    for (name, p), q in zip(model.named_parameters(), whole_model.parameters(), strict=True):
        assert p.local.shape == p.layout.local_shape
        np.testing.assert_array_equal(whole(p), q.data, err_msg=name)
    ids = np.arange(12).reshape(comm.size, -1)[comm.rank]
    np.testing.assert_allclose(model(ids).data, whole_model(ids).data, rtol=1e-5, atol=1e-6)


def check_drawn_shards_of_parts(comm, tp, *, apart):
    """Case B19: rows cut by tensor parallelism, then by shards, drawn on each rank alone; even and uneven."""
    mesh = init_device_mesh((comm.size // tp, tp), ("dp", "tp"), comm)
    plan = tp_suite.gpt_plan
    config = nn.GPTConfig(vocab_size=19, seq=5, num_layers=2, num_heads=4, width=20, activation="swiglu", norm="rms")
    manual_seed(4)
    with nn.deferred():
        model = nn.GPT(config)
    manual_seed(4)
    reference = nn.GPT(config)
    parallelize_module(model, mesh["tp"], plan(model))
    for block in model.blocks if apart else ():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        np.testing.assert_array_equal(whole(p), q.data, err_msg=name)
    tokens = np.arange(10).reshape(2, 5)
    found = model(tokens)
    found = found.full_tensor() if isinstance(found, DTensor) else found
    np.testing.assert_allclose(found.data, reference(tokens).data, rtol=1e-4, atol=1e-5)


def check_loaded_without_drawing(comm):
    """Local arrays can be loaded into a module that was never whole."""
    with nn.deferred():
        model = Wide()
    fully_shard(model, mesh=comm)
    state = {name: array * 2 for name, array in model.state_dict().items()}
    model.load_state_dict(state)
    np.testing.assert_array_equal(whole(model.fc1.weight), Wide().fc1.weight.data * 2)


# ---------------------------------------------------------------- methods
class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        manual_seed(6)
        self.table = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 11)

    def forward(self, ids):
        return self.out(self.table(ids))

    def generate(self, ids, n):
        """Choose the likeliest token n times, by calling this module and its parts."""
        for _ in range(n):
            logits = self(ids[-1:]) + self.out(self.table.weight[ids[-1:]])
            ids = np.append(ids, np.argmax(logits.data))
        return ids


def check_other_methods(comm):
    expected = Writer().generate(np.array([3]), 5)
    model = Writer()
    fully_shard(model.out, mesh=comm)
    fully_shard(model, mesh=comm)
    register_fsdp_forward_method(model, "generate")
    with no_grad():
        np.testing.assert_array_equal(model.generate(np.array([3]), 5), expected)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    assert model.sharded_unit.whole is None
    np.testing.assert_array_equal(model.generate(np.array([3]), n=5), expected)
    model(np.array([1])).sum().backward()
    with pytest.raises(ValueError, match=r"Writer\.missing"):
        register_fsdp_forward_method(model, "missing")
    plain = Writer()
    register_fsdp_forward_method(plain, "generate")
    assert "generate" not in plain.__dict__


def check_hook_of_reductions(comm):
    """The hook sees each message's gradients when they are complete, and changes them."""
    plain, seen = [], []
    for hook in (None, lambda flat: (seen.append(flat.size), flat.__imul__(2.0))):
        model = shard(gpt(), comm)
        model.set_all_reduce_hook(hook)
        model.set_force_sum_reduction_for_comms(True)
        model.set_reduce_scatter_unused_params(True)
        forward_backward(model, *batch(0, comm))
        plain.append([whole_gradient(p) for p in model.parameters()])
    for once, twice in zip(*plain, strict=True):
        np.testing.assert_allclose(twice, once * 2, rtol=1e-6, atol=1e-9)
    assert len(seen) == 4
    assert sum(seen) == sum(p.data.size for p in model.parameters())
    with pytest.raises(ValueError, match="True or False"):
        model.set_reduce_scatter_unused_params("yes")


def check_copies_add_up_later(comm):
    """HSDP: shards of micro-batches are added up on each copy, and once over copies."""
    mesh = init_device_mesh((2, comm.size // 2), ("copies", "shards"), comm)
    gradients = []
    for waits in (False, True):
        model = shard(gpt(), mesh)
        for micro in range(2):
            model.set_requires_all_reduce(micro == 1 or not waits)
            with CommDebugMode() as mode:
                forward_backward(model, *batch(0, comm, micro, 2))
            assert mode.get_comm_counts()["all_reduce"] == (0 if waits and micro == 0 else 4)
        gradients.append([whole_gradient(p) for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-8)


def check_gathering_only_where_asked(comm):
    """A unit that is not gathered on the way back is gathered where backward asks for a weight of it."""
    model, reference = shard(gpt(), comm), shard(gpt(), comm)
    model.blocks[1].set_unshard_in_backward(False)
    for m in (model, reference):
        forward_backward(m, *batch(0, comm))
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        np.testing.assert_array_equal(whole_gradient(p), whole_gradient(q))


def check_ignored(comm):
    """Parameters that are left out stay plain, and get this rank's gradient."""
    model = Small()
    bias = model.linear.bias
    fully_shard(model, mesh=comm, ignored_params=[bias])
    assert model.linear.bias is bias
    assert isinstance(model.linear.weight, DTensor)
    x = inputs(comm)[comm.rank]
    model(Tensor(x)).sum().backward()
    np.testing.assert_allclose(bias.grad, np.full(6, len(x) * 1.0001), rtol=1e-6)


def check_containers(comm):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(2, 2)

    with pytest.raises(ValueError, match="Table has no forward"):
        fully_shard(Table(), mesh=comm)
    with pytest.raises(ValueError, match="one or more"):
        fully_shard([], mesh=comm)
    odd = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="dim"):
        fully_shard(odd, mesh=comm, shard_placement_fn=lambda p: Shard(1))  # the bias has no such dimension
    assert not isinstance(odd.weight, DTensor)
    assert odd.weight.shape == (2, 2)


def check_even_memory(comm):
    """16 P / N bytes a rank, within 5 %, of parameters, gradients and moments; and at most one gathered unit."""
    manual_seed(0)
    sizes = {"vocab_size": 48, "seq": 12, "num_layers": 2, "num_heads": 3, "width": 48}
    model = shard(nn.GPT(nn.GPTConfig(**sizes)), comm)
    adamw = optim.AdamW(model.named_parameters(), lr=1e-2)
    peak = []
    for block in model.blocks:
        block.post.append(lambda m: peak.append(sum(a.nbytes for a in m.sharded_unit.whole)))
    tokens = np.zeros((2, 12), np.int64)
    model(tokens, tokens).backward()
    adamw.step()
    count = sum(p.size for p in model.parameters())
    held = sum(p.data.nbytes + p.grad.nbytes for p in model.parameters())
    held += sum(a.nbytes for state in adamw.state.values() for a in state.values() if hasattr(a, "nbytes"))
    assert abs(held * comm.size / (16 * count) - 1) < 0.05
    assert max(peak) == num_bytes(model.blocks[0])
