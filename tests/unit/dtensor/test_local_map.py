"""Computations of a user's own on what ranks hold: local_map, register_sharding, and signatures."""

import numpy as np
import pytest

from hpcdist.autograd import OPS, Tensor, apply, define
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard, distribute_tensor, local_map, register_sharding
from hpcdist.dtensor.debug import CommDebugMode

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
WHOLE = np.arange(10.0).reshape(5, 2)


def _repeat(x, *, n):
    return np.repeat(x, n, axis=0), ()


def _repeat_vjp(into, grads, saved, *, n):
    rows, *rest = grads[0].shape
    into[0].give(grads[0].reshape(rows // n, n, *rest).sum(1))


REPEAT = OPS.get("test_repeat") or define("test_repeat", _repeat, _repeat_vjp)


def _columns(x, *, n):
    """Rows may be cut, in units of what becomes of them, and so may columns."""
    return [((Shard(0, unit=n),), (Shard(0),)), ((Shard(1),), (Shard(1),))]


def distributed(comm, placement):
    mesh = init_device_mesh((comm.size,), ("tp",), comm)
    return distribute_tensor(Tensor(WHOLE.copy(), requires_grad=True), mesh, [placement])


@SIZES
def test_a_computation_on_what_ranks_hold(size):
    def main(comm):
        x = distributed(comm, Shard(0))
        seen = []

        @local_map(out_placements=[Partial()], in_placements=[[Shard(0)], None])
        def total(local, factor):
            seen.append(local.shape)
            return local.sum(0) * factor

        y = total(x, 2.0)
        assert y.placements == (Partial(),)
        (y * y).sum().backward()
        return seen[0], y.full_tensor().data, x.gradient().full_tensor().data

    for (rows, _), value, gradient in run(size, main):
        assert rows <= -(-5 // size)
        np.testing.assert_allclose(value, 2 * WHOLE.sum(0))
        np.testing.assert_allclose(gradient, np.broadcast_to(8 * WHOLE.sum(0), WHOLE.shape))


@SIZES
def test_outputs_that_are_cut_have_one_global_shape(size):
    def main(comm):
        first, second = local_map(lambda a: (a * 2, a.sum(1)), ([Shard(0)], [Shard(0)]))(distributed(comm, Shard(0)))
        return first.shape, second.shape, second.full_tensor().data

    for first, second, value in run(size, main):
        assert (first, second) == ((5, 2), (5,))
        np.testing.assert_allclose(value, WHOLE.sum(1))


def test_arguments_placed_differently_are_refused_or_moved():
    def main(comm):
        x = distributed(comm, Shard(1))
        with pytest.raises(ValueError, match=r"(?s)argument 0.*redistribute"):
            local_map(lambda a: a, [Shard(0)], [[Shard(0)]])(x)
        with pytest.raises(ValueError, match="in_placements"):
            local_map(lambda a: a, [Shard(0)], [])(x)
        with pytest.raises(ValueError, match="outputs"):
            local_map(lambda a: (a, a), ([Shard(1)],))(x)
        with pytest.raises(ValueError, match="mesh"):
            local_map(lambda a: a, [Shard(0)])(1.0)
        with CommDebugMode() as mode:
            y = local_map(lambda a: a + 1, [Shard(0)], [[Shard(0)]], redistribute_inputs=True)(x)
        assert mode.get_comm_counts() == {"all_to_all": 1, "object": 1}
        return y.full_tensor().data

    for value in run(3, main):
        np.testing.assert_array_equal(value, WHOLE + 1)


def test_gradients_may_be_placed_otherwise():
    def main(comm):
        x = distributed(comm, Invariant())
        y = local_map(lambda a: a * (comm.rank + 1), [Partial()], [[Invariant()]], [[Partial()]])(x)
        y.sum().backward()
        return x.grad

    for gradient in run(3, main):
        np.testing.assert_array_equal(gradient, np.full((5, 2), 6.0))


@pytest.fixture
def registered():
    from hpcdist.dtensor.dispatch import REGISTERED

    register_sharding(REPEAT)(_columns)
    yield
    del REGISTERED["test_repeat"]


@SIZES
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Invariant(), Replicate()])
def test_a_registered_way_is_used(registered, size, placement):
    def main(comm):
        x = distributed(comm, placement)
        y = apply(REPEAT, x, n=3)
        with CommDebugMode() as mode:
            apply(REPEAT, x, n=3)
        (y * y).sum().backward()
        return y.full_tensor().data, x.gradient().full_tensor().data, mode.get_total_counts()

    for value, gradient, count in run(size, main):
        np.testing.assert_array_equal(value, np.repeat(WHOLE, 3, axis=0))
        np.testing.assert_array_equal(gradient, 6 * WHOLE)
        assert count == 0


def test_without_one_the_operation_must_be_whole():
    def main(comm):
        with pytest.raises(ValueError, match=r"(?s)test_repeat.*redistribute"):
            apply(REPEAT, distributed(comm, Shard(0)), n=3)
        return apply(REPEAT, distributed(comm, Invariant()), n=3).shape

    assert run(2, main) == [(15, 2)] * 2


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match=r"(?s)operation.*test_no_such"):
        register_sharding("test_no_such")
    from hpcdist.dtensor.dispatch import REGISTERED

    register_sharding("test_repeat")(lambda x, *, n: [((Shard(0),), ())])
    try:
        with pytest.raises(ValueError, match="what the function returned"):
            run(1, lambda comm: apply(REPEAT, distributed(comm, Shard(0)), n=2))
    finally:
        del REGISTERED["test_repeat"]
