"""Whether MPI takes device pointers: what each library says, and what a user may ask for. Case B08."""

import subprocess
import sys

import pytest

from hpcdist.backends import awareness
from hpcdist.backends.awareness import cuda_aware, offers_cuda
from hpcdist.errors import LaunchError

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)\nMPI BUILD INFO :"
INTEL = "Intel(R) MPI Library 2021.11 for Linux* OS\n"
MVAPICH = "MVAPICH Version      :\t4.0\n"


def never():
    raise AssertionError("this library is not asked")


@pytest.mark.parametrize(
    ("library", "variables", "answer", "expected"),
    [
        (OPEN_MPI, {}, True, True),
        (OPEN_MPI, {}, False, False),
        (OPEN_MPI, {"OMPI_MCA_opal_cuda_support": "true"}, False, False),
        (OPEN_MPI, {"OMPI_MCA_opal_cuda_support": "0"}, True, False),
        (OPEN_MPI, {"OMPI_MCA_opal_cuda_support": "1"}, None, True),
        (OPEN_MPI, {}, None, None),
        (MPICH, {}, True, True),
        (MPICH, {"MPIR_CVAR_ENABLE_GPU": "0"}, True, False),
        (MPICH, {"MPIR_CVAR_ENABLE_GPU": "1"}, False, False),
        (MPICH, {"MPIR_CVAR_ENABLE_GPU": "1"}, None, True),
        (MPICH, {}, None, None),
        ("Another MPI 1.0", {}, True, None),
    ],
)
def test_libraries_that_answer(library, variables, answer, expected):
    assert offers_cuda(library, variables, lambda: answer) is expected


@pytest.mark.parametrize(
    ("library", "name"),
    [
        (CRAY, "MPICH_GPU_SUPPORT_ENABLED"),
        (INTEL, "I_MPI_OFFLOAD"),
        (MVAPICH, "MVP_USE_CUDA"),
        (MVAPICH.replace("MVAPICH", "MVAPICH2"), "MV2_USE_CUDA"),
    ],
)
def test_libraries_that_are_told_by_a_variable(library, name):
    for text, expected in (("1", True), ("0", False), ("", False)):
        assert offers_cuda(library, {name: text}, never) is expected
    assert offers_cuda(library, {"MPIR_CVAR_ENABLE_GPU": "1"}, never) is False


@pytest.mark.parametrize(
    ("setting", "offered", "expected"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("auto", None, False),
        ("on", True, True),
        ("on", None, True),
        ("off", True, False),
        ("off", False, False),
    ],
)
def test_setting(monkeypatch, setting, offered, expected):
    monkeypatch.setattr(awareness, "offers_cuda", lambda *_: offered)
    assert cuda_aware(setting, OPEN_MPI, {}) is expected


def test_asking_for_what_is_not_there_is_an_error():
    with pytest.raises(LaunchError) as caught:
        cuda_aware("on", CRAY, {})
    message = str(caught.value)
    assert message.startswith("HPCDIST_CUDA_AWARE=on: MPI is not CUDA-aware")
    assert "CRAY MPICH version 8.1.27.26" in message
    assert "HPCDIST_CUDA_AWARE=auto" in message


def test_no_library_no_answer():
    """Nothing is loaded in order to ask it."""
    code = "import sys; from hpcdist.backends import awareness; sys.exit(awareness._ask() is not None)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
