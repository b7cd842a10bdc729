"""Which mpirun belongs to this Python."""

import sys
from pathlib import Path

import pytest

from hpcdist.backends import mpi
from hpcdist.errors import LaunchError

OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to ...\n"
HYDRA = "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date: ...\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.12 Build 20240213 (id: 4f55822)\n"


@pytest.mark.parametrize(
    ("answer", "family", "version"),
    [(OPEN_MPI, "openmpi", "5.0.11"), (HYDRA, "mpich", "5.0.2"), (INTEL, "mpich", "2021.12")],
)
def test_family_and_version_from_the_answer(answer, family, version):
    found = mpi.identify(Path("/x/mpirun"), answer)
    assert (found.family, found.version) == (family, version)


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [(OPEN_MPI, set()), (OPEN_MPI.replace("5.0.11", "4.1.4"), {"whole lines"}), (HYDRA, {"shared cores"})],
)
def test_what_an_mpi_cannot_do_has_a_reason(answer, lacks):
    told = mpi.identify(Path("/x/mpirun"), answer).lacks()
    assert set(told) == lacks
    assert all(reason.endswith(("mixed", "milliseconds")) for reason in told.values())


def test_other_programs_are_not_taken():
    assert mpi.identify(Path("/x/mpirun"), "srun: unknown option") is None


def program(folder, name, answer):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{answer}END\n")
    (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A Python without MPI beside it, an mpi4py that names no library, an empty PATH."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env/bin/python"))
    monkeypatch.setattr(mpi, "_linked_libraries", list)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("MPI4PY_LIBMPI", raising=False)
    return monkeypatch


def test_the_one_beside_this_python_is_first(bare, tmp_path):
    bare.setenv("PATH", str(program(tmp_path / "site/bin", "mpirun", OPEN_MPI)) + ":/usr/bin:/bin")
    program(tmp_path / "env/bin", "mpiexec", HYDRA)
    assert mpi.find().path == tmp_path / "env/bin/mpiexec"


def test_the_one_of_a_chosen_library_comes_before_it(bare, tmp_path):
    bare.setenv("PATH", "/usr/bin:/bin")
    program(tmp_path / "env/bin", "mpirun", OPEN_MPI)
    program(tmp_path / "site/bin", "mpiexec", HYDRA)
    bare.setenv("MPI4PY_LIBMPI", str(tmp_path / "site/lib/libmpi.so.12"))
    assert mpi.find().path == tmp_path / "site/bin/mpiexec"


def test_a_chosen_library_is_never_started_by_another_family(bare, tmp_path):
    program(tmp_path / "site/bin", "mpirun", HYDRA)
    program(tmp_path / "site/bin", "mpirun.openmpi", OPEN_MPI)
    bare.setenv("PATH", "/usr/bin:/bin")
    bare.setenv("MPI4PY_LIBMPI", str(tmp_path / "site/lib/x86_64-linux-gnu/libmpi.so.40"))
    assert mpi.find().path == tmp_path / "site/bin/mpirun.openmpi"
    bare.setattr(mpi, "_NAMES", ("mpirun",))
    bare.setattr(mpi, "_folders", lambda: [tmp_path / "site/bin"])
    with pytest.raises(LaunchError, match="expected Open MPI in"):
        mpi.find()


def test_then_the_one_of_mpi4pys_library(bare, tmp_path):
    bare.setenv("PATH", str(program(tmp_path / "other/bin", "mpirun", HYDRA)) + ":/usr/bin:/bin")
    program(tmp_path / "site/bin", "mpirun", OPEN_MPI)
    bare.setattr(mpi, "_linked_libraries", lambda: [tmp_path / "site/lib/libmpi.so.40"])
    assert mpi.find().path == tmp_path / "site/bin/mpirun"


def test_then_the_one_in_path_that_answers(bare, tmp_path):
    odd = program(tmp_path / "odd", "mpirun", "something else\n")
    good = program(tmp_path / "good", "mpirun", OPEN_MPI)
    bare.setenv("PATH", f"{odd}:{good}:/usr/bin:/bin")
    assert mpi.find().path == tmp_path / "good/mpirun"


def test_none_is_an_error_with_the_remedy(bare, tmp_path):
    with pytest.raises(LaunchError, match=r'pip install "hpcdist\[mpi\]"'):
        mpi.find()


def test_library_that_an_extension_module_links(monkeypatch, tmp_path):
    (tmp_path / "MPI.cpython-311.so").touch()
    answer = "\tlibmpi.so.12 => /opt/mpich/lib/libmpi.so.12 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n"
    monkeypatch.setattr(mpi, "_output", lambda command: answer)
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})()
    monkeypatch.setattr(mpi.importlib.util, "find_spec", lambda name: spec)
    assert mpi._linked_libraries() == [Path("/opt/mpich/lib/libmpi.so.12")]


def test_environment_of_these_tests_has_an_mpi():
    assert mpi.find().family in ("openmpi", "mpich")
