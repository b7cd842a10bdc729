"""MPIs beside the one of this Python: tests run on those whose library a variable names."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

REQUIRED = "HPCDIST_REQUIRE"
"""Variable: names of what may not be missing, separated by commas."""


@dataclass(frozen=True)
class OtherMpi:
    """An MPI library that mpi4py's wheel can load in place of its own, and the launcher beside it.

    Attributes
    ----------
    name, title : str
        For items, and for messages.
    ranks : tuple of int
        Rank counts of tests.
    left_out : tuple of str
        Files of tests that do not run on it.
    """

    name: str
    title: str
    ranks: tuple
    left_out: tuple = ()

    @property
    def variable(self):
        return f"HPCDIST_TEST_{self.name.upper()}"

    def variables(self):
        """Return what makes ``hpcdist launch`` and its ranks use this MPI; skip, or fail if it is required."""
        library = os.environ.get(self.variable, "")
        if library and not Path(library).is_file():
            pytest.fail(f"{self.variable} names {library}, which is not there", pytrace=False)
        if not library and self.name in os.environ.get(REQUIRED, "").split(","):
            pytest.fail(f"{REQUIRED} asks for {self.title}, and {self.variable} does not name it", pytrace=False)
        if not library:
            pytest.skip(f"optional: {self.variable} may name a libmpi.so of {self.title} to test with")
        return {"MPI4PY_LIBMPI": library}


LONG = ("check", "data", "forming_groups", "move", "random_programs", "replicate")
OTHER_MPIS = (
    OtherMpi("mpich", "MPICH", (2, 3)),
    OtherMpi("openmpi4", "Open MPI 4", (2,), ("test_device_arrays.py", *(f"test_{name}_mpi.py" for name in LONG))),
)
