"""The verbs: bodies of tests that take a communicator of 1 to 4 ranks; NumPy on all ranks' arrays is the oracle."""

import functools
import itertools

import ml_dtypes
import numpy as np
import pytest

from hpcdist.comm import CollectiveMismatchError, ReduceOp

NUMBERS = [
    "i1",
    "u1",
    "i2",
    "u2",
    "i4",
    "u4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "c16",
    ml_dtypes.bfloat16,
    ">f4",
]
LAYOUTS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "transposed": lambda x: x.T.copy().T,
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.view(f"V{x.itemsize}").dtype).view(x.dtype).reshape(x.shape),
}
COMBINE = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def given(comm, shape=(3, 4), dtype="f8"):
    """Return the arrays of all ranks: small integers, whose sums and products are exact in every dtype."""
    draw = np.random.default_rng(5).integers
    return [draw(0, 4, shape).astype(dtype) for _ in range(comm.size)]


def reduced(arrays, op):
    """Combine in a wide dtype."""
    if op in BITWISE:
        return functools.reduce(COMBINE[op], arrays)
    wide = [x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble) for x in arrays]
    total = functools.reduce(COMBINE[op], wide)
    return (total / len(arrays) if op is ReduceOp.AVG else total).astype(arrays[0].dtype)


def meaningful(op, dtype):
    kind = np.dtype(dtype).kind
    if op in BITWISE:
        return kind in "iu"
    return not (op is ReduceOp.AVG and kind in "iu") and not (op in (ReduceOp.MIN, ReduceOp.MAX) and kind == "c")


def equal(got, expected, note=""):
    assert isinstance(got, np.ndarray), note
    assert got.dtype == expected.dtype.newbyteorder("="), (note, got.dtype)
    np.testing.assert_array_equal(got.astype(expected.dtype), expected, err_msg=str(note))


def uneven(comm):
    """Yield extents that differ from rank to rank: with zeros first, last and in between, and all zero."""
    yield [rank + 1 for rank in range(comm.size)]
    yield [(3 * rank) % 4 for rank in range(comm.size)]
    yield [5 * (rank == comm.size - 1) for rank in range(comm.size)]
    yield [0] * comm.size


# ---- reductions
def check_all_reduce(comm):
    for dtype, op in itertools.product(NUMBERS, ReduceOp):
        if meaningful(op, dtype):
            arrays = given(comm, (2, 3), dtype)
            equal(comm.all_reduce(arrays[comm.rank], op), reduced(arrays, op), (dtype, op))


def check_all_reduce_layouts(comm):
    arrays = given(comm)
    for name, layout in LAYOUTS.items():
        x = layout(arrays[comm.rank])
        equal(comm.all_reduce(x), reduced(arrays, ReduceOp.SUM), name)
        equal(x, arrays[comm.rank], "the argument is not modified")


def check_all_reduce_of_a_strided_slice_b01(comm):
    """Case B01, out of place and in place: the columns that are not in the view keep their values."""
    mine = np.arange(12.0).reshape(3, 4) + 100 * comm.rank
    total = sum((np.arange(12.0).reshape(3, 4) + 100 * rank)[:, ::2] for rank in range(comm.size))
    a = mine.copy()
    equal(comm.all_reduce(a[:, ::2]), total)
    equal(a, mine)
    result = comm.all_reduce(a[:, ::2], out=a[:, ::2])
    equal(result, total)
    equal(a[:, ::2], total)
    equal(a[:, 1::2], mine[:, 1::2])


def check_all_reduce_into(comm):
    """``out`` may be the argument, strided, Fortran-ordered, of 16 bits, or overlap the argument."""
    for dtype in ("f8", "f2", ml_dtypes.bfloat16, "i4"):
        arrays = given(comm, (3, 4), dtype)
        total = reduced(arrays, ReduceOp.SUM)
        outs = [np.empty((3, 4), dtype), np.empty((3, 8), dtype)[:, ::2], np.empty((4, 3), dtype).T]
        for out in outs:
            assert comm.all_reduce(arrays[comm.rank], out=out) is out
            equal(out, total)
        x = arrays[comm.rank].copy()
        assert comm.all_reduce(x, out=x) is x
        equal(x, total)
    rows = given(comm, (5,))
    y = rows[comm.rank].copy()
    comm.all_reduce(y[:-1], out=y[1:])
    equal(y[1:], sum(row[:-1] for row in rows))
    means = given(comm, (5,), "f2")
    out = np.empty(10, "f2")[::2]
    comm.all_reduce(means[comm.rank], ReduceOp.AVG, out=out)
    equal(out, reduced(means, ReduceOp.AVG))


def check_16_bit_sums_are_made_in_32(comm):
    """2048 + 1 + 1 is 2048 if each sum is rounded to float16."""
    for dtype, large in (("f2", 2048), (ml_dtypes.bfloat16, 256)):
        x = np.full(4, large if comm.rank == 0 else 1, dtype)
        expected = np.full(4, np.float32(large + comm.size - 1).astype(dtype))
        equal(comm.all_reduce(x), expected)
        equal(comm.reduce_scatter(x, sizes=[4] + [0] * (comm.size - 1)), expected if comm.rank == 0 else expected[:0])


def check_bools_combine_logically(comm):
    arrays = [np.array([True, rank == 0, False]) for rank in range(comm.size)]
    some, every = np.array([True, True, False]), np.array([True, comm.size == 1, False])
    for op, expected in ((ReduceOp.SUM, some), (ReduceOp.MAX, some), (ReduceOp.PRODUCT, every), (ReduceOp.MIN, every)):
        equal(comm.all_reduce(arrays[comm.rank], op), expected, op)
        sizes = [3] + [0] * (comm.size - 1)
        equal(comm.reduce_scatter(arrays[comm.rank], op=op, sizes=sizes), expected[: sizes[comm.rank]], op)


def check_reduce_scatter(comm):
    for dtype, op in itertools.product(NUMBERS, ReduceOp):
        if meaningful(op, dtype):
            arrays = given(comm, (2 * comm.size, 3), dtype)
            part = slice(2 * comm.rank, 2 * comm.rank + 2)
            equal(comm.reduce_scatter(arrays[comm.rank], op=op), reduced(arrays, op)[part], (dtype, op))


def check_reduce_scatter_dims_and_sizes(comm):
    for sizes, dim, layout in itertools.product(uneven(comm), (0, 1, -1), LAYOUTS):
        shape = [2, 3, 4]
        shape[dim] = sum(sizes)
        arrays = given(comm, shape, "f4")
        part = np.split(reduced(arrays, ReduceOp.SUM), np.cumsum(sizes)[:-1], axis=dim)[comm.rank]
        x = LAYOUTS[layout](arrays[comm.rank])
        equal(comm.reduce_scatter(x, dim, sizes=sizes), part, (sizes, dim, layout))


def check_refused_reductions(comm):
    """What has no meaning is an error at once, on every rank, and leaves the group usable."""
    for x, op, error in (
        (np.arange(3), ReduceOp.AVG, ValueError),
        (np.array([True]), ReduceOp.AVG, ValueError),
        (np.ones(3, complex), ReduceOp.MAX, ValueError),
        (np.array(["a"]), ReduceOp.SUM, TypeError),
    ):
        with pytest.raises(error, match="reduction"):
            comm.all_reduce(x, op)
    with pytest.raises(ValueError, match="median"):
        comm.all_reduce(np.ones(3), "median")
    with pytest.raises(ValueError, match=r"all_reduce: out\n  got"):
        comm.all_reduce(np.ones(3), out=np.ones(4))
    comm.barrier()


# ---- moves
def check_all_gather(comm):
    for dtype, layout in itertools.product([*NUMBERS, "?", "M8[s]", "i4,f8"], LAYOUTS):
        arrays = given(comm, (2, 3), "i8" if dtype == "M8[s]" else "f8")
        arrays = [x.astype(dtype) for x in arrays]
        got = comm.all_gather(LAYOUTS[layout](arrays[comm.rank]))
        assert got.dtype == np.dtype(dtype).newbyteorder("=")
        assert np.array_equal(got.astype(dtype), np.concatenate(arrays)), (dtype, layout)


def check_all_gather_dims_and_sizes(comm):
    for sizes, dim, layout in itertools.product(uneven(comm), (0, 1, 2, -1, -2), LAYOUTS):
        shape = [2, 3, 4]
        shape[dim] = sum(sizes)
        whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        parts = np.split(whole, np.cumsum(sizes)[:-1], axis=dim)
        equal(comm.all_gather(LAYOUTS[layout](parts[comm.rank]), dim, sizes=sizes), whole, (sizes, dim, layout))


def check_all_to_all(comm):
    for layout, dtype in itertools.product(LAYOUTS, ("f4", "?", ml_dtypes.bfloat16)):

        def part(source, dest, dtype=dtype):
            return given(comm, ((source + dest) % 3, 2, dest + 1), dtype)[source]

        everyone = range(comm.size)
        shapes = [part(source, comm.rank).shape for source in everyone]
        got = comm.all_to_all([LAYOUTS[layout](part(comm.rank, dest)) for dest in everyone], shapes)
        for source in everyone:
            equal(got[source], part(source, comm.rank), (layout, dtype, source))


def check_broadcast(comm):
    for root, layout, dtype in itertools.product(range(comm.size), LAYOUTS, ("f4", "c16", ml_dtypes.bfloat16)):
        arrays = given(comm, dtype=dtype)
        x = LAYOUTS[layout](arrays[comm.rank])
        got = comm.broadcast(x, root)
        equal(got, arrays[root], (root, layout))
        equal(x, arrays[comm.rank], "the argument is not modified")
        assert not np.shares_memory(got, x)


def check_send_and_recv(comm):
    """Around a ring, also to oneself; messages of one tag stay in order, others may be taken in any."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    arrays = given(comm)
    outs = [np.zeros((3, 4)), np.zeros((3, 8))[:, ::2], np.zeros((4, 3)).T, np.zeros((3, 4), ">f8")]
    for layout, out in itertools.product(LAYOUTS, outs):
        sent = comm.isend(LAYOUTS[layout](arrays[comm.rank].astype(out.dtype)), right)
        assert comm.recv(out, left) is out
        sent.wait()
        np.testing.assert_array_equal(out, arrays[left])
    works = [comm.isend(np.array([i]), right, tag=i % 2) for i in range(4)]
    got = [int(comm.recv(np.zeros(1, int), left, tag)[0]) for tag in (1, 0, 1, 0)]
    assert got == [1, 0, 3, 2]
    assert [work.wait() for work in works] == [None] * 4


def check_no_elements(comm):
    nothing = np.empty((0, 3), "f4")
    equal(comm.all_reduce(nothing), nothing)
    equal(comm.all_gather(nothing), nothing)
    equal(comm.reduce_scatter(nothing), nothing)
    equal(comm.broadcast(nothing, comm.size - 1), nothing)
    for got in comm.all_to_all([nothing] * comm.size, [(0, 3)] * comm.size):
        equal(got, nothing)
    work = comm.isend(nothing, (comm.rank + 1) % comm.size)
    equal(comm.recv(np.empty((0, 3), "f4"), (comm.rank - 1) % comm.size), nothing)
    work.wait()


def check_single_elements(comm):
    x = np.array(comm.rank + 1.0)
    assert x.shape == comm.all_reduce(x).shape == comm.broadcast(x).shape == ()
    assert comm.all_reduce(x) == sum(range(comm.size + 1))
    for verb in (comm.all_gather, comm.reduce_scatter):
        with pytest.raises(ValueError, match="dim"):
            verb(x)


def check_long_messages_b03(comm):
    """Case B03: 2,501 elements are no multiple of the pieces they may be cut into; the last one counts."""
    n = 2501
    arrays = [np.arange(n) % 50 + 1000 * rank for rank in range(comm.size)]
    x = arrays[comm.rank]
    equal(comm.all_reduce(x), sum(arrays))
    equal(comm.broadcast(x, comm.size - 1), arrays[-1])
    equal(comm.all_gather(x), np.concatenate(arrays))
    sizes = [n - 10 * rank for rank in range(comm.size)]
    equal(
        comm.all_gather(x[: sizes[comm.rank]], sizes=sizes),
        np.concatenate([a[:k] for a, k in zip(arrays, sizes, strict=True)]),
    )
    starts = np.cumsum([0, *sizes])
    whole = np.arange(starts[-1]) + comm.rank
    mine = np.arange(*starts[comm.rank : comm.rank + 2]) * comm.size + sum(range(comm.size))
    equal(comm.reduce_scatter(whole, sizes=sizes), mine)
    got = comm.all_to_all([x[:k] for k in sizes], [(sizes[comm.rank],)] * comm.size)
    equal(np.stack(got), np.stack([a[: sizes[comm.rank]] for a in arrays]))
    work = comm.isend(x, (comm.rank + 1) % comm.size)
    equal(comm.recv(np.zeros_like(x), (comm.rank - 1) % comm.size), arrays[comm.rank - 1])
    work.wait()
    assert comm.broadcast_object("a" * n + "z" if comm.rank == 0 else None) == "a" * n + "z"


# ---- roots
def check_reduce(comm):
    for dtype, op in itertools.product(("i4", "f4", "c16", ml_dtypes.bfloat16), ReduceOp):
        if meaningful(op, dtype):
            arrays = given(comm, (2, 3), dtype)
            root = comm.size - 1
            got = comm.reduce(arrays[comm.rank], root, op)
            if comm.rank == root:
                equal(got, reduced(arrays, op), (dtype, op))
            else:
                assert got is None
    arrays = given(comm)
    out = np.zeros((3, 8))[:, ::2]
    got = comm.reduce(np.asfortranarray(arrays[comm.rank]), out=out)
    assert got is (None if comm.rank else out)
    equal(out, np.zeros((3, 4)) if comm.rank else sum(arrays))


def check_gather(comm):
    """Equal and uneven sizes, any layout, into lists of the root's or new ones."""
    for root, layout in itertools.product(range(comm.size), LAYOUTS):
        arrays = given(comm, (3, 4), "f4")
        got = comm.gather(LAYOUTS[layout](arrays[comm.rank]), root)
        if comm.rank == root:
            for mine, expected in zip(got, arrays, strict=True):
                equal(mine, expected, layout)
        else:
            assert got is None
    for sizes in uneven(comm):
        mine = np.full((sizes[comm.rank], 2), float(comm.rank))
        out = [np.empty((n, 4))[:, ::2] for n in sizes] if comm.rank == 0 else None
        got = comm.gather(mine, out=out)
        for rank, (a, b) in enumerate(zip(got or (), out or (), strict=True)):
            assert a is b
            equal(a, np.full((sizes[rank], 2), float(rank)))


def check_scatter(comm):
    for root, layout in itertools.product(range(comm.size), LAYOUTS):
        arrays = given(comm, (3, 4), "f4")
        parts = [LAYOUTS[layout](a) for a in arrays] if comm.rank == root else None
        for out in (np.empty((3, 4), "f4"), np.empty((3, 8), "f4")[:, ::2], np.empty((4, 3), "f4").T):
            assert comm.scatter(parts, out, root) is out
            equal(out, arrays[comm.rank], layout)
    for sizes in uneven(comm):
        parts = [np.full(n, float(rank)) for rank, n in enumerate(sizes)] if comm.rank == 0 else None
        equal(comm.scatter(parts, np.empty(sizes[comm.rank])), np.full(sizes[comm.rank], float(comm.rank)))


def check_results_where_they_are_wanted(comm):
    """``out`` of every verb: contiguous, strided and Fortran-ordered."""
    n, rank = comm.size, comm.rank
    arrays = given(comm, (n, 4), "f8")
    total = reduced(arrays, ReduceOp.SUM)

    def outs(rows, columns):
        yield np.full((rows, columns), -1.0)
        yield np.full((rows, 2 * columns), -1.0)[:, ::2]
        yield np.full((columns, rows), -1.0).T

    for out in outs(n * n, 4):
        assert comm.all_gather(arrays[rank], out=out) is out
        equal(out, np.concatenate(arrays))
    for out in outs(n, 4 * n):
        assert comm.all_gather(arrays[rank], 1, out=out) is out
        equal(out, np.concatenate(arrays, axis=1))
    for out in outs(1, 4):
        assert comm.reduce_scatter(arrays[rank], out=out) is out
        equal(out, total[rank : rank + 1])
    for out in outs(n, 4):
        out[...] = arrays[rank]
        assert comm.broadcast(out, n - 1, out=out) is out
        equal(out, arrays[-1])
    for out in zip(*[outs(1, 4) for _ in range(n)], strict=True):
        got = comm.all_to_all(list(arrays[rank][:, None]), [(1, 4)] * n, out=out)
        for source, (a, b) in enumerate(zip(got, out, strict=True)):
            assert a is b
            equal(a, arrays[source][rank : rank + 1])


def check_any_source(comm):
    """A receive without a source takes what comes, and says from whom; tags and orders of a pair are kept."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sent = [comm.isend(np.array([comm.rank, k]), rank, tag=7) for rank in others for k in range(2)]
    seen = []
    for _ in range(2 * len(others)):
        work = comm.irecv(np.empty(2, int), tag=7)
        out = work.wait()
        assert work.source == out[0]
        seen.append(tuple(out.tolist()))
    assert sorted(seen) == [(rank, k) for rank in others for k in range(2)]
    for rank in others:
        assert [k for source, k in seen if source == rank] == [0, 1]
    for work in sent:
        work.wait()
    comm.barrier()


# ---- works
def check_works_end_in_any_order(comm):
    arrays = given(comm, (1000,))
    x = arrays[comm.rank]
    works = [
        comm.iall_reduce(x),
        comm.iall_gather(x),
        comm.ibroadcast(x),
        comm.ireduce_scatter(x, sizes=first(comm, 1000)),
    ]
    for work in works:
        comm.watch(work)
    expected = [reduced(arrays, ReduceOp.SUM), np.concatenate(arrays), arrays[0]]
    expected.append(expected[0] if comm.rank == 0 else expected[0][:0])
    for work, value in reversed(list(zip(works, expected, strict=True))):
        equal(work.wait(), value)
    for work, value in zip(works, expected, strict=True):
        assert work.test()
        equal(work.result(), value)
        assert work.wait() is work.wait()


def check_buffers_live_as_long_as_their_works(comm):
    """What was packed for a work is not given to anybody else before the work is done."""
    for n in (comm.size * 4, comm.size * 50, comm.size * 200):
        x = np.arange(6.0 * n).reshape(6, n) + comm.rank
        total = (x - comm.rank) * comm.size + comm.size * (comm.size - 1) / 2
        out = np.empty_like(x)
        works = [comm.ireduce_scatter(x, dim=1) for _ in range(3)]
        works.append(comm.iall_reduce(np.asfortranarray(x), out=out))
        junk = [np.full((n, 6), -1e9) for _ in range(8)]
        for work in works[:3]:
            equal(work.wait(), np.split(total, comm.size, axis=1)[comm.rank])
        equal(works[3].wait(), total)
        assert len(junk) == 8


def check_test_makes_progress(comm):
    work = comm.iall_reduce(np.ones(10_000))
    while not work.test():
        comm.poll()
    equal(work.result(), np.full(10_000, float(comm.size)))
    comm.ibarrier().wait()


def first(comm, n):
    return [n] + [0] * (comm.size - 1)


# ---- arguments
def check_arguments(comm):
    """Wrong arguments are errors at once on the rank that passes them."""
    x, n = np.ones((3, 4)), comm.size
    for call, text in (
        (lambda: comm.broadcast(x, n), "broadcast: root"),
        (lambda: comm.broadcast(x, -1), "broadcast: root"),
        (lambda: comm.isend(x, n), "send: dest"),
        (lambda: comm.irecv(x, -1), "recv: source"),
        (lambda: comm.all_gather(x, 2), "all_gather: dim"),
        (lambda: comm.all_gather(x, sizes=[3] * (n + 1)), "all_gather: sizes"),
        (lambda: comm.all_gather(x, sizes=[-1] * n), "all_gather: sizes"),
        (lambda: comm.all_gather(x, sizes=[2] * n), "all_gather: extent of dim 0"),
        (lambda: comm.reduce_scatter(x, -3), "reduce_scatter: dim"),
        (lambda: comm.reduce_scatter(x, sizes=[2] * n), "reduce_scatter: sizes"),
        (lambda: comm.all_to_all([x] * (n + 1), [x.shape] * n), "all_to_all: parts and shapes"),
        (lambda: comm.all_to_all([x] * n, [x.shape] * (n - 1)), "all_to_all: parts and shapes"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    if n > 1:
        with pytest.raises(ValueError, match=r"reduce_scatter: dim 0 does not divide by \d ranks\n  got"):
            comm.reduce_scatter(np.ones(n + 1))
        with pytest.raises(TypeError, match="all_to_all: dtype of parts"):
            comm.all_to_all([x] * (n - 1) + [np.ones(3, int)], [(3,)] * n)
    comm.barrier()


# ---- objects, errors, groups
def check_objects(comm):
    value = {"rank": comm.rank, "text": "x" * (100 * comm.rank), "array": np.arange(comm.rank)}
    got = comm.all_gather_object(value)
    assert [v["rank"] for v in got] == list(range(comm.size))
    assert [len(v["text"]) for v in got] == [100 * rank for rank in range(comm.size)]
    assert got[comm.rank] is not value
    last = comm.size - 1
    assert comm.broadcast_object(f"from {comm.rank}", last) == f"from {last}"


def check_objects_with_large_arrays(comm):
    """Arrays travel beside the pickle, arrive writable, and leave the sender's alone."""
    most = 100_001 if getattr(comm, "max_count", 2**31) >= 100 else 1001
    for n in (0, 1, 1000, most):
        value = {"a": np.arange(n) + comm.rank, "b": [np.full(n, comm.rank, "f4"), "text"], "c": np.arange(2.0)}
        for rank, told in enumerate(comm.all_gather_object(value)):
            equal(told["a"], np.arange(n) + rank)
            equal(told["b"][0], np.full(n, rank, "f4"))
            told["a"][...] = -1
        root = comm.size // 2
        told = comm.broadcast_object(value if comm.rank == root else None, root)
        equal(told["a"], np.arange(n) + root)
        told["a"] += 1
        equal(value["a"], np.arange(n) + comm.rank)


def check_objects_that_cannot_be_pickled(comm):
    last = comm.size - 1
    with pytest.raises(TypeError, match=f"rank {last} cannot be pickled"):
        comm.all_gather_object((lambda: 0) if comm.rank == last else 0)
    with pytest.raises(TypeError, match=f"broadcast_object: the value of rank {last} cannot be pickled"):
        comm.broadcast_object((lambda: 0) if comm.rank == last else 0, last)
    assert comm.broadcast_object(comm.rank, last) == last


def check_agree(comm):
    comm.agree(None)
    last = comm.size - 1
    with pytest.raises(ValueError, match="boom") as caught, comm.agreed():
        _fail_if(comm.rank == last, f"boom on {comm.rank}")
    assert str(caught.value) == f"boom on {last}"
    if comm.size > 1:
        assert caught.value.__notes__ == [f"on rank {last} of {comm.size}"]
    comm.barrier()


def _fail_if(failing, text):
    if failing:
        raise ValueError(text)


def check_split(comm):
    """Colors make groups, keys order them, None stays out; groups have message spaces of their own."""
    group = comm.split(comm.rank % 2, key=-comm.rank)
    members = sorted((rank for rank in range(comm.size) if rank % 2 == comm.rank % 2), reverse=True)
    assert (group.rank, group.size) == (members.index(comm.rank), len(members))
    assert group.all_gather(np.array([comm.rank])).tolist() == members
    work = comm.iall_reduce(np.array([1]))
    assert group.all_reduce(np.array([comm.rank])).tolist() == [sum(members)]
    assert work.wait().tolist() == [comm.size]
    assert comm.split(None if comm.rank else 0, 0) is None or comm.rank == 0
    assert (group.timeout_s, group.reproducible) == (comm.timeout_s, comm.reproducible)
    group.free()


def check_create_group_of_some_ranks_in_their_order(comm):
    ranks = list(range(comm.size))[::-2]
    if comm.rank in ranks:
        group = comm.create_group(ranks)
        assert (group.rank, group.size, list(group.members)) == (ranks.index(comm.rank), len(ranks), ranks)
        assert group.all_gather(np.array([comm.rank])).tolist() == ranks
        again = comm.create_group(ranks)
        assert again.all_reduce(np.array([1])).tolist() == [len(ranks)]
    comm.barrier()


def check_create_group_refuses(comm):
    for ranks, reason in (([comm.size], "each once"), ([0, 0], "each once"), ([-1], "each once")):
        with pytest.raises(ValueError, match=reason):
            comm.create_group(ranks)
    with pytest.raises(ValueError, match=f"rank {comm.rank} is not among"):
        comm.create_group([rank for rank in range(comm.size) if rank != comm.rank])
    if comm.size > 1:
        ranks = list(range(comm.size))
        with pytest.raises(CollectiveMismatchError, match=r"create_group|disagree"):
            comm.create_group(ranks[:: -1 if comm.rank else 1])
    comm.barrier()


def check_members_are_global_ranks(comm):
    assert list(comm.members) == list(range(comm.size))
    part = comm.split(0 if comm.rank else None, -comm.rank)
    if part is not None:
        assert list(part.members) == list(range(comm.size))[:0:-1]
        assert list(part.dup().members) == list(part.members)
        assert list(part.split(part.rank % 2).members) == list(part.members)[part.rank % 2 :: 2]


def check_collectives_after_an_uneven_number_of_messages(comm):
    if comm.rank == 0:
        for source in range(1, comm.size):
            comm.recv(np.empty(1), source)
    else:
        comm.send(np.ones(1), 0)
    assert comm.all_reduce(np.ones(1)).tolist() == [comm.size]


def check_split_refuses_what_mpi_cannot_take(comm):
    """On every rank, and before any other rank waits in a call that has no time limit."""
    for color, key in ((-1, 0), (2**31, 0), (1.5, 0), ("a", 0), (0, 2**31), (0, 0.5)):
        with pytest.raises(ValueError, match=r"split: (color|key)"):
            comm.split(color, key)
    assert comm.split(2**31 - 1, np.int64(-comm.rank)).size == comm.size


def check_objects_have_a_root_in_the_group(comm):
    for root in (-1, comm.size):
        with pytest.raises(ValueError, match="broadcast_object: root"):
            comm.broadcast_object(1, root)


def check_node_and_twin(comm):
    node = comm.split_node()
    assert (node.rank, node.size) == (comm.rank, comm.size)
    twin = comm.dup()
    assert (twin.rank, twin.size) == (comm.rank, comm.size)
    a, b = comm.iall_reduce(np.array([1])), twin.iall_reduce(np.array([10]))
    assert (b.wait()[0], a.wait()[0]) == (10 * comm.size, comm.size)
    twin.free()
    node.free()


def check_every_other_rank_b09(comm):
    """Case B09: sum and mean over ranks 0 and 2 divide by 2; the others stay out, and all go on together."""
    member = comm.rank % 2 == 0
    group = comm.split(0 if member else None)
    members = range(1, comm.size + 1, 2)
    if member:
        assert group.all_reduce(np.array([comm.rank + 1.0])).tolist() == [sum(members)]
        assert group.all_reduce(np.array([comm.rank + 1.0]), ReduceOp.AVG).tolist() == [sum(members) / len(members)]
        root = group.size - 1
        assert group.broadcast(np.array([comm.rank]), root).tolist() == [members[root] - 1]
    else:
        assert group is None
    assert comm.all_reduce(np.array([1])).tolist() == [comm.size]


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]
