"""CommDebugMode on threads, 1 to 4 ranks, and on a rank without others."""

import json
from typing import NamedTuple

import debug_suite
import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor
from hpcdist.comm import DryCommunicator, LocalCommunicator, init_device_mesh
from hpcdist.comm.local import run, solo
from hpcdist.dtensor import Replicate, Shard
from hpcdist.dtensor.debug import CommDebugMode


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("check", debug_suite.CHECKS)
def test_on_threads(check, size):
    run(size, check)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("rank", [0, -1])
def test_of_a_rank_without_others(size, rank):
    comm = DryCommunicator(size, rank % size)
    debug_suite.check_forms(comm)
    with CommDebugMode() as mode:
        for _, _, function in debug_suite.calls(comm):
            function()
    noted = comm.calls[-len(mode.records) :]
    names = [call.verb.replace("all_gather_object", "object").replace("broadcast_object", "object") for call in noted]
    assert [record.verb for record in mode.records] == names
    pairs = zip(mode.records, noted, strict=True)
    arrays = [pair for pair in pairs if pair[0].verb not in ("object", "scatter")]  # there it notes what comes, too
    assert [record.payload_bytes for record, _ in arrays] == [call.payload_bytes for _, call in arrays]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_counts_are_those_of_the_communicator(size):
    """Threads count by themselves: the same calls, and the same bytes."""

    def main(comm):
        before, held = comm.counts.copy(), comm.payload_bytes.copy()
        with CommDebugMode() as mode:
            for verb, _, function in debug_suite.calls(comm):
                if verb != "object":
                    function()
        assert mode.get_comm_counts() == comm.counts - before
        assert +mode.get_comm_bytes() == comm.payload_bytes - held

    run(size, main)


def verbs_of(kind):
    return {name: function for name, function in vars(kind).items() if callable(function)}


def test_nothing_is_left_behind():
    """Verbs are the classes' own again when the last mode has ended, in whatever order threads end theirs."""
    before = [verbs_of(kind) for kind in (LocalCommunicator, DryCommunicator)]

    def main(comm):
        for turn in range(comm.size):
            with CommDebugMode() as mode:
                comm.barrier()
                if comm.rank == turn:
                    comm.barrier()
                else:
                    comm.ibarrier().wait()
            assert mode.get_comm_counts() == {"barrier": 2}

    run(4, main)
    with pytest.raises(ValueError, match="mine"), CommDebugMode():
        raise ValueError("mine")
    assert [verbs_of(kind) for kind in (LocalCommunicator, DryCommunicator)] == before


def test_a_class_that_is_made_in_the_block_is_seen():
    with CommDebugMode() as mode:

        class Late(DryCommunicator):
            def barrier(self):
                self.all_gather_object(None)

        Late(2).barrier()
        Late(2).all_reduce(np.ones(2))
    assert mode.get_comm_counts() == {"barrier": 1, "all_reduce": 1}
    assert "all_reduce" not in vars(Late)
    assert not hasattr(Late.barrier, "__wrapped__")


def test_a_call_that_is_refused_is_not_counted():
    with CommDebugMode() as mode:
        with pytest.raises(ValueError, match="root"):
            solo().broadcast(np.ones(1), 7)
        solo().barrier()
    assert mode.get_comm_counts() == {"barrier": 1}


def test_forming_a_mesh_exchanges_objects_only():
    def main(comm):
        with CommDebugMode() as mode:
            mesh = init_device_mesh((2, 2), ("dp", "tp"), comm)
            mesh["tp"].get_group().all_reduce(np.ones(1))
        assert set(mode.get_comm_counts()) == {"object", "all_reduce"}
        assert mode.records[-1].group == "tp"
        assert {record.site.rpartition(":")[0] for record in mode.records} == {__file__}

    run(4, main)


def test_a_mode_is_entered_once_at_a_time():
    mode = CommDebugMode()
    with mode, pytest.raises(RuntimeError, match="active already"):
        mode.__enter__()
    with pytest.raises(TypeError, match="a module, or None"):
        CommDebugMode(3)


# ---- what it says
def tabled():
    """A mode that has seen a model on one of 2 ranks, and what it saw took 1 ms each."""
    model = debug_suite.Model(DryCommunicator(2))
    with CommDebugMode(model) as mode:
        model(Tensor(np.ones(3), requires_grad=True)).sum().backward()
    for seen, *_ in mode._seen:
        seen.seconds = 1e-3
    return mode


def test_repr_is_short():
    assert repr(CommDebugMode()) == "CommDebugMode(nothing)"
    assert repr(tabled()) == "CommDebugMode(8 all_reduce, 1 barrier)"


def test_table_of_verbs():
    assert tabled().generate_comm_debug_tracing_table(noise_level=0).splitlines() == [
        "CommDebugMode(8 all_reduce, 1 barrier), 192 bytes",
        "verb        count  bytes     ms",
        "all_reduce      8    192  8.000",
        "barrier         1      0  1.000",
    ]


def test_table_of_modules():
    lines = tabled().generate_comm_debug_tracing_table(noise_level=1).splitlines()
    assert lines[1:4] == [
        "module           phase     verb        count  bytes     ms",
        "blocks.0.first   forward   all_reduce      1     24  1.000",
        "blocks.0.second  forward   all_reduce      1     24  1.000",
    ]
    assert lines[6] == "(root)           forward   barrier         1      0  1.000"
    assert lines[-1] == "blocks.0.first   backward  all_reduce      1     24  1.000"


def test_table_of_lines_and_of_calls():
    mode = tabled()
    by_line, by_call = (mode.generate_comm_debug_tracing_table(level).splitlines() for level in (2, 3))
    assert by_line[1].split() == ["module", "phase", "verb", "group", "size", "site", "count", "bytes", "ms"]
    assert "debug_suite.py:" in by_line[2]
    assert len(by_line) == len(by_call) == 2 + 9
    words = by_call[2].split()
    assert words[:5] + words[-3:] == ["blocks.0.first", "forward", "all_reduce", "dry", "2", "1", "24", "1.000"]
    with pytest.raises(ValueError, match="noise_level"):
        mode.generate_comm_debug_tracing_table(4)


def test_rows_add_up_at_every_level(tmp_path):
    mode = tabled()
    for level in range(4):
        mode.generate_json_dump(tmp_path / "mode.json", level)
        told = json.loads((tmp_path / "mode.json").read_text())
        assert (told["counts"], told["bytes"]) == ({"all_reduce": 8, "barrier": 1}, {"all_reduce": 192, "barrier": 0})
        assert [sum(row[key] for row in told["rows"]) for key in ("count", "bytes", "ms")] == [9, 192, 9.0]
    assert told["parameters"]["blocks.1.first"] == {"weight": {"shape": [3], "dtype": "float64"}}
    mode.log_comm_debug_tracing_table_to_file(tmp_path / "mode.txt", 1)
    assert (tmp_path / "mode.txt").read_text() == mode.generate_comm_debug_tracing_table(1) + "\n"


def test_what_modules_hold():
    class Placed(NamedTuple):
        placements: tuple

    model = debug_suite.Model(solo())
    with CommDebugMode(model) as mode:
        pass
    assert set(mode.get_parameter_info()) == set(debug_suite.SUMS)
    assert mode.get_parameter_info()["blocks.0.first"] == {"weight": model.blocks[0].first.weight}
    assert mode.get_sharding_info() == {}
    model.blocks[0].first.slots["weight"] = Placed((Shard(0), Replicate()))
    assert mode.get_sharding_info() == {"blocks.0.first": {"weight": (Shard(0), Replicate())}}


def test_modules_are_found_without_being_given():
    model = debug_suite.Block(solo())
    with CommDebugMode() as mode:
        model(Tensor(np.ones(3)))
    assert set(mode.get_parameter_info()) == {"first", "second"}


def test_modules_outside_of_any_tree_have_the_name_of_their_type():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.__dict__["hidden"] = debug_suite.Sum(solo())

        def forward(self, x):
            return self.hidden(x)

    with CommDebugMode() as mode:
        Holder()(Tensor(np.ones(3)))
    assert [record.module for record in mode.records] == ["Sum"]
