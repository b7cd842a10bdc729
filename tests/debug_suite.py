"""CommDebugMode on any communicator: bodies of tests that say exactly what it has to see."""

import numpy as np

import hpcdist.comm as dist
from hpcdist import nn
from hpcdist.autograd import Tensor, apply, define
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.parallel import replicate

X_SHAPE = (2, 3)


def here(function):
    """Return the site of what a function of one line calls."""
    return f"{__file__}:{function.__code__.co_firstlineno}"


def calls(c):
    """Return (verb, arrays or objects this rank brings, function) of every verb in every form; all block at the end."""
    n, root = c.size, 0
    x, whole, parts = np.ones(X_SHAPE), np.ones((n, 3)), [np.ones(rank + 1) for rank in range(n)]
    mine = parts if c.rank == root else None
    out, wide = np.empty(X_SHAPE), np.empty((2 * n, 3))
    row, own, shapes = np.empty((1, 3)), np.empty(c.rank + 1), [(c.rank + 1,)] * n
    got = [np.empty(c.rank + 1) for _ in range(n)]
    places = [np.empty(X_SHAPE) for _ in range(n)] if c.rank == root else None
    return [
        ("all_reduce", [x], lambda: c.all_reduce(x)),
        ("all_reduce", [x], lambda: c.all_reduce(x, out=x)),
        ("all_reduce", [x], lambda: c.iall_reduce(x=x, op="sum", out=out).wait()),
        ("reduce", [x], lambda: c.reduce(x, root)),
        ("reduce", [x], lambda: c.reduce(x, root, out=out)),
        ("reduce", [x], lambda: c.ireduce(x, root).wait()),
        ("reduce_scatter", [whole], lambda: c.reduce_scatter(whole)),
        ("reduce_scatter", [whole], lambda: c.reduce_scatter(whole, out=row)),
        ("reduce_scatter", [whole], lambda: c.ireduce_scatter(whole).wait()),
        ("all_gather", [x], lambda: c.all_gather(x)),
        ("all_gather", [x], lambda: c.all_gather(x, out=wide)),
        ("all_gather", [x], lambda: c.iall_gather(x).wait()),
        ("all_to_all", parts, lambda: c.all_to_all(parts, shapes)),
        ("all_to_all", parts, lambda: c.all_to_all(parts, shapes, out=got)),
        ("all_to_all", parts, lambda: c.iall_to_all(parts, shapes).wait()),
        ("broadcast", [x], lambda: c.broadcast(x, root)),
        ("broadcast", [x], lambda: c.broadcast(x, root, out=x)),
        ("broadcast", [x], lambda: c.ibroadcast(x, root).wait()),
        ("gather", [x], lambda: c.gather(x, root)),
        ("gather", [x], lambda: c.gather(x, root, out=places)),
        ("gather", [x], lambda: c.igather(x, root).wait()),
        ("scatter", mine or [], lambda: c.scatter(mine, own, root)),
        ("scatter", mine or [], lambda: c.iscatter(mine, out=own, root=root).wait()),
        ("barrier", [], lambda: c.barrier()),
        ("barrier", [], lambda: c.ibarrier().wait()),
        ("object", None, lambda: c.all_gather_object({"x": np.ones(3000)})),
        ("object", None, lambda: c.broadcast_object([1, 2], root)),
        ("object", None, lambda: c.agree(None)),
    ]


def check_forms(comm):
    """Every form of every verb is one call, with its bytes, its line and its time; also when it is called again."""
    for verb, brought, function in calls(comm):
        with CommDebugMode() as mode:
            for _ in range(3):
                function()
        assert mode.get_comm_counts() == {verb: 3}
        assert mode.get_total_counts() == 3
        for record in mode.records:
            assert (record.verb, record.group, record.size) == (verb, comm.name, comm.size)
            assert (record.site, record.module, record.phase) == (here(function), None, "forward")
            assert 0 < record.seconds < 60
            assert brought is None or record.payload_bytes == sum(x.nbytes for x in brought)
            first = (brought[0].shape, str(brought[0].dtype)) if brought else (None, None)
            assert (record.shape, record.dtype) == first


def check_messages(comm):
    """A message is one send and one receive, whichever way it goes."""
    if comm.size == 1:
        return
    x, out, right, left = np.ones(5), np.empty(5), (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with CommDebugMode() as mode:
        for _ in range(3):
            sent = comm.isend(x, right)
            comm.recv(out, left)
            sent.wait()
            received = comm.irecv(out, left)
            comm.send(x, right)
            received.wait()
    assert [record.verb for record in mode.records] == ["send", "recv", "recv", "send"] * 3
    assert mode.get_comm_counts() == {"send": 6, "recv": 6}
    assert mode.get_comm_bytes() == {"send": 240, "recv": 240}
    assert all(record.seconds > 0 for record in mode.records)


def check_objects(comm):
    """PyTorch's exchanges of objects are one call each; only who brings something has bytes."""
    everyone, last = [None] * comm.size, comm.size - 1
    with dist.using_group(comm), CommDebugMode() as mode:
        dist.all_gather_object(everyone, "x" * 100)
        dist.gather_object("x" * 100, everyone if comm.rank == 0 else None, 0)
        dist.scatter_object_list([None], ["x" * 100] * comm.size if comm.rank == 0 else None, 0)
        comm.broadcast_object("x" * 100 if comm.rank == last else None, last)
        dist.barrier()
    assert mode.get_comm_counts() == {"object": 4, "barrier": 1}
    sizes = [record.payload_bytes for record in mode.records]
    assert [100 < n < 200 * comm.size for n in sizes] == [True, True, comm.rank == 0, comm.rank == last, False]
    assert [n for n in sizes[2:] if n <= 100] == [0] * (3 - (comm.rank == 0) - (comm.rank == last))


def check_object_messages(comm):
    """A list of objects that travels is one send, and one receive."""
    if comm.size == 1:
        return
    with dist.using_group(comm), CommDebugMode() as mode:
        if comm.rank == 0:
            dist.send_object_list(["x"], 1)
        if comm.rank == 1:
            dist.recv_object_list([None], 0)
    assert mode.get_comm_counts() == ({"object": 1} if comm.rank < 2 else {})


def check_torch_names(comm):
    """A function of PyTorch is what it calls: several collectives that travel together are one."""
    x, y = np.ones(4), np.ones(6)
    with dist.using_group(comm), CommDebugMode() as mode:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        with dist.coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(y)
    assert mode.get_comm_counts() == {"all_reduce": 3}
    assert mode.get_comm_bytes() == {"all_reduce": 32 + 32 + 80}
    assert all(record.site.startswith(__file__) for record in mode.records)
    np.testing.assert_array_equal(y, np.full(6, comm.size))


def check_groups(comm):
    """Groups that are made of others are seen, and that they are made is not counted."""
    with CommDebugMode() as mode:
        part = comm.split(comm.rank % 2, comm.rank)
        twin = part.dup()
        alone = comm.create_group([comm.rank])
        part.all_reduce(np.ones(1), out=np.empty(1))
        twin.iall_gather(np.ones(2)).wait()
        alone.barrier()
    assert mode.get_comm_counts() == {"all_reduce": 1, "all_gather": 1, "barrier": 1}
    half = len(range(comm.rank % 2, comm.size, 2))
    expected = [(part.name, half, 8), (twin.name, half, 16), (alone.name, 1, 0)]
    assert [(r.group, r.size, r.payload_bytes) for r in mode.records] == expected


def check_time(comm):
    """A posted verb has taken no time before somebody has found that it is done."""
    with CommDebugMode() as mode:
        first, second = comm.iall_reduce(np.ones(1)), comm.iall_reduce(np.ones(1))
        assert [record.seconds for record in mode.records] == [None, None]
        second.wait()
        taken = mode.records[1].seconds
        assert mode.records[0].seconds is None
    while not first.test():
        pass
    assert mode.records[0].seconds > taken > 0
    assert (first.wait(), second.wait(), first.result()) == (comm.size,) * 3
    assert mode.records[1].seconds == taken


def check_only_one_rank_looks(comm):
    """Ranks need not agree: what a mode sees is what its own thread calls while it is active."""
    mode = CommDebugMode()
    comm.all_reduce(np.ones(1))
    if comm.rank == comm.size - 1:
        with mode:
            total = comm.all_reduce(np.ones(1))
    else:
        total = comm.all_reduce(np.ones(1))
    comm.all_reduce(np.ones(1))
    assert total == comm.size
    assert mode.get_comm_counts() == ({"all_reduce": 1} if comm.rank == comm.size - 1 else {})


def check_nested(comm):
    """Each mode sees all that is called in its block; one that is entered again starts anew."""
    with CommDebugMode() as outer:
        comm.barrier()
        with CommDebugMode() as inner:
            comm.all_reduce(np.ones(2))
        comm.barrier()
    assert outer.get_comm_counts() == {"barrier": 2, "all_reduce": 1}
    assert inner.get_comm_counts() == {"all_reduce": 1}
    assert inner.records == [outer.records[1]]
    with inner:
        comm.barrier()
    assert inner.get_comm_counts() == {"barrier": 1}


SUM = define(
    "test.sum",
    lambda x, *, comm: (comm.all_reduce(x), ()),
    lambda into, grads, _saved, *, comm: into[0].give(comm.all_reduce(grads[0])),
)


def summed(x, comm):
    """Add what ranks hold, also on one rank, and what they bring in backward."""
    return apply(SUM, x, comm=comm)


class Sum(nn.Module):
    """Add what the ranks hold; so does its backward."""

    def __init__(self, comm):
        super().__init__()
        self.comm, self.weight = comm, nn.Parameter(np.ones(3))

    def forward(self, x):
        return summed(x * self.weight, self.comm)


class Block(nn.Module):
    def __init__(self, comm):
        super().__init__()
        self.first, self.second = Sum(comm), Sum(comm)

    def forward(self, x):
        return self.second(self.first(x))


class Model(nn.Module):
    def __init__(self, comm):
        super().__init__()
        self.comm = comm
        self.blocks = nn.ModuleList([Block(comm), Block(comm)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        self.comm.barrier()
        return x


def places(mode):
    return [(record.module, record.phase, record.verb) for record in mode.records]


SUMS = ["blocks.0.first", "blocks.0.second", "blocks.1.first", "blocks.1.second"]


def check_modules(comm):
    """What modules communicate belongs to the innermost one, in backward to that whose forward recorded it."""
    model, x = Model(comm), Tensor(np.ones(3), requires_grad=True)
    forward = [*((path, "forward", "all_reduce") for path in SUMS), ("", "forward", "barrier")]
    backward = [(path, "backward", "all_reduce") for path in reversed(SUMS)]
    with CommDebugMode(model) as mode:
        y = model(x)
        comm.barrier()
        y.sum().backward()
    assert places(mode) == [*forward, (None, "forward", "barrier"), *backward]
    with CommDebugMode() as mode:
        model(x).sum().backward()
    assert places(mode) == [*forward, *((None, phase, verb) for _, phase, verb in backward)]
    assert [module.around for module in model.modules()] == [[]] * 8


def check_two_calls(comm):
    """Two calls of one module, of which one backward is run: it belongs to the module, and so does a part of it."""
    model = Block(comm)
    x = Tensor(np.ones(3), requires_grad=True)
    with CommDebugMode(model) as mode:
        y, _ = model(x), model.second(x)
        y.sum().backward()
    sums = ("first", "second")
    expected = [*((path, "forward") for path in (*sums, "second")), *((path, "backward") for path in reversed(sums))]
    assert [(record.module, record.phase) for record in mode.records] == expected


class Between(Block):
    """Two children, and a sum of its own before, between and after them."""

    def forward(self, x):
        for child in (self.first, self.second):
            x = child(summed(x, self.first.comm))
        return summed(x, self.first.comm)


def check_between(comm):
    """What a module itself communicates belongs to it, whether its children were called before or will be."""
    model, x = nn.Sequential(Between(comm), Sum(comm)), Tensor(np.ones(3), requires_grad=True)
    with CommDebugMode(model) as mode:
        y = model(summed(x, comm))
        summed(y, comm).sum().backward()
    paths = [None, "0", "0.first", "0", "0.second", "0", "1", None]
    assert [record.module for record in mode.records if record.phase == "forward"] == paths
    assert [record.module for record in mode.records if record.phase == "backward"] == paths[::-1]


def compute_again(module, x):
    """Call a module in a hook, which leaves the gradient as it is."""
    module(x)


def check_again(comm):
    """What backward computes again belongs to the module that is running again, and is done in backward."""
    model, x = Block(comm), Tensor(np.ones(3), requires_grad=True)
    with CommDebugMode(model) as mode:
        y = model.second(x)
        y.register_hook(lambda _: compute_again(model.first, x))
        y.sum().backward()
    expected = [("second", "forward"), ("first", "backward"), ("second", "backward")]
    assert [(record.module, record.phase) for record in mode.records] == expected


def check_hooks(comm):
    """What hooks of a module communicate, and what is wrapped around its call, belongs to it."""
    model = Block(comm)
    model.second.pre.append(lambda _: comm.barrier())
    model.first.post.append(lambda _: comm.barrier())
    model.around.append(lambda call: lambda *args: call(Tensor(comm.all_gather(args[0].data)[:3])))
    with CommDebugMode(model) as mode:
        model(Tensor(np.ones(3)))
    assert places(mode) == [
        ("", "forward", "all_gather"),
        ("first", "forward", "all_reduce"),
        ("first", "forward", "barrier"),
        ("second", "forward", "barrier"),
        ("second", "forward", "all_reduce"),
    ]


def check_replicas(comm):
    """The buckets of data parallelism are reduced in backward, once."""
    made = replicate(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), comm)
    with CommDebugMode(made.module) as mode:
        made.module(Tensor(np.ones((4, 3), np.float32))).sum().backward()
    reduced = [record for record in mode.records if record.verb == "all_reduce"]
    assert {record.phase for record in reduced} <= {"backward"}
    assert sum(record.payload_bytes for record in reduced) >= (11 * 4 if comm.size > 1 else 0)


CHECKS = [
    check_forms,
    check_messages,
    check_objects,
    check_object_messages,
    check_torch_names,
    check_groups,
    check_time,
    check_only_one_rank_looks,
    check_nested,
    check_modules,
    check_two_calls,
    check_between,
    check_again,
    check_hooks,
    check_replicas,
]
