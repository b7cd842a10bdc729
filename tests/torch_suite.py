"""PyTorch's functions: bodies of tests that take a communicator of 1 to 4 ranks; plain NumPy is the oracle."""

import datetime
import itertools

import ml_dtypes
import numpy as np
import pytest
from comm_suite import LAYOUTS, equal, given, meaningful, reduced, uneven

import hpcdist.comm as dist
from hpcdist.autograd import Tensor
from hpcdist.comm import ReduceOp

DTYPES = ["i4", "u1", "f2", "f4", "f8", "c16", ml_dtypes.bfloat16, "?"]
SHAPES = [(4,), (), (0, 2)]
WRITEABLE = [name for name in LAYOUTS if name != "read-only"]


def once(comm, call):
    """Call blocking; then the same with async_op, and wait."""
    assert call(False) is None
    work = call(True)
    assert isinstance(work, dist.Work)
    assert work.wait() is True
    assert (work.is_completed(), work.is_success(), work.exception()) == (True, True, None)
    return work


# ---- in place, on every dtype, shape and order of elements
def others(comm):
    return (comm.rank + 1) % comm.size


def last(comm):
    return comm.size - 1


# name: (call on this rank's array, what that becomes)
TABLE = {
    "all_reduce": (lambda c, x, **o: dist.all_reduce(x, **o), lambda a, _: reduced(a, ReduceOp.SUM)),
    "all_reduce max": (lambda c, x, **o: dist.all_reduce(x, "MAX", **o), lambda a, _: reduced(a, ReduceOp.MAX)),
    "reduce": (lambda c, x, **o: dist.reduce(x, 0, **o), lambda a, r: a[r] if r else reduced(a, ReduceOp.SUM)),
    "broadcast": (lambda c, x, **o: dist.broadcast(x, 0, **o), lambda a, _: a[0]),
    "broadcast last": (lambda c, x, **o: dist.broadcast(x, group_src=last(c), **o), lambda a, _: a[-1]),
}


def check_in_place_verbs(comm):
    kinds = [*((dtype, (3, 4)) for dtype in DTYPES), *(("f4", shape) for shape in SHAPES)]
    for (name, (call, becomes)), (dtype, shape) in itertools.product(TABLE.items(), kinds):
        if "max" in name and np.dtype(dtype).kind == "c":
            continue
        arrays = given(comm, shape, dtype)
        expected = _logical(becomes, arrays, comm.rank, name)
        x, y = arrays[comm.rank].copy(), arrays[comm.rank].copy()
        assert call(comm, x) is None
        equal(x, expected, (name, dtype, shape))
        assert call(comm, y, group=comm, async_op=True).wait() is True
        equal(y, expected, (name, dtype, shape, "async"))


def _logical(becomes, arrays, rank, name):
    """For bool a sum is "or"."""
    if arrays[0].dtype != bool or "reduce" not in name:
        return becomes(arrays, rank)
    return np.any(arrays, axis=0) if name != "reduce" or rank == 0 else arrays[rank]


def check_in_place_verbs_on_any_order_of_elements(comm):
    for name, (call, becomes) in TABLE.items():
        arrays = given(comm)
        for layout in WRITEABLE:
            x = LAYOUTS[layout](arrays[comm.rank].copy())
            call(comm, x)
            equal(x, becomes(arrays, comm.rank), (name, layout))


def check_a_strided_slice_b01(comm):
    """Case B01 by every verb that writes: columns that are not in the view keep their values."""
    everyone = [np.arange(12.0).reshape(3, 4) + 100 * rank for rank in range(comm.size)]
    a = everyone[comm.rank].copy()
    dist.all_reduce(a[:, ::2])
    equal(a[:, ::2], sum(everyone)[:, ::2])
    equal(a[:, 1::2], everyone[comm.rank][:, 1::2])
    whole = np.full((3 * comm.size, 8), -1.0)
    dist.all_gather_into_tensor(whole[:, ::2], everyone[comm.rank])
    equal(whole[:, ::2], np.concatenate(everyone))
    assert (whole[:, 1::2] == -1).all()
    out = np.full((3, 8), -1.0)
    dist.scatter(out[:, ::2], [x * 2 for x in everyone] if comm.rank == 0 else None)
    equal(out[:, ::2], everyone[comm.rank] * 2)
    dist.reduce_scatter_tensor(out[:, 1::2], np.concatenate([x[:, ::-1] for x in everyone], axis=0))
    equal(out[:, 1::2], comm.size * everyone[comm.rank][:, ::-1])


def check_tensors_are_taken_by_their_data(comm):
    x = Tensor(np.full(3, float(comm.rank)))
    dist.all_reduce(x)
    assert x.data.tolist() == [sum(range(comm.size))] * 3
    whole = [Tensor(np.zeros(3)) for _ in range(comm.size)]
    dist.all_gather(whole, Tensor(np.full(3, float(comm.rank))))
    assert [t.data[0] for t in whole] == list(range(comm.size))


def check_ops(comm):
    for dtype in ("i4", "f4", "c8"):
        for op in ReduceOp:
            x = given(comm, (5,), dtype)[comm.rank]
            if meaningful(op, dtype):
                dist.all_reduce(x, op)
                equal(x, reduced(given(comm, (5,), dtype), op), (dtype, op))
            else:
                with pytest.raises(ValueError, match="reduction"):
                    dist.all_reduce(x, op)
    with pytest.raises(ValueError, match=r"all_reduce: op\n.*'mean'\n.*sum, avg"):
        dist.all_reduce(np.ones(2), "mean")
    assert [dist.supports_complex(op) for op in ("sum", "avg", "max", "BOR", ReduceOp.PREMUL_SUM(2))] == [
        True, True, False, False, True,
    ]  # fmt: skip


def check_premultiplied_sums(comm):
    for dtype in ("f2", "f4", "f8", "c16", ml_dtypes.bfloat16):
        arrays = given(comm, (6,), dtype)
        op = ReduceOp.PREMUL_SUM(0.5 + comm.rank)
        total = reduced([(a * np.asarray(0.5 + r, dtype)).astype(dtype) for r, a in enumerate(arrays)], ReduceOp.SUM)
        x = arrays[comm.rank].copy()
        dist.all_reduce(x, op)
        equal(x, total, dtype)
        x = arrays[comm.rank].copy()
        assert dist.all_reduce(x, op, async_op=True).wait()
        equal(x, total, dtype)
        out = np.empty(6 // comm.size, dtype)
        if 6 % comm.size == 0:
            dist.reduce_scatter_tensor(out, arrays[comm.rank], op)
            equal(out, np.split(total, comm.size)[comm.rank])
    with pytest.raises(ValueError, match=r"premul_sum\n.*int64"):
        dist.all_reduce(np.arange(3), ReduceOp.PREMUL_SUM(2))


# ---- lists, even and uneven
def check_all_gather_uneven(comm):
    for sizes in uneven(comm):
        for tail in ((), (2,), (0,)):
            arrays = [np.full((n, *tail), rank) for rank, n in enumerate(sizes)]
            outs = [np.empty_like(a) for a in arrays]
            once(comm, lambda wait, o=outs, a=arrays: dist.all_gather(o, a[comm.rank], async_op=wait))
            for out, a in zip(outs, arrays, strict=True):
                equal(out, a)


def check_all_gather_of_any_shapes(comm):
    shapes = [(2, 3), (), (4,), (1, 0, 2)][: comm.size]
    arrays = [np.arange(rank, rank + np.prod(shape, dtype=int)).reshape(shape) for rank, shape in enumerate(shapes)]
    outs = [np.empty(shape, int, order="F") for shape in shapes]
    once(comm, lambda wait: dist.all_gather(outs, arrays[comm.rank].copy(order="F"), async_op=wait))
    for out, a in zip(outs, arrays, strict=True):
        equal(out, a)


def check_all_gather_into_tensor_layouts(comm):
    for shape in ((2, 3), (5,), (0, 2), ()):
        arrays = given(comm, shape)
        stacked = np.empty((comm.size, *shape))
        once(comm, lambda wait, out=stacked, a=arrays: dist.all_gather_into_tensor(out, a[comm.rank], async_op=wait))
        equal(stacked, np.stack(arrays))
        if shape:
            joined = np.empty((comm.size * shape[0], *shape[1:]))
            dist.all_gather_single(joined, arrays[comm.rank])
            equal(joined, np.concatenate(arrays))
            mine = joined[comm.rank * shape[0] : (comm.rank + 1) * shape[0]]
            mine *= 2
            dist.all_gather_into_tensor(joined, mine)
            equal(joined, 2 * np.concatenate(arrays), "in place")
    for wrong in (np.empty(comm.size * 4 + 1), np.empty((comm.size, 4), "f4")):
        with pytest.raises(ValueError, match="all_gather_into_tensor: output_tensor"):
            dist.all_gather_into_tensor(wrong, np.ones(4))


def check_gather_and_scatter(comm):
    root = comm.size - 1
    arrays = [np.full((rank + 1, 2), float(rank)) for rank in range(comm.size)]
    mine, is_root = arrays[comm.rank], comm.rank == root
    outs = [np.empty_like(a) for a in arrays] if is_root else None
    once(comm, lambda wait: dist.gather(mine, outs, dst=root, async_op=wait))
    for out, a in zip(outs or [], arrays, strict=False):
        equal(out, a)
    out = np.empty_like(mine)
    once(comm, lambda wait: dist.scatter(out, arrays if is_root else None, group_src=root, async_op=wait))
    equal(out, mine)
    for call in (lambda xs: dist.gather(mine, xs, dst=root), lambda xs: dist.scatter(out, xs, src=root)):
        with pytest.raises(ValueError, match=f"_list on rank {comm.rank}, root {root}"):
            call(None if is_root else arrays)
    comm.barrier()
    dist.gather(mine, outs if is_root else [], dst=root)
    dist.scatter(out, arrays if is_root else [], src=root)
    equal(out, mine, "an empty list elsewhere is none")


def check_reduce_scatter(comm):
    for sizes in uneven(comm):
        lists = [[np.arange(2.0 * n).reshape(n, 2) * (rank + 1) for n in sizes] for rank in range(comm.size)]
        out = np.empty((sizes[comm.rank], 2))
        once(comm, lambda wait, o=out, x=lists: dist.reduce_scatter(o, x[comm.rank], async_op=wait))
        equal(out, sum(x[comm.rank] for x in lists))
    shapes = [(2, 3), (), (4,), (1, 1, 2)][: comm.size]
    lists = [[np.full(shape, rank + 2) for shape in shapes] for rank in range(comm.size)]
    out = np.empty(shapes[comm.rank], int, order="F")
    dist.reduce_scatter(out, lists[comm.rank], ReduceOp.PRODUCT)
    equal(out, np.full(shapes[comm.rank], np.prod(np.arange(comm.size) + 2)))


def check_reduce_scatter_tensor(comm):
    for shape in ((2, 3), (3,), (0, 2)):
        wholes = given(comm, (comm.size, *shape), "f4")
        expected = reduced(wholes, ReduceOp.AVG)[comm.rank]
        for joined in (False, True):
            whole = wholes[comm.rank].reshape(comm.size * shape[0], *shape[1:]) if joined else wholes[comm.rank]
            out = np.empty(shape, "f4")
            once(comm, lambda wait, o=out, w=whole: dist.reduce_scatter_single(o, w, "avg", async_op=wait))
            equal(out, expected)
            mine = whole[comm.rank * shape[0] :][: shape[0]] if joined else whole[comm.rank]
            before = whole.copy()
            dist.reduce_scatter_tensor(mine, whole, "avg")
            equal(mine, expected, "in place")
            whole[...] = before
    with pytest.raises(ValueError, match=r"reduce_scatter_tensor: input\n.*\n.*\n.*use reduce_scatter"):
        dist.reduce_scatter_tensor(np.ones(4), np.ones(4 * comm.size + 1))


def check_all_to_all(comm):
    def part(source, dest):
        return np.full(((source + 2 * dest) % 3, 2), 10 * source + dest)

    parts = [part(comm.rank, dest) for dest in range(comm.size)]
    outs = [np.empty_like(part(source, comm.rank)) for source in range(comm.size)]
    once(comm, lambda wait: dist.all_to_all(outs, parts, async_op=wait))
    for source, out in enumerate(outs):
        equal(out, part(source, comm.rank))
    whole, joined = np.concatenate(parts), np.empty_like(np.concatenate(outs))
    sizes = [x.shape[0] for x in outs], [x.shape[0] for x in parts]
    once(comm, lambda wait: dist.all_to_all_single(joined, whole, *sizes, async_op=wait))
    equal(joined, np.concatenate(outs))
    x, out = np.arange(2 * comm.size) + 100 * comm.rank, np.empty(2 * comm.size, int)
    dist.all_to_all_single(out, x, [], [])
    equal(out, np.concatenate([np.arange(2 * comm.rank, 2 * comm.rank + 2) + 100 * r for r in range(comm.size)]))


def check_exchanges_in_place(comm):
    """Large ones, which no MPI keeps elsewhere; the communicator's own verb refuses them."""
    n, size = 50_000, comm.size

    def parts():
        return [np.full(n, 10.0 * comm.rank + dest) for dest in range(size)]

    expected = [np.full(n, 10.0 * source + comm.rank) for source in range(size)]
    xs, whole = parts(), np.concatenate(parts())
    once(comm, lambda wait: dist.all_to_all(xs if wait else parts(), xs if wait else parts(), async_op=wait))
    dist.all_to_all_single(whole, whole)
    equal(np.concatenate(xs), np.concatenate(expected))
    equal(whole, np.concatenate(expected))
    memory = np.concatenate([*parts(), np.zeros(n)])
    dist.all_to_all_single(memory[n:], memory[:-n])
    equal(memory[n:], np.concatenate(expected), "one place further")
    for _ in range(2):
        xs = parts()
        comm.all_to_all(xs, [(n,)] * size, out=parts())
        with pytest.raises(ValueError, match=r"all_to_all: out\n.*memory of a part"):
            comm.all_to_all(xs, [(n,)] * size, out=xs)


def check_what_is_no_integer_is_refused(comm):
    x, ones = np.ones(1), np.ones(comm.size)
    for call, text in (
        (lambda: dist.broadcast(x, group_src=0.5), "broadcast: group_src"),
        (lambda: dist.broadcast(x, 0.0), "broadcast: src"),
        (lambda: comm.broadcast(x, 0.5), "broadcast: root"),
        (lambda: dist.isend(x, 0, tag="a"), "send: tag"),
        (lambda: dist.irecv(x, 0, tag=0.5), "recv: tag"),
        (lambda: dist.new_group(0), "new_group: ranks"),
        (lambda: dist.new_group([0.5]), "new_group: ranks"),
        (lambda: dist.split_group(None, [0]), "split_group: split_ranks"),
        (lambda: dist.get_global_rank(None, "0"), "get_global_rank: group_rank"),
        (lambda: dist.all_to_all_single(ones, ones, [1.5] * comm.size), "output_split_sizes"),
        (lambda: comm.all_gather(x, sizes=[1.5] * comm.size), "all_gather: sizes"),
        (lambda: dist.barrier(timeout="3"), "timeout"),
        (lambda: dist.init_device_mesh((1,), comm=3), "DeviceMesh: comm"),
        (lambda: dist.init_device_mesh((1,), comm=dist.NonMember("part", (1,), 0)), "DeviceMesh: comm"),
    ):
        with pytest.raises(TypeError, match=f"{text}.*\n  got "):
            call()
    for call in (
        lambda: dist.barrier(timeout=float("inf")),
        lambda: dist.isend(x, 0, tag=-1),
        lambda: dist.irecv(x, 0, tag=2**40),
    ):
        with pytest.raises(ValueError, match=r"timeout|tag"):
            call()
    equal(comm.broadcast(np.array([comm.rank]), np.int64(comm.size - 1)), np.array([comm.size - 1]))


def check_all_to_all_single_refuses(comm):
    x = np.ones(comm.size)
    with pytest.raises(ValueError, match=r"output_split_sizes\n.*\n.*sum is"):
        dist.all_to_all_single(x, x, [2] * comm.size)
    with pytest.raises(ValueError, match="input_split_sizes"):
        dist.all_to_all_single(x, x, None, [1] * (comm.size + 1))
    with pytest.raises(ValueError, match="divides by"):
        dist.all_to_all_single(np.ones(()), x)
    if comm.size > 1:
        with pytest.raises(ValueError, match="pass input_split_sizes"):
            dist.all_to_all_single(x, np.ones(comm.size + 1))


# ---- several at once
def check_coalesced(comm):
    tensors = [given(comm, shape, dtype) for shape, dtype in (((3,), "f4"), ((2, 2), "f8"), ((), "f4"), ((0,), "f8"))]
    for wait in (False, True):
        mine = [arrays[comm.rank].copy() for arrays in tensors]
        work = dist.all_reduce_coalesced(mine, "max", async_op=wait)
        assert (work is not None) is wait
        if wait:
            assert work.wait()
        for x, arrays in zip(mine, tensors, strict=True):
            equal(x, reduced(arrays, ReduceOp.MAX))


def check_coalescing_manager(comm):
    arrays = given(comm, (2 * comm.size, 3))
    for async_ops in (False, True):
        total, other = arrays[comm.rank].copy(), np.asfortranarray(arrays[comm.rank])
        whole, part, small = np.empty((comm.size, *arrays[0].shape)), np.empty((2, 3)), np.ones(2, "i4")
        with dist.coalescing_manager(async_ops=async_ops) as batch:
            dist.all_reduce(total)
            dist.all_reduce(small)
            dist.all_gather_into_tensor(whole, arrays[comm.rank])
            dist.reduce_scatter_tensor(part, arrays[comm.rank], "max")
            dist.all_reduce(other)
            with pytest.raises(dist.DistError, match="async_op in a block"):
                dist.all_reduce(small, async_op=True)
        assert batch.wait()
        assert len(batch.works) == 4 * async_ops
        equal(total, reduced(arrays, ReduceOp.SUM))
        equal(other, reduced(arrays, ReduceOp.SUM))
        equal(small, np.full(2, comm.size, "i4"))
        equal(whole, np.stack(arrays))
        equal(part, reduced(arrays, ReduceOp.MAX)[2 * comm.rank :][:2])


def check_coalesced_results_lie_apart(comm):
    x = np.ones(6)

    def twice():
        with dist.coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(x)

    for call in (twice, lambda: dist.all_reduce_coalesced([x[:4], x[2:]])):
        with pytest.raises(ValueError, match="two of them write into the same memory"):
            call()
    equal(x, np.ones(6))
    dist.all_reduce_coalesced([x[:4:2], x[1:4:2], x[4:], x[:0]])
    equal(x, np.full(6, float(comm.size)))


# ---- works
def check_works_and_futures(comm):
    x = np.ones(3)
    work = dist.all_reduce(x, async_op=True)
    calls = []
    future = work.get_future().then(lambda f: calls.append(1) or f.value()[0].sum())
    last = future.then(lambda f: f.wait() + 1)
    assert last.wait() == 3 * comm.size + 1
    assert (future.value(), calls, future.done()) == (3 * comm.size, [1], True)
    assert work.result()[0] is x
    work.synchronize()
    assert work.wait(datetime.timedelta(seconds=1)) is True
    with pytest.raises(ValueError, match="timeout"):
        dist.barrier(timeout=0)
    with pytest.raises(ValueError, match="source_rank"):
        work.source_rank()


def check_a_work_that_fails(comm):
    if comm.size > 1:
        work = dist.all_reduce(np.ones(2 + comm.rank % 2), async_op=True)
        with pytest.raises(dist.CollectiveMismatchError):
            work.wait()
        assert (work.is_completed(), work.is_success()) == (True, False)
        assert isinstance(work.exception(), dist.CollectiveMismatchError)
        with pytest.raises(dist.CollectiveMismatchError):
            work.get_future().wait()


def check_barriers(comm):
    assert dist.barrier() is None
    assert dist.barrier(comm, async_op=True).wait()
    dist.barrier(timeout=datetime.timedelta(seconds=15))
    dist.monitored_barrier(timeout=15, wait_all_ranks=True)
    assert comm.timeout_s != 15


# ---- messages
def check_send_and_recv(comm):
    if comm.size == 1:
        with pytest.raises(ValueError, match="send: dst"):
            dist.send(np.ones(1), 0)
        return
    following, before = others(comm), (comm.rank - 1) % comm.size
    x, out = np.full((2, 3), comm.rank), np.zeros((2, 6), int)
    work = dist.isend(x, following, tag=3)
    assert dist.recv(out[:, ::2], before, tag=3) == before
    assert work.wait()
    equal(out[:, ::2], np.full((2, 3), before))
    if comm.rank == 0:
        found = []
        for _ in range(comm.size - 1):
            got = np.empty(1)
            found.append(dist.recv(got))
            assert got[0] == found[-1]
        assert sorted(found) == list(range(1, comm.size))
    else:
        dist.send(np.array([float(comm.rank)]), 0)
    comm.barrier()
    work = dist.isend(np.ones(2), comm.rank)
    got = np.zeros(2)
    mine = dist.irecv(got, comm.rank)
    assert mine.wait()
    assert work.wait()
    assert (mine.source_rank(), got.tolist()) == (comm.rank, [1, 1])


def check_batches_of_messages(comm):
    assert dist.batch_isend_irecv([]) == []
    following, before = others(comm), (comm.rank - 1) % comm.size
    outs = [np.empty(2), np.empty(3, "i4")]
    ops = [dist.P2POp(dist.irecv, out, before, tag=tag) for tag, out in enumerate(outs)]
    sent = [np.full_like(out, comm.rank) for out in outs]
    ops += [dist.P2POp(dist.isend, x, group_peer=following, tag=tag) for tag, x in enumerate(sent)]
    for work in dist.batch_isend_irecv(ops):
        assert work.wait()
    for out in outs:
        equal(out, np.full_like(out, before))
    with pytest.raises(ValueError, match=r"P2POp: op\n.*send"):
        dist.P2POp(dist.send, outs[0], 0)
    with pytest.raises(TypeError, match="p2p_op_list"):
        dist.batch_isend_irecv([1])
    with pytest.raises(ValueError, match="one for all"):
        dist.batch_isend_irecv([ops[0], dist.P2POp(dist.irecv, outs[0], comm.rank, comm.dup())])


# ---- objects
def check_objects(comm):
    value = {"rank": comm.rank, "a": np.arange(10_000) * comm.rank}
    found = [None] * comm.size
    dist.all_gather_object(found, value)
    assert [v["rank"] for v in found] == list(range(comm.size))
    root = comm.size - 1
    gathered = [None] * comm.size if comm.rank == root else None
    dist.gather_object(value, [] if gathered is None else gathered, dst=root)
    for rank, v in enumerate(gathered or []):
        equal(v["a"], np.arange(10_000) * rank)
    items = [comm.rank, value, None]
    dist.broadcast_object_list(items, src=root, device="cpu")
    assert items[0] == root
    assert (items[1] is value) is (comm.rank == root)
    equal(items[1]["a"], np.arange(10_000) * root)
    got = [None, "stays"]
    dist.scatter_object_list(
        got, [(rank, value["a"]) for rank in range(comm.size)] if comm.rank == root else None, root
    )
    assert (got[0][0], got[1]) == (comm.rank, "stays")
    equal(got[0][1], np.arange(10_000) * root)


def check_object_messages(comm):
    if comm.rank == 0:
        for _ in range(comm.size - 1):
            found = [None, None]
            who = dist.recv_object_list(found)
            assert found[0] == f"from {who}"
            equal(found[1], np.full(5000, who))
    elif comm.size > 1:
        dist.send_object_list([f"from {comm.rank}", np.full(5000, comm.rank)], dst=0, device="cuda:0")
        with pytest.raises(TypeError, match="cannot be pickled"):
            dist.send_object_list([lambda: 0], dst=0)


def check_object_errors_on_every_rank(comm):
    last = comm.size - 1
    odd = (lambda: 0) if comm.rank == last else 0
    with pytest.raises(TypeError, match=f"gather_object: the value of rank {last} cannot be pickled"):
        dist.gather_object(odd, [None] * comm.size if comm.rank == 0 else None)
    with pytest.raises(ValueError, match="scatter_object: objects"):
        dist.scatter_object_list([None], [1] * (comm.size + 1) if comm.rank == last else None, last)
    with pytest.raises(TypeError, match="scatter_object: the value of rank"):
        dist.scatter_object_list([None], [lambda: 0] * comm.size if comm.rank == last else None, last)
    if comm.size > 1:
        with pytest.raises(ValueError, match=r"object_list\n.*2 places"):
            dist.broadcast_object_list([1, 2] if comm.rank == last else [1])
    with pytest.raises(ValueError, match="all_gather_object: object_list"):
        dist.all_gather_object([None] * (comm.size + 1), 1)
    with pytest.raises(ValueError, match="no place"):
        dist.scatter_object_list([], [1] * comm.size)
    comm.barrier()


# ---- groups
def check_new_group(comm):
    everyone = dist.new_group()
    assert (dist.get_rank(everyone), dist.get_world_size(everyone)) == (comm.rank, comm.size)
    order = list(range(comm.size))[::-1]
    back = dist.new_group(order, sort_ranks=False, group_desc="back", timeout=17)
    assert (dist.get_process_group_ranks(back), back.name, back.timeout_s) == (order, "back", 17)
    x = np.array([comm.rank])
    dist.broadcast(x, src=0, group=back)
    assert x.tolist() == [0]
    y = np.array([comm.rank])
    dist.broadcast(y, group_src=0, group=back)
    assert y.tolist() == [comm.size - 1]
    assert dist.get_process_group_ranks(dist.new_group(order)) == order[::-1]
    assert (dist.get_global_rank(back, 0), dist.get_group_rank(back, 0)) == (comm.size - 1, comm.size - 1)
    for ranks in ([0, 0], [comm.size], [-1], []):
        with pytest.raises(ValueError, match="new_group: ranks"):
            dist.new_group(ranks)
    comm.barrier()


def check_non_members_b09(comm):
    """Case B09: a group of ranks 0 and 2 only; the others may ask, but not take part; the world goes on."""
    ranks = [rank for rank in (0, 2) if rank < comm.size]
    group = dist.new_group(ranks)
    x = np.array([comm.rank + 1.0])
    if comm.rank in ranks:
        mean = x.copy()
        dist.all_reduce(x, group=group)
        dist.all_reduce(mean, "avg", group=group)
        assert (x[0], mean[0]) == (sum(r + 1 for r in ranks), np.mean([r + 1 for r in ranks]))
        root = ranks[-1]
        x[0] = comm.rank
        dist.broadcast(x, src=root, group=group)
        assert x[0] == root
        with pytest.raises(ValueError, match=r"broadcast: src\n.*3"):
            dist.broadcast(x, src=3, group=group)
    else:
        assert not group
        assert group == dist.GroupMember.NON_GROUP_MEMBER
        assert (dist.get_rank(group), dist.get_world_size(group), dist.get_backend(group)) == (-1, -1, None)
        assert (dist.get_process_group_ranks(group), dist.get_group_rank(group, 0)) == (ranks, 0)
        for call in NON_MEMBER_CALLS:
            with pytest.raises(dist.DistError, match=rf"on group '.*': rank {comm.rank} is not in it"):
                call(group)
        dist.destroy_process_group(group)
    total = np.array([1.0])
    dist.all_reduce(total)
    assert total[0] == comm.size


NON_MEMBER_CALLS = [
    lambda g: dist.all_reduce(np.ones(1), group=g),
    lambda g: dist.reduce(np.ones(1), 0, group=g),
    lambda g: dist.broadcast(np.ones(1), 0, group=g),
    lambda g: dist.all_gather([np.ones(1)] * 2, np.ones(1), group=g),
    lambda g: dist.all_gather_into_tensor(np.ones(2), np.ones(1), group=g),
    lambda g: dist.gather(np.ones(1), group=g),
    lambda g: dist.scatter(np.ones(1), group=g),
    lambda g: dist.reduce_scatter(np.ones(1), [np.ones(1)] * 2, group=g),
    lambda g: dist.reduce_scatter_tensor(np.ones(1), np.ones(2), group=g),
    lambda g: dist.all_to_all([np.ones(1)] * 2, [np.ones(1)] * 2, group=g),
    lambda g: dist.all_to_all_single(np.ones(2), np.ones(2), group=g),
    lambda g: dist.all_reduce_coalesced([np.ones(1)], group=g),
    lambda g: dist.coalescing_manager(g).__enter__(),
    lambda g: dist.barrier(g),
    lambda g: dist.monitored_barrier(g),
    lambda g: dist.send(np.ones(1), 0, g),
    lambda g: dist.recv(np.ones(1), 0, g),
    lambda g: dist.isend(np.ones(1), 0, g),
    lambda g: dist.irecv(np.ones(1), 0, g),
    lambda g: dist.P2POp(dist.isend, np.ones(1), 0, g),
    lambda g: dist.all_gather_object([1, 2], 1, g),
    lambda g: dist.gather_object(1, group=g),
    lambda g: dist.broadcast_object_list([1], group=g),
    lambda g: dist.scatter_object_list([1], group=g),
    lambda g: dist.send_object_list([1], 0, g),
    lambda g: dist.recv_object_list([1], 0, g),
    lambda g: dist.new_subgroups(1, g),
    lambda g: dist.split_group(g, [[0]]),
]


def check_only_members_need_call(comm):
    """Ranks in disjoint groups, and one that calls nothing."""
    if comm.rank < 2:
        group = dist.new_group([comm.rank])
        assert dist.get_world_size(group) == 1
    if comm.rank in (0, comm.size - 1):
        group = dist.new_group(sorted({0, comm.size - 1}))
        x = np.array([1])
        dist.all_reduce(x, group=group)
        assert x[0] == group.size


def check_subgroups(comm):
    mine, groups = dist.new_subgroups(min(2, comm.size))
    expected = [list(range(comm.size))[start : start + 2] for start in range(0, comm.size, 2)]
    assert [dist.get_process_group_ranks(g) for g in groups] == expected
    assert dist.get_process_group_ranks(mine) == expected[comm.rank // 2]
    x = np.array([1])
    dist.all_reduce(x, group=mine)
    assert x[0] == len(expected[comm.rank // 2])
    node, nodes = dist.new_subgroups()
    assert (dist.get_world_size(node), len(nodes)) == (comm.size, 1)  # all on this machine
    lists = [list(range(comm.size))[::-2], list(range(comm.size))[-2::-2]]
    mine, groups = dist.new_subgroups_by_enumeration([ranks for ranks in lists if ranks])
    assert dist.get_process_group_ranks(mine) == next(ranks for ranks in lists if comm.rank in ranks)
    apart = dist.split_group(None, [[0], list(range(1, comm.size))][: comm.size], group_desc="apart")
    assert dist.get_process_group_ranks(apart) == ([0] if comm.rank == 0 else list(range(1, comm.size)))
    only = dist.split_group(comm, [[0]])
    assert dist.get_rank(only) == (0 if comm.rank == 0 else -1)
    for size in (0, comm.size + 1):
        with pytest.raises(ValueError, match="group_size"):
            dist.new_subgroups(size)
    for wrong in ([[0], [0]], [], [[]], [[comm.size]]):
        with pytest.raises(ValueError, match="new_subgroups_by_enumeration"):
            dist.new_subgroups_by_enumeration(wrong)
        with pytest.raises(ValueError, match="split_group"):
            dist.split_group(None, wrong)
    comm.barrier()


def check_groups_of_groups_keep_global_ranks(comm):
    odd = dist.new_group(list(range(comm.size))[::-1], sort_ranks=False)
    part = dist.split_group(odd, [[0], list(range(1, comm.size))][: comm.size])
    last = comm.size - 1
    assert dist.get_process_group_ranks(part) == ([last] if comm.rank == last else list(range(comm.size - 1))[::-1])
    with dist.using_group(odd):
        assert dist.get_rank() == comm.size - 1 - comm.rank
        assert dist.group.WORLD is odd
        x = np.array([comm.rank])
        dist.broadcast(x, src=0)
        assert x[0] == 0
    assert dist.get_rank() == comm.rank


def check_count_and_end_of_groups(comm):
    before = dist.get_pg_count()
    group = dist.new_group()
    assert dist.get_pg_count() == before + 1
    dist.destroy_process_group(group)
    dist.destroy_process_group(group)
    assert dist.get_pg_count() == before


# ---- questions and arguments
def check_a_group_that_was_freed(comm):
    """Whatever is asked of it is an error, by PyTorch's functions and by the communicator's own."""
    group = comm.dup()
    dist.barrier(group)
    dist.destroy_process_group(group)
    x = np.ones(2)
    for call in (
        lambda: dist.barrier(group),
        lambda: dist.all_reduce(x, group=group),
        lambda: dist.all_reduce(x, group=group, async_op=True),
        lambda: dist.broadcast(x, group_src=0, group=group),
        lambda: dist.isend(x, group_dst=0, group=group),
        lambda: dist.irecv(x, group_src=0, group=group),
        lambda: dist.all_gather_object([None] * comm.size, 1, group),
        lambda: dist.split_group(group, [range(comm.size)]),
        lambda: group.split(0),
        group.split_node,
        group.dup,
    ):
        with pytest.raises(dist.DistError, match="the group has been freed"):
            call()
    group.free()
    comm.barrier()


def check_questions(comm):
    assert dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size(), dist.get_node_local_rank()) == (comm.rank, comm.size, comm.rank)
    assert dist.get_backend() == comm.backend
    assert dist.get_backend_config(comm) == f"cpu:{comm.backend},cuda:{comm.backend}"
    assert dist.group.WORLD is dist.GroupMember.WORLD is comm
    assert dist.get_process_group_ranks(None) == list(range(comm.size))
    for rank in (-1, comm.size):
        with pytest.raises(ValueError, match="get_global_rank"):
            dist.get_global_rank(comm, rank)
        with pytest.raises(ValueError, match="get_group_rank"):
            dist.get_group_rank(comm, rank)


def check_arguments_are_refused_before_anything_is_sent(comm):
    x = np.ones(2)
    frozen = np.ones(2)
    frozen.flags.writeable = False
    for error, text, call in (
        (ValueError, "src and group_src", lambda: dist.broadcast(x, 0, group_src=0)),
        (ValueError, "a global rank, or group_src", lambda: dist.broadcast(x)),
        (ValueError, "a global rank, or group_dst", lambda: dist.reduce(x)),
        (ValueError, "group_dst", lambda: dist.reduce(x, group_dst=comm.size)),
        (ValueError, "dst", lambda: dist.send(x, comm.size)),
        (ValueError, "a global rank, or group_dst", lambda: dist.isend(x)),
        (ValueError, "read-only", lambda: dist.all_reduce(frozen)),
        (ValueError, "read-only", lambda: dist.irecv(frozen, 0)),
        (TypeError, "an array or a Tensor", lambda: dist.all_reduce([1.0])),
        (TypeError, "an array or a Tensor", lambda: dist.all_reduce(np.float64(1))),
        (TypeError, "a group, or None", lambda: dist.all_reduce(x, group=7)),
        (TypeError, "a list of arrays", lambda: dist.all_gather(x, x)),
        (ValueError, "one a rank", lambda: dist.all_gather([x] * (comm.size + 1), x)),
        (ValueError, "as this rank brings", lambda: dist.all_gather([np.ones(3)] * comm.size, x)),
        (ValueError, "as this rank brings", lambda: dist.all_gather([np.ones(2, "f4")] * comm.size, x)),
        (ValueError, "as output", lambda: dist.reduce_scatter(x, [np.ones(2, "f4")] * comm.size)),
        (ValueError, "as input_list", lambda: dist.reduce_scatter(x, [np.ones(3)] * comm.size)),
        (ValueError, "device", lambda: dist.broadcast_object_list([1], device="tpu")),
        (ValueError, "pg_options", lambda: dist.new_group(pg_options=1)),
        (dist.DistBackendError, "'mpi'", lambda: dist.new_group(backend="nccl")),
    ):
        with pytest.raises(error, match=text):
            call()
    comm.barrier()


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]
