"""``hpcdist.comm`` gives its names without loading MPI."""

import ast
import inspect
import subprocess
import sys

import pytest

import hpcdist.comm

CODE = """
import sys
import hpcdist.comm
ALIASES = {
    "ProcessGroup": "Communicator",
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
assert not {name for name in sys.modules if name.startswith("hpcdist.comm.")}, sys.modules
for name in hpcdist.comm.__all__:
    assert getattr(getattr(hpcdist.comm, name), "__name__", name) == ALIASES.get(name, name), name
import hpcdist.dtensor
assert not {"mpi4py", "h5py", "numba", "cupy"} & set(sys.modules)
"""


def test_names_without_mpi():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)


def test_the_lists_of_names_agree():
    """What is fetched at run time, what a type checker sees, and what is public."""
    tree = ast.parse(inspect.getsource(hpcdist.comm))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "hpcdist" in node.module]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == hpcdist.comm._HOMES
    assert sorted(seen) == sorted(hpcdist.comm.__all__)


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match=r"hpcdist\.comm.*'nothing'"):
        hpcdist.comm.nothing  # noqa: B018
    assert set(hpcdist.comm.__all__) <= set(dir(hpcdist.comm))
