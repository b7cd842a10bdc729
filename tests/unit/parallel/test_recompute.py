"""Activation checkpointing of one process: any callables, modules, what stays alive, and what goes wrong."""

import copy
import functools
import gc
import tracemalloc
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

from hpcdist import manual_seed, nn
from hpcdist.autograd import POOL, Tensor, apply, define, grad, is_grad_enabled, no_grad, random, saved_values
from hpcdist.autograd.tape import TAPE
from hpcdist.nn import functional as F
from hpcdist.parallel import (
    apply_activation_checkpointing,
    checkpoint,
    checkpoint_sequential,
    checkpoint_wrapper,
    create_selective_checkpoint_contexts,
)


def plain(function, *args, **kwargs):
    return function(*args, **kwargs)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


def mlp(x, w):
    return F.gelu(F.linear(F.gelu(F.linear(x, w)), w))


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------- models
CONFIG = {"vocab_size": 13, "seq": 7, "num_layers": 3, "num_heads": 3, "width": 12, "dropout": 0.1}
CHOICES = {
    "blocks": lambda m: isinstance(m, nn.TransformerBlock),
    "nested": lambda m: isinstance(m, (nn.TransformerBlock, nn.MLP, nn.MultiheadAttention)),
    "everything": lambda m: type(m) is not nn.ModuleList,
}
POLICIES = {"nothing": None, "linear": ["linear"], "all": lambda _: True}


def gpt_step(chosen=None, policy=None, **kinds):
    """Return loss, gradients by name, and the random state after one step of a GPT."""
    manual_seed(0)
    model = nn.GPT(nn.GPTConfig(**CONFIG, **kinds))
    if chosen:
        contexts = functools.partial(create_selective_checkpoint_contexts, policy) if policy else None
        options = {"context_fn": contexts} if contexts else {}
        apply_activation_checkpointing(model, functools.partial(checkpoint_wrapper, **options), chosen)
    tokens = np.random.default_rng(0).integers(0, 13, (4, 8))
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return loss.item(), {name: p.grad.tobytes() for name, p in model.named_parameters()}, random.get_state()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kinds", [{}, {"activation": "swiglu", "norm": "rms", "positions": "rotary"}])
def test_a_model_has_the_same_loss_gradients_names_and_random_numbers(kinds, choice, policy):
    assert gpt_step(CHOICES[choice], POLICIES[policy], **kinds) == gpt_step(**kinds)


def test_running_statistics_move_once():
    found = []
    for wrap in (lambda m: m, checkpoint_wrapper):
        model = wrap(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=None), nn.ReLU()))
        for p in model.parameters():
            p.data[...] = values(*p.shape)
        for seed in range(2):
            (model(Tensor(values(2, 2, 5, 5, seed=seed).astype(np.float32))) ** 2).sum().backward()
        found.append([b.data.copy() for _, b in model.named_buffers()] + [p.grad for p in model.parameters()])
    assert same(*found)
    assert found[0][2] == 2


# ---------------------------------------------------------------- callables
def test_a_function_is_called_once_forward_and_once_backward():
    fn = Counted(mlp)
    x, w = Tensor(values(3, 4), True), Tensor(values(4, 4), True)
    y = checkpoint(fn, x, w)
    assert fn.calls == 1
    y.sum().backward()
    assert fn.calls == 2
    expected = Tensor(values(3, 4), True), Tensor(values(4, 4), True)
    mlp(*expected).sum().backward()
    assert same([x.grad, w.grad], [t.grad for t in expected])


def test_it_is_a_plain_call_where_nothing_is_recorded():
    fn = Counted(mlp)
    x = Tensor(values(3, 4), True)
    with no_grad():
        assert not checkpoint(fn, x, Tensor(values(4, 4))).requires_grad
    assert checkpoint(fn, Tensor(values(3, 4)), Tensor(values(4, 4))).node is None
    assert fn.calls == 2


def nested_arguments(pair, *, named, scale, label):
    """Takes tensors in tuples, lists and dicts, and what is none; returns them so, too."""
    first, second = pair
    y = F.gelu(F.linear(first, named["w"][0])) * scale
    return {label: (y, [y * second, first])}, named["w"][0].sum() * y.sum()


def test_arguments_and_results_of_every_kind():
    found = []
    for call in (plain, checkpoint):
        x, y, w = (Tensor(values(4, 4, seed=i), True) for i in range(3))
        result, total = call(nested_arguments, (F.gelu(x), y), named={"w": [w]}, scale=3.0, label="z")
        a, (b, c) = result["z"]
        (F.gelu(a) * b * c).sum().backward(retain_graph=True)
        total.backward()
        found.append([t.grad for t in (x, y, w)])
    assert same(*found)


def test_a_result_that_only_one_of_two_uses_and_one_that_none_does():
    found = []
    for call in (plain, checkpoint):
        x = Tensor(values(5), True)
        _, used = call(lambda x: (F.gelu(x) * 2, F.gelu(x * x).tanh()), x)
        used.sum().backward()
        found.append([x.grad])
    assert same(*found)


def test_the_same_tensor_twice_and_its_detached_self():
    found = []
    for call in (plain, checkpoint):
        x = Tensor(values(4, 4), True)
        y = F.gelu(x)
        call(lambda a, b, c: F.linear(a, b) * c * a, y, y, y.detach()).sum().backward()
        found.append([x.grad])
    assert same(*found)


def test_tensors_that_the_function_finds_itself():
    found = []
    for call in (plain, checkpoint):
        x, w = Tensor(values(4, 4), True), Tensor(values(4, 4, seed=1), True)
        normed = F.layer_norm(w, (4,))
        call(lambda x, w=w, normed=normed: F.linear(F.gelu(x), normed) * w, x).sum().backward()
        found.append([x.grad, w.grad])
    assert same(*found)


def test_gradients_of_chosen_tensors_leave_grad_alone():
    x, w = Tensor(values(3, 4), True), Tensor(values(4, 4), True)
    expected = grad(mlp(x, w).sum(), [x, w])
    y = checkpoint(lambda x, w: mlp(F.gelu(x), w), x, w)
    inner = checkpoint(mlp, x, w)
    assert same(grad(inner.sum(), [x, w]), expected)
    assert same(grad(y.sum(), y), [np.ones((3, 4))])
    assert x.grad is None


def test_backward_may_run_several_times():
    fn = Counted(mlp)
    x, w = Tensor(values(3, 4), True), Tensor(values(4, 4), True)
    y = checkpoint(fn, x, w).sum()
    once = grad(y, [x, w], retain_graph=True)
    assert same(grad(y, [x, w], retain_graph=True), once)
    assert fn.calls == 3
    y.backward()
    assert same([x.grad, w.grad], once)
    with pytest.raises(RuntimeError, match="retain_graph"):
        y.backward()


def test_gradients_of_gradients():
    x = Tensor(values(5), True)

    def penalty(call):
        y = call(lambda x: (x * x).tanh() * x, x)
        (first,) = grad(y.sum(), x, create_graph=True)
        return grad((first * first).sum(), x)

    assert same(penalty(checkpoint), penalty(plain))


def test_gradients_inside_of_the_function():
    """As of a loss that contains the derivative of a network."""

    def loss(x, w):
        y = checkpoint(mlp, x, w)
        (slope,) = grad(y.sum(), x, retain_graph=True)
        return (F.linear(y, w) * Tensor(slope)).sum()

    found = []
    for call in (plain, checkpoint):
        x, w = Tensor(values(3, 4), True), Tensor(values(4, 4), True)
        call(loss, x, w).backward()
        found.append([x.grad, w.grad])
    assert same(*found)


def test_gradients_of_what_the_function_has_computed_so_far():
    def loss(x):
        y = x.tanh() * x
        (slope,) = grad(y.sum(), x, retain_graph=True)
        return (F.gelu(y).exp() * Tensor(slope)).sum()

    found = []
    for call in (plain, checkpoint):
        x = Tensor(values(4), True)
        call(loss, x * 1.0).backward()
        found.append([x.grad])
    assert same(*found)


def test_a_tensor_that_an_inner_function_finds_and_the_outer_one_returns():
    found = []
    for call in (plain, checkpoint):

        def outer(x, call=call):
            normed = F.layer_norm(x.tanh(), (4,))
            return normed, call(lambda x: F.linear(F.gelu(x) * normed, normed), x)

        x = Tensor(values(4, 4), True)
        first, second = call(outer, x)
        (F.gelu(first) * second).sum().backward()
        found.append([x.grad])
    assert same(*found)


def test_integer_arguments_and_results():
    found = []
    for call in (plain, checkpoint):
        table = Tensor(values(5, 3), True)
        y, ids = call(lambda ids, table: (F.embedding(ids, table).tanh(), ids), Tensor(np.array([1, 4, 1])), table)
        (y * y).sum().backward()
        assert ids.dtype.kind == "i"
        found.append([table.grad])
    assert same(*found)


def test_hooks_of_tensors_inside_run_once_with_the_same_gradients():
    seen = []

    def function(x):
        y = F.gelu(x)
        y.register_hook(lambda g: seen.append(g.copy()))
        return (y * y).sum()

    for call in (plain, checkpoint):
        call(function, Tensor(values(4), True)).backward()
    assert len(seen) == 2
    assert same(seen[:1], seen[1:])


def test_random_numbers_are_the_same_again_and_go_on_as_without():
    found = []
    for call in (plain, checkpoint):
        manual_seed(3)
        x = Tensor(np.ones(1000), True)
        y = call(lambda x: F.dropout(F.dropout(x * 1.0, 0.5) * x, 0.3), x)
        later = F.dropout(Tensor(np.ones(100)), 0.5)
        (y * y).sum().backward()
        found.append([y.data, x.grad, later.data, F.dropout(Tensor(np.ones(100)), 0.5).data])
    assert same(*found)


def test_without_the_random_state_draws_differ():
    """And so the next test of them would fail if the state were not kept."""
    manual_seed(3)
    x = Tensor(np.ones(1000), True)
    checkpoint(lambda x: F.dropout(x * 2.0, 0.5) ** 2, x, preserve_rng_state=False).sum().backward()
    manual_seed(3)
    expected = Tensor(np.ones(1000), True)
    (F.dropout(expected * 2.0, 0.5) ** 2).sum().backward()
    assert not np.array_equal(x.grad, expected.grad)


# ---------------------------------------------------------------- one after another
def test_segments():
    functions = [Counted(lambda x, i=i: F.gelu(x * (i + 1.0))) for i in range(7)]
    x, expected = Tensor(values(4), True), Tensor(values(4), True)
    checkpoint_sequential(functions, 3, x, use_reentrant=False).sum().backward()
    assert [fn.calls for fn in functions] == [2, 2, 2, 2, 1, 1, 1]
    plain_result = expected
    for fn in functions:
        plain_result = fn(plain_result)
    plain_result.sum().backward()
    assert same([x.grad], [expected.grad])
    model = nn.Sequential(nn.Linear(4, 4, dtype=np.float64), nn.ReLU())
    assert same([checkpoint_sequential(model, 2, x).data], [model(x).data])
    for segments in (0, 8):
        with pytest.raises(ValueError, match="segments"):
            checkpoint_sequential(functions, segments, x)


# ---------------------------------------------------------------- modules
def test_a_wrapped_module_is_the_same_one_under_the_same_names():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    names = [name for name, _ in model.named_modules()], list(model.state_dict())
    assert checkpoint_wrapper(model[1]) is model[1]
    assert ([name for name, _ in model.named_modules()], list(model.state_dict())) == names
    calls = Counted(model[1][1].forward)
    model[1][1].forward = calls
    model(Tensor(np.ones((2, 3), np.float32))).sum().backward()
    assert calls.calls == 2
    copied = copy.deepcopy(model)
    assert len(copied[1].around) == 1
    copied(Tensor(np.ones((2, 3), np.float32))).sum().backward()


def test_another_way_to_checkpoint_a_module():
    seen = []

    def fn(call, x, **options):
        seen.append(options)
        return call(x)

    layer = checkpoint_wrapper(nn.Linear(2, 2), checkpoint_fn=fn, label="mine")
    layer(Tensor(np.ones((1, 2), np.float32)))
    assert seen == [{"label": "mine"}]


def test_parts_are_chosen_by_either_argument_but_never_the_model():
    for argument in ("check_fn", "auto_wrap_policy"):
        model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
        apply_activation_checkpointing(model, **{argument: lambda m: isinstance(m, (nn.Linear, nn.Sequential))})
        assert [len(m.around) for m in model.modules()] == [0, 1, 1, 1]


def test_refusals():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no part was chosen"):
        apply_activation_checkpointing(model, check_fn=lambda _: False)
    with pytest.raises(ValueError, match="neither"):
        apply_activation_checkpointing(model)
    with pytest.raises(ValueError, match="both"):
        apply_activation_checkpointing(model, check_fn=bool, auto_wrap_policy=bool)
    checkpoint_wrapper(model)
    with pytest.raises(ValueError, match="wrapped already"):
        checkpoint_wrapper(model)
    with pytest.raises(ValueError, match="ModuleList"):
        checkpoint_wrapper(nn.ModuleList([model]))
    with pytest.raises(TypeError, match="module"):
        checkpoint_wrapper(mlp)
    with pytest.raises(ValueError, match="determinism_check"):
        checkpoint(mlp, determinism_check="all")
    with pytest.raises(ValueError, match="'soft'"):
        create_selective_checkpoint_contexts(["linear", "soft"])


# ---------------------------------------------------------------- what is kept, and how long
WIDTH, LAYERS = 64, 16


def deep(call, rows):
    """A loss through many layers, of which every square root is one call."""
    weights = [Tensor(values(WIDTH, WIDTH, seed=i) / WIDTH, True) for i in range(LAYERS)]

    def some(x, *weights):
        for w in weights:
            x = F.linear(x, w).tanh()
        return x

    x = Tensor(values(rows, WIDTH), True)
    for start in range(0, LAYERS, 4):
        x = call(some, x, *weights[start : start + 4])
    return x.sum()


def leave_behind(count, rows):
    """Leave arrays in cycles behind, as other tests may."""
    for _ in range(count):
        held = [POOL.empty((rows, WIDTH), np.float64)]
        held.append(held)


def peak_bytes(call, rows, backward):
    gc.collect()  # else what others have left could die in between, and its memory be used again
    POOL.release()
    before = POOL.held_bytes
    tracemalloc.start()
    loss = deep(call, rows)
    if backward:
        loss.backward()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del loss
    POOL.release()
    assert POOL.held_bytes <= before
    return peak


def test_peak_memory_of_16_layers_in_4_calls():
    """The forward keeps 4 arrays and not 16; backward has those of one call more, and gradients under way."""
    rows = 2048
    one = rows * WIDTH * 8
    leave_behind(LAYERS, rows)
    peaks = [peak_bytes(call, rows, backward) / one for call in (plain, checkpoint) for backward in (False, True)]
    assert 16 + 2 < peaks[0] < peaks[1]
    assert peaks[2] < 4 + 4
    assert peaks[3] < 4 + 4 + 4.5


def test_nothing_is_alive_after_the_forward_but_arguments_and_after_backward_nothing():
    alive = []

    def function(x):
        y = x * 2.0
        z = y.tanh() * y
        alive.append([weakref.ref(t.data) for t in (y, z)])
        return z.sum()

    x = Tensor(values(100), True)
    argument = x + 1.0
    given = weakref.ref(argument.data)
    loss = checkpoint(function, argument)
    del argument
    assert [ref() for ref in alive[0]] == [None, None]
    assert given() is not None
    loss.backward()
    assert [ref() for refs in alive for ref in refs] == [None] * 4
    assert given() is None


def test_calls_are_made_again_one_by_one_where_their_arguments_are_results_of_cheap_operations():
    """A norm is computed again from what it saved; at the end of a call it must not be, or all would be again."""
    log = []

    def part(x, i):
        log.append(f"call {i}")
        y = F.layer_norm(F.gelu(x) * x, (4,))
        y.register_hook(lambda _: log.append(f"gradient {i}"))
        return y

    x = Tensor(values(3, 4), True)
    y = x
    for i in range(3):
        y = checkpoint(part, y, i)
    F.gelu(y).sum().backward()
    assert log[:3] == ["call 0", "call 1", "call 2"]
    assert log[3:] == [f"{what} {i}" for i in (2, 1, 0) for what in ("gradient", "call")]


def test_values_that_backward_did_not_use_are_let_go_of():
    alive = []

    def function(x, w):
        y = x.tanh()
        alive.append(weakref.ref(y.data))
        return (y * w).sum() + (w * w).sum()

    x, w = Tensor(values(4), True), Tensor(values(4), True)
    loss = checkpoint(function, x, w)
    grad(loss, w, retain_graph=True)
    assert [ref() for ref in alive] == [None, None]
    loss.backward()
    np.testing.assert_allclose(x.grad, w.data * (1 - np.tanh(x.data) ** 2))


def test_nested_calls_keep_no_arguments_of_inner_ones():
    alive = []

    def outer(x):
        y = x * 2.0
        alive.append(weakref.ref(y.data))
        return checkpoint(lambda y: (y.tanh() * y).sum(), y)

    x = Tensor(values(50), True)
    loss = checkpoint(outer, x)
    assert alive[0]() is None
    loss.backward()
    assert len(alive) == 2
    expected = Tensor(values(50), True)
    y = expected * 2.0
    (y.tanh() * y).sum().backward()
    assert same([x.grad], [expected.grad])


def test_saved_value_hooks_around_and_within():
    """Those within the function have their say first, and see all values again; those around see its arguments only."""
    inside, outside = [], []

    def pack(log):
        return lambda value: log.append(value.shape) or NotImplemented

    def function(x):
        with saved_values(pack(inside), None):
            return (x.tanh().reshape(2, 3).exp()).sum()

    x = Tensor(values(6), True)
    with saved_values(pack(outside), None):
        y = checkpoint(function, x * 2.0)
        outside.append("result")
    first = list(inside)
    y.backward()
    assert inside == first + first
    assert first
    assert outside[-2:] == [(6,), "result"]


# ---------------------------------------------------------------- selective
def test_kept_operations_run_once():
    runs = []

    def forward(x):
        runs.append("dear")
        y = np.exp(x)
        return (y, x + 1), (x, y, y * 2)

    def vjp(into, grads, saved):
        x, y, double = saved
        into[0].give((grads[0] * y if grads[0] is not None else 0) + double * 0 + x * 0)

    dear = define("test_recompute_dear", forward, vjp)
    for policy, expected in ((["test_recompute_dear"], 2), (lambda name: name == "test_recompute_dear", 2), ([], 4)):
        runs.clear()
        x = Tensor(values(5), True)
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        y = checkpoint(lambda x: apply(dear, apply(dear, x.tanh())[0].tanh())[0], x, context_fn=contexts)
        once = grad(y.sum(), x, retain_graph=True)
        assert len(runs) == expected
        assert same(grad(y.sum(), x), once)
        check = Tensor(values(5), True)
        check.tanh().exp().tanh().exp().sum().backward()
        np.testing.assert_allclose(once[0], check.grad)


def test_kept_operations_must_come_in_the_same_order():
    names = iter([("tanh", "exp"), ("exp", "tanh")])

    def function(x):
        for name in next(names):
            x = getattr(x, name)()
        return x

    contexts = functools.partial(create_selective_checkpoint_contexts, ["tanh", "exp"])
    y = checkpoint(function, Tensor(values(3), True), context_fn=contexts)
    with pytest.raises(RuntimeError, match=r"(?s)exp.*tanh"):
        y.sum().backward()


def test_contexts_of_a_user():
    log = []

    class Says(nullcontext):
        def __init__(self, word):
            super().__init__()
            self.word = word

        def __enter__(self):
            log.append(self.word)

    x = Tensor(values(3), True)
    checkpoint(lambda x: x.tanh() * x, x, context_fn=lambda: (Says("first"), Says("again"))).sum().backward()
    assert log == ["first", "again"]


# ---------------------------------------------------------------- what goes wrong
def unsteady(first, second):
    """A function that computes something else the second time."""
    ways = iter([first, second])
    return lambda x: next(ways)(x)


@pytest.mark.parametrize(
    ("second", "got", "expected"),
    [
        (lambda x: x.tanh(), "1 values", "2 values"),
        (lambda x: x.tanh().tanh().tanh(), "3 values", "2 values"),
        (lambda x: x[:2].tanh().tanh(), r"value 0: \(2,\) float64", r"value 0: \(4,\) float64"),
        (lambda x: x.to(np.float32).tanh().tanh(), r"\(4,\) float32", r"\(4,\) float64"),
    ],
)
def test_a_function_that_is_not_the_same_twice_is_refused(second, got, expected):
    x = Tensor(values(4), True)
    y = checkpoint(unsteady(lambda x: x.tanh().tanh(), second), x)
    before = random.get_state()
    with pytest.raises(RuntimeError, match=f"(?s)second time.*{got}.*{expected}"):
        y.sum().backward()
    assert random.get_state() == before
    assert not TAPE.hooks


def test_shapes_are_compared_only_if_wanted():
    x = Tensor(np.full(4, 0.5), True)
    function = unsteady(lambda x: x.tanh(), lambda x: x[:1].tanh())
    checkpoint(function, x, determinism_check="none").sum().backward()
    np.testing.assert_allclose(x.grad, 1 - np.tanh(0.5) ** 2)


def test_an_error_in_the_second_call_is_told_with_its_reason_and_restores_everything():
    manual_seed(1)
    failing = [None, ZeroDivisionError("late"), None]

    def function(x):
        y = F.dropout(x.tanh(), 0.5)
        error = failing.pop(0)
        if error is not None:
            raise error
        return y * y

    x = Tensor(values(4), True)
    total = checkpoint(function, x).sum()
    state = random.get_state()
    with no_grad():
        with pytest.raises(ZeroDivisionError, match="late") as caught:
            total.backward()
        assert not is_grad_enabled()
    assert "function again" in caught.value.__notes__[0]
    assert random.get_state() == state
    assert (TAPE.hooks, TAPE.region, TAPE.again, TAPE.replays) == ([], 0, 0, [])
    checkpoint(lambda x: x.tanh(), x).sum().backward()
    np.testing.assert_allclose(x.grad, 1 - np.tanh(x.data) ** 2)


def test_an_error_in_the_first_call_restores_everything():
    contexts = functools.partial(create_selective_checkpoint_contexts, ["tanh"])
    before = TAPE.compute
    with pytest.raises(ZeroDivisionError):
        checkpoint(lambda x: x.tanh() * (1 / 0), Tensor(values(4), True), context_fn=contexts)
    assert (TAPE.hooks, TAPE.region) == ([], 0)
    assert TAPE.compute is before
