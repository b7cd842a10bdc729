"""Every operation: gradient, dtype, sharding signature, errors; with and without compiled kernels."""

import re

import numpy as np
import pytest
from unit.autograd import cases_losses, cases_numeric, cases_sequences, cases_spatial

from hpcdist.autograd import OPS, Tensor, apply, backward, check_vjp
from hpcdist.backends import flags

AREAS = [cases_losses, cases_numeric, cases_sequences, cases_spatial]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def positive(*shape):
    return np.abs(normal(*shape)) + 1


TARGETS = np.array([1, 2, -100, 4, 0, 0])
CASES = [
    ("add", (normal(3, 1, 4), normal(2, 4)), {}),
    ("add", (normal(3, 4), normal(3, 4)), {}),
    ("sub", (normal(3, 1, 4), normal(2, 4)), {}),
    ("mul", (normal(3, 1, 4), normal(2, 4)), {}),
    ("div", (normal(3, 1, 4), positive(2, 4)), {}),
    ("neg", (normal(3, 2),), {}),
    ("pow", (positive(3, 2),), {"exponent": 2.5}),
    ("exp", (normal(3, 2),), {}),
    ("log", (positive(3, 2),), {}),
    ("sqrt", (positive(3, 2),), {}),
    ("tanh", (normal(3, 2),), {}),
    ("sigmoid", (normal(3, 2),), {}),
    ("relu", (normal(3, 2),), {}),
    ("erf", (normal(3, 2),), {}),
    ("where", (normal(3, 4) > 0, normal(3, 4, seed=1), normal(4)), {}),
    ("cast", (normal(3, 2),), {"dtype": np.dtype(np.float64)}),
    ("sum", (normal(3, 4, 2),), {"dim": (0, -1), "keepdim": True}),
    ("sum", (normal(3, 4, 2),), {"dim": None, "keepdim": False}),
    ("mean", (normal(3, 4, 2),), {"dim": 1, "keepdim": False}),
    ("reshape", (normal(3, 4, 2),), {"shape": (3, 8)}),
    ("transpose", (normal(3, 4, 2),), {"dims": (2, 0, 1)}),
    ("getitem", (normal(3, 4, 2),), {"index": (slice(1, 3), 1)}),
    ("getitem", (normal(3, 4),), {"index": np.array([0, 0, 2])}),
    ("put", (normal(3, 4),), {"index": np.array([0, 0, 2]), "shape": (5, 4)}),
    ("cat", (normal(3, 4), normal(3, 2)), {"dim": 1}),
    ("split", (normal(3, 5),), {"sizes": (2, 3), "dim": -1}),
    ("linear", (normal(2, 3, 4), normal(5, 4), normal(5)), {}),
    ("linear", (normal(3, 4), normal(5, 4)), {}),
    ("matmul", (normal(2, 3, 4), normal(4, 5)), {}),
    ("matmul", (normal(2, 1, 3, 4), normal(3, 4, 5)), {}),
    ("softmax", (normal(3, 4, 5),), {"dim": 1}),
    ("log_softmax", (normal(3, 4, 5),), {"dim": -1}),
    ("layer_norm", (normal(3, 4, 5), normal(5), normal(5)), {"eps": 1e-5}),
    ("add_layer_norm", (normal(3, 4, 5), normal(3, 4, 5, seed=1), normal(5), normal(5)), {"eps": 1e-5}),
    ("rms_norm", (normal(3, 4, 5), normal(5)), {"eps": 1e-5}),
    ("add_rms_norm", (normal(3, 4, 5), normal(3, 4, 5, seed=1), normal(5)), {"eps": 1e-5}),
    ("gelu", (normal(3, 4),), {"tanh": True}),
    ("gelu", (normal(3, 4),), {"tanh": False}),
    ("silu", (normal(3, 4),), {}),
    ("swiglu", (normal(3, 4),), {}),
    ("attention", (normal(3, 5, 24),), {"num_heads": 2, "causal": True}),
    ("attention", (normal(3, 5, 24),), {"num_heads": 2, "causal": False}),
    ("rotary", (normal(3, 5, 24),), {"num_heads": 2, "base": 1e4}),
    ("cross_entropy", (normal(6, 5), TARGETS), {"ignore_index": -100, "reduction": "mean"}),
    ("cross_entropy", (normal(6, 5), TARGETS), {"ignore_index": -100, "reduction": "sum"}),
    (
        "linear_cross_entropy",
        (normal(6, 3), normal(5, 3), TARGETS),
        {"ignore_index": -100, "reduction": "mean", "chunk_rows": 4},
    ),
    ("embedding", (np.array([[1, 2, 1], [0, 0, 4]]), normal(5, 3)), {}),
    ("dropout", (normal(30, 4),), {"p": 0.3, "key": (1, 2, 3, 4)}),
]
CASES += [case for area in AREAS for case in area.CASES]
IDS = [f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)]


def cast(arrays, dtype):
    kinds = {"f": dtype, "c": np.result_type(dtype, "F")}
    return [a.astype(kinds.get(a.dtype.kind, a.dtype)) for a in arrays]


def draw(like, seed):
    """Return random numbers of the shape and dtype of ``like``."""
    parts = normal(2, *like.shape, seed=seed)
    return (parts[0] + 1j * parts[1] if like.dtype.kind == "c" else parts[0]).astype(like.dtype)


def run(name, arrays, attrs):
    """Return outputs and input gradients of sum(outputs * fixed numbers), as flat lists."""
    leaves = [Tensor(a, requires_grad=a.dtype.kind in "fc") for a in arrays]
    results = apply(OPS[name], *leaves, **attrs)
    results = results if isinstance(results, tuple) else (results,)
    differentiable = [t for t in results if t.requires_grad]
    backward(differentiable, [draw(t, 9) for t in differentiable])
    wanted = [leaf for leaf in leaves if leaf.requires_grad and differentiable]
    return [t.data for t in results], [leaf.grad for leaf in wanted]


def test_every_operation_is_here():
    # what other layers define on top has tests there
    assert {n for n, op in OPS.items() if op.vjp.__module__.startswith("hpcdist.autograd.")} == {
        name for name, _, _ in CASES
    }


@pytest.mark.parametrize(("name", "arrays", "attrs"), CASES, ids=IDS)
def test_gradient_equals_differences(name, arrays, attrs):
    check_vjp(OPS[name], *arrays, tolerance=1e-7, **attrs)


@pytest.mark.parametrize("off", [(), ("*",)], ids=["compiled", "generic"])
@pytest.mark.parametrize(("name", "arrays", "attrs"), CASES, ids=IDS)
def test_float32_stays_float32_and_agrees_with_float64(name, arrays, attrs, off):
    attrs = {**attrs, "dtype": np.dtype(np.float32)} if name == "cast" else attrs
    outputs, grads = run(name, cast(arrays, np.float64), {k: v for k, v in attrs.items() if k != "dtype"} or attrs)
    with flags.kernels(off=off):
        outputs32, grads32 = run(name, cast(arrays, np.float32), attrs)
    single = {"f": np.float32, "c": np.complex64, "i": np.int64, "b": np.bool_}
    assert [a.dtype for a in outputs32 + grads32] == [single[a.dtype.kind] for a in outputs + grads]
    for a, b in zip(outputs32 + grads32, outputs + grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "arrays", "attrs"), CASES, ids=IDS)
def test_strided_and_fortran_inputs_give_the_same(name, arrays, attrs):
    def odd(a):
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
        wide[..., ::2] = a
        return wide[..., ::2]

    outputs, grads = run(name, arrays, attrs)
    for change in (odd, np.asfortranarray):
        changed = run(name, [change(a) for a in arrays], attrs)
        for a, b in zip(changed[0] + changed[1], outputs + grads, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- the sharding signature means what it says
def groups(text):
    """Split "m[k],n" into [["m", "[k]"], ["n"]]."""
    return [re.findall(r"\[\w\]|\w", part) for part in text.split(",")]


def cut(array, dim, start, stop):
    return array[(slice(None),) * dim + (slice(start, stop),)]


@pytest.mark.parametrize(("name", "arrays", "attrs"), CASES, ids=IDS)
def test_letters_of_the_signature_may_be_cut(name, arrays, attrs):
    op = OPS[name]
    inside, outside = op.signature_for([a.shape for a in arrays], attrs).split("->")
    ins, outs = groups(inside), groups(outside)
    whole = apply(op, *map(Tensor, arrays), **attrs)
    whole = [t.data for t in (whole if isinstance(whole, tuple) else (whole,))]
    assert [len(g) for g in ins] == [a.ndim for a in arrays]
    assert [len(g) for g in outs] == [a.ndim for a in whole]
    letters = {x for g in ins + outs for x in g if x != "1" and "[" not in x}
    for letter in letters - {x for g in outs for x in g if not any(x in i for i in ins)}:
        extents = {a.shape[g.index(letter)] for a, g in zip(arrays, ins, strict=True) if letter in g}
        assert len(extents) == 1
        n = extents.pop()
        middle = -(-n // 2)
        summed = not any(letter in g for g in outs)
        added = [i for i, text in enumerate(inside.split(",")) if text.startswith("+") and letter not in ins[i]]
        parts = []
        for start, stop in ((0, middle), (middle, n)):
            local = [
                cut(a, g.index(letter), start, stop) if letter in g else a for a, g in zip(arrays, ins, strict=True)
            ]
            if summed and start:  # what is added to a sum belongs to one part of it
                local = [np.zeros_like(a) if i in added else a for i, a in enumerate(local)]
            if name == "dropout":
                index = np.arange(arrays[0].size).reshape(arrays[0].shape)
                attrs = {**attrs, "index": cut(index, ins[0].index(letter), start, stop)}
            if name in ("reshape", "broadcast_to"):
                where = groups(outside)[0].index(letter)
                shape = list(whole[0].shape)
                shape[where] = stop - start
                attrs = {"shape": tuple(shape)}
            result = apply(op, *map(Tensor, local), **attrs)
            parts.append([t.data for t in (result if isinstance(result, tuple) else (result,))])
        for slot, group in enumerate(outs):
            pieces = [p[slot] for p in parts]
            joined = np.concatenate(pieces, group.index(letter)) if letter in group else pieces[0] + pieces[1]
            np.testing.assert_allclose(joined, whole[slot], rtol=1e-10, atol=1e-12, err_msg=f"{name}: {letter}")


@pytest.mark.parametrize(("name", "arrays", "attrs"), CASES, ids=IDS)
def test_linear_operations_are_linear(name, arrays, attrs):
    op = OPS[name]
    if not op.linear:
        return
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind in "fc"]

    def value(inputs):
        result = apply(op, *map(Tensor, inputs), **attrs)
        return [t.data for t in (result if isinstance(result, tuple) else (result,))]

    for chosen in [floats] if op.linear == "joint" else [[i] for i in floats]:
        other = [draw(a, 5) if i in chosen else a for i, a in enumerate(arrays)]
        both = [a + 2 * b if i in chosen else a for i, (a, b) in enumerate(zip(arrays, other, strict=True))]
        for x, y, z in zip(value(arrays), value(other), value(both), strict=True):
            np.testing.assert_allclose(z, x + 2 * y, rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("name", "arrays", "attrs", "words"),
    [
        ("add", (normal(3), normal(4)), {}, r"add.*\(3,\) float64, \(4,\) float64"),
        ("linear", (normal(2, 3), normal(4, 5)), {}, r"linear.*\(2, 3\).*\(4, 5\)"),
        ("layer_norm", (normal(2, 3), normal(4), normal(3)), {"eps": 1e-5}, r"layer_norm.*\(4,\)"),
        ("add_rms_norm", (normal(2, 3), normal(2, 4), normal(3)), {"eps": 1e-5}, r"add_rms_norm.*\(2, 4\)"),
        ("attention", (normal(2, 5, 25),), {"num_heads": 2, "causal": True}, r"attention.*\(2, 5, 25\)"),
        ("rotary", (normal(2, 5, 18),), {"num_heads": 2, "base": 1e4}, "even head dimension"),
        ("swiglu", (normal(2, 5),), {}, "even last dimension"),
        ("embedding", (np.array([0, 5]), normal(5, 2)), {}, r"0 \.\. 5: expected 0 \.\. 4"),
        ("embedding", (np.array([-1, 2]), normal(5, 2)), {}, r"-1 \.\. 2"),
        ("embedding", (np.array([0.5]), normal(5, 2)), {}, "integer tokens"),
        ("cross_entropy", (normal(2, 3), np.array([0, 3])), {"ignore_index": -100, "reduction": "mean"}, "get 3 is"),
        (
            "cross_entropy",
            (normal(2, 3), np.array([0])),
            {"ignore_index": -100, "reduction": "mean"},
            r"targets \(1,\) for rows of logits \(2,\)",
        ),
        (
            "cross_entropy",
            (normal(2, 3, 4), np.zeros((3, 2), int)),
            {"ignore_index": -1, "reduction": "sum"},
            "the same",
        ),
        (
            "cross_entropy",
            (normal(2, 3), np.array([0.7, 1])),
            {"ignore_index": -1, "reduction": "sum"},
            "integer targets",
        ),
        ("pow", (normal(2),), {"exponent": normal(2)}, "number as exponent"),
        ("add", (normal(2), np.array("a")), {}, "add"),
        ("cross_entropy", (normal(2, 3), np.array([0, 1])), {"ignore_index": -1, "reduction": "max"}, "'max'"),
        ("sum", (normal(2, 3),), {"dim": 2, "keepdim": False}, "dim 2 is out of range"),
        ("split", (normal(2, 3),), {"sizes": (1, 1), "dim": 1}, "do not add up to 3"),
        ("matmul", (normal(3), normal(3, 2)), {}, "expected matrices"),
        ("mean", (np.empty((0, 2)),), {"dim": 0, "keepdim": False}, "no elements"),
        *[error for area in AREAS for error in area.ERRORS],
    ],
)
def test_errors_name_the_operation_and_the_shapes(name, arrays, attrs, words):
    with pytest.raises((ValueError, TypeError, IndexError), match=re.compile(words, re.DOTALL)) as error:
        apply(OPS[name], *map(Tensor, arrays), **attrs)
    assert str(error.value).startswith(f"{name}: ")
    assert f"{arrays[0].shape}" in str(error.value)


def test_no_rows_at_all_are_legal():
    loss = apply(
        OPS["linear_cross_entropy"],
        Tensor(np.empty((0, 3)), True),
        w := Tensor(normal(5, 3), True),
        Tensor(np.empty(0, np.int64)),
        ignore_index=-100,
        reduction="mean",
        chunk_rows=4,
    )
    loss.backward()
    assert loss.item() == 0
    np.testing.assert_array_equal(w.grad, np.zeros((5, 3)))


FLOATING = {"attention", "cross_entropy", "dropout", "gelu", "layer_norm", "linear_cross_entropy", "log_softmax"}
FLOATING |= {"add_layer_norm", "add_rms_norm", "mean", "rms_norm", "rotary", "silu", "softmax", "swiglu"}
FLOATING |= cases_spatial.FLOATING | cases_losses.FLOATING | cases_sequences.FLOATING


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
@pytest.mark.parametrize(("name", "arrays", "attrs"), [c for c in CASES if c[0] in FLOATING])
def test_integers_are_refused_where_they_would_round_the_result(name, arrays, attrs, dtype):
    with pytest.raises(TypeError, match=f"^{name}: .*(floating|rounded)"):
        apply(OPS[name], *(Tensor(a.astype(dtype) if a.dtype.kind == "f" else a) for a in arrays), **attrs)


def test_every_floating_operation_has_a_case():
    assert {name for name, *_ in CASES} >= FLOATING
