"""Meshes of thread ranks."""

import mesh_suite
import pytest

from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run, solo


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("check", mesh_suite.CHECKS)
def test_mesh(check, size):
    run(size, check)


def test_the_default_communicator(monkeypatch):
    comm = solo()
    monkeypatch.setattr("hpcdist.comm.init.get_default", lambda: comm)
    assert init_device_mesh((1,), "dp").comm is comm


def test_repr_and_hash_do_not_communicate():
    def main(comm):
        mesh = init_device_mesh((2, 1), ("dp", "tp"), comm)
        if comm.rank:
            return None
        return repr(mesh), repr(mesh["tp"]), len({mesh, mesh["dp"], mesh["dp"], mesh["dp", "tp"]})

    assert run(2, main)[0] == (
        "DeviceMesh(dp=2, tp=1; rank 0 at (0, 0))",
        "DeviceMesh(tp=1; rank 0 at (0,))",
        2,
    )


def test_groups_have_the_names_of_axes():
    mesh = init_device_mesh((1, 1), ("dp", "tp"), solo())
    assert [group.name for group in mesh.get_all_groups()] == ["dp", "tp"]
    assert mesh.flatten("all").get_group().name == "all"
