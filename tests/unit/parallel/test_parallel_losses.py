"""Losses of logits that ranks hold parts of, against one process: every reduction, smoothing, weights, 2-D meshes."""

import numpy as np
import pytest

from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Invariant, Shard, distribute_tensor
from hpcdist.nn.functional import cross_entropy
from hpcdist.parallel import loss_parallel

CLASSES = 7
SHAPES = {"rows": (5,), "sequences": (2, 4), "one": ()}


def case(name):
    """Return logits, targets of which the first is ignored, and a cotangent of unreduced losses."""
    rng, shape = np.random.default_rng(2), SHAPES[name]
    targets = rng.integers(0, CLASSES, shape)
    if shape:
        targets.reshape(-1)[0] = -100
    return rng.standard_normal((*shape, CLASSES)).astype(np.float32), targets, rng.standard_normal(shape)


def computed(logits, name, reduction, **options):
    _, targets, cotangent = case(name)
    with loss_parallel():
        loss = cross_entropy(logits, targets, reduction=reduction, **options)
    loss.backward(cotangent.astype(np.float32) if reduction == "none" else None)
    return loss


def check(mesh, placements, name):
    logits, *_ = case(name)
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1, 1.0):
            for weight in (None, np.linspace(0.5, 2, CLASSES).astype(np.float32)):
                how = {"reduction": reduction, "label_smoothing": smoothing, "weight": weight}
                whole, cut = Tensor(logits, True), distribute_tensor(Tensor(logits, True), mesh, placements)
                expected, found = computed(whole, name, **how), computed(cut, name, **how)
                what = f"{how} {placements}"
                np.testing.assert_allclose(found.full_tensor().data, expected.data, 1e-5, 1e-6, err_msg=what)
                np.testing.assert_allclose(cut.gradient().full_tensor().data, whole.grad, 1e-4, 1e-6, err_msg=what)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_of_classes_that_are_cut(size, name):
    run(size, lambda comm: check(init_device_mesh((size,), ("tp",), comm), [Shard(-1)], name))


@pytest.mark.parametrize("name", ["rows", "sequences"])
@pytest.mark.parametrize(
    "placements",
    [[Invariant(), Shard(-1)], [Shard(0), Shard(-1)], [Shard(-1), Invariant()], [Shard(-1), Shard(-1)]],
)
def test_on_two_axes(placements, name):
    run(4, lambda comm: check(init_device_mesh((2, 2), ("dp", "tp"), comm), placements, name))


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        ([0, 7, 1, 2], IndexError, "target 7 is not a class: expected 0 to 6"),
        ([0, -1, 1, 2], IndexError, "target -1"),
        ([0, 1, 2], ValueError, r"targets \(3,\) for rows of logits \(4,\)"),
        ([0.0, 1.0, 2.0, 3.0], TypeError, "integer targets"),
    ],
)
def test_wrong_targets_are_refused_on_every_rank(targets, error, message):
    def main(comm):
        mesh = init_device_mesh((comm.size,), ("tp",), comm)
        logits = distribute_tensor(np.zeros((4, CLASSES), np.float32), mesh, [Shard(1)])
        for smoothing in (0.0, 0.1):
            with pytest.raises(error, match=message), loss_parallel():
                cross_entropy(logits, np.array(targets), label_smoothing=smoothing)

    run(3, main)


def test_no_targets_left():
    def main(comm):
        mesh = init_device_mesh((comm.size,), ("tp",), comm)
        logits = distribute_tensor(Tensor(np.ones((4, CLASSES), np.float32), True), mesh, [Shard(1)])
        with loss_parallel():
            loss = cross_entropy(logits, np.full(4, -100), label_smoothing=0.1)
        loss.backward()
        return loss.item(), float(abs(logits.grad).max()) if logits.grad.size else 0.0

    assert run(3, main) == [(0.0, 0.0)] * 3
