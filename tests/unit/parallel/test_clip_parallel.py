"""Clipping and optimizers where ranks hold parts of parameters (case B22)."""

import math

import numpy as np
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import DTensor, Invariant, Partial, Replicate, Shard, distribute_tensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import clip_grad_norm_

INF = math.inf
CUT, SAME = np.array([3, 0, 0, 4, 0], np.float32), np.array([12], np.float32)
MESHES = [((3,), ("tp",), [Shard(0)]), ((2, 2), ("replicate", "shard"), [Invariant(), Shard(0)])]
meshes = pytest.mark.parametrize(("shape", "names", "cut"), MESHES)


def parameter(mesh, gradient, placements):
    """Return a distributed parameter with this gradient; None: without."""
    p = distribute_tensor(Tensor(np.zeros(5, np.float32) if gradient is None else gradient, True), mesh, placements)
    if gradient is not None:
        p.grad = distribute_tensor(gradient, mesh, placements).data
    return p


def case(mesh, cut):
    """Return a sharded and a plain or invariant parameter, and one without a gradient."""
    whole = Tensor(SAME.copy(), True) if mesh.ndim == 2 else parameter(mesh, SAME, [Invariant()])
    whole.grad = SAME.copy()
    return [parameter(mesh, CUT, cut), whole, parameter(mesh, None, cut)]


def on(shape, names, main):
    return run(int(np.prod(shape)), lambda comm: main(init_device_mesh(shape, names, comm)))


@meshes
@pytest.mark.parametrize(("power", "norm"), [(2, 13), (1, 19), (INF, 12), (3.0, (27 + 64 + 1728) ** (1 / 3))])
def test_the_norm_is_that_of_whole_gradients(shape, names, cut, power, norm):
    def main(mesh):
        params = case(mesh, cut)
        before = [None if p.grad is None else p.grad.copy() for p in params]
        with CommDebugMode() as mode:
            found = clip_grad_norm_((p for p in params), 100, power)
        assert mode.get_comm_counts() == {"all_reduce": 1}
        assert mode.records[0].payload_bytes <= 16
        for p, gradient in zip(params, before, strict=True):
            np.testing.assert_array_equal(p.grad, gradient)
        assert params[2].grad is None
        assert type(found) is float
        return found

    found = on(shape, names, main)
    assert found == [pytest.approx(norm, rel=1e-15)] * len(found)
    assert len(set(found)) == 1


@meshes
def test_clipped_gradients(shape, names, cut):
    def main(mesh):
        first, second, _ = params = case(mesh, cut)
        assert clip_grad_norm_(params, 6.5) == 13
        return first.gradient().full_tensor().data.tolist(), second.grad.tolist()

    expected = np.array([1.49999988, 0, 0, 1.99999985, 0], np.float32).tolist(), [np.float32(5.99999954).item()]
    for found in on(shape, names, main):
        assert found == (pytest.approx(expected[0], rel=1e-7), pytest.approx(expected[1], rel=1e-7))


@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("power", [2, INF])
def test_what_is_not_finite_on_one_rank_is_known_to_all(bad, power):
    def main(mesh):
        p = parameter(mesh, np.array([1, 2, 3, 4, bad], np.float32), [Shard(0)])
        before = p.grad.copy()
        with pytest.raises(RuntimeError, match="finite"):
            clip_grad_norm_(p, 1.0, power, error_if_nonfinite=True)
        np.testing.assert_array_equal(p.grad, before)
        return clip_grad_norm_(p, 1.0, power)

    np.testing.assert_array_equal(on((3,), ("tp",), main), [bad] * 3)


def test_plain_parameters_only():
    p = Tensor(SAME.copy(), True)
    p.grad = SAME.copy()
    assert clip_grad_norm_(p, 6.0) == 12
    assert clip_grad_norm_([], 6.0) == 0
    for arguments in ((-1.0,), (1.0, 0), (1.0, math.nan)):
        with pytest.raises(ValueError, match=r"max_norm|norm_type"):
            clip_grad_norm_(p, *arguments)


def test_what_is_refused():
    def main(comm):
        mesh, other = (init_device_mesh((2,), ("tp",), comm) for _ in range(2))
        for placement in (Replicate(), Partial()):
            q = DTensor.from_local(Tensor(np.ones(2), True), mesh, [placement])
            with pytest.raises(TypeError, match="gradient of parameter 1 is a sum"):
                clip_grad_norm_([parameter(mesh, CUT, [Shard(0)]), q], 1.0)
            with pytest.raises(TypeError, match="'0' are sums that are not finished"):
                optim.AdamW([q])
        with pytest.raises(ValueError, match="two meshes"):
            clip_grad_norm_([parameter(m, CUT, [Shard(0)]) for m in (mesh, other)], 1.0)
        for kind in (optim.LAMB, optim.LARS, optim.LBFGS):
            with pytest.raises(TypeError, match="is a part"):
                kind([parameter(mesh, CUT, [Shard(0)])])

    run(2, main)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_steps_of_parts_are_parts_of_steps(kind, size):
    """Values and state are those of the whole, bit for bit; state is as large as what a rank holds."""
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((5, 2)), rng.standard_normal((3, 5, 2))
    whole = Tensor(start.copy(), True)
    options = {"momentum": 0.9} if kind is optim.SGD else {}
    reference = kind([("w", whole)], lr=0.1, weight_decay=0.01, **options)
    for g in gradients:
        whole.grad = g.copy()
        reference.step()

    def main(comm):
        mesh = init_device_mesh((size,), ("tp",), comm)
        p = distribute_tensor(Tensor(start.copy(), True), mesh, [Shard(0)])
        optimizer = kind([("w", p)], lr=0.1, weight_decay=0.01, **options)
        for step, g in enumerate(gradients):
            p.grad = distribute_tensor(g, mesh, [Shard(0)]).data
            optimizer.step()
            if step == 0:  # state goes out and in
                optimizer.load_state_dict(optimizer.state_dict())
        np.testing.assert_array_equal(p.full_tensor().data, whole.data)
        for key, value in optimizer.state["w"].items():
            if getattr(value, "ndim", 0):
                held = p.layout.part_of(reference.state["w"][key].reshape(5, 2))
                np.testing.assert_array_equal(value, held.reshape(-1))

    run(size, main)
