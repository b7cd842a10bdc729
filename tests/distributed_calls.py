"""Every public callable of distributed tensors and tensor parallelism, called on a communicator that counts."""

import contextlib

import numpy as np

from hpcdist import dtensor, nn, optim, parallel
from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.init import using_group
from hpcdist.dtensor import DTensor, Invariant, Layout, Partial, Replicate, Shard
from hpcdist.dtensor import functional as fn

ONES = np.ones((4, 2), np.float32)


def gpt():
    return nn.GPT(nn.GPTConfig(vocab_size=2, seq=2, num_layers=1, num_heads=1, width=2))


def mesh(comm):
    return init_device_mesh(4, "tp", comm)


def rows(comm):
    return DTensor.from_local(ONES, mesh(comm), [Shard(0)])


def leaf(comm):
    return DTensor.from_local(Tensor(ONES, requires_grad=True), mesh(comm), [Shard(0)])


def pending(comm):
    return DTensor.from_local(np.ones(()), mesh(comm), [Partial()])


def loss(comm):
    """What is gathered in forward is summed and cut in backward."""
    return leaf(comm).redistribute(placements=[Replicate()]).sum()


def parameter(comm):
    made = dtensor.distribute_tensor(nn.Linear(4, 4).weight, mesh(comm), [Shard(0)], src_data_rank=None)
    made.grad = made.data.copy()
    return made


def made(name):
    return mesh, lambda m: getattr(dtensor, name)(4, 2, device_mesh=m, placements=[Shard(0)])


def mapped(x):
    """Call a function of local parts: its output is cut, so sizes are exchanged."""
    return dtensor.local_map(lambda a: a * 2, [Shard(0)])(x)


DTENSOR = {
    "dtensor.distribute_tensor": (mesh, lambda m: dtensor.distribute_tensor(ONES, m, [Shard(0)])),
    "dtensor.distribute_module": (mesh, lambda m: dtensor.distribute_module(nn.Linear(2, 2), m)),
    **{f"dtensor.{name}": made(name) for name in ("zeros", "ones", "empty", "rand", "randn", "eye")},
    "dtensor.full": (mesh, lambda m: dtensor.full((4, 2), 1, device_mesh=m)),
    "dtensor.arange": (mesh, lambda m: dtensor.arange(4, device_mesh=m)),
    "dtensor.from_function": (mesh, lambda m: dtensor.from_function(lambda i: i, 4, device_mesh=m)),
    "dtensor.visualize_sharding": (rows, dtensor.visualize_sharding),
    "dtensor.local_map": (rows, mapped),
    "dtensor.register_sharding": (mesh, lambda _: dtensor.register_sharding("exp")),
    "dtensor.implicit_replication": (mesh, lambda _: dtensor.implicit_replication().__enter__()),
    "dtensor.Layout": (mesh, lambda m: Layout(m, (Shard(0),), (4, 2), (0,))),
    "dtensor.Layout.of": (mesh, lambda m: Layout.of(m, [Shard(0)], (4, 2))),
    "dtensor.Layout.placed": (rows, lambda x: x.layout.placed([Shard(1)])),
    "dtensor.Layout.at": (rows, lambda x: x.layout.at(0, Invariant())),
    "dtensor.Layout.groups_along": (rows, lambda x: x.layout.groups_along([0])),
    "dtensor.Layout.cutters": (rows, lambda x: x.layout.cutters(0)),
    "dtensor.Layout.runs_at": (rows, lambda x: x.layout.runs_at(0, (1,))),
    "dtensor.Layout.places_along": (rows, lambda x: x.layout.places_along((0,))),
    "dtensor.Layout.indices_at": (rows, lambda x: x.layout.indices_at(0, (1,))),
    "dtensor.Layout.part_of": (rows, lambda x: x.layout.part_of(np.ones((16, 2)))),
    "dtensor.DTensor": (rows, lambda x: DTensor(x.local, x.layout)),
    "dtensor.DTensor.from_local": (mesh, lambda m: DTensor.from_local(ONES, m, [Shard(0)])),
    "dtensor.DTensor.chunks": (rows, lambda x: x.chunks()),
    "dtensor.DTensor.fill": (rows, lambda x: x.fill(lambda _, sizes: np.ones(sizes))),
    "dtensor.DTensor.item": (pending, lambda x: x.item()),
    "dtensor.DTensor.numpy": (pending, lambda x: x.numpy()),
    "dtensor.DTensor.redistribute": (rows, lambda x: x.redistribute(placements=[Shard(1)])),
    "dtensor.DTensor.full_tensor": (rows, lambda x: x.full_tensor()),
    "dtensor.DTensor.to_local": (rows, lambda x: x.to_local()),
    "dtensor.DTensor.new_full": (rows, lambda x: x.new_full((2, 2), 1.0)),
    "dtensor.DTensor.detach": (rows, lambda x: x.detach()),
    "dtensor.DTensor.gradient": (parameter, lambda x: x.gradient()),
    "dtensor.DTensor.register_hook": (leaf, lambda x: x.register_hook(lambda g: g)),
    "dtensor.DTensor.register_post_accumulate_grad_hook": (
        leaf,
        lambda x: x.register_post_accumulate_grad_hook(lambda _: None),
    ),
    "dtensor.DTensor.backward": (loss, lambda x: x.backward()),
}

STYLES = ("ParallelStyle", "ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput")
OUT = {"output_layouts": Shard(0), "desired_output_layouts": Shard(0)}


def style(name):
    """Return a style that changes what it has to."""
    return getattr(parallel, name)(**({} if name in STYLES else OUT))


def of_style(name):
    linear = nn.Linear(2, 2)
    return {
        f"parallel.{name}": (mesh, lambda _: style(name)),
        f"parallel.{name}.placements": (mesh, lambda _: style(name).placements(linear)),
        f"parallel.{name}.wrap": (mesh, lambda m: style(name).wrap(nn.Linear(2, 2), m)),
        f"parallel.{name}.changes": (mesh, lambda _: style(name).changes(linear)),
        f"parallel.{name}.apply": (mesh, lambda m: style(name).apply(nn.Linear(2, 2), m)),
    }


def shared(comm):
    return style("ColwiseParallel").apply(nn.Linear(2, 2), mesh(comm))


PARALLEL = {
    "parallel.parallelize_module": (mesh, lambda m: parallel.parallelize_module(nn.Linear(2, 2), m, {})),
    "parallel.explain_plan": (mesh, lambda m: parallel.explain_plan(nn.Linear(2, 2), m, {})),
    "parallel.gpt_plan": (lambda _: gpt(), parallel.gpt_plan),
    "parallel.loss_parallel": (mesh, lambda _: parallel.loss_parallel().__enter__()),
    "parallel.clip_grad_norm_": (parameter, lambda p: parallel.clip_grad_norm_(p, 1.0)),
    "parallel.full_state_dict": (shared, parallel.full_state_dict),
    "parallel.load_full_state_dict": (
        shared,
        lambda model: parallel.load_full_state_dict(model, nn.Linear(2, 2).state_dict()),
    ),
}
for name in (*STYLES, "PrepareModuleOutput", "PrepareModuleInputOutput"):
    PARALLEL |= of_style(name)


def refused(optimizer):
    with contextlib.suppress(TypeError):
        optimizer.step_param(optimizer.param_groups[0]["params"][0], ONES)


def in_parts(comm):
    """Return an optimizer whose state is dealt out, with gradients."""
    weight = Tensor(ONES.copy(), requires_grad=True)
    weight.grad = ONES.copy()
    return parallel.ZeroRedundancyOptimizer([weight], optim.AdamW, comm)


PARALLEL["parallel.ZeroRedundancyOptimizer"] = (lambda comm: comm, in_parts)
PARALLEL |= {
    f"parallel.ZeroRedundancyOptimizer.{name}": (in_parts, call)
    for name, call in {
        "step": lambda optimizer: optimizer.step(),
        "step_param": refused,
        "zero_grad": lambda optimizer: optimizer.zero_grad(),
        "clip_grad_norm_": lambda optimizer: optimizer.clip_grad_norm_(1.0),
        "add_param_group": lambda optimizer: optimizer.add_param_group({"params": Tensor(ONES, requires_grad=True)}),
        "consolidate_state_dict": lambda optimizer: optimizer.consolidate_state_dict(),
        "state_dict": lambda optimizer: optimizer.state_dict(),
        "load_state_dict": lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    }.items()
}


def averager(comm):
    return parallel.PeriodicModelAverager(2, 0, comm)


def levels(comm):
    return parallel.HierarchicalModelAverager({2: 2, 4: 4}, 0, comm)


def locally(comm):
    """Return an optimizer whose parameters are averaged after the next step."""
    return parallel.PostLocalSGDOptimizer(optim.AdamW([Tensor(ONES.copy(), requires_grad=True)]), averager(comm))


def trained():
    return [Tensor(ONES.copy(), requires_grad=True)]


PARALLEL |= {
    "parallel.average_parameters": (lambda comm: comm, lambda comm: parallel.average_parameters(trained(), comm)),
    "parallel.PeriodicModelAverager": (lambda comm: comm, averager),
    "parallel.PeriodicModelAverager.average_parameters": (averager, lambda made: made.average_parameters(trained())),
    "parallel.HierarchicalModelAverager": (lambda comm: comm, levels),
    "parallel.HierarchicalModelAverager.average_parameters": (levels, lambda made: made.average_parameters(trained())),
    "parallel.PostLocalSGDOptimizer": (lambda comm: comm, locally),
}
PARALLEL |= {
    f"parallel.PostLocalSGDOptimizer.{name}": (locally, call)
    for name, call in {
        "step": lambda optimizer: optimizer.step(),
        "step_param": refused,
        "zero_grad": lambda optimizer: optimizer.zero_grad(),
        "clip_grad_norm_": lambda optimizer: optimizer.clip_grad_norm_(1.0),
        "add_param_group": lambda optimizer: optimizer.add_param_group({"params": [("new", *trained())]}),
        "state_dict": lambda optimizer: optimizer.state_dict(),
        "load_state_dict": lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    }.items()
}

X = Tensor(ONES)
FUNCTIONAL = {
    "all_reduce": lambda: fn.all_reduce(X),
    "all_gather": lambda: fn.all_gather(X),
    "reduce_scatter": lambda: fn.reduce_scatter(None, [X] * 4),
    "all_to_all": lambda: fn.all_to_all(None, [X] * 4),
    "broadcast": lambda: fn.broadcast(X, 0),
    "reduce": lambda: fn.reduce(X, 0),
    "gather": lambda: fn.gather(X, 0),
    "scatter": lambda: fn.scatter([X] * 4, 0),
    "all_gather_tensor": lambda: fn.all_gather_tensor(X, 0),
    "all_gather_tensor_autograd": lambda: fn.all_gather_tensor_autograd(X, 0),
    "reduce_scatter_tensor": lambda: fn.reduce_scatter_tensor(X, "sum", 0),
    "reduce_scatter_tensor_autograd": lambda: fn.reduce_scatter_tensor_autograd(X, "sum", 0),
    "all_to_all_single": lambda: fn.all_to_all_single(None, X),
    "all_to_all_single_autograd": lambda: fn.all_to_all_single_autograd(X, None, None),
    "permute_tensor": lambda: fn.permute_tensor(X, [1, 2, 3, 0]),
}


def in_group(call):
    def called(comm):
        with using_group(comm):
            call()

    return lambda comm: comm, called


CALLS = DTENSOR | PARALLEL | {f"dtensor.functional.{name}": in_group(call) for name, call in FUNCTIONAL.items()}
