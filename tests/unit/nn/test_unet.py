"""The U-Net: shapes, what it sees, gradients, errors."""

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor, check_vjp, random


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def unet(*arguments, **options):
    random.manual_seed(0)
    return nn.UNet(*arguments, dtype=np.float64, **options)


def test_fields_keep_their_resolution():
    for depth, extents in ((0, (5, 7)), (1, (6, 4)), (2, (8, 12))):
        assert unet(2, 3, 4, depth)(Tensor(draw(2, 2, *extents))).shape == (2, 3, *extents)


def test_widths_double_and_bridges_are_joined():
    shapes = {name: p.shape for name, p in unet(2, 1, 4, 2).named_parameters() if p.ndim == 4}
    widths = [(shape[1], shape[0]) for name, shape in shapes.items() if name.endswith(("0.weight", "head.weight"))]
    assert widths == [(2, 4), (4, 8), (8, 16), (24, 8), (12, 4), (4, 1)]
    assert shapes["head.weight"] == (1, 4, 1, 1)


def test_samples_do_not_see_each_other():
    net, x = unet(1, 1, 4, 1), draw(3, 1, 4, 6)
    whole = net(Tensor(x)).data
    for i in range(3):
        np.testing.assert_allclose(net(Tensor(x[i : i + 1])).data, whole[i : i + 1], rtol=1e-10, atol=1e-12)


def test_every_cell_sees_far_cells_at_depth():
    x = draw(1, 1, 16, 16)
    moved = x.copy()
    moved[0, 0, 0, 0] += 1
    change = unet(1, 1, 4, 2)(Tensor(moved)).data - unet(1, 1, 4, 2)(Tensor(x)).data
    assert abs(change[0, 0, 12, 12]) > 1e-6


def test_gradients():
    net = unet(1, 2, 4, 1)
    check_vjp(net, draw(2, 1, 4, 4))
    net(Tensor(draw(2, 1, 4, 4))).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(("arguments", "words"), [((1, 1, 6), "6, 3"), ((1, 1, 0), "0, 3"), ((1, 1, 4, -1), "4, -1")])
def test_sizes_are_checked(arguments, words):
    with pytest.raises(ValueError, match=rf"UNet: width, depth\n +got +{words}"):
        nn.UNet(*arguments)


def test_extents_are_checked():
    with pytest.raises(ValueError, match=r"UNet: extents\n +got +\(6, 4\)\n +expected +multiples of 4"):
        unet(1, 1, 4, 2)(Tensor(draw(1, 1, 6, 4)))
