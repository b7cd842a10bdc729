"""Environment variables."""

import pytest

from hpcdist import config


def test_without_variables():
    found = config.read({})
    assert found == config.Environment(max_count=2**31 - 1)


def test_all_variables():
    found = config.read(
        {
            "HPCDIST_MAX_COUNT": "1000",
            "HPCDIST_KERNELS_OFF": "gelu,softmax",
            "HPCDIST_RESTART_COUNT": "2",
            "HPCDIST_ALLOW_SINGLETONS": "1",
            "HPCDIST_CUDA_AWARE": "off",
            "HPCDIST_CUDA_NONBLOCKING_REDUCTIONS": "1",
            "HPCDIST_ERROR_DIR": "/somewhere",
            "HPCDIST_FLIGHT_DIR": "/elsewhere",
            "HPCDIST_LATE_S": "2.5",
        }
    )
    assert found == config.Environment(
        max_count=1000,
        kernels_off=("gelu", "softmax"),
        restart_count=2,
        allow_singletons=True,
        cuda_aware="off",
        cuda_nonblocking_reductions=True,
        error_dir="/somewhere",
        flight_dir="/elsewhere",
        late_s=2.5,
    )


@pytest.mark.parametrize(
    ("variables", "count"),
    [({"SLURM_RESTART_COUNT": "3"}, 3), ({"SLURM_RESTART_COUNT": "0", "HPCDIST_RESTART_COUNT": "1"}, 1)],
)
def test_a_restart_is_counted_by_either(variables, count):
    assert config.read(variables).restart_count == count


@pytest.mark.parametrize("value", ["many", "-1", "0", "1.5", ""])
def test_nonsense_is_an_error_that_names_the_variable(value):
    with pytest.raises(ValueError, match="HPCDIST_MAX_COUNT") as error:
        config.read({"HPCDIST_MAX_COUNT": value})
    assert repr(value) in str(error.value)


def test_off_means_off():
    assert not config.read({"HPCDIST_ALLOW_SINGLETONS": "0"}).allow_singletons
    assert not config.read({"HPCDIST_ALLOW_SINGLETONS": ""}).allow_singletons


@pytest.mark.parametrize("value", ["soon", "-1", "0", "0.0", "nan", "inf", "", "1e3", "."])
def test_a_time_that_makes_no_sense_is_an_error(value):
    with pytest.raises(ValueError, match=r"HPCDIST_LATE_S[\s\S]*seconds, above 0"):
        config.read({"HPCDIST_LATE_S": value})


def test_an_unknown_setting_is_an_error():
    with pytest.raises(ValueError, match=r"HPCDIST_CUDA_AWARE\n  got      'yes'\n  expected auto, on or off"):
        config.read({"HPCDIST_CUDA_AWARE": "yes"})
