"""Optimizers in parts against the plain ones, bit for bit: bodies of tests that take a communicator."""

import contextlib

import ml_dtypes
import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor, manual_seed, random
from hpcdist.comm import init_device_mesh
from hpcdist.dtensor import Shard, distribute_tensor
from hpcdist.dtensor.debug import CommDebugMode
from hpcdist.optim.lr_scheduler import StepLR
from hpcdist.parallel import ZeroRedundancyOptimizer as Zero
from hpcdist.parallel import replicate

SHAPES = {"big": (7, 5), "one": (), "row": (13,), "none": (0, 3), "frozen": (4,), "half": (9,), "brain": (6,)}
DTYPES = {"half": np.float16, "brain": ml_dtypes.bfloat16, "row": np.float32}
STEPS = 5
KINDS = {
    "sgd": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (optim.Adam, {"lr": 0.1, "amsgrad": True}),
    "adamw": (optim.AdamW, {"lr": 0.1}),
    "rmsprop": (optim.RMSprop, {"lr": 0.1, "momentum": 0.5}),
    "adagrad": (optim.Adagrad, {"lr": 0.1}),
}
WHOLE = {"lamb": (optim.LAMB, {"lr": 0.1}), "lars": (optim.LARS, {"lr": 0.1})}
FORMS = {
    "whole": {},
    "whole, buffer": {"parameters_as_bucket_view": True},
    "elements": {"elementwise": True},
    "elements, buffer": {"elementwise": True, "parameters_as_bucket_view": True},
}


# ---------------------------------------------------------------- what is trained
def drawn(*key):
    return np.random.default_rng(key)


def parameters():
    """Return parameters of many sizes and dtypes, by name."""
    return {
        name: Tensor(np.asarray(drawn(1, i).standard_normal(shape), DTYPES.get(name, "f8")), name != "frozen")
        for i, (name, shape) in enumerate(SHAPES.items())
    }


def give_gradients(params, step, *, parts=1):
    """Give gradients, the same on every rank: all but those of frozen parameters, and of "one" every other time."""
    for i, (name, p) in enumerate(params.items()):
        gradient = drawn(2, step, i).standard_normal((parts, *p.shape)).astype(p.dtype)
        missing = name == "frozen" or (name == "one" and step % 2 == 0)
        p.grad = None if missing else gradient if parts > 1 else np.asarray(gradient[0])


def groups(params):
    """Return two groups with rates of their own, whose dtypes are mixed."""
    names = [*params]
    return [
        {"params": [(n, params[n]) for n in names[::2]], "lr": 0.05},
        {"params": [(n, params[n]) for n in names[1::2]]},
    ]


def steps(optimizer, params, chosen=range(STEPS), **options):
    for step in chosen:
        give_gradients(params, step, **options)
        optimizer.step()
        optimizer.zero_grad()


def plain(kind, **options):
    cls, defaults = {**KINDS, **WHOLE}[kind]
    params = parameters()
    optimizer = cls(groups(params), **defaults)
    steps(optimizer, params, **options)
    return params, optimizer.state_dict()


def zero(comm, kind, form, params=None):
    cls, defaults = {**KINDS, **WHOLE}[kind]
    params = params or parameters()
    return params, Zero(groups(params), cls, comm, **FORMS[form], **defaults)


def assert_same_bits(found, expected):
    assert {n: p.data.tobytes() for n, p in found.items()} == {n: p.data.tobytes() for n, p in expected.items()}


def assert_same_state(found, expected):
    assert found.keys() == {"state", "param_groups"}
    assert found["param_groups"] == expected["param_groups"]
    # an element that does not exist is dealt out to nobody
    filled = {name: entries for name, entries in expected["state"].items() if name != "none"}
    assert {name: e for name, e in found["state"].items() if name != "none"}.keys() == filled.keys()
    for name, entries in filled.items():
        assert found["state"][name].keys() == entries.keys()
        for key, value in entries.items():
            np.testing.assert_array_equal(found["state"][name][key], value, strict=True)


def whole_state(comm, optimizer):
    """Return the whole state, on every rank."""
    optimizer.consolidate_state_dict(comm.size - 1)
    return comm.broadcast_object(optimizer.state_dict(), comm.size - 1)


# ---------------------------------------------------------------- steps
def check_equals_plain(comm, kind, form, parts=1):
    expected, state = plain(kind, parts=parts)
    params, optimizer = zero(comm, kind, form)
    steps(optimizer, params, parts=parts)
    assert_same_bits(params, expected)
    assert_same_state(whole_state(comm, optimizer), state)


def check_state_is_in_parts(comm, form):
    """Every element of a state is kept once, and no rank has much more than its part."""
    params = {f"p{i}": Tensor(np.ones(n), True) for i, n in enumerate((12, 40, 8, 20, 16))}
    optimizer = Zero(params.items(), optim.AdamW, comm, **FORMS[form])
    for p in params.values():
        p.grad = np.ones_like(p.data)
    optimizer.step()
    kept = sum(v.size for entries in optimizer.state.values() for v in entries.values() if getattr(v, "ndim", 0))
    dealt = {
        1: [192],
        2: [2 * (40 + 8), 2 * (20 + 16 + 12)],
        3: [80, 2 * (20 + 8), 2 * (16 + 12)],
        4: [80, 40, 32, 2 * (12 + 8)],
    }
    expected = 192 // comm.size if "elements" in form else dealt[comm.size][comm.rank]
    assert kept == expected


def check_replicated(comm, form):
    """Gradients that were reduced over ranks give what the plain optimizer makes of them; messages are counted."""
    states = []
    for cls, options in ((optim.AdamW, {}), (Zero, {"optimizer_class": optim.AdamW, "process_group": comm})):
        manual_seed(4)
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
        replicate(model, comm)
        optimizer = cls(model.named_parameters(), **options, **(FORMS[form] if options else {}), lr=0.01)
        for step in range(4):
            (model(Tensor(drawn(step, comm.rank).standard_normal((3, 5)).astype("f4"))) ** 2).sum().backward()
            optimizer.clip_grad_norm_(0.5)
            with CommDebugMode() as counted:
                optimizer.step()
            optimizer.zero_grad()
        states.append(model.state_dict())
    verbs = [record.verb for record in counted.records]
    assert verbs == ["all_reduce"] + ["all_gather"] * (comm.size > 1)
    assert all((states[0][name] == states[1][name]).all() for name in states[0])


def check_reproducible(comm, form):
    """Return the weights that micro-batches give: the caller compares numbers of ranks."""
    manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    replica = replicate(model, comm)
    optimizer = Zero(model.named_parameters(), optim.AdamW, comm, lr=0.01, **FORMS[form])
    for step in range(4):
        for index in replica.turns(7):
            x = Tensor(drawn(step, index).standard_normal((3, 5)).astype("f4"))
            with replica.micro_batch(index, of=7), random.at(step=step, part=index):
                (model(x) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.tobytes() for name, value in model.state_dict().items()}


def check_hooks_closures_and_schedules(comm, form):
    seen = []
    params, optimizer = zero(comm, "adamw", form)
    expected = parameters()
    alone = optim.AdamW(groups(expected), lr=0.1)
    optimizer.pre.append(lambda: seen.append(("pre", params["big"].data.copy())))
    optimizer.post.append(lambda: seen.append(("post", params["big"].data.copy())))
    schedules = [StepLR(o, 2, gamma=0.1) for o in (optimizer, alone)]
    for step in range(STEPS):
        assert optimizer.step(lambda at=step: (give_gradients(params, at), at)[1]) == step
        alone.step(lambda at=step: give_gradients(expected, at))
        assert [name for name, _ in seen[-2:]] == ["pre", "post"]
        np.testing.assert_array_equal(seen[-1][1], expected["big"].data)
        for schedule in schedules:
            schedule.step()
    assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in alone.param_groups] != [0.05, 0.1]
    assert_same_bits(params, expected)


def check_scaler(comm, form):
    """A loss scale is taken out, and a step whose gradients are not finite is left out."""
    params, optimizer = zero(comm, "adamw", form)
    expected = parameters()
    for made, p in ((optimizer, params), (optim.AdamW(groups(expected), lr=0.1), expected)):
        scaler = optim.GradScaler(init_scale=8.0)
        for step in range(3):
            give_gradients(p, step)
            if step == 1:
                p["big"].grad[0, 0] = np.inf
            scaler.step(made)
            scaler.update()
    assert_same_bits(params, expected)


def check_more_parameters_later(comm, form):
    params, expected = parameters(), parameters()
    made = []
    for some, cls, options in (
        (params, Zero, {"optimizer_class": optim.AdamW, "process_group": comm, **FORMS[form]}),
        (expected, optim.AdamW, {}),
    ):
        optimizer = cls(groups(some)[:1], **options)
        steps(optimizer, some, range(2))
        optimizer.add_param_group(groups(some)[1] | {"lr": 0.5})
        steps(optimizer, some, range(2, STEPS))
        made.append(optimizer)
    assert_same_bits(params, expected)
    assert_same_state(whole_state(comm, made[0]), made[1].state_dict())


def check_memory_that_is_replaced(comm):
    """Parameters whose arrays are replaced bring their values; of another dtype they are refused, everywhere."""
    params, optimizer = zero(comm, "adamw", "elements, buffer")
    expected = parameters()
    alone = optim.AdamW(groups(expected), lr=0.1)
    for some, made in ((params, optimizer), (expected, alone)):
        steps(made, some, range(2))
        some["big"].data = np.full(SHAPES["big"], 2.0)
        steps(made, some, range(2, 4))
    assert_same_bits(params, expected)
    assert np.shares_memory(params["big"].data, params["big"].data.base)
    params["big"].data = params["big"].data.astype("f4")
    with pytest.raises(RuntimeError, match=r"(?s)'big' was changed.*float32"):
        optimizer.step()


# ---------------------------------------------------------------- state
def check_parts(comm, form):
    """A part is there without a message, and goes on where it was, bit for bit; that of another rank is refused."""
    expected, _ = plain("adam")
    params, optimizer = zero(comm, "adam", form)
    steps(optimizer, params, range(2))
    with CommDebugMode() as counted:
        part = optimizer.state_dict()
    assert counted.records == []
    assert (part["part"]["rank"], part["part"]["size"]) == (comm.rank, comm.size)
    for name, (start, stop) in part["part"]["ranges"].items():
        assert all(v.size == stop - start for v in part["state"].get(name, {}).values() if getattr(v, "ndim", 0))
    later, fresh = zero(comm, "adam", form, {n: Tensor(p.data.copy(), p.requires_grad) for n, p in params.items()})
    fresh.load_state_dict(part)
    steps(fresh, later, range(2, STEPS))
    assert_same_bits(later, expected)
    if comm.size > 1:
        others = comm.all_gather_object(part)
        with pytest.raises(ValueError, match="a part of another rank"):
            fresh.load_state_dict(others[(comm.rank + 1) % comm.size])
        with pytest.raises(ValueError, match="parts of ranks"):
            fresh.load_state_dict(others[1:])


def check_whole_state(comm, form):
    """What was gathered is a copy, is there on one rank, and is forgotten by a step."""
    params, optimizer = zero(comm, "adam", form)
    steps(optimizer, params, range(2))
    optimizer.consolidate_state_dict(comm.size - 1)
    state = optimizer.state_dict()
    assert ("part" in state) is (comm.rank != comm.size - 1)
    before = {n: {k: np.copy(v) for k, v in e.items()} for n, e in state["state"].items()}
    steps(optimizer, params, [2])
    if "part" not in state:
        for name, entries in before.items():
            for key, value in entries.items():
                np.testing.assert_array_equal(state["state"][name][key], value)
    assert "part" in optimizer.state_dict()
    with pytest.raises(ValueError, match="consolidate_state_dict: to"):
        optimizer.consolidate_state_dict(comm.size)


def adam_of(params, comm, form):
    return Zero(params.items(), optim.Adam, comm, lr=0.1, **FORMS[form])


def saved_after_three(comm, form, as_parts):
    """Adam: A stepped three times, C never had a gradient, F is frozen; saved with gradients still set."""
    params = {name: Tensor(np.full(n, 1.0), name != "F") for name, n in (("A", 5), ("F", 3), ("C", 2))}
    optimizer = adam_of(params, comm, form)
    for g in (1.0, 2.0, 3.0):
        params["A"].grad = np.full(5, g)
        optimizer.step()
    np.testing.assert_allclose(params["A"].data, 0.70768167706, atol=5e-12)
    return comm.all_gather_object(optimizer.state_dict()) if as_parts else whole_state(comm, optimizer)


def check_goes_on(comm, form, state, order):
    values = {"A": (5, 0.70768167706), "F": (3, 1.0), "C": (2, 1.0)}
    params = {name: Tensor(np.full(*values[name]), name != "F") for name in order}
    optimizer = adam_of(params, comm, form)
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1
    params["A"].grad, params["C"].grad = np.full(5, 4.0), np.full(2, 0.5)
    optimizer.step()
    np.testing.assert_allclose(params["A"].data, 0.61164065049, atol=5e-11)
    np.testing.assert_allclose(params["C"].data, 0.9000000020, atol=5e-11)
    np.testing.assert_array_equal(params["F"].data, 1.0)
    found = whole_state(comm, optimizer)["state"]
    assert (found["A"]["step"], found["C"]["step"]) == (4, 1)
    assert found.keys() == {"A", "C"}


def check_states_that_do_not_fit(comm, form):
    params, optimizer = zero(comm, "adam", form)
    steps(optimizer, params, range(2))
    state = whole_state(comm, optimizer)
    wrong = {**state, "state": {**state["state"], "big": {"step": 1, "exp_avg": np.zeros(3)}}}
    for given in ({}, wrong, {**state, "param_groups": state["param_groups"][:1]}):
        with pytest.raises(ValueError, match="load_state_dict"):
            optimizer.load_state_dict(given)
    with pytest.raises(ValueError, match="exp_avg of big"):
        optimizer.load_state_dict(wrong if comm.rank == comm.size - 1 else state)


# ---------------------------------------------------------------- what is refused
def check_refused(comm):
    p = [("w", Tensor(np.ones(3), True))]
    mesh = init_device_mesh(comm.size, "dp", comm)
    cut = distribute_tensor(nn.Parameter(np.ones(4)), mesh, [Shard(0)])
    for error, match, make in (
        (ValueError, "SGD: params", lambda: Zero([], optim.SGD, comm)),
        (TypeError, "a set has no order", lambda: Zero({p[0][1]}, optim.SGD, comm)),
        (TypeError, "optimizer_class", lambda: Zero(p, optim.SGD(p), comm)),
        (TypeError, "optimizer_class", lambda: Zero(p, StepLR, comm)),
        (ValueError, "LBFGS looks at all parameters", lambda: Zero(p, optim.LBFGS, comm)),
        (ValueError, "LAMB needs norms", lambda: Zero(p, optim.LAMB, comm, elementwise=True)),
        (ValueError, "LARS needs norms", lambda: Zero(p, optim.LARS, comm, elementwise=True)),
        (ValueError, "(?s)overlap_with_ddp.*fully_shard", lambda: Zero(p, optim.SGD, comm, overlap_with_ddp=True)),
        (ValueError, "lr", lambda: Zero(p, optim.SGD, comm, lr=-1.0)),
        (TypeError, "unknown_option", lambda: Zero(p, optim.SGD, comm, unknown_option=1)),
        (TypeError, "'w' is distributed", lambda: Zero([("w", cut)], optim.SGD, comm)),
    ):
        with pytest.raises(error, match=match):
            make()


def check_ranks_that_differ(comm):
    """What is wrong on one rank is an error on all of them, and nobody waits."""
    last = comm.rank == comm.size - 1
    expected = contextlib.nullcontext() if comm.size == 1 else pytest.raises(ValueError, match="differ")
    with expected:
        Zero([("w", Tensor(np.ones(3 + last), True))], optim.SGD, comm)
    if comm.size > 1:
        one, two = ([{"params": [Tensor(np.ones(2), True)]} for _ in range(n)] for n in (1, 2))
        with pytest.raises(ValueError, match="groups of rank"):
            Zero(two if last else one, optim.SGD, comm)
    with pytest.raises(TypeError, match="optimizer_class"):
        Zero([Tensor(np.ones(2), True)], None if last else optim.SGD, comm)
    optimizer = Zero([("w", Tensor(np.ones(3), True))], optim.SGD, comm)
    with pytest.raises(ValueError, match="is here already"):
        optimizer.add_param_group({"params": [("w" if last else "v", Tensor(np.ones(3), True))]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [("v", Tensor(np.ones(3), True))]})


def check_a_bad_gradient(comm, form):
    params = {f"p{i}": Tensor(np.ones(6), True) for i in range(comm.size)}
    optimizer = Zero(params.items(), optim.SGD, comm, **FORMS[form])
    for p in params.values():
        p.grad = np.ones(5 if comm.rank == comm.size - 1 else 6)
    with pytest.raises(ValueError, match="shape of a gradient"):
        optimizer.step()
    optimizer.zero_grad()
    for p in params.values():
        p.grad = np.ones(6)
    optimizer.step()  # ranks are in step again


def check_no_gradients_on_one_rank(comm):
    """Whether there is a gradient counts where it is used: nobody waits, and values are those of the owner."""
    params = {f"p{i}": Tensor(np.ones(2), True) for i in range(comm.size)}
    optimizer = Zero(params.items(), optim.SGD, comm, lr=1.0)
    for p in params.values():
        p.grad = None if comm.rank == 0 else np.ones(2)
    optimizer.step()
    for i, p in enumerate(params.values()):
        np.testing.assert_array_equal(p.data, 0.0 if i else 1.0)


CHECKS = (check_memory_that_is_replaced, check_refused, check_ranks_that_differ, check_no_gradients_on_one_rank)
CHECKS_OF_FORMS = (
    check_state_is_in_parts,
    check_replicated,
    check_hooks_closures_and_schedules,
    check_scaler,
    check_more_parameters_later,
    check_parts,
    check_whole_state,
    check_states_that_do_not_fit,
    check_a_bad_gradient,
)
EQUAL = [(kind, form) for kind in KINDS for form in FORMS] + [(kind, form) for kind in WHOLE for form in [*FORMS][:2]]
