"""Tensor parallelism against a single process: bodies of tests that take a communicator."""

import functools

import numpy as np
import pytest

from hpcdist import manual_seed, nn, optim
from hpcdist.autograd import Tensor, random
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run, solo
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    clip_grad_norm_,
    gpt_plan,
    parallelize_module,
    replicate,
)

SIZES = (1, 2, 3, 4)
STEPS = 20
SMALL = {"vocab_size": 13, "seq": 7, "num_layers": 2, "num_heads": 3, "width": 12}
GPTS = {
    "gelu-layer-rotary": {"positions": "rotary"},
    "swiglu-rms-learned": {"activation": "swiglu", "norm": "rms"},
    "shared-keys": {"num_heads": 6, "width": 24, "num_kv_heads": 3, "positions": "rotary"},
    "dropout": {"dropout": 0.2},
}
"""Sizes that no number of ranks divides: 13 tokens, 7 positions, 3 heads."""


def mesh_of(comm):
    return init_device_mesh((comm.size,), ("tp",), comm)


def on(size, main):
    """Run ``main(mesh)`` on thread ranks; return what each returned."""
    return run(size, lambda comm: main(mesh_of(comm)))


def alone():
    return mesh_of(solo())


def gpt(name, **sizes):
    manual_seed(0)
    return nn.GPT(nn.GPTConfig(**{**SMALL, **GPTS[name], **sizes}))


def batch(config, seed, part=slice(None)):
    """Return tokens and targets, one of which is ignored in each of the two sequences; or a part of them."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, (2, config.seq))
    targets = rng.integers(0, config.vocab_size, (2, config.seq))
    targets[:, 0] = -100
    return tokens[part], targets[part]


def train(model, clip, part=slice(None)):
    """Return the losses and norms of AdamW steps."""
    adamw = optim.AdamW(model.named_parameters(), lr=1e-2)
    found = []
    for step in range(STEPS):
        with random.at(step=step):
            loss = model(*batch(model.config, step, part))
        adamw.zero_grad()
        loss.backward()
        norm = clip(list(model.parameters()), 0.5)
        adamw.step()
        found.append((float(loss), norm))
    return np.array(found)


@functools.cache
def single(name):
    """Return losses and norms of a single process, and the parameters it ends with."""
    model = gpt(name)
    losses = train(model, optim.clip_grad_norm_)
    return losses, model.state_dict()


def check_losses(comm, name, sequence_parallel):
    """The losses, the norms of gradients and the parameters of 20 steps are those of a single process."""
    expected, parameters = single(name)
    model = gpt(name)
    parallelize_module(model, mesh_of(comm), gpt_plan(model, sequence_parallel))
    found = train(model, clip_grad_norm_)
    np.testing.assert_allclose(found[:, 0], expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(found[:, 1], expected[:, 1], rtol=1e-3)
    assert comm.all_gather_object(found.tolist()) == [found.tolist()] * comm.size
    for key, p in model.named_parameters():
        np.testing.assert_allclose(p.full_tensor().data, parameters[key], atol=2e-3)


def check_with_data_parallel(comm, name):
    """The same on a mesh (dp=2, tp): each of two groups trains on one of the two sequences."""
    expected, parameters = single(name)
    mesh = init_device_mesh((2, comm.size // 2), ("dp", "tp"), comm)
    model = gpt(name)
    parallelize_module(model, mesh["tp"], gpt_plan(model))
    replicate(model, mesh["dp"])
    row = mesh.get_local_rank("dp")
    found = train(model, clip_grad_norm_, slice(row, row + 1))
    losses = mesh.get_group("dp").all_reduce(found[:, 0]) / 2
    np.testing.assert_allclose(losses, expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(found[:, 1], expected[:, 1], rtol=1e-3)
    for key, p in model.named_parameters():
        np.testing.assert_allclose(p.full_tensor().data, parameters[key], atol=2e-3)


def counts(model, inputs):
    """Return how often each verb is called in a block, forward and backward, and outside of blocks."""
    with CommDebugMode(model) as mode:
        model(*inputs).backward()
    found = {}
    for record in mode.records:
        where = "block" if (record.module or "").startswith("blocks.0") else "elsewhere"
        found.setdefault((where, record.phase), []).append(record.verb)
    return found


def check_counts(comm, name, sequence_parallel):
    """Megatron's: 2 all-reduces a block and direction; or 2 all-gathers and 2 reduce-scatters."""
    model = gpt(name)
    parallelize_module(model, mesh_of(comm), gpt_plan(model, sequence_parallel))
    found = counts(model, batch(model.config, 0))
    each = ["all_gather", "reduce_scatter"] if sequence_parallel else ["all_reduce"]
    for phase in ("forward", "backward"):
        assert sorted(found["block", phase]) == sorted(2 * each), found
    return found


def check_samples(comm, name):
    """A model generates what it does in a single process: also from one token, of which some ranks have nothing."""
    model = gpt(name)
    parallelize_module(model, mesh_of(comm), gpt_plan(model))
    model.eval()
    np.testing.assert_array_equal(model.generate([1], 9, seed=3), gpt(name).eval().generate([1], 9, seed=3))


def check_inputs_compared(comm):
    """In check mode inputs and targets that differ between ranks are an error on all of them."""
    model = gpt("gelu-layer-rotary")
    parallelize_module(model, mesh_of(comm), gpt_plan(model))
    tokens, targets = batch(model.config, 0)
    assert "object" not in {verb for verbs in counts(model, (tokens, targets)).values() for verb in verbs}
    assert model(tokens, targets).item() == pytest.approx(gpt("gelu-layer-rotary")(tokens, targets).item(), rel=1e-5)
    if comm.size > 1:
        for given in (tokens, targets):
            given[0, 3] = comm.rank % 2
            with pytest.raises(ValueError, match="other values"):
                model(tokens, targets)
            given[0, 3] = 0


# ---------------------------------------------------------------- layers
def net():
    manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))


def check_same(model, reference, x, *, inputs=None):
    """Outputs, gradients of parameters and of the input are those of ``reference``."""
    mine, theirs = Tensor(x, True), Tensor(x, True)
    out, expected = model(mine if inputs is None else inputs(mine)), reference(theirs)
    (out * out).sum().backward()
    (expected * expected).sum().backward()
    np.testing.assert_allclose(out.full_tensor().data, expected.data, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    for (name, p), (other, q) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        assert name == other
        np.testing.assert_allclose(p.gradient().full_tensor().data, q.grad, rtol=1e-4, atol=1e-5)


def check_uneven(comm):
    """Linear(4, 5), ReLU, Linear(5, 4): 5 features on any number of ranks; one all-reduce forward, one backward."""
    model = parallelize_module(net(), mesh_of(comm), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert [str(p.placements[0]) for p in model.parameters()] == [
        "Shard(0)", "Shard(0)", "Shard(1)", "Invariant()"
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    with CommDebugMode(model) as mode:
        out = model(Tensor(x, True))
        (out * out).sum().backward()
    phases = [(r.phase, r.verb) for r in mode.records]
    assert phases == ([("forward", "all_reduce"), ("backward", "all_reduce")] if comm.size > 1 else [])
    model.zero_grad()
    check_same(model, net(), x)
