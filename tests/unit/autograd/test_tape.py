"""The tape: what is recorded, replayed, shared, kept and refused."""

import gc
import threading
import weakref

import numpy as np
import pytest

import hpcdist as hd
from hpcdist.autograd import (
    OPS,
    POOL,
    Tensor,
    apply,
    backward,
    check_vjp,
    define,
    enable_grad,
    grad,
    is_grad_enabled,
    no_grad,
    queue_callback,
    saved_values,
    tensor,
)


def leaf(*values):
    return Tensor(np.array(values, np.float64), True)


# ---------------------------------------------------------------- gradients
def test_gradients_add_up_over_uses_and_over_backwards():
    x = leaf(2.0, 3.0)
    (x * x + x).sum().backward()
    np.testing.assert_array_equal(x.grad, [5, 7])
    (x * 2).sum().backward()
    np.testing.assert_array_equal(x.grad, [7, 9])


def test_a_gradient_that_two_users_share_is_not_changed_by_one_of_them():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    a, b = x * 1, y * 1
    total = a + b  # both get the very same cotangent
    (total.sum() + (a * 10).sum()).backward()
    np.testing.assert_array_equal(x.grad, [11, 11])
    np.testing.assert_array_equal(y.grad, [1, 1])


def test_an_operation_that_overwrites_its_gradient_leaves_others_alone():
    z, y = leaf(0.5, -1.0), leaf(1.0, 1.0)
    activated = apply(OPS["silu"], z * 1)
    (activated + y).sum().backward()
    np.testing.assert_array_equal(y.grad, [1, 1])
    s = 1 / (1 + np.exp(-z.data))
    np.testing.assert_allclose(z.grad, s * (1 + z.data * (1 - s)))


def test_the_same_tensor_twice():
    x = leaf(2.0, 3.0)
    (x + x).sum().backward()
    np.testing.assert_array_equal(x.grad, [2, 2])
    x.grad = None
    y = x * 1
    (y - y).sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 0])


def test_gradients_go_to_their_home_and_the_first_write_does_not_read():
    x = leaf(1.0, 2.0)
    x.home = np.full(2, np.nan)
    (x * 3).sum().backward()
    assert x.grad is x.home
    np.testing.assert_array_equal(x.grad, [3, 3])


def test_mixed_dtypes_give_each_input_a_gradient_of_its_own():
    x, y = Tensor(np.ones(2, np.float32), True), leaf(1.0, 2.0)
    z = x * y
    assert z.dtype == np.float64
    z.sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (np.float32, np.float64)


def test_outputs_that_nobody_used_have_no_gradient():
    x = leaf(1.0, 2.0, 3.0)
    first, second = x.split([1, 2])
    second.sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 1, 1])
    assert first.requires_grad


def test_a_second_backward_is_an_error_unless_the_graph_is_kept():
    x = leaf(2.0)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    np.testing.assert_array_equal(x.grad, [8])
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()


def test_a_kept_graph_gives_the_same_where_gradients_were_saved():
    x, w = Tensor(np.random.default_rng(0).standard_normal((4, 3)), True), Tensor(np.eye(5, 3), True)
    attrs = {"ignore_index": -100, "reduction": "mean", "chunk_rows": 2}
    loss = apply(OPS["linear_cross_entropy"], x, w, Tensor(np.array([0, 1, 2, 4])), **attrs) * 3
    loss.backward(retain_graph=True)
    first = x.grad.copy()
    x.grad = None
    loss.backward()
    np.testing.assert_array_equal(x.grad, first)


def test_only_scalars_have_a_gradient_of_their_own():
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="only a scalar"):
        (x * 2).backward()
    (x * 2).backward(np.array([1.0, 10.0]))
    np.testing.assert_array_equal(x.grad, [2, 20])
    with pytest.raises(RuntimeError, match="another shape"):
        (x * 2).backward(np.ones(3))
    with pytest.raises(RuntimeError, match="does not depend"):
        Tensor(np.ones(1)).backward()


def test_several_roots_and_a_leaf_as_root():
    x = leaf(1.0, 2.0)
    backward([(x * 2).sum(), (x * x).sum()], [None, 10.0])
    np.testing.assert_array_equal(x.grad, [22, 42])
    y = leaf(3.0)
    y.backward()
    np.testing.assert_array_equal(y.grad, [1])


# ---------------------------------------------------------------- grad
def test_grad_leaves_the_leaves_alone():
    x, y = leaf(2.0), leaf(3.0)
    mid = x * y
    gx, gmid = grad((mid * mid).sum(), [x, mid])
    np.testing.assert_array_equal(gx, [2 * 6 * 3])
    np.testing.assert_array_equal(gmid, [12])
    assert x.grad is None
    assert y.grad is None


def test_grad_of_what_is_not_used():
    x, y = leaf(2.0), leaf(3.0)
    with pytest.raises(RuntimeError, match="allow_unused"):
        grad((x * 2).sum(), [x, y], retain_graph=True)
    gx, gy = grad((x * 2).sum(), [x, y], allow_unused=True)
    assert gx == [2]
    assert gy is None


def test_detach_cuts():
    x = leaf(2.0)
    (x * x.detach()).sum().backward()
    np.testing.assert_array_equal(x.grad, [2])


# ---------------------------------------------------------------- hooks
def test_hooks_of_a_leaf_see_the_whole_gradient_once():
    x, seen = leaf(1.0, 2.0), []
    remove = x.register_hook(lambda g: seen.append(g.copy()))
    x.register_hook(lambda g: g * 2)
    done = []
    x.register_post_accumulate_grad_hook(lambda t: done.append(t.grad.copy()))
    (x * 3 + x * x).sum().backward()
    np.testing.assert_array_equal(seen, [[5, 7]])
    np.testing.assert_array_equal(x.grad, [10, 14])
    np.testing.assert_array_equal(done, [[10, 14]])
    remove()
    (x * 1).sum().backward()
    assert len(seen) == 1
    np.testing.assert_array_equal(x.grad, [12, 16])


def test_hooks_inside_the_graph_may_replace_the_gradient():
    x = leaf(1.0)
    y = x * 2
    remove = y.register_hook(lambda g: g * 100)
    (y * 3).sum().backward()
    np.testing.assert_array_equal(x.grad, [600])
    remove()
    x.grad = None
    with pytest.raises(RuntimeError, match="does not need gradients"):
        Tensor(np.ones(1)).register_hook(lambda g: g)
    with pytest.raises(RuntimeError, match="only leaves"):
        y.register_post_accumulate_grad_hook(lambda t: None)


def test_callbacks_run_once_after_backward():
    calls, order = [], []
    x = leaf(1.0)
    x.register_post_accumulate_grad_hook(lambda t: order.append("leaf"))

    def callback():
        order.append("end")
        calls.append(1)

    def vjp(into, grads, saved):
        queue_callback(callback)
        into[0].give(grads[0])

    op = define("test_callback", lambda a: (a, ()), vjp)
    apply(op, apply(op, x)).sum().backward()
    assert calls == [1]
    assert order == ["leaf", "end"]
    with pytest.raises(RuntimeError, match="no backward"):
        queue_callback(callback)


# ---------------------------------------------------------------- recording
def test_no_grad_records_nothing_on_this_thread_only():
    x = leaf(1.0)
    with no_grad():
        assert not (x * 2).requires_grad
        assert not is_grad_enabled()
        with enable_grad():
            assert (x * 2).requires_grad
        found = []
        thread = threading.Thread(target=lambda: found.append((x * 2).requires_grad))
        thread.start()
        thread.join()
    assert found == [True]

    @no_grad()
    def double():
        return x * 2

    assert not double().requires_grad
    assert (x * 2).requires_grad


def test_hooks_of_saved_values_form_a_chain():
    x, y = leaf(2.0), leaf(5.0)
    log = []

    def keeping(name, mine):
        def pack(value):
            if value is mine:
                log.append(("pack", name))
                return name
            return NotImplemented

        def unpack(packed):
            log.append(("unpack", packed))
            return mine

        return pack, unpack

    with saved_values(*keeping("outer", x.data)), saved_values(*keeping("inner", y.data)):
        z = x * y
    z.sum().backward()
    assert log == [("pack", "outer"), ("pack", "inner"), ("unpack", "outer"), ("unpack", "inner")]
    np.testing.assert_array_equal([x.grad, y.grad], [[5], [2]])


def test_what_is_cheap_to_compute_again_is_not_kept():
    x = Tensor(np.random.default_rng(0).standard_normal((64, 64)), True)
    w = Tensor(np.random.default_rng(1).standard_normal((8, 64)), True)
    activated = apply(OPS["gelu"], x * 1, tanh=False)
    out = apply(OPS["linear"], activated, w)
    kept = weakref.ref(activated.data)
    del activated
    gc.collect()
    assert kept() is None
    out.sum().backward()
    again = apply(OPS["gelu"], Tensor(x.data), tanh=False).data
    np.testing.assert_allclose(w.grad, np.ones((8, 64)) * again.sum(0), rtol=1e-12)


def test_backward_drops_what_was_saved_as_it_goes():
    x = leaf(*range(5))
    y = x.exp()
    saved = weakref.ref(y.data)
    loss = (y * 2).sum()
    del y
    assert saved() is not None
    loss.backward()
    assert saved() is None


def test_operations_of_other_types_take_over():
    class Recorder:
        requires_grad = True
        data = dtype = None
        seen = []

        @classmethod
        def __apply__(cls, op, inputs, attrs):
            cls.seen.append((op.name, len(inputs), attrs))
            return "taken"

    assert apply(OPS["add"], leaf(1.0), Recorder()) == "taken"
    assert apply(OPS["sum"], Recorder(), dim=0, keepdim=False) == "taken"
    assert Recorder.seen == [("add", 2, {}), ("sum", 1, {"dim": 0, "keepdim": False})]
    with pytest.raises(TypeError, match="not a tensor"):
        apply(OPS["add"], leaf(1.0), "text")


# ---------------------------------------------------------------- users' own operations
def test_define_adds_an_operation():
    def forward(a, *, power):
        return a**power, (a,)

    def vjp(into, grads, saved, power):
        into[0].give(grads[0] * power * saved[0] ** (power - 1))

    cube = define("test_power", forward, vjp, signature="m->m")
    x = leaf(2.0, 3.0)
    apply(cube, x, power=3).sum().backward()
    np.testing.assert_array_equal(x.grad, [12, 27])
    check_vjp(cube, np.array([1.5, 2.0]), power=3)
    with pytest.raises(ValueError, match="there already"):
        define("test_power", forward, vjp)


def test_a_wrong_vjp_is_found():
    wrong = define(
        "test_wrong", lambda a, b: (a * b, (a, b)), lambda into, grads, saved: into[1].give(grads[0] * saved[0] * 1.01)
    )
    with pytest.raises(ValueError, match="input 0") as error:
        check_vjp(wrong, np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert "by differences" in str(error.value)


# ---------------------------------------------------------------- tensors and NumPy
def test_numpy_functions_refuse_what_needs_gradients_and_say_what_to_do():
    x, plain = leaf(1.0, 4.0), Tensor(np.array([1.0, 4.0]))
    for use in (lambda: np.sqrt(x), lambda: np.asarray(x), lambda: np.add.reduce(x), lambda: np.add(x, 1, out=x.data)):
        with pytest.raises(TypeError, match=r"\.numpy\(\)"):
            use()
    np.testing.assert_array_equal(np.sqrt(plain), [1, 2])
    np.testing.assert_array_equal(np.asarray(plain), [1, 4])
    np.testing.assert_array_equal(x.numpy(), [1, 4])


def test_arrays_and_numbers_mix_with_tensors_in_the_graph():
    x = Tensor(np.array([1.0, 2.0], np.float32), True)
    for y in (np.array([3.0, 4.0], np.float32) * x, x * np.array([3.0, 4.0], np.float32)):
        assert y.requires_grad
        assert y.dtype == np.float32
    assert (x * np.float64(2)).dtype == np.float32
    assert (2 / x + 1 - x).dtype == np.float32
    assert (Tensor(np.array([1, 2])) * 0.5).dtype == np.float32
    assert (Tensor(np.array([1, 2])) * 2).dtype == np.int64
    (3 - x).sum().backward()
    np.testing.assert_array_equal(x.grad, [-1, -1])


def test_methods_and_operators_are_the_operations():
    x = leaf(1.0, 2.0, 3.0, 4.0)
    m = x.reshape(2, 2)
    np.testing.assert_array_equal((m @ m.T).numpy(), m.data @ m.data.T)
    np.testing.assert_array_equal(m[1].numpy(), [3, 4])
    np.testing.assert_array_equal(m.transpose(1, 0).numpy(), m.data.T)
    np.testing.assert_array_equal((-(m**2)).mean(0).numpy(), -(m.data**2).mean(0))
    np.testing.assert_allclose(m.exp().log().sqrt().tanh().erf().softmax(-1).sum(1).numpy(), [1, 1])
    assert [p.shape for p in x.split(3)] == [(3,), (1,)]
    assert x.to(np.float32).dtype == np.float32
    assert x.to(np.float64) is x
    assert (x.ndim, x.size, len(x), x.is_leaf, m.is_leaf) == (1, 4, 4, True, False)
    assert float(x.sum()) == x.sum().item() == int(x.sum()) == 10
    assert bool(x.sum())


def test_new_tensors():
    assert tensor([1.0, 2.0]).dtype == np.float32
    assert tensor(np.ones(2)).dtype == np.float64
    assert tensor([1, 2]).dtype == np.int64
    source = np.ones(2)
    assert not np.shares_memory(tensor(source).data, source)
    with pytest.raises(TypeError, match="only floating"):
        tensor([1, 2], requires_grad=True)
    assert repr(leaf(1.0)) == "tensor([1.], dtype=float64, requires_grad=True)"
    assert repr(leaf(1.0) * 2) == "tensor([2.], dtype=float64, from=mul)"
    assert hd.tensor is tensor


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_stays_what_it_is(dtype):
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = Tensor(np.array([[1.0, 2.0], [3.0, 4.0]]).astype(kind), True)
    y = (x * 2 + 1).sum()
    y.backward()
    assert (y.dtype, x.grad.dtype) == (kind, kind)
    assert float(y.data) == 24
    np.testing.assert_array_equal(x.grad.astype(np.float64), np.full((2, 2), 2))


def test_complex_gradients_point_uphill():
    def loss(z):
        return (z * z.detach() * 0 + z * (2 + 1j)).sum()

    z = Tensor(np.array([1 + 2j]), True)
    loss(z).backward(np.array(1 + 0j))
    np.testing.assert_allclose(z.grad, [2 - 1j])
    check_vjp(OPS["mul"], np.array([1 + 2j]), np.array([3 - 1j]))
    check_vjp(OPS["div"], np.array([1 + 2j]), np.array([3 - 1j]))
    check_vjp(OPS["exp"], np.array([1 + 2j]))


# ---------------------------------------------------------------- memory
def test_a_steady_step_takes_its_memory_from_the_pool():
    x = Tensor(np.ones((256, 256), np.float32), True)

    def step():
        x.grad = None
        apply(OPS["gelu"], apply(OPS["linear"], x, x), tanh=True).sum().backward()

    step()
    step()
    held = POOL.held_bytes
    for _ in range(3):
        step()
    assert POOL.held_bytes == held
    x.grad = None
    POOL.release()
    assert POOL.held_bytes < held


def test_pooled_arrays_are_not_shared_while_in_use():
    arrays = [POOL.empty((100, 100)) for _ in range(5)]
    for i, a in enumerate(arrays):
        a[...] = i
    view = arrays[3][2:]
    del arrays[3], a
    other = POOL.empty((100, 100))
    assert not np.shares_memory(other, view)
    assert (view == 3).all()
    assert [a.mean() for a in arrays] == [0, 1, 2, 4]


def test_gradients_that_are_values_can_be_changed_one_by_one():
    a, b = Tensor(np.ones(3), True), Tensor(np.ones(3), True)
    ga, gb = grad(((a + b) * 3.0).sum(), [a, b])
    ga *= 2
    np.testing.assert_array_equal([ga[0], gb[0]], [6, 3])
    again = grad((a * a).sum(), [a, a])
    again[0][...] = 0
    np.testing.assert_array_equal(again[1], [2, 2, 2])
    (spread,) = grad(a.sum(), a)
    spread *= 2
    np.testing.assert_array_equal(spread, [2, 2, 2])
    assert (a**1).data is not a.data
