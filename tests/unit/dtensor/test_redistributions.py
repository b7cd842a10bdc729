"""From every layout to every layout on thread ranks: values, gradients, messages; uneven and empty parts."""

import dtensor_suite as suite
import numpy as np
import pytest
from move_suite import INV, S0, S1, P, R

from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import DTensor, Partial, Shard
from hpcdist.dtensor.debug import CommDebugMode


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", suite.SHAPES)
def test_on_one_axis(size, shape):
    def main(comm):
        mesh = init_device_mesh(size, "tp", comm)
        for src in suite.layouts(1):
            for dst in suite.layouts(1):
                suite.check_redistribute(mesh, shape, src, dst)
                suite.check_async(mesh, shape, src, dst)

    run(size, main)


@pytest.mark.parametrize(
    ("mesh_shape", "shape", "every"),
    [((2, 2), (5, 7), 1), ((2, 2), (4, 4), 3), ((3, 1), (4, 2), 3), ((1, 2), (1, 3), 3)],
)
@pytest.mark.parametrize("src", suite.layouts(2), ids=str)
def test_on_two_axes(mesh_shape, shape, every, src):
    def main(comm):
        mesh = init_device_mesh(mesh_shape, ("dp", "tp"), comm)
        layouts = suite.layouts(2)
        for dst in layouts[layouts.index(src) % every :: every]:
            suite.check_redistribute(mesh, shape, src, dst)

    run(mesh_shape[0] * mesh_shape[1], main)


def test_async_on_two_axes():
    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        for src in suite.layouts(2)[::2]:
            for dst in suite.layouts(2)[::5]:
                suite.check_async(mesh, (5, 7), src, dst)

    run(4, main)


def test_what_is_posted_goes_on_while_others_work():
    """Two are under way at once, and are waited for in the other order."""

    def main(comm):
        mesh = init_device_mesh(3, "tp", comm)
        whole = np.arange(35.0).reshape(5, 7)
        works = [suite.placed(whole + k, mesh, [S0]).redistribute(placements=[S1], async_op=True) for k in range(2)]
        for k in (1, 0):
            suite.assert_is(works[k].wait(), whole + k)

    run(3, main)


@pytest.mark.parametrize("size", [1, 2])
def test_an_axis_of_one_rank_is_free(size):
    run(size, suite.check_alone)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_case_b16(size):
    run(size, suite.check_b16)


@pytest.mark.parametrize("mesh_shape", [(3, 2), (2, 3)])
def test_case_b16_on_two_axes(mesh_shape):
    """Both axes change their dimension: one exchange of what ranks hold, there and back."""

    def main(comm):
        mesh = init_device_mesh(mesh_shape, ("dp", "tp"), comm)
        whole = np.arange(35.0).reshape(5, 7)
        x = suite.placed(whole, mesh, [S0, S1], requires_grad=True)
        with CommDebugMode() as mode:
            y = x.redistribute(placements=[S1, S0])
        assert mode.get_comm_counts() == {"all_to_all": 1}
        assert mode.get_comm_bytes() == {"all_to_all": x.data.nbytes}
        suite.assert_is(y, whole)
        y.local.backward(suite.placed(whole, mesh, [S1, S0]).data)
        suite.assert_is(x.gradient(), whole)
        suite.assert_is(y.redistribute(placements=[S0, S1]), whole)

    run(6, main)


def test_extremes_can_be_finished():
    def main(comm):
        mesh = init_device_mesh(3, "tp", comm)
        parts = [np.random.default_rng(rank).normal(size=(5, 2)) for rank in range(3)]
        for op, expected in (("max", np.max(parts, 0)), ("min", np.min(parts, 0)), ("product", np.prod(parts, 0))):
            x = DTensor.from_local(parts[comm.rank], mesh, [Partial(op)])
            for dst in (S0, R, INV):
                for async_op in (False, True):
                    y = x.redistribute(placements=[dst], async_op=async_op)
                    suite.assert_is(y.wait() if async_op else y, expected)

    run(3, main)


def test_moves_that_are_none_are_refused():
    def main(comm):
        mesh, other = init_device_mesh(2, "tp", comm), init_device_mesh(2, "dp", comm)
        x = suite.placed(np.arange(6.0), mesh, [S0])
        for kind, match, call in (
            (ValueError, "placements", lambda: x.redistribute()),
            (ValueError, "one of Shard", lambda: x.redistribute(placements=[R, R])),
            (ValueError, "dim", lambda: x.redistribute(placements=[S1])),
            (ValueError, "max", lambda: x.redistribute(placements=[Partial("max")])),
        ):
            suite.same_error(mesh, kind, match, call)
        with pytest.raises(ValueError, match=r"redistribute: mesh\n.*got.*dp=2"):
            x.redistribute(other, [R])

    run(2, main)


def test_moved_for_free_says_nothing():
    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        x = DTensor.from_local(Tensor(np.arange(12.0).reshape(4, 3)), mesh)
        with suite.silent():
            for placements in ([S0, S1], [R, S0], [S0, S0], [P, R], [INV, INV]):
                moved = x.redistribute(placements=placements)
        assert moved.layout is x.layout

    run(4, main)


@pytest.mark.parametrize(
    ("n", "outer"), [(2, Shard(0, unit=2)), (6, Shard(0, unit=3)), (8, Shard(0, sections=(4, 4))), (5, Shard(0))]
)
@pytest.mark.parametrize("wider", [INV, P, S1])
def test_units_that_do_not_fit_what_another_axis_leaves_are_cut_before_it(n, outer, wider):
    """The second axis cuts already, and the first one shall cut before it, in units of the whole dimension."""

    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        suite.check_redistribute(mesh, (n, 3), ([wider, S0], (0, 1)), ([outer, S0], (0, 1)))
        suite.check_redistribute(mesh, (n, 3), ([outer, S0], (0, 1)), ([wider, S0], (0, 1)))

    run(4, main)


def test_the_gradient_of_an_average_is_that_of_a_sum():
    """What each rank holds of a mean has its share of the gradient; the gradient of the mean is the whole one."""

    def main(comm):
        mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
        local = Tensor(np.ones(3), requires_grad=True)
        x = DTensor.from_local(local, mesh, [Partial("avg"), P])
        (x.redistribute(placements=[INV, INV]) * 3.0).sum().backward()
        np.testing.assert_array_equal(x.grad, np.full(3, 1.5))
        gradient = x.gradient()
        assert gradient.placements == (R, R)
        np.testing.assert_array_equal(gradient.data, np.full(3, 3.0))

    run(4, main)


def test_layouts_of_other_shapes_and_meshes_are_refused_and_equal_meshes_are_one():
    def main(comm):
        parent, other = init_device_mesh((1, 2), ("dp", "tp"), comm), init_device_mesh(2, "tp", comm)
        mesh, same = parent["tp"], parent["tp"]
        x = suite.placed(np.arange(6.0).reshape(3, 2), mesh, [S0], requires_grad=True)
        for wrong in (np.ones((2, 2)), np.ones(2), DTensor.from_local(np.ones((3, 3)), mesh)):
            with pytest.raises(RuntimeError, match=r"cotangent has another shape(.|\n)*expected \(3, 2\)"):
                (x * x).backward(wrong)
        with pytest.raises(ValueError, match="a change of layout"):
            (x * x).backward(DTensor.from_local(np.ones((3, 2)), other))
        with pytest.raises(ValueError, match="on two meshes"):
            x * DTensor.from_local(np.ones((3, 2)), other)
        (x * DTensor.from_local(np.full((3, 2), 2.0), same)).backward(DTensor.from_local(np.ones((3, 2)), same))
        np.testing.assert_array_equal(x.grad, np.full(x.grad.shape, 2.0))

    run(2, main)
