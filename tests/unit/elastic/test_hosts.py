"""Host files of Open MPI and MPICH."""

import pytest

from hpcdist.elastic.hosts import Host, read_hosts
from hpcdist.errors import LaunchError


def test_both_forms_are_read(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two nodes\nn1 slots=4\nn2:3\n\nn3  # as many as it has\nn4 slots = 2 max_slots=8\n")
    assert read_hosts(path) == (Host("n1", 4), Host("n2", 3), Host("n3"), Host("n4", 2))


@pytest.mark.parametrize(("text", "says"), [("", "names no host"), ("# none\n", "names no host"), ("=4\n", "no sense")])
def test_bad_files_are_refused(tmp_path, text, says):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(LaunchError, match=says):
        read_hosts(tmp_path / "hosts")


def test_folder_is_refused(tmp_path):
    with pytest.raises(LaunchError, match="cannot be read"):
        read_hosts(tmp_path)
