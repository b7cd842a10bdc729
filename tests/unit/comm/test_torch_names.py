"""PyTorch's functions on threads: the bodies of tests/torch_suite.py; and what needs no other rank."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch_suite

import hpcdist
import hpcdist.comm as dist
from hpcdist.comm import debug
from hpcdist.comm import init as module
from hpcdist.comm.local import run, solo


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """No default group, and no launcher."""
    monkeypatch.setattr(module, "_default", None)
    monkeypatch.setattr("hpcdist.comm.membership.launched", lambda _: None)


def body(comm, check):
    with dist.using_group(comm):
        check(comm)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("check", torch_suite.CHECKS)
def test_torch_names(check, size):
    run(size, body, check)


def test_a_list_travels_as_one_message_a_dtype():
    def main(comm):
        before = comm.counts.copy()
        dist.all_reduce_coalesced([np.ones(3), np.ones(4, "f4"), np.ones((2, 2))], group=comm)
        with dist.coalescing_manager(comm):
            for _ in range(5):
                dist.all_reduce(np.ones(2), group=comm)
        return comm.counts - before

    assert run(2, main) == [{"all_reduce": 3}] * 2


def test_a_block_that_fails_sends_nothing_and_one_that_does_not_fit_is_shown_at_the_caller():
    def main(comm):
        with pytest.raises(KeyError), dist.coalescing_manager(comm):
            all_reduce_and_look_up(comm)
        assert not comm.counts
        shown = r"test_torch_names\.py:\d+"
        with pytest.raises(dist.CollectiveMismatchError, match=shown), dist.coalescing_manager(comm):
            dist.all_reduce(np.ones(2 + comm.rank), group=comm)

    def all_reduce_and_look_up(comm):
        dist.all_reduce(np.ones(2), group=comm)
        return {}["lost"]

    run(2, main)


def test_objects_go_only_where_they_are_wanted():
    """What every rank gets to know is small, whatever the objects' sizes."""
    value = np.zeros(1_000_000, np.uint8)

    def main(comm):
        dist.gather_object(value, [None] * 3 if comm.rank == 1 else None, 1, comm)
        dist.scatter_object_list([None], [value] * 3 if comm.rank == 1 else None, 1, comm)
        small = sum(n for verb, n in comm.payload_bytes.items() if verb not in ("gather", "scatter"))
        return (
            small < 1000,
            comm.payload_bytes["gather"] < 1.01 * value.size,
            comm.payload_bytes["scatter"] > value.size,
        )

    assert run(3, main) == [(True, True, rank == 1) for rank in range(3)]


def test_init_makes_the_default_of_a_thread_that_is_a_rank():
    def main(comm):
        group = dist.init_process_group(timeout=5, world_size=3, rank=comm.rank, group_name="job", comm=comm)
        assert dist.group.WORLD is group
        assert (group.name, group.timeout_s, dist.get_rank(), dist.get_pg_count()) == ("job", 5, comm.rank, 1)
        with pytest.raises(ValueError, match="made already"):
            dist.init_process_group(comm=comm)
        dist.new_group()
        assert dist.get_pg_count() == 2
        dist.destroy_process_group()
        dist.destroy_process_group()
        assert (dist.is_initialized(), dist.get_pg_count()) == (False, 0)
        hpcdist.init(comm)
        assert dist.get_world_size() == 3

    run(3, main)


def test_a_world_of_another_size_is_refused_on_every_rank():
    def main(comm):
        with pytest.raises(ValueError, match="world_size and rank"):
            dist.init_process_group(world_size=3 if comm.rank else 2, comm=comm)
        assert not dist.is_initialized()

    run(2, main)


def test_part_of_the_ranks_as_a_world_has_global_ranks_of_its_own():
    def main(comm):
        part = comm.split(comm.rank % 2, -comm.rank)
        world = hpcdist.init(part)
        assert list(world.members) == [0, 1]
        assert (dist.get_rank(), list(part.members)[part.rank]) == (part.rank, comm.rank)

    run(4, main)


def test_nothing_before_init():
    for call in (dist.get_rank, dist.barrier, dist.new_group, lambda: dist.all_gather_object([], 1)):
        with pytest.raises(ValueError, match="default process group has not been initialized"):
            call()
    assert (dist.is_initialized(), dist.get_pg_count(), dist.group.WORLD) == (False, 0, None)
    assert dist.get_node_local_rank(3) == 3
    with pytest.raises(RuntimeError, match="nobody knows"):
        dist.get_node_local_rank()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"backend": "nccl"}, dist.DistBackendError, "leave it out: messages go by MPI"),
        ({"backend": "cpu:mpi,cuda:gloo"}, dist.DistBackendError, "'mpi'"),
        ({"init_method": "tcp://host:1"}, ValueError, "init_method"),
        ({"store": dist.HashStore()}, ValueError, "store"),
        ({"device_id": "tpu"}, ValueError, "device"),
        ({"timeout": -1}, ValueError, "timeout"),
    ],
)
def test_arguments_of_init_process_group(arguments, error, text):
    with pytest.raises(error, match=text):
        dist.init_process_group(**arguments, comm=solo())
    assert not dist.is_initialized()


def test_accepted_arguments_of_init_process_group():
    group = dist.init_process_group("cpu:mpi,cuda:mpi", "env://", device_id="cuda:0", comm=solo())
    assert (group.size, group.timeout_s) == (1, dist.default_pg_timeout.total_seconds())


def test_availability():
    assert (dist.is_available(), dist.is_mpi_available(), dist.is_backend_available("MPI")) == (True, True, True)
    others = (dist.is_gloo_available, dist.is_nccl_available, dist.is_ucc_available, dist.is_xccl_available)
    assert [f() for f in others] == [False] * 4
    assert not dist.is_backend_available("nccl")
    assert not dist.is_torchelastic_launched()
    assert dist.get_default_backend_for_device("cuda") == "mpi"
    with pytest.raises(ValueError, match="device"):
        dist.get_default_backend_for_device("tpu")


def test_debug_levels(monkeypatch):
    monkeypatch.setattr(debug, "_level", None)
    monkeypatch.setattr(debug.config, "environment", lambda: debug.config.read({"HPCDIST_CHECK": "1"}))
    assert (dist.get_debug_level(), debug.compares()) == (dist.DebugLevel.DETAIL, True)
    dist.set_debug_level("INFO")
    assert (dist.get_debug_level(), debug.compares()) == (dist.DebugLevel.INFO, False)
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    assert debug.compares()
    monkeypatch.setattr(debug.config, "environment", lambda: debug.config.read({}))
    dist.set_debug_level_from_env()
    assert dist.get_debug_level() is dist.DebugLevel.OFF
    with pytest.raises(ValueError, match=r"level\n.*'LOUD'\n.*OFF, INFO, DETAIL"):
        dist.set_debug_level("LOUD")


def test_a_debugger_on_one_rank(monkeypatch):
    opened = []
    monkeypatch.setattr("pdb.Pdb.set_trace", lambda _: opened.append(dist.get_rank()))
    monkeypatch.setattr("hpcdist.comm.barriers._check_input", lambda: None)

    def main(comm):
        before = comm.counts["barrier"]
        with dist.using_group(comm):
            for _ in range(3):
                dist.breakpoint(1, skip=1)
        return comm.counts["barrier"] - before

    assert run(3, main) == [2] * 3
    assert opened == [1, 1]


def test_a_debugger_shows_its_caller(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("up\np secret\nc\n"))
    secret = 6 * 7
    with dist.using_group(solo()):
        dist.breakpoint()
    assert f"(Pdb) {secret}\n" in capsys.readouterr().out


@pytest.mark.parametrize("launched", [False, True])
def test_a_debugger_that_nobody_can_type_to_is_an_error_on_every_rank(monkeypatch, launched):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", io.StringIO() if launched else nothing)
        monkeypatch.setattr("hpcdist.comm.barriers.is_torchelastic_launched", lambda: launched)

        def main(comm):
            with dist.using_group(comm), pytest.raises(dist.DistError, match=r"(?s)nothing can be typed.*mpirun"):
                dist.breakpoint(1)

        run(2, main)


def test_a_name_for_what_is_called_for_a_while():
    from hpcdist.comm.operation import call_site

    with dist.record_comm("step 3"):
        assert call_site().endswith(" (step 3)")
    assert "(" not in call_site()


def test_errors_have_torch_s_names_and_order():
    for error in (dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError, dist.DistTimeoutError):
        assert issubclass(error, dist.DistError)
    assert issubclass(dist.DistError, RuntimeError)
    assert issubclass(dist.QueueEmptyError, dist.DistStoreError)
