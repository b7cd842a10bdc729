"""Fourier transforms: against the sum that defines them, their gradients against its conjugate transpose."""

import numpy as np
import pytest

import hpcdist as hd
from hpcdist.autograd import Tensor, backward, check_vjp, fft

RNG = np.random.default_rng(0)
NORMS = (None, "backward", "ortho", "forward")


def matrix(n):
    """Return the matrix of the whole transform, undivided."""
    k = np.arange(n)
    return np.exp(-2j * np.pi * np.outer(k, k) / n)


def spectrum(*shape):
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


def forward_scale(n, norm):
    return {"ortho": n**-0.5, "forward": 1 / n}.get(norm, 1)


def inverse_scale(n, norm):
    return {"ortho": n**-0.5, "forward": 1}.get(norm, 1 / n)


def whole(half, n):
    """Fill a half spectrum up by conjugates, the last dimension."""
    full = np.zeros((*half.shape[:-1], n), complex)
    for k in range(n):
        full[..., k] = half[..., k] if k <= n // 2 else half[..., n - k].conj()
    full[..., 0] = full[..., 0].real
    if n % 2 == 0:
        full[..., n // 2] = full[..., n // 2].real
    return full


def fitted(a, n):
    out = np.zeros((*a.shape[:-1], n), a.dtype)
    out[..., : min(n, a.shape[-1])] = a[..., :n]
    return out


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 8])
def test_rfft_is_its_sum_and_its_gradient_the_conjugate_transpose(n, norm):
    x = Tensor(RNG.standard_normal((3, 6)), requires_grad=True)
    half = matrix(n)[:, : n // 2 + 1] * forward_scale(n, norm)
    y = hd.fft.rfft(x, n, norm=norm)
    np.testing.assert_allclose(y.data, fitted(x.data, n) @ half, atol=1e-13)
    seed = spectrum(*y.shape)
    backward(y, seed)
    np.testing.assert_allclose(x.grad, fitted((seed @ half.conj().T).real, 6), atol=1e-13)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 8, None])
def test_irfft_is_its_sum_and_its_gradient_the_conjugate_transpose(n, norm):
    z = Tensor(spectrum(3, 4), requires_grad=True)
    extent = 6 if n is None else n
    inverse = matrix(extent).conj() * inverse_scale(extent, norm)
    y = hd.fft.irfft(z, n, norm=norm)
    m = extent // 2 + 1
    np.testing.assert_allclose(y.data, (whole(fitted(z.data, m), extent) @ inverse).real, atol=1e-13)
    seed = RNG.standard_normal(y.shape)
    backward(y, seed)
    # real and imaginary parts one by one: what a unit in each does to the output
    expected = np.zeros(z.shape, complex)
    for k in range(4):
        unit = np.zeros((1, 4), complex)
        for direction in (1, 1j):
            unit[0, k] = direction
            expected[:, k] += direction * (seed @ (whole(fitted(unit, m), extent) @ inverse).real[0])
    np.testing.assert_allclose(z.grad, expected, atol=1e-13)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (1, 8), (3, 1)])
def test_two_dimensions_go_there_and_back(shape, norm):
    x = RNG.standard_normal((2, *shape, 3))
    y = hd.fft.rfft2(Tensor(x), dim=(1, 2), norm=norm)
    np.testing.assert_allclose(y.data, np.fft.rfft2(x, axes=(1, 2), norm=norm), atol=1e-13)
    np.testing.assert_allclose(hd.fft.irfft2(y, shape, (1, 2), norm).data, x, atol=1e-13)


def test_extents_may_differ_from_those_of_the_input():
    x, z = RNG.standard_normal((2, 4, 5)), spectrum(2, 4, 5)
    np.testing.assert_allclose(hd.fft.rfft2(Tensor(x), (6, 3)).data, np.fft.rfft2(x, (6, 3)), atol=1e-13)
    np.testing.assert_allclose(hd.fft.irfft2(Tensor(z), (3, 9)).data, np.fft.irfft2(z, (3, 9)), atol=1e-13)
    np.testing.assert_allclose(hd.fft.irfft2(Tensor(z)).data, np.fft.irfft2(z), atol=1e-13)
    np.testing.assert_allclose(hd.fft.rfftn(Tensor(x)).data, np.fft.rfftn(x), atol=1e-13)
    np.testing.assert_allclose(hd.fft.irfftn(Tensor(z), (6, 8)).data, np.fft.irfftn(z, (6, 8), (-2, -1)), atol=1e-13)


@pytest.mark.parametrize(("dtype", "of_spectrum"), [(np.float16, "F"), (np.float32, "F"), (np.float64, "D")])
def test_precision_is_kept(dtype, of_spectrum):
    x = Tensor(RNG.standard_normal((3, 8)).astype(dtype), requires_grad=True)
    y = hd.fft.rfft2(x)
    assert y.dtype == np.dtype(of_spectrum)
    back = hd.fft.irfft2(y)
    assert back.dtype == np.dtype(of_spectrum).type(0).real.dtype
    back.sum().backward()
    assert x.grad.dtype == dtype
    np.testing.assert_allclose(x.grad.astype(float), 1, atol=1e-3 if dtype is np.float16 else 1e-6)


@pytest.mark.parametrize("shape", [(8,), (7,)])
def test_a_spectral_layer_has_the_right_gradients(shape):
    """Transform, weight the low frequencies, transform back: what a Fourier neural operator does."""
    weight = spectrum(3, 2, 3)

    def layer(x, w):
        low = hd.fft.rfft(x)[..., :3]
        mixed = hd.einsum("bik,iok->bok", low, w)
        return hd.fft.irfft(hd.pad(mixed, (0, shape[0] // 2 + 1 - 3)), shape[0])

    check_vjp(layer, RNG.standard_normal((2, 3, *shape)), weight, tolerance=1e-7)


def test_no_rows_at_all_are_legal():
    x = Tensor(np.empty((0, 6), np.float32), requires_grad=True)
    y = hd.fft.irfft(hd.fft.rfft(x))
    assert y.shape == (0, 6)
    y.sum().backward()
    assert x.grad.shape == (0, 6)


def test_more_dimensions_than_there_are():
    for transform, x in ((fft.rfft2, np.ones(3)), (fft.irfft2, np.ones(3, complex))):
        with pytest.raises(ValueError, match="dim -2 is out of range for 1 dimensions"):
            transform(Tensor(x))
