"""What ranks hold of distributed tensors and gradients, cut by hand, and put together and compared with the whole."""

import re
from typing import NamedTuple

import numpy as np
from move_suite import pieces
from unit.autograd.test_ops import draw

from hpcdist.autograd import Tensor
from hpcdist.dtensor import placements as words
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Shard, Share, dual
from hpcdist.dtensor.tensor import DTensor


class Held(NamedTuple):
    """What one rank holds of an array, and where that lies; can be pickled."""

    data: np.ndarray
    placements: tuple[Placement, ...]
    coordinate: tuple[int, ...]
    boxes: list
    shape: tuple[int, ...]


def held(data, layout, placements=None):
    return Held(data, placements or layout.placements, layout.coordinate, layout.boxes, layout.shape)


def part(whole, layout, placements=None):
    """Return what this rank holds of an array, cut by hand, axis by axis."""
    for axis in layout.order:
        size, here = layout.mesh.shape[axis], layout.coordinate[axis]
        whole = pieces(whole, (placements or layout.placements)[axis], size)[here]
    return whole


def leaf(mesh, whole, placements, order=None):
    """Return a distributed leaf; floating ones collect gradients."""
    layout = Layout.of(mesh, placements, whole.shape, order)
    return DTensor(Tensor(part(whole, layout), requires_grad=whole.dtype.kind in "fc"), layout)


def joined(ranks):
    """Return the array that ranks hold; check that those which shall hold the same do."""
    placements = ranks[0].placements
    same = [axis for axis, p in enumerate(placements) if not isinstance(p, (Shard, Partial))]
    (pending,) = {p.op for p in placements if isinstance(p, Partial)} - {"avg"} or {"sum"}
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}[pending]
    whole = np.full(ranks[0].shape, Partial(pending).neutral(ranks[0].data.dtype))
    copies = {}
    for rank in ranks:
        kept = tuple(c for axis, c in enumerate(rank.coordinate) if axis not in same)
        if kept in copies:
            np.testing.assert_array_equal(rank.data, copies[kept], err_msg="copies that differ")
            continue
        copies[kept] = rank.data
        for there, here in rank.boxes:
            whole[there] = combine(whole[there], rank.data[here])
    return _scaled(whole, ranks)


def _scaled(whole, ranks):
    """Undo what averages and shares of them are scaled by: the number of ranks."""
    for axis, p in enumerate(ranks[0].placements):
        size = len({rank.coordinate[axis] for rank in ranks})
        whole = whole / size if p == Partial("avg") else whole * size if isinstance(p, Share) else whole
    return whole


def compare(what, ranks, expected):
    """Check arrays that ranks hold, a list a rank, against whole ones."""
    assert {len(arrays) for arrays in ranks} == {len(expected)}, f"{what}s: wrong number"
    for slot, whole in enumerate(expected):
        parts = [arrays[slot] for arrays in ranks]
        assert (whole is None) == all(p is None for p in parts), f"{what} {slot}: none"
        if whole is None:
            continue
        assert {(p.shape, p.data.dtype) for p in parts} == {(whole.shape, whole.dtype)}, f"{what} {slot}"
        np.testing.assert_allclose(joined(parts), whole, rtol=1e-9, atol=1e-11, err_msg=f"{what} {slot}")


def finished(y):
    """Return an output with a maximum over ranks finished: it has no dual."""
    pending = any(isinstance(p, Partial) and p.op not in ("sum", "avg") for p in y.placements)
    return y.redistribute(placements=[Invariant()] * len(y.placements)) if pending else y


def seed(y):
    """Return this rank's part of a cotangent that is fixed for the whole, placed as the dual says."""
    whole = draw(np.broadcast_to(np.zeros((), y.dtype), y.shape), 9)
    return np.array(part(whole, y.layout, [dual(p) for p in y.placements]))


def gradient(x):
    """Return what this rank holds of the gradient of a leaf."""
    return None if x.grad is None else held(x.grad, x.layout, tuple(dual(p) for p in x.placements))


def advised(name, inputs, refusal):
    """Return the inputs after the calls that a refusal names, which tells the operation and its layouts, too."""
    calls = re.findall(r"redistribute\((placements=.*?)\) of input (\d+)", refusal)
    shown = [f"input {i}: {x.layout}" in refusal for i, x in enumerate(inputs)]
    assert refusal.startswith(f"{name}: "), refusal
    assert all(shown), refusal
    assert calls, refusal
    # what a user would copy must be Python
    wanted = {int(i): eval(f"dict({text})", vars(words)) for text, i in calls}
    return [x.redistribute(**wanted[i]) if i in wanted else x for i, x in enumerate(inputs)]
