"""Names of shared memory that MPICH leaves: only those go that a rank has noted, or has in its own memory."""

import mmap
import os
import secrets
from pathlib import Path

import pytest

from hpcdist.comm import leftovers


@pytest.fixture
def shared():
    """Make two names in /dev/shm, map the memory behind the first; yield both paths."""
    paths = [Path(f"/dev/shm/{name}_test_{secrets.token_hex(4)}") for name in ("mpich_shm", "other_shm")]
    for path in paths:
        path.write_bytes(bytes(mmap.PAGESIZE))
    descriptors = [os.open(path, os.O_RDWR) for path in paths]
    maps = [mmap.mmap(descriptor, mmap.PAGESIZE) for descriptor in descriptors]
    yield paths
    for one, descriptor in zip(maps, descriptors, strict=True):
        one.close()
        os.close(descriptor)
    for path in paths:
        path.unlink(missing_ok=True)


def test_what_this_process_maps_goes(shared):
    leftovers.remove()
    assert [path.exists() for path in shared] == [False, True]


def test_what_ranks_have_noted_goes(shared, tmp_path):
    leftovers.note(tmp_path, 1)
    (tmp_path / "rank-2.shared").write_text(f"{shared[1].name}\n../{shared[0].name}\nmpich_shm_/../{shared[1].name}")
    leftovers.remove_noted(tmp_path)
    assert [path.exists() for path in shared] == [False, True]


def test_nothing_to_note(tmp_path):
    leftovers.note(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
