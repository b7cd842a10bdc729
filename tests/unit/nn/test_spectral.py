"""Fourier layers against sums of waves, and against the same transform in plain NumPy."""

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor, check_vjp, manual_seed
from hpcdist.nn import functional as F


def complex_of(weight):
    return weight.data[..., 0] + 1j * weight.data[..., 1]


def lines(module, x):
    z = np.zeros((x.shape[0], module.weight.shape[1], x.shape[2] // 2 + 1), complex)
    m = module.modes
    z[:, :, :m] = np.einsum("bik,iok->bok", np.fft.rfft(x)[:, :, :m], complex_of(module.weight))
    return np.fft.irfft(z, x.shape[2])


def planes(module, x):
    a, b = module.modes
    z = np.zeros((x.shape[0], module.out_channels, x.shape[2], x.shape[3] // 2 + 1), complex)
    spectrum = np.fft.rfft2(x)
    for rows, weight in ((slice(0, a), module.weight1), (slice(x.shape[2] - a, None), module.weight2)):
        z[:, :, rows, :b] = np.einsum("bixy,ioxy->boxy", spectrum[:, :, rows, :b], complex_of(weight))
    return np.fft.irfft2(z, x.shape[2:])


KINDS = {
    "lines": (nn.SpectralConv1d, (3,), lines, [(8,), (9,), (4,)]),
    "planes": (nn.SpectralConv2d, (2, 3), planes, [(8, 10), (5, 7), (4, 4)]),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])
@pytest.mark.parametrize("name", KINDS)
def test_the_lowest_modes_are_mixed(name, dtype, tolerance):
    kind, modes, formula, sizes = KINDS[name]
    manual_seed(0)
    module = kind(2, 4, *modes, dtype=dtype)
    for size in sizes:
        x = np.random.default_rng(0).standard_normal((3, 2, *size)).astype(dtype)
        y = module(Tensor(x))
        assert y.dtype == dtype
        np.testing.assert_allclose(y.data, formula(module, x.astype(float)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", KINDS)
def test_gradients(name):
    kind, modes, _, sizes = KINDS[name]
    module = kind(2, 3, *modes, dtype=np.float64)
    rng = np.random.default_rng(0)
    names = [n for n, _ in module.named_parameters()]

    def run(x, *weights):
        for n, w in zip(names, weights, strict=True):
            setattr(module, n, w)
        return module(x)

    arrays = [rng.standard_normal(p.shape) for p in module.parameters()]
    for size in sizes:
        check_vjp(run, rng.standard_normal((2, 2, *size)), *arrays, tolerance=1e-7)


def test_a_wave_is_multiplied_by_its_weight():
    module = nn.SpectralConv1d(1, 1, 4, dtype=np.float64)
    module.weight.data[0, 0] = [[1, 0], [0, 0], [0, 1], [0, 0]]  # the mean stays, wave 2 moves by a quarter
    for n in (16, 33):
        t = 2 * np.pi * np.arange(n) / n
        x = 3 + np.cos(2 * t) + np.cos(t) + np.cos(5 * t)
        np.testing.assert_allclose(module(Tensor(x[None, None])).data[0, 0], 3 - np.sin(2 * t), atol=1e-12)


def test_the_derivative_is_learned():
    manual_seed(0)
    rng = np.random.default_rng(0)
    module = nn.SpectralConv1d(1, 1, 5)
    optimizer = optim.Adam(module.parameters(), lr=0.1)
    t = 2 * np.pi * np.arange(32) / 32
    for _ in range(200):
        a, b = rng.standard_normal((2, 16, 4, 1))
        k = np.arange(1, 5)[:, None]
        x = (a * np.sin(k * t) + b * np.cos(k * t)).sum(1, keepdims=True)
        y = (k * (a * np.cos(k * t) - b * np.sin(k * t))).sum(1, keepdims=True)
        loss = F.mse_loss(module(Tensor(x.astype(np.float32))), y.astype(np.float32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(module.weight.data[0, 0, 1:, 1], [1, 2, 3, 4], atol=0.02)
    assert loss.item() < 1e-3


def test_what_does_not_fit_is_said():
    module = nn.SpectralConv2d(2, 4, 3, 3)
    for shape in ((1, 2, 5, 8), (1, 2, 8, 3), (1, 3, 8, 8), (2, 8, 8)):
        with pytest.raises(ValueError, match="SpectralConv2d: input"):
            module(Tensor(np.zeros(shape, np.float32)))
    with pytest.raises(ValueError, match="at least 1"):
        nn.SpectralConv1d(1, 1, 0)
    assert module(Tensor(np.zeros((0, 2, 8, 8), np.float32))).shape == (0, 4, 8, 8)
