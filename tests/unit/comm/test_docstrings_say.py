"""A function communicates exactly if its docstring says "Collective over" or "Point to point"."""

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import distributed_calls
import hook_calls
import numpy as np
import pytest

import hpcdist
import hpcdist.comm as dist
from hpcdist import checkpoint, nn, optim, parallel, train
from hpcdist.autograd import Tensor
from hpcdist.autograd.operators import Operators
from hpcdist.comm import Communicator, DeviceMesh, DryCommunicator, init_device_mesh, on_every_rank, on_one_rank
from hpcdist.dtensor import Partial, Replicate, move, redistribute

SAYS = re.compile("collective over|point to point", re.IGNORECASE)
RANK_FREE = ("autograd", "backends", "data", "kernels", "nn", "optim")  # the layer contract keeps comm out of these
ONES = np.ones((4, 2), np.float32)


def model():
    return nn.Linear(2, 2)


def replica(comm):
    made = parallel.replicate(model(), comm)
    made.module(Tensor(ONES)).sum().backward()
    return made


def sharded(comm):
    return parallel.fully_shard(model(), mesh=comm)


def failed(comm):
    """A sharded module whose last backward has failed."""
    made, x = sharded(comm), Tensor(ONES, requires_grad=True)
    x.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made(x).sum().backward()
    return made


def scaler(comm):
    made = model()
    made(Tensor(ONES)).sum().backward()
    return parallel.ShardedGradScaler(process_group=comm), optim.SGD(made.parameters())


def loss(comm):
    return parallel.replicate(model(), comm).module(Tensor(ONES)).sum()


def mesh(comm):
    return init_device_mesh((2, 2), ("dp", "tp"), comm)


@train.told_once("test")
def told():
    return None


# name: (what is made before, from a communicator; the call). Made things are not counted.
def of(name, make, **calls):
    return {f"{name}.{method}": (make, call) for method, call in calls.items()}


COMM = of(
    "comm.Communicator",
    lambda comm: comm,
    iall_reduce=lambda c: c.iall_reduce(ONES),
    iall_gather=lambda c: c.iall_gather(ONES),
    ireduce_scatter=lambda c: c.ireduce_scatter(ONES),
    iall_to_all=lambda c: c.iall_to_all([ONES] * 4, [(4, 2)] * 4),
    ibroadcast=lambda c: c.ibroadcast(ONES),
    ireduce=lambda c: c.ireduce(ONES),
    igather=lambda c: c.igather(ONES),
    iscatter=lambda c: c.iscatter(None, ONES.copy()),
    isend=lambda c: c.isend(ONES, 1),
    irecv=lambda c: c.irecv(ONES, 1),
    ibarrier=lambda c: c.ibarrier(),
    all_reduce=lambda c: c.all_reduce(ONES),
    all_gather=lambda c: c.all_gather(ONES),
    reduce_scatter=lambda c: c.reduce_scatter(ONES),
    all_to_all=lambda c: c.all_to_all([ONES] * 4, [(4, 2)] * 4),
    broadcast=lambda c: c.broadcast(ONES),
    reduce=lambda c: c.reduce(ONES),
    gather=lambda c: c.gather(ONES),
    scatter=lambda c: c.scatter(None, ONES.copy()),
    send=lambda c: c.send(ONES, 1),
    recv=lambda c: c.recv(ONES.copy(), 1),
    barrier=lambda c: c.barrier(),
    watch=lambda c: c.watch(c),
    poll=lambda c: c.poll(),
    all_gather_object=lambda c: c.all_gather_object(1),
    broadcast_object=lambda c: c.broadcast_object(1),
    split=lambda c: c.split(0),
    split_by=lambda c: c.split_by(lambda _: (0, 0)),
    create_group=lambda c: c.create_group([2, 0]),
    split_node=lambda c: c.split_node(),
    dup=lambda c: c.dup(),
    free=lambda c: c.free(),
    check_usable=lambda c: c.check_usable("verb"),
    agree=lambda c: c.agree(None),
    agreed=lambda c: c.agreed().__enter__() or c.agree(None),
)
CALLS = COMM | {name.replace("comm.Communicator", "comm.DryCommunicator"): row for name, row in COMM.items()}
CALLS |= {
    "init": (lambda comm: comm, lambda comm: hpcdist.init(comm)),
    "init_device_mesh": (lambda comm: comm, mesh),
    "comm.init_device_mesh": (lambda comm: comm, mesh),
    "comm.DeviceMesh": (lambda comm: comm, lambda comm: DeviceMesh([[0, 1], [2, 3]], comm=comm)),
    "comm.DryCommunicator": (lambda comm: comm, lambda _: DryCommunicator(4)),
    "dtensor.move": (lambda comm: comm, lambda comm: move(ONES, Partial(), Replicate(), comm, (4, 2))),
    "dtensor.redistribute": (
        lambda comm: comm,
        lambda comm: redistribute(Tensor(ONES), Partial(), Replicate(), comm, (4, 2)),
    ),
    "parallel.replicate": (lambda comm: comm, lambda comm: parallel.replicate(model(), comm)),
    "parallel.Replica.reduce": (loss, lambda made: made.backward()),  # calls it
    "parallel.DistributedDataParallel": (
        lambda comm: comm,
        lambda comm: parallel.DistributedDataParallel(model(), process_group=comm),
    ),
    "parallel.FullyShardedDataParallel": (
        lambda comm: comm,
        lambda comm: parallel.FullyShardedDataParallel(model(), comm),
    ),
    "parallel.ShardedGradScaler": (lambda comm: comm, lambda comm: parallel.ShardedGradScaler(process_group=comm)),
    "parallel.checkpoint": (lambda _: model(), lambda made: parallel.checkpoint(made, Tensor(ONES)).sum().backward()),
    "parallel.checkpoint_sequential": (
        lambda _: model(),
        lambda made: parallel.checkpoint_sequential([made, made], 2, Tensor(ONES)).sum().backward(),
    ),
    "parallel.checkpoint_wrapper": (lambda _: model(), parallel.checkpoint_wrapper),
    "parallel.apply_activation_checkpointing": (
        lambda _: nn.Sequential(model()),
        lambda made: parallel.apply_activation_checkpointing(made, check_fn=lambda _: True),
    ),
    "parallel.create_selective_checkpoint_contexts": (
        lambda _: ["linear"],
        parallel.create_selective_checkpoint_contexts,
    ),
    "comm.on_one_rank": (lambda comm: comm, lambda comm: on_one_rank(comm, int)),
    "comm.on_every_rank": (lambda comm: comm, lambda comm: on_every_rank(comm, int)),
    "train.told_once": (lambda comm: comm, lambda _: told()),
}
CALLS |= of(
    "comm.DeviceMesh",
    mesh,
    size=lambda m: m.size(),
    get_rank=lambda m: m.get_rank(),
    get_coordinate=lambda m: m.get_coordinate(),
    get_local_rank=lambda m: m.get_local_rank("dp"),
    get_group=lambda m: m.get_group("dp"),
    get_all_groups=lambda m: m.get_all_groups(),
    flatten=lambda m: m.flatten("all"),
    unflatten=lambda m: m.unflatten("tp", (2, 1), ("outer", "inner")),
    from_group=lambda m: DeviceMesh.from_group(m.get_group("dp")),
    concatenate=lambda m: DeviceMesh.concatenate([m["tp"], m["dp"]]),
    __getitem__=lambda m: m["dp"],
    __repr__=repr,
    __eq__=lambda m: m == m,
    __hash__=hash,
)
CALLS["comm.DeviceMesh.get_mesh_group"] = (
    lambda comm: init_device_mesh((1, 2, 2), ("pp", "dp", "tp"), comm)["dp", "tp"],
    lambda part: part.get_mesh_group(),
)
CALLS |= of(
    "parallel.FSDPModule",
    sharded,
    micro_batch=lambda m: m.micro_batch(2, of=4).__enter__(),
    no_sync=lambda m: m.no_sync().__enter__(),
    reshard=lambda m: m.reshard(),
    set_all_reduce_hook=lambda m: m.set_all_reduce_hook(None),
    set_force_sum_reduction_for_comms=lambda m: m.set_force_sum_reduction_for_comms(True),
    set_gradient_divide_factor=lambda m: m.set_gradient_divide_factor(2),
    set_is_last_backward=lambda m: m.set_is_last_backward(False),
    set_modules_to_backward_prefetch=lambda m: m.set_modules_to_backward_prefetch([m]),
    set_modules_to_forward_prefetch=lambda m: m.set_modules_to_forward_prefetch([m]),
    set_reduce_scatter_unused_params=lambda m: m.set_reduce_scatter_unused_params(True),
    set_requires_all_reduce=lambda m: m.set_requires_all_reduce(False),
    set_requires_gradient_sync=lambda m: m.set_requires_gradient_sync(False),
    set_reshard_after_backward=lambda m: m.set_reshard_after_backward(False),
    set_prefetch=lambda m: m.set_prefetch(True),
    set_reshard_after_forward=lambda m: m.set_reshard_after_forward(False),
    set_unshard_in_backward=lambda m: m.set_unshard_in_backward(False),
    turns=lambda m: m.turns(4),
    unshard=lambda m: m.unshard(),
)
CALLS |= {
    "parallel.FSDPModule.reset_iter_state": (failed, lambda m: m.reset_iter_state()),
    "parallel.DataParallelMeshDims.of": (mesh, lambda m: parallel.DataParallelMeshDims(("dp", "tp")).of(m)),
    "parallel.fully_shard": (lambda comm: comm, sharded),
    "parallel.register_fsdp_forward_method": (
        sharded,
        lambda m: parallel.register_fsdp_forward_method(m, "forward"),
    ),
}
CALLS |= of(
    "parallel.Replica",
    replica,
    gather=lambda r: r.gather(r._units[0].parameters),
    home=lambda r: (r.module.zero_grad(), r.home(r.module.weight)),
    unused_parameters=lambda r: r.unused_parameters(),
    missed=lambda r: r.missed(),
    free=lambda r: r.free(),
    finish=lambda r: r.finish(),
    set_requires_gradient_sync=lambda r: r.set_requires_gradient_sync(False),
    no_sync=lambda r: r.no_sync().__enter__(),
    turns=lambda r: r.turns(8),
    micro_batch=lambda r: r.micro_batch(4, of=8).__enter__(),
    set_gradient_divide_factor=lambda r: r.set_gradient_divide_factor(2),
    register_comm_hook=lambda r: r.register_comm_hook(None, parallel.comm_hooks.noop_hook),
)
CALLS |= of(
    "parallel.ShardedGradScaler",
    scaler,
    get_scale=lambda made: made[0].get_scale(),
    is_enabled=lambda made: made[0].is_enabled(),
    scale=lambda made: made[0].scale(Tensor(ONES)),
    unscale_=lambda made: made[0].unscale_(made[1]),
    step=lambda made: made[0].step(made[1]),
    update=lambda made: made[0].update(2.0),
    state_dict=lambda made: made[0].state_dict(),
    load_state_dict=lambda made: made[0].load_state_dict(made[0].state_dict()),
)


def within(call):
    """Let the communicator be the default group."""

    def called(comm):
        with dist.using_group(comm):
            call(comm)

    return lambda comm: comm, called


def coalesced(_):
    with dist.coalescing_manager():
        dist.all_reduce(ONES.copy())


FOUR = [ONES.copy() for _ in range(4)]
TORCH = {
    "all_gather": lambda _: dist.all_gather(FOUR, ONES),
    "all_gather_into_tensor": lambda _: dist.all_gather_into_tensor(np.empty((16, 2), "f4"), ONES),
    "all_gather_object": lambda _: dist.all_gather_object([None] * 4, 1),
    "all_gather_single": lambda _: dist.all_gather_single(np.empty((16, 2), "f4"), ONES),
    "all_reduce": lambda _: dist.all_reduce(ONES.copy()),
    "all_reduce_coalesced": lambda _: dist.all_reduce_coalesced([ONES.copy()]),
    "all_to_all": lambda _: dist.all_to_all(FOUR, [ONES] * 4),
    "all_to_all_single": lambda _: dist.all_to_all_single(ONES.copy(), ONES),
    "barrier": lambda _: dist.barrier(),
    "batch_isend_irecv": lambda _: dist.batch_isend_irecv([dist.P2POp(dist.isend, ONES, 1)]),
    "broadcast": lambda _: dist.broadcast(ONES.copy(), 0),
    "broadcast_object_list": lambda _: dist.broadcast_object_list([1], 2),
    "coalescing_manager": coalesced,
    "destroy_process_group": lambda _: dist.destroy_process_group(),
    "gather": lambda _: dist.gather(ONES),
    "gather_object": lambda _: dist.gather_object(1),
    "irecv": lambda _: dist.irecv(ONES.copy(), 1),
    "isend": lambda _: dist.isend(ONES, 1),
    "new_group": lambda _: dist.new_group([0, 2]),
    "new_subgroups": lambda _: dist.new_subgroups(),
    "new_subgroups_by_enumeration": lambda _: dist.new_subgroups_by_enumeration([[0, 2], [1]]),
    "recv": lambda _: dist.recv(ONES.copy(), 1),
    "reduce": lambda _: dist.reduce(ONES.copy(), 0),
    "reduce_scatter": lambda _: dist.reduce_scatter(ONES.copy(), FOUR),
    "reduce_scatter_single": lambda _: dist.reduce_scatter_single(ONES[:1].copy(), ONES),
    "reduce_scatter_tensor": lambda _: dist.reduce_scatter_tensor(ONES[:1].copy(), ONES),
    "scatter": lambda _: dist.scatter(ONES.copy()),
    "scatter_object_list": lambda _: dist.scatter_object_list([None], [1] * 4, 2),
    "send": lambda _: dist.send(ONES, 1),
    "send_object_list": lambda _: dist.send_object_list([1], 1),
    "split_group": lambda _: dist.split_group(None, [[2, 0], [1]]),
    "P2POp": lambda _: dist.P2POp(dist.isend, ONES, 1),
    "get_backend": lambda _: dist.get_backend(),
    "get_backend_config": lambda _: dist.get_backend_config(),
    "get_global_rank": lambda _: dist.get_global_rank(None, 1),
    "get_group_rank": lambda _: dist.get_group_rank(None, 1),
    "get_node_local_rank": lambda _: dist.get_node_local_rank(),
    "get_pg_count": lambda _: dist.get_pg_count(),
    "get_process_group_ranks": lambda _: dist.get_process_group_ranks(None),
    "get_rank": lambda _: dist.get_rank(),
    "get_world_size": lambda _: dist.get_world_size(),
    "is_initialized": lambda _: dist.is_initialized(),
    "record_comm": lambda _: dist.record_comm("name").__enter__(),
    "supports_complex": lambda _: dist.supports_complex("sum"),
    "using_group": lambda comm: dist.using_group(comm).__enter__(),
}
CALLS["comm.init_process_group"] = (lambda comm: comm, lambda comm: dist.init_process_group(comm=comm))
CALLS |= {f"comm.{name}": within(call) for name, call in TORCH.items()}
CALLS |= distributed_calls.CALLS | hook_calls.CALLS


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Calls that need a folder, with whether they communicate."""
    monkeypatch.chdir(tmp_path)
    checkpoint.save(tmp_path, {"x": ONES}, step=1)
    return {
        "checkpoint.save": lambda comm: checkpoint.save(tmp_path, {"x": ONES}, step=2, comm=comm),
        "checkpoint.load": lambda _: checkpoint.load(tmp_path),
        "checkpoint.verify": lambda _: checkpoint.verify(tmp_path, 1),
        "checkpoint.latest": lambda _: checkpoint.latest(tmp_path),
        "checkpoint.steps": lambda _: checkpoint.steps(tmp_path),
        "train.open_folder": lambda comm: train.open_folder(tmp_path / "new", comm, name="job"),
        "train.parse_options": lambda comm: train.parse_options(Options, comm, []),
    }


@dataclass
class Options:
    rate: float = train.option(1.0, "a rate")


PLAIN = (
    *("Chunk", "Invariant", "Partial", "Placement", "Replicate", "Shard"),
    *("chunk_range", "chunk_sizes", "dual", "local_shape"),
)
FILES = (
    "checkpoint.save",
    "checkpoint.load",
    "checkpoint.verify",
    "checkpoint.latest",
    "checkpoint.steps",
    "train.open_folder",
    "train.parse_options",
)
EXCLUDED = {
    "comm.Communicator": "has no constructor of its own",
    "comm.LocalCommunicator": "the same verbs for real, and tested as such in tests/comm_suite.py",
    "comm.Store": "shares memory or files, and holds no communicator",
    "comm.HashStore": "shares memory, and holds no communicator",
    "comm.FileStore": "shares files, and holds no communicator",
    "comm.PrefixStore": "a part of another store",
    "comm.monitored_barrier": "names who does not come, and nobody comes here: tests/torch_suite.py",
    "comm.recv_object_list": "unpickles what nobody sends here: tests/torch_suite.py",
    **dict.fromkeys(
        ("comm.FileStore", "comm.HashStore", "comm.PrefixStore", "comm.Store"), "stores hold no communicator"
    ),
    **dict.fromkeys(("comm.Future", "comm.GroupMember", "comm.group", "comm.NonMember"), "ask, and never send"),
    "comm.ProcessGroup": "the name of Communicator in PyTorch",
    "comm.breakpoint": "opens a debugger: tests/torch_suite.py",
    **dict.fromkeys(
        (f"comm.{name}" for name in dist.__all__ if name.startswith("is_") or "debug" in name.lower()),
        "asks the process, not a group",
    ),
    "comm.get_default_backend_for_device": "asks nobody",
    "comm.Work": "waits for what a verb posted",
    "comm.get_default": "makes the process's own group; what it calls, init, is here",
    "elastic": "starts processes; has no communicator before the job has",
    "parallel.DistributedDataParallel": "a module around a Replica: tests/ddp_suite.py counts what it communicates",
    "parallel.FullyShardedDataParallel": "a module around sharded units: tests/fsdp_class_suite.py counts",
    **dict.fromkeys(
        (f"parallel.{name}" for name in parallel.__all__ if name.endswith(("Config", "wrap_policy"))),
        "options and choices",
    ),
    **dict.fromkeys(
        (
            *("parallel.BackwardPrefetch", "parallel.CPUOffload", "parallel.MixedPrecision"),
            *("parallel.ShardingStrategy", "parallel.StateDictSettings", "parallel.StateDictType"),
        ),
        "options",
    ),
    **dict.fromkeys(("parallel.CustomPolicy", "parallel.ModuleWrapPolicy"), "ask modules"),
    "dtensor.CommDebugMode": "watches what others communicate",
    "parallel.CPUOffloadPolicy": "options",
    "parallel.comm_hooks.Answer": "a type",
    "parallel.SyncBatchNorm": "a module: tests/syncbn_suite.py counts what it communicates",
    "parallel.DataParallelMeshDims": "options",
    "parallel.FSDPModule": "made by fully_shard; it does not cast",
    "parallel.MixedPrecisionPolicy": "options",
    "parallel.OffloadPolicy": "options",
    "parallel.Replica": "made by replicate",
    "parallel.ShardedGradScaler": "has the methods of optim.GradScaler, which knows no ranks",
    "train.Loop": "its three methods are verbs on real data: tests/e2e runs them",
    "train.Strategy": "a protocol",
    "train.TrainState.state_dict": "gathers distributed parameters: tests/e2e runs it",
    **dict.fromkeys((f"dtensor.{name}" for name in PLAIN), "placements and what they say of extents"),
    "train": "curves, metrics, progress and state hold no communicator",
}
HOLDERS = ("comm", "dtensor", "dtensor.functional", "parallel", "parallel.comm_hooks", "checkpoint", "train", "elastic")


def public():
    """Yield (name, callable, its documentation) of everything public that could reach a communicator."""
    for name in ("init", "init_device_mesh"):
        yield name, getattr(hpcdist, name)
    for package in HOLDERS:
        module = importlib.import_module(f"hpcdist.{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) and issubclass(thing, BaseException | str):
                continue
            if callable(thing):
                yield f"{package}.{name}", thing
            if inspect.isclass(thing):
                yield from ((f"{package}.{name}.{m}", f) for m, f in methods(thing))


def methods(kind):
    for name, function in inspect.getmembers(kind, lambda f: inspect.isfunction(f) or inspect.ismethod(f)):
        special = name in ("__getitem__", "__repr__", "__eq__", "__hash__") and kind is DeviceMesh
        operation = function.__module__ == Operators.__module__  # what it communicates follows from layouts
        if (not name.startswith("_") or special) and function.__module__.startswith("hpcdist") and not operation:
            yield name, function


def says(name):
    return bool(SAYS.search(inspect.getdoc(dict(public())[name]) or ""))


def is_excluded(name):
    parts = name.split(".")
    return any(".".join(parts[:n]) in EXCLUDED for n in range(1, len(parts) + 1))


def counted(comm, call, *args):
    before = len(comm.calls)
    call(*args)
    return len(comm.calls) - before


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_communicates_exactly_if_its_docstring_says_so(name, monkeypatch):
    monkeypatch.setattr("hpcdist.comm.init._default", None)
    comm = DryCommunicator(4, 2)
    make, call = CALLS[name]
    made = make(comm)
    assert (counted(comm, call, made) > 0) is says(name)


def test_the_same_of_calls_that_need_a_folder(files):
    assert tuple(files) == FILES
    for name, call in files.items():
        comm = DryCommunicator(4, 0)
        assert (counted(comm, call, comm) > 0) is says(name), name


def test_every_public_callable_is_called_here_or_excluded_for_a_reason():
    missing = [name for name, _ in public() if name not in {*CALLS, *FILES} and not is_excluded(name)]
    assert missing == []
    names = {name for name, _ in public()}
    assert {*CALLS, *FILES} <= names
    # the broad exclusions are only for what says that it does not communicate
    for name in names - {*CALLS, *FILES}:
        broad = not any(name == e or name.startswith(f"{e}.") for e in EXCLUDED if "." in e)
        assert not (broad and says(name)), name


def test_packages_below_ranks_never_say_so():
    folder = Path(hpcdist.__file__).parent
    files = [path for package in RANK_FREE for path in (folder / package).rglob("*.py")]
    assert len(files) > 50
    assert [str(path) for path in files if SAYS.search(path.read_text())] == []


def test_the_rule_has_teeth():
    """A docstring that says nothing is found out, and one that promises too much."""
    assert {name for name in CALLS if says(name)} >= {"init", "parallel.replicate", "comm.Communicator.dup"}
    assert not says("comm.Communicator.poll")
    assert issubclass(DryCommunicator, Communicator)
