"""Collectives with gradients on threads, 1 to 4 ranks."""

import functional_suite
import numpy as np
import pytest

import hpcdist.dtensor.functional as F
from hpcdist.autograd import Tensor, backward
from hpcdist.comm import DryCommunicator, init_device_mesh
from hpcdist.comm.local import run, solo
from hpcdist.dtensor import DTensor, Layout, Replicate
from hpcdist.errors import DistError

sizes = pytest.mark.parametrize("size", [1, 2, 3, 4])
cases = pytest.mark.parametrize("name", functional_suite.CASES)
extrema = pytest.mark.parametrize("name", functional_suite.EXTREMA)


@sizes
@cases
def test_values_gradients_and_collectives(size, name):
    run(size, functional_suite.check_values_gradients_and_collectives, name)


@sizes
@cases
def test_transpose(size, name):
    run(size, functional_suite.check_transpose, name)


@cases
def test_dtypes(name):
    run(3, functional_suite.check_dtypes, name)


@sizes
@extrema
def test_extrema(size, name):
    run(size, functional_suite.check_extrema, name)


@sizes
@extrema
@pytest.mark.parametrize("check", [functional_suite.check_products, functional_suite.check_bits])
def test_other_combinations(size, name, check):
    run(size, check, name)


@sizes
@pytest.mark.parametrize("check", functional_suite.CHECKS)
def test_functional(size, check):
    run(size, check)


def test_every_function_has_a_case():
    called = {name.removesuffix("_autograd") for name in F.__all__}
    assert called == {name for name in called if name in functional_suite.CASES}


@cases
def test_what_is_sent_without_others_to_answer(name):
    """A dry run calls the same verbs, and docstrings say that functions communicate."""
    case, comm = functional_suite.CASES[name], DryCommunicator(4, 2)
    ys = functional_suite.listed(case.call(comm, *(Tensor(np.ones(s), True) for s in case.shapes(4, 2))))
    backward(ys, [np.ones(y.shape) for y in ys])
    assert [call.verb for call in comm.calls] == case.forward + case.backward
    assert all("Collective over the group" in getattr(F, function).__doc__ for function in F.__all__)


def test_ranks_that_do_not_come_back_are_an_error():
    """Gradients are wanted on one rank only: its backward waits for nobody for ever."""

    def main(comm):
        x = Tensor(np.ones(2), requires_grad=comm.rank == 0)
        y = F.broadcast(x, group=comm, group_src=0)
        if y.requires_grad:
            y.sum().backward()

    with pytest.raises(DistError, match="reduce"):
        run(2, main, timeout_s=5)


def test_what_is_placed_on_a_mesh_is_refused():
    mesh = init_device_mesh((1,), "dp", solo())
    x = DTensor(Tensor(np.ones(2)), Layout.of(mesh, [Replicate()], (2,)))
    with pytest.raises(TypeError, match=r"to_local\(\)"):
        F.all_reduce(x, group=mesh)
