"""PowerSGD on thread ranks: the bodies of tests/powersgd_suite.py."""

import powersgd_suite
import pytest

from hpcdist.comm import local

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])


@SIZES
@pytest.mark.parametrize("options", powersgd_suite.OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_equals_numpy(options, size):
    local.run(size, powersgd_suite.check_equals_numpy, options, timeout_s=20)


@SIZES
@pytest.mark.parametrize("check", powersgd_suite.CHECKS, ids=lambda check: check.__name__)
def test_on_threads(check, size):
    local.run(size, check, timeout_s=20)


def test_what_is_refused():
    powersgd_suite.check_refused()
