"""Arrays on a GPU, played by a stand-in: by the host in pieces, and by an MPI that takes device pointers."""

import functools
import os
import sys

import comm_suite
import device_stand_in as stand_in
import numpy as np
import pytest
from mpi4py import MPI

from hpcdist import config
from hpcdist.backends import cuda
from hpcdist.backends.awareness import offers_cuda
from hpcdist.comm import ReduceOp, Work
from hpcdist.comm.mpi import device, memory, staging
from hpcdist.comm.mpi.communicator import MpiCommunicator
from hpcdist.comm.mpi.device import Cuda
from hpcdist.comm.work import Then
from hpcdist.errors import LaunchError

PIECE_BYTES = 96
WAYS = {
    "staged": {"direct": False, "check": True},
    "staged, direct, cut at 10": {"direct": True, "max_count": 10},
    "aware": {"direct": False, "cuda": Cuda(aware=True)},
    "aware, direct, checked, cut at 10": {"direct": True, "cuda": Cuda(aware=True), "check": True, "max_count": 10},
    "aware, also non-blocking reductions": {"direct": False, "cuda": Cuda(True, True), "check": True},
}
CHECKS = (
    "all_reduce",
    "all_reduce_layouts",
    "all_reduce_of_a_strided_slice_b01",
    "16_bit_sums_are_made_in_32",
    "bools_combine_logically",
    "reduce_scatter",
    "reduce_scatter_dims_and_sizes",
    "all_gather",
    "all_gather_dims_and_sizes",
    "all_to_all",
    "broadcast",
    "send_and_recv",
    "no_elements",
    "single_elements",
    "reduce",
    "gather",
    "scatter",
    "results_where_they_are_wanted",
    "works_end_in_any_order",
)


OUT_PLACES = {"recv": 0, "scatter": 1}


class OnDevice:
    """A communicator whose arguments are taken to the card first, and whose results come from there."""

    def __init__(self, comm, cupy):
        self.comm, self.cupy = comm, cupy

    def __getattr__(self, name):
        attribute = getattr(self.comm, name)
        return functools.partial(self._call, attribute) if callable(attribute) else attribute

    def watch(self, work):
        self.comm.watch(work.work)

    def _call(self, method, *arguments, **named):
        outs = []
        place = OUT_PLACES.get(method.__name__.removeprefix("i"))
        arguments = [self._up(x, outs if i == place else None) for i, x in enumerate(arguments)]
        named = {key: self._up(x, outs if key == "out" else None) for key, x in named.items()}
        return self._down(method(*arguments, **named), outs)

    def _up(self, x, outs=None):
        if isinstance(x, (list, tuple)):
            return [self._up(part, outs) for part in x]
        if not isinstance(x, np.ndarray):
            return x
        there = upload(self.cupy, x)
        if outs is not None:
            outs.append((there, x))
        return there

    def _down(self, value, outs):
        if isinstance(value, Work):
            return Then(value, lambda result: self._down(result, outs))
        if isinstance(value, list):
            return [self._down(part, outs) for part in value]
        for there, x in outs:
            if value is there:
                x[...] = read(self.cupy, there)
                return x
        assert not isinstance(value, np.ndarray)
        return read(self.cupy, value) if isinstance(value, self.cupy.ndarray) else value


def upload(cupy, x):
    """Put ``x`` on the card in the layout it has; when this returns it is still on its way."""
    if x.flags.c_contiguous or x.ndim == 0:
        return cupy.asarray(x)
    if x.flags.f_contiguous:
        there = cupy.asarray(x.T)
        return there._view(there._array.T)
    there = cupy.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    there[...] = x
    return there


def read(cupy, x):
    """Read on another stream than the one that computes."""
    with cupy.cuda.Stream():
        return x.get()


@pytest.fixture
def card(monkeypatch, request):
    """A card and, as ``card.cupy``, its library."""
    way = getattr(request, "param", "staged")
    made = stand_in.Card(real_pointers="aware" in way)
    made.cupy = stand_in.cupy(made)
    monkeypatch.setitem(sys.modules, "cupy", made.cupy)
    monkeypatch.setattr(staging, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(staging, "POOL", staging.Pool())
    cuda._stream.cache_clear()
    made.given = []
    interface = memory.Memory.__cuda_array_interface__
    monkeypatch.setattr(memory.Memory, "__cuda_array_interface__", property(functools.partial(_note, made, interface)))
    yield made
    cuda._stream.cache_clear()


def _note(card, interface, self):
    """Note what MPI is given; refuse memory on which something is still under way."""
    assert card.real_pointers, "MPI was given a device pointer that it cannot read"
    assert not card.busy_with(self.owner), "MPI was given memory that is not ready"
    card.given.append(self.pointer)
    return interface.fget(self)


@pytest.fixture
def comm(card, request, world):
    return MpiCommunicator(world.handle, timeout_s=world.timeout_s, **{"check": False, **WAYS[request.param]})


def on(*ways):
    return pytest.mark.parametrize(("card", "comm"), [(way, way) for way in ways], indirect=True, ids=ways)


every_way = on(*WAYS)


@on("staged", "staged, direct, cut at 10", "aware, direct, checked, cut at 10")
@pytest.mark.parametrize("check", CHECKS)
def test_verbs(card, comm, check):
    getattr(comm_suite, f"check_{check}")(OnDevice(comm, card.cupy))


@on("aware", "aware, also non-blocking reductions")
@pytest.mark.parametrize(
    "check", ["all_reduce_layouts", "reduce_scatter_dims_and_sizes", "reduce", "works_end_in_any_order"]
)
def test_verbs_that_reduce(card, comm, check):
    getattr(comm_suite, f"check_{check}")(OnDevice(comm, card.cupy))


@every_way
def test_sum_of_an_array_still_being_filled_b08(card, comm):
    """Case B08: filled by a kernel on a stream that is not the default one, and not waited for."""
    for repeat in range(10):
        x = card.cupy.empty((100,), np.dtype("f4"))
        with card.cupy.cuda.Stream(non_blocking=True):
            x[...] = np.full(100, comm.rank + repeat, "f4")
            total = comm.all_reduce(x)
        expected = sum(rank + repeat for rank in range(comm.size))
        assert set(read(card.cupy, total)) == {expected}


@every_way
def test_results_may_be_read_on_any_stream(card, comm):
    """The mean, in half precision and into strided memory, takes work on the card after MPI is done."""
    with card.cupy.cuda.Stream(non_blocking=True):
        x, out = card.cupy.asarray(np.full(6, comm.rank, "f2")), card.cupy.asarray(np.zeros(12, "f2"))[::2]
        assert comm.all_reduce(x, ReduceOp.AVG, out=out) is out
        assert np.array_equal(read(card.cupy, out), np.full(6, (comm.size - 1) / 2, "f2"))
        work = comm.iall_gather(x)
    assert np.array_equal(read(card.cupy, work.wait()), np.repeat(np.arange(comm.size), 6))


@every_way
def test_array_filled_on_a_stream_that_is_not_current(card, comm):
    x = card.cupy.empty((100,), np.dtype("f8"))
    with card.cupy.cuda.Stream(non_blocking=True):
        x[...] = np.full(100, comm.rank + 1.0)
    assert set(read(card.cupy, comm.all_reduce(x))) == {sum(range(1, comm.size + 1))}
    assert card.num_synchronised


@every_way
def test_other_libraries_arrays(card, comm):
    stream = card.cupy.cuda.Stream(non_blocking=True)
    with stream:
        theirs = card.cupy.asarray(np.full(40, comm.rank + 1.0))
        out = card.cupy.asarray(np.zeros(40))
    expected = sum(range(1, comm.size + 1))
    for x in (stand_in.Foreign(theirs, stream.ptr), stand_in.Foreign(theirs, None), stand_in.DlpackOnly(theirs)):
        assert set(read(card.cupy, comm.all_reduce(x))) == {expected}
        result = stand_in.Foreign(out, stream.ptr)
        assert comm.all_reduce(x, out=result) is result
        assert set(read(card.cupy, out)) == {expected}


@every_way
def test_mpi_is_given_pointers_exactly_if_it_takes_them(card, comm):
    x, out = card.cupy.asarray(np.ones(40)), card.cupy.asarray(np.zeros((comm.size, 40)))
    several = comm.size > 1
    for aware, call in (
        (comm.cuda.aware, lambda: comm.all_gather(x.reshape(1, 40), out=out)),
        (comm.cuda.aware, lambda: comm.reduce_scatter(x, sizes=[40, *[0] * (comm.size - 1)])),
        (comm.cuda.aware, lambda: comm.all_reduce(x)),
        (comm.cuda.nonblocking_reductions, lambda: comm.iall_reduce(x).wait()),
    ):
        card.given.clear()
        call()
        assert bool({x.data.ptr, out.data.ptr} & set(card.given)) is (aware and several)
        assert bool(card.given) is (aware and several)


def test_pieces_are_copied_while_others_travel(card, world):
    """Of a long message the next piece is being copied when one is sent, and buffers are used again."""
    comm = MpiCommunicator(world.handle, timeout_s=world.timeout_s, direct=True, check=False)
    if comm.size == 1:
        pytest.skip("one rank sends nothing")
    x = card.cupy.asarray(np.arange(600.0))
    cuda.settle(x)
    num_pieces = 600 * 8 // PIECE_BYTES
    before = []
    calls = comm.blocking_calls.all_reduce
    comm.blocking_calls.all_reduce = lambda *a: (before.append(list(card.copies)), calls(*a))[1]
    total = comm.all_reduce(x)
    assert np.array_equal(read(card.cupy, total), np.arange(600.0) * comm.size)
    loads = [sum(kind == stand_in.TO_HOST for kind, _ in copies) for copies in before]
    stores = [sum(kind == stand_in.TO_DEVICE for kind, _ in copies) for copies in before]
    assert loads == [*range(2, num_pieces + 1), num_pieces]
    assert stores == list(range(num_pieces))
    assert card.num_pinned <= 4
    comm.all_reduce(x)
    assert card.num_pinned <= 4


def test_received_pieces_are_copied_as_they_come(card, world):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    comm = MpiCommunicator(world.dup().handle, timeout_s=world.timeout_s, direct=False, check=False)
    if comm.rank == 0:
        comm.send(card.cupy.asarray(np.arange(60.0)), 1, tag=3)
    if comm.rank == 1:
        out = card.cupy.empty((60,), np.dtype("f8"))
        work = comm.irecv(out, 0, tag=3)
        limit = len(work._requests)
        assert limit == 60 * 8 // PIECE_BYTES
        while not work.progress():
            pass
        assert card.copies == [(stand_in.TO_DEVICE, PIECE_BYTES)] * limit
        work.wait()
        assert np.array_equal(read(card.cupy, out), np.arange(60.0))
    world.barrier()


def test_long_message_from_any_rank_needs_a_name(card, world):
    comm = MpiCommunicator(world.dup().handle, timeout_s=world.timeout_s, check=False)
    with pytest.raises(ValueError, match="recv: elements from any rank\n  got      60\n  expected 12"):
        comm.irecv(card.cupy.empty((60,), np.dtype("f8")))


def test_host_and_device_arrays_are_not_mixed(card, world):
    x = card.cupy.asarray(np.ones(3))
    for call in (
        lambda: world.all_reduce(x, out=np.zeros(3)),
        lambda: world.all_reduce(np.ones(3), out=x),
        lambda: world.all_gather(x, out=np.zeros(3 * world.size)),
    ):
        with pytest.raises(TypeError, match="host and device arrays are mixed"):
            call()


def test_results_lie_apart_from_arguments(card, world):
    x = card.cupy.asarray(np.ones(3 * world.size))
    with pytest.raises(ValueError, match="all_gather: out\n  got      memory of x"):
        world.all_gather(x[:3], out=x)
    with pytest.raises(ValueError, match="reduce_scatter: out\n  got      memory of x"):
        world.reduce_scatter(x, out=x[:3])


@pytest.mark.parametrize("direct", [False, True])
def test_ranks_that_mix_places_are_told(card, world, direct):
    if world.size == 1:
        pytest.skip("one rank cannot differ")
    comm = MpiCommunicator(world.dup().handle, timeout_s=world.timeout_s, direct=direct, check=True)
    x = np.ones(3) if comm.rank else card.cupy.asarray(np.ones(3))
    with pytest.raises(Exception, match="on a device"):
        comm.all_reduce(x)


def asking_for(monkeypatch, **variables):
    monkeypatch.setattr(config, "environment", lambda: config.read(variables))


def test_asking_for_what_mpi_does_not_offer_is_one_error_on_all_ranks_b08(world, monkeypatch):
    if offers_cuda(MPI.Get_library_version(), os.environ) is not False:
        pytest.skip("this MPI is CUDA-aware, or cannot say")
    if world.rank == world.size - 1:
        asking_for(monkeypatch, HPCDIST_CUDA_AWARE="on")
    with pytest.raises(LaunchError, match="HPCDIST_CUDA_AWARE=on: MPI is not CUDA-aware"):
        MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=world.timeout_s)
    for setting in ("auto", "off"):
        asking_for(monkeypatch, HPCDIST_CUDA_AWARE=setting)
        assert MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=world.timeout_s).cuda == Cuda()


def test_ranks_agree_on_what_all_of_them_can_do(world, monkeypatch):
    last = world.rank == world.size - 1
    asking_for(monkeypatch, HPCDIST_CUDA_NONBLOCKING_REDUCTIONS="0" if last else "1")
    monkeypatch.setattr(device, "cuda_aware", lambda *_: True)
    comm = MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=world.timeout_s)
    assert comm.cuda == Cuda(aware=True, nonblocking_reductions=False)
    assert comm.dup().cuda == comm.split(world.rank % 2).cuda == comm.cuda
    monkeypatch.setattr(device, "cuda_aware", lambda *_: not last)
    assert MpiCommunicator.adopt(MPI.COMM_WORLD, timeout_s=world.timeout_s).cuda == Cuda()


@pytest.mark.parametrize("op", [ReduceOp.AVG, ReduceOp.MAX])
def test_group_of_one_rank(card, world, op):
    comm = world.split(world.rank)
    for dtype in ("f4", "f2"):
        x = card.cupy.asarray(np.arange(4.0, dtype=dtype))
        assert read(card.cupy, comm.all_reduce(x, op)).tolist() == [0, 1, 2, 3]
        assert read(card.cupy, comm.all_gather(x)).tolist() == [0, 1, 2, 3]
        assert comm.all_reduce(x, op, out=x) is x
    assert not card.copies
    assert not card.given


def test_buffers_are_pinned_once(card, world):
    x = card.cupy.asarray(np.arange(100.0))
    for _ in range(3):
        world.iall_reduce(x).wait()
    pinned = card.num_pinned
    for _ in range(10):
        world.iall_reduce(x).wait()
    assert card.num_pinned == pinned
