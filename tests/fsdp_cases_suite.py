"""fully_shard in cases B21, B24, B25 and B27, with their numbers, and gathering ahead: bodies of tests."""

import weakref

import ml_dtypes
import numpy as np
from fsdp_suite import batch, forward_backward, gpt, shard, whole, whole_gradient

from hpcdist import manual_seed, nn, optim
from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import MixedPrecisionPolicy, fully_shard

MICRO = [(1.0, 2.0, 5.0, 4.0), (3.0, 4.0, 1.0, 6.0), (6.0, 8.0, 2.0, 9.0)]
"""Gradients of micro-steps, of ranks."""
B27 = {(True, True): 5.0, (False, True): 5.0, (True, False, True): 12.0}
"""Which micro-steps are reduced, and the sum of the means over two ranks."""


def meshes(comm):
    """Return the ranks as shards, and two of them as copies of one shard."""
    copies = [init_device_mesh((2, 1), ("copies", "shards"), comm)] if comm.size == 2 else []
    return [comm, *copies]


def scale(mesh):
    model = nn.Linear(1, 1, bias=False, dtype=np.float64)
    model.weight.data[...] = 1
    return fully_shard(model, mesh=mesh)


def check_numbers_of_micro_steps(comm):
    """Case B27: sums of micro-steps, means over ranks; what is not reduced in the end moves no weight."""
    for mesh in meshes(comm):
        for pattern, number in B27.items():
            model = scale(mesh)
            for grads, syncs in zip(MICRO, pattern, strict=False):
                model.set_requires_gradient_sync(syncs)
                model(Tensor(np.array([[grads[comm.rank]]]))).sum().backward()
            means = [np.mean(grads[: comm.size]) for grads in MICRO[: len(pattern)]]
            assert whole_gradient(model.weight).item() == np.sum(means)
            assert comm.size != 2 or np.sum(means) == number
        model = scale(mesh)
        sgd = optim.SGD(model.named_parameters(), lr=1.0)
        with CommDebugMode() as mode, model.no_sync():
            for grads in MICRO:
                model(Tensor(np.array([[grads[comm.rank]]]))).sum().backward()
        sgd.step()
        assert not {"reduce_scatter", "all_reduce"} & mode.get_comm_counts().keys()
        assert whole(model.weight).item() == 1


def check_mean_over_accumulation_steps(comm):
    """Case B21: micro-batches with mean gradients 1, 2 and 3, 4 make 2.5."""
    model = scale(comm)
    for rows in ([1.0, 2.0], [3.0, 4.0]):
        model.set_requires_gradient_sync(rows[0] == 3)
        (model(Tensor(np.array(rows)[:, None])).mean() / 2).backward()
    assert whole_gradient(model.weight).item() == 2.5


def check_optimizer_made_later(comm):
    """Case B24: an optimizer that is made after a first forward and backward trains what is tied, once."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[0].weight.data[...] = np.eye(3)
    model[1].weight = model[0].weight
    fully_shard(model, mesh=comm)
    x = Tensor(np.ones((1, 3), np.float32))
    model(x).sum().backward()
    adamw = optim.SGD(model.named_parameters(), lr=0.25)
    adamw.step()
    np.testing.assert_array_equal(whole(model[1].weight), np.eye(3) - 0.5)
    assert model[0].weight is model[1].weight
    np.testing.assert_allclose(model(x).data, [[0.25] * 3])


def check_frozen_units(comm):
    """Case B25: a unit that is frozen as a whole, between others, is gathered, freed, not reduced; unfrozen later."""
    policy = MixedPrecisionPolicy(ml_dtypes.bfloat16)
    for mp_policy in (None, policy):
        manual_seed(1)
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
        model[1].requires_grad_(False)
        for layer in model:
            fully_shard(layer, mesh=comm, mp_policy=mp_policy)
        fully_shard(model, mesh=comm, mp_policy=mp_policy)
        before, seen = whole(model[1].weight).copy(), []
        model[1].post.append(lambda m, seen=seen: seen.append(weakref.ref(m.weight.data)))
        adamw = optim.AdamW(model.named_parameters(), lr=0.1, weight_decay=0.1)
        for step in range(4):
            if step == 3:
                model[1].requires_grad_()
            with CommDebugMode() as mode:
                (model(Tensor(np.ones((2, 4), np.float32))) ** 2).mean().backward()
            assert mode.get_comm_counts()["reduce_scatter"] == (comm.size > 1) * (3 if step == 3 else 2)
            frozen = [p.grad is None for p in model.parameters()]
            assert frozen == [step < 3 and "1." in name for name, _ in model.named_parameters()]
            adamw.step()
            assert ("1.weight" in adamw.state) == (step == 3)
            assert (whole(model[1].weight) == before).all() == (step < 3)
            assert (comm.size == 1 and mp_policy is None) or all(ref() is None for ref in seen)
            assert all(p.grad is None or p.grad.dtype == p.dtype == np.float32 for p in model.parameters())
            adamw.zero_grad()


def check_chosen_units_are_gathered_ahead(comm):
    """While a block computes, the blocks that were chosen are on their way, in forward and in backward."""
    model = shard(gpt(), comm)
    first, second, third = model.blocks
    first.set_modules_to_forward_prefetch([second, third])
    third.set_modules_to_backward_prefetch([second, first])
    seen = []

    def look(*_):
        seen.append([unit.sharded_unit.gathered._coming is not None for unit in model.blocks])

    first.pre.append(look)
    model.ln_f.post.append(look)
    with CommDebugMode() as mode:
        loss = model(*batch(0, comm))
        third.mlp.fc1.bias.register_hook(look)
        loss.backward()
    assert seen == [[False, True, True], [False, False, False], [True, True, False]]
    expected = shard(gpt(), comm)
    forward_backward(expected, *batch(0, comm))
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        np.testing.assert_array_equal(whole_gradient(p), whole_gradient(q))
    assert mode.get_comm_counts() == ({"all_gather": 7, "reduce_scatter": 4} if comm.size > 1 else {})


CHECKS = [
    check_numbers_of_micro_steps,
    check_mean_over_accumulation_steps,
    check_optimizer_made_later,
    check_frozen_units,
    check_chosen_units_are_gathered_ahead,
]
