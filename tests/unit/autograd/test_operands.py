"""What operators and functions take: vectors, integers beside floats, pieces, dimensions, sequences."""

import numpy as np
import pytest

from hpcdist.autograd import Tensor, arrangement, check_vjp, functions


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((3,), (4, 3, 2)), ((4, 2, 3), (3,))])
def test_products_with_vectors(shapes):
    arrays = [np.random.default_rng(i).standard_normal(s) for i, s in enumerate(shapes)]
    check_vjp(lambda a, b: a @ b, *arrays)
    a, b = map(Tensor, arrays)
    for value in (a @ b, functions.matmul(a, b), arrays[0] @ b, a @ arrays[1]):
        assert value.shape == (arrays[0] @ arrays[1]).shape
        np.testing.assert_allclose(value.data, arrays[0] @ arrays[1], rtol=1e-12)


def test_transpose_exchanges_two_dimensions_or_takes_an_order():
    x = np.arange(24.0).reshape(2, 3, 4)
    for dims in ((0, 1), (-1, 0), (1, 1)):
        np.testing.assert_array_equal(Tensor(x).transpose(*dims).data, x.swapaxes(*dims))
    np.testing.assert_array_equal(Tensor(x[0]).transpose(0, 1).data, x[0].T)
    np.testing.assert_array_equal(Tensor(x[0]).permute(0, 1).data, x[0])
    np.testing.assert_array_equal(Tensor(x).transpose((2, 0, 1)).data, x.transpose(2, 0, 1))
    np.testing.assert_array_equal(Tensor(x).transpose(2, 0, 1).data, x.transpose(2, 0, 1))
    np.testing.assert_array_equal(Tensor(x).T.data, x.T)
    with pytest.raises(ValueError, match="dim 3 is out of range"):
        Tensor(x).transpose(0, 3)


def test_integers_next_to_floats_take_their_dtype():
    whole, x = np.arange(3), Tensor(np.ones(3, np.float32))
    for value in (x * whole, whole * x, x * Tensor(whole), Tensor(whole) + x, x * (whole > 1), x / Tensor(whole + 1)):
        assert value.dtype == np.float32
    assert (Tensor(np.ones(3, np.float16)) * Tensor(whole)).dtype == np.float16
    assert (Tensor(whole) * Tensor(whole.astype(np.int8))).dtype == np.int64
    mask = Tensor(np.array([True, False]))
    assert (mask * 2).data.tolist() == [2, 0]
    assert (1 + mask).data.tolist() == [2, 1]
    assert (mask * 0.5).data.tolist() == [0.5, 0]
    assert (mask * mask).dtype == bool


def test_pieces():
    x = Tensor(np.arange(10.0).reshape(2, 5))
    assert [p.shape for p in x.split(np.int64(2), 1)] == [(2, 2), (2, 2), (2, 1)]
    assert [p.shape for p in Tensor(np.empty((2, 0))).split(3, 1)] == [(2, 0)]
    for sizes in (0, -1):
        with pytest.raises(ValueError, match=r"(?s)size of a piece.*1 or more"):
            x.split(sizes, 1)
    for function in (lambda: x.split(2, 2), lambda: x.split([2, 3], 2), lambda: arrangement.cat([x], 2)):
        with pytest.raises(ValueError, match="dim 2 is out of range"):
            function()
    for function in (arrangement.cat, arrangement.stack):
        with pytest.raises(ValueError, match="expected a"):
            function([])
    assert x.reshape(np.int64(10)).shape == (10,)


def test_dimensions_are_integers():
    x = Tensor(np.ones((2, 2)))
    with pytest.raises(TypeError, match="max: expected integers as dimensions, not Tensor"):
        x.max(x)
    with pytest.raises(ValueError, match="norm: p = fro is not a positive number"):
        x.norm("fro")


def test_operands_of_einsum_as_a_sequence():
    a, b = np.ones((2, 3)), np.ones((3, 4))
    np.testing.assert_array_equal(functions.einsum("ij,jk", [Tensor(a), Tensor(b)]).data, a @ b)
