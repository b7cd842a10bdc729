"""Reductions over cut dimensions on 1 to 4 thread ranks."""

import numpy as np
import pytest
import reductions_suite as suite
from reductions_suite import INV, S0, S1, SECTIONS, R

from hpcdist.autograd import OPS, Tensor, apply
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import DTensor, Shard

SIZES = (1, 3, 4)
CUT = (2, 3, 4)
DIMS = [(0, False), (1, True), ((1, 2), False), (None, False), (0, True)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dim", "keepdim"), DIMS)
@pytest.mark.parametrize("name", suite.along(0, False))
def test_reductions(size, name, dim, keepdim):
    run(size, suite.check_reductions, name, dim, keepdim)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", suite.kept(0))
def test_results_of_the_same_shape(size, name, dim):
    run(size, suite.check_kept, name, dim)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", suite.NORMS)
def test_norms_of_layers(size, name):
    run(size, suite.check_norms, name)


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [(S0, S1, None), (S1, S1, None), (S1, S1, (1, 0)), (S1, INV, None), (INV, S1, None), (S1, R, None),
     (S0, SECTIONS, None)],
)  # fmt: skip
def test_two_axes(first, second, order):
    run(4, suite.check_two_axes, first, second, order)


@pytest.mark.parametrize("dtype", [*suite.HALVES, np.float32, np.complex128])
def test_dtypes(dtype):
    run(3, suite.check_dtypes, dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", ["b12", "zero", "ties", "integers", "large", "refusals"])
def test_edges(size, check):
    run(size, getattr(suite, f"check_{check}"))


def test_partial_on_another_axis():
    run(4, suite.check_partial)


@pytest.mark.parametrize(
    ("name", "dtype", "attrs"),
    [
        ("var", np.int64, {"dim": 0, "correction": 1, "keepdim": False}),
        ("std", np.bool_, {"dim": 0, "correction": 1, "keepdim": False}),
        ("norm", np.int32, {"p": 2, "dim": 0, "keepdim": False}),
        ("norm", np.int32, {"p": np.inf, "dim": 0, "keepdim": False}),
        ("max", np.complex64, {"dim": 0, "keepdim": False}),
        ("min", np.complex64, {"dim": 0, "keepdim": False}),
        ("softmax", np.complex64, {"dim": 0}),
        ("log_softmax", np.int32, {"dim": 0}),
    ],
)
def test_wrong_dtypes_are_refused_in_the_name_of_the_operation(name, dtype, attrs):
    plain = Tensor(np.ones((4, 2), dtype))
    with pytest.raises(TypeError, match=f"^{name}: ") as told:
        apply(OPS[name], plain, **attrs)

    def main(comm):
        x = DTensor.from_local(plain, init_device_mesh(2, "tp", comm), [Shard(0)])
        with pytest.raises(TypeError, match=f"^{name}: ") as cut:
            apply(OPS[name], x, **attrs)
        assert str(cut.value).splitlines()[0] == str(told.value).splitlines()[0]

    run(2, main)
