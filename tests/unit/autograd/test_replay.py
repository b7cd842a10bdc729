"""Gradients under way share memory; what is shown to hooks and callers must not change afterwards."""

import numpy as np
import pytest

from hpcdist.autograd import OPS, Tensor, apply, backward, grad, queue_callback, saved_values


def leaf(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape), True)


def test_a_stretched_gradient_is_copied_before_another_is_added():
    x = leaf(2, 3)
    y = x.reshape(3, 2)
    (y * 2 + y.sum(0, keepdim=True)).reshape(6).sum().backward()
    np.testing.assert_array_equal(x.grad, np.full((2, 3), 5.0))
    x.grad = None
    y = x.transpose(1, 0)
    backward([y.sum(), y.split((1, 2))[0]], [1.0, np.ones((1, 2))])
    np.testing.assert_array_equal(x.grad, [[2, 1, 1], [2, 1, 1]])


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_a_read_only_gradient_is_not_written_over(name):
    x = leaf(1)
    attrs = {"tanh": False} if name == "gelu" else {}
    seed = np.ones(1)
    apply(OPS[name], x, **attrs).sum().reshape(1).backward(seed)
    step = 1e-6
    ends = [apply(OPS[name], Tensor(x.data + h), **attrs).item() for h in (step, -step)]
    np.testing.assert_allclose(x.grad, (ends[0] - ends[1]) / (2 * step), rtol=1e-6)
    assert seed[0] == 1


def handed_on(x):
    """Return ``a``, ``b`` and ``2 a + b``: ``b`` hands the array it got on to ``a``, where more is added afterwards."""
    a = x * 1.0
    twice = a * 2.0
    b = a + np.zeros(3)
    return a, b, twice * 1.0 + b


def test_gradients_that_grad_returns_are_those_of_the_moment():
    a, b, out = handed_on(leaf(3))
    for wanted, expected in (([b, a], [1, 3]), ([a, b], [3, 1])):
        for g, value in zip(grad(out, wanted, np.ones(3), retain_graph=True), expected, strict=True):
            np.testing.assert_array_equal(g, np.full(3, value))


def test_a_leaf_that_is_wanted_keeps_what_it_got():
    x, y = leaf(3), leaf(3, seed=1)
    z = y * 1.0
    twice = z * 2.0
    gx, gz = grad(twice * 1.0 + (z + x), [x, z], np.ones(3))
    np.testing.assert_array_equal(gx, np.ones(3))
    np.testing.assert_array_equal(gz, np.full(3, 3.0))


def test_what_a_hook_keeps_does_not_change():
    x, kept = leaf(3), []
    _, b, out = handed_on(x)
    b.register_hook(kept.append)
    backward(out, np.ones(3))
    np.testing.assert_array_equal(kept[0], np.ones(3))
    np.testing.assert_array_equal(x.grad, np.full(3, 3.0))


@pytest.mark.parametrize("name", ["gelu", "silu", "add_layer_norm", "add_rms_norm"])
def test_operations_that_overwrite_gradients_leave_those_of_hooks_alone(name):
    x, weights = leaf(2, 4), [leaf(4, seed=1)] * (2 if name == "add_layer_norm" else 1)
    attrs = {"tanh": True} if name == "gelu" else {"eps": 1e-5} if "norm" in name else {}
    inputs = [x, x, *weights] if "norm" in name else [x]
    own, kept = np.full((2, 4), 3.0), []
    for change in (None, own):
        x.grad = None
        result = apply(OPS[name], *inputs, **attrs)
        y = result[0] if isinstance(result, tuple) else result
        y.register_hook(kept.append)
        y.register_hook(lambda g, change=change: change)
        backward(list(result) if isinstance(result, tuple) else y, [np.ones((2, 4))] * 2 if "norm" in name else 1.0)
        np.testing.assert_array_equal(kept.pop(), np.ones((2, 4)))
    np.testing.assert_array_equal(own, np.full((2, 4), 3.0))


def test_a_leaf_to_start_from_has_hooks_too():
    x, seen, done = leaf(3), [], []
    x.register_hook(seen.append)
    x.register_post_accumulate_grad_hook(done.append)
    backward(x, np.arange(3.0))
    np.testing.assert_array_equal(x.grad, [0, 1, 2])
    assert len(seen) == 1
    assert done == [x]
    np.testing.assert_array_equal(grad(x, x, np.arange(3.0))[0], [0, 1, 2])
    np.testing.assert_array_equal(grad([x, x * 2], x, [np.ones(3)] * 2)[0], np.full(3, 3.0))


@pytest.mark.parametrize("make", [lambda: leaf(3), lambda: leaf(3) * 1.0])
def test_one_of_two_equal_hooks_can_be_removed_even_by_itself(make):
    x, log = make(), []

    def double(g):
        log.append("double")
        return g * 2

    def once(_):
        log.append("once")
        remove_once()

    remove = x.register_hook(double)
    remove_once = x.register_hook(once)
    x.register_hook(double)
    remove()
    for _ in range(2):
        np.testing.assert_array_equal(grad((x * 1.0).sum(), x)[0], np.full(3, 2.0))
    assert log == ["once", "double", "double"]
    remove()
    np.testing.assert_array_equal(grad((x * 1.0).sum(), x)[0], np.ones(3))
    remove()  # nothing is left to remove


@pytest.mark.parametrize("wrong", [np.array(7.0), np.ones((3, 3)), 3.0])
@pytest.mark.parametrize("make", [lambda: leaf(3), lambda: leaf(3) * 1.0])
def test_a_hook_returns_a_gradient_of_the_same_shape(make, wrong):
    x = make()
    x.register_hook(lambda _: wrong)
    with pytest.raises(RuntimeError, match="hook"):
        (x * 1.0).sum().backward()


def test_a_gradient_set_by_hand_has_the_shape_of_its_tensor():
    x = leaf(3)
    x.grad = np.zeros((2, 3))
    with pytest.raises(RuntimeError, match="another shape"):
        x.sum().backward()


def test_grad_keeps_what_lies_below_what_it_was_asked_for():
    x = leaf(3)
    y = (x * 1.0).exp()
    np.testing.assert_array_equal(grad((y * y).sum(), y)[0], 2 * y.data)
    y.sum().backward()
    np.testing.assert_allclose(x.grad, np.exp(x.data))


def test_a_callback_may_queue_another():
    x, log = leaf(3), []

    def first():
        log.append("first")
        queue_callback(lambda: log.append("second"))

    x.register_hook(lambda _: queue_callback(first))
    x.sum().backward()
    assert log == ["first", "second"]


def test_only_arrays_are_packed():
    x, packed = leaf(2, 3), []
    with saved_values(lambda a: packed.append(a) or a.copy(), lambda a: a):
        joined = apply(OPS["cat"], x, x, dim=0)
        loss = apply(OPS["cross_entropy"], joined, Tensor(np.arange(4) % 3), ignore_index=-1, reduction="sum")
        apply(OPS["dropout"], x, p=0.5, key=(1, 2, 3, 4))
    loss.backward()
    assert packed
    assert all(isinstance(a, np.ndarray) for a in packed)
    assert x.grad.any()


def test_cotangents_are_counted():
    x = leaf(3)
    for call in (lambda: backward([x, x], [np.ones(3)]), lambda: grad(x, x, [np.ones(3)] * 2)):
        with pytest.raises(ValueError, match="number of cotangents"):
            call()
