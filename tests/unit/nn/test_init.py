"""Initial values: their distribution, the same for any part of them."""

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor, manual_seed
from hpcdist.nn import init
from hpcdist.nn.deferral import draw

MATRIX, KERNEL = (40, 60), (12, 8, 3, 3)
DRAWS = {
    "uniform_": ({"a": -2, "b": 3}, (0.5, 5 / 12**0.5)),
    "normal_": ({"mean": 1, "std": 2}, (1, 2)),
    "trunc_normal_": ({"std": 0.5, "a": -1, "b": 1}, (0, 0.5 * 0.8796)),
    "xavier_uniform_": ({"gain": 2}, (0, 2 * 0.02**0.5)),
    "xavier_normal_": ({}, (0, 0.02**0.5)),
    "kaiming_uniform_": ({"a": 5**0.5}, (0, 1 / (3 * 60) ** 0.5)),
    "kaiming_normal_": ({"mode": "fan_out", "nonlinearity": "relu"}, (0, (2 / 40) ** 0.5)),
}
OTHERS = {"constant_": {"val": 3}, "zeros_": {}, "ones_": {}, "eye_": {}, "orthogonal_": {"gain": 2}}
EVERY = [(name, options, MATRIX) for name, options in {**{n: o for n, (o, _) in DRAWS.items()}, **OTHERS}.items()]
EVERY += [("dirac_", {"groups": 2}, KERNEL), ("xavier_normal_", {}, KERNEL), ("normal_", {}, ())]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", DRAWS)
def test_mean_and_deviation(name, dtype):
    options, (mean, std) = DRAWS[name]
    manual_seed(0)
    values = getattr(init, name)(Tensor(np.empty(MATRIX, dtype), True), **options).data
    assert values.dtype == dtype
    assert values.mean() == pytest.approx(mean, abs=4 * std / values.size**0.5)
    assert values.std() == pytest.approx(std, rel=0.05)


def test_truncated_values_are_inside():
    manual_seed(0)
    values = init.trunc_normal_(Tensor(np.empty(5000, np.float32)), 1.0, 2.0, 0.5, 1.5).data
    assert 0.5 <= values.min() < 0.52
    assert 1.48 < values.max() <= 1.5
    with pytest.raises(ValueError, match="a range that holds"):
        init.trunc_normal_(Tensor(np.empty(5)), 0.0, 1.0, 5.0, 6.0)


def test_fixed_values():
    np.testing.assert_array_equal(init.eye_(Tensor(np.empty((3, 5)))).data, np.eye(3, 5))
    np.testing.assert_array_equal(init.constant_(Tensor(np.empty((3, 5))), 2.5).data, 2.5)
    x = np.random.default_rng(0).standard_normal((2, 6, 9))
    kernel = init.dirac_(Tensor(np.empty((8, 3, 3))), groups=2)
    kept = nn.functional.conv1d(Tensor(x), kernel, padding=1, groups=2).data
    np.testing.assert_array_equal(kept[:, [0, 1, 2, 4, 5, 6]], x)
    np.testing.assert_array_equal(kept[:, [3, 7]], 0)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 2, 3), (3, 0)])
def test_orthogonal_rows_or_columns(shape):
    q = init.orthogonal_(Tensor(np.empty(shape)), gain=3).data.reshape(shape[0], -1) / 3
    gram = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)


def test_gains():
    assert init.calculate_gain("tanh") == pytest.approx(5 / 3)
    assert init.calculate_gain("leaky_relu", 2.0) == pytest.approx((2 / 5) ** 0.5)
    with pytest.raises(ValueError, match="swish"):
        init.calculate_gain("swish")


def test_draws_by_name_depend_on_nothing_else():
    manual_seed(3)
    first = init.orthogonal_(Tensor(np.empty((3, 3))), name="w").data
    manual_seed(3)
    init.normal_(Tensor(np.empty(7)))
    np.testing.assert_array_equal(init.orthogonal_(Tensor(np.empty((3, 3))), name="w").data, first)


@pytest.mark.parametrize(("name", "options", "shape"), EVERY, ids=[f"{n}-{len(s)}" for n, _, s in EVERY])
def test_a_part_has_the_bits_of_the_whole(name, options, shape):
    manual_seed(5)
    whole = getattr(init, name)(Tensor(np.empty(shape, np.float32)), **options).data
    manual_seed(5)
    with nn.deferred():
        parameter = getattr(init, name)(nn.Parameter(np.empty(shape, np.float32)), **options)
    np.testing.assert_array_equal(draw(parameter), whole)
    start, extent = tuple(n // 3 for n in shape), tuple(n // 2 for n in shape)
    part = tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
    np.testing.assert_array_equal(draw(parameter, start, extent), whole[part])
    np.testing.assert_array_equal(draw(parameter, start), whole[tuple(slice(a, None) for a in start)])


def test_large_draws_are_made_in_slabs_of_the_same_bits(monkeypatch):
    with nn.deferred():
        parameter = init.normal_(nn.Parameter(np.empty((50, 7), np.float64)))
    whole = draw(parameter)
    for slab in (1, 20, 349):
        monkeypatch.setattr("hpcdist.nn.deferral.SLAB", slab)
        np.testing.assert_array_equal(draw(parameter), whole)
        np.testing.assert_array_equal(draw(parameter, (3, 2), (40, 4)), whole[3:43, 2:6])


def test_boxes_are_inside():
    with nn.deferred():
        parameter = nn.Parameter(np.empty((4, 4)))
    for start, shape in (
        ((0, 2), (4, 3)),
        ((-1, 0), (1, 1)),
        ((5, 0), None),
        ((0,), (1,)),
        (None, (1, 1, 1)),
        ((1,), None),
    ):
        with pytest.raises(ValueError, match="inside"):
            draw(parameter, start, shape)
    with pytest.raises(TypeError, match="deferred"):
        draw(Tensor(np.ones(3)))


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (lambda: init.uniform_(Tensor(np.empty(3)), 2, 1), "uniform_.*\n.*2 to 1"),
        (lambda: init.normal_(Tensor(np.empty(3)), 0, -1), "std.*\n.*-1"),
        (lambda: init.normal_(Tensor(np.empty(3, int))), "int64"),
        (lambda: init.xavier_uniform_(Tensor(np.empty((3, 3), complex))), "complex128"),
        (lambda: init.orthogonal_(np.empty((3, 3))), "ndarray"),
        (lambda: init.zeros_(np.empty(3)), "ndarray"),
    ],
)
def test_what_cannot_be_filled_is_said(fill, words):
    with pytest.raises((TypeError, ValueError), match=words):
        fill()
    np.testing.assert_array_equal(init.ones_(Tensor(np.empty(2, int))).data, [1, 1])
