"""Replicated training on thread ranks: the bodies of tests/ddp_suite.py."""

import functools

import ddp_suite
import pytest

from hpcdist.comm import local, using_group
from hpcdist.parallel import DistributedDataParallel

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
expected = functools.cache(ddp_suite.losses_alone)


@SIZES
def test_equals_one_process(size):
    local.run(size, ddp_suite.check_equals_one_process, expected())


@SIZES
@pytest.mark.parametrize("check", ddp_suite.CHECKS, ids=lambda check: check.__name__)
def test_on_threads(check, size):
    local.run(size, check, timeout_s=20)


@SIZES
@pytest.mark.parametrize("factor", [None, 1, 7])
@pytest.mark.parametrize("pattern", ddp_suite.PATTERNS)
def test_when_gradients_are_reduced(pattern, factor, size):
    local.run(size, ddp_suite.check_pattern, pattern, factor)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("init_sync", [False, True])
@pytest.mark.parametrize("named", ddp_suite.CHANGES)
def test_models_that_differ(named, init_sync, size):
    local.run(size, ddp_suite.check_models_that_differ, named, init_sync, timeout_s=20)


def test_the_default_is_all_ranks():
    with using_group(local.solo()):
        model = DistributedDataParallel(ddp_suite.mlp())
    assert model.replica.comm.size == 1
