"""Convolution, pooling, interpolation and norms of channels: against plain loops, in float64 and float32."""

import numpy as np
import pytest
import spatial_loops as loops

from hpcdist import nn
from hpcdist.autograd import Tensor, check_vjp, random
from hpcdist.nn import functional as F


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def agree(layer, want, *arrays):
    """Compare ``layer`` of tensors with ``want``, which was computed in float64."""
    for dtype, tol in ((np.float64, 1e-10), (np.float32, 2e-5)):
        got = layer(*(Tensor(a.astype(dtype)) for a in arrays))
        assert got.dtype == dtype
        np.testing.assert_allclose(got.data, want, rtol=tol, atol=tol)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        ((1, 1), (0, 0), (1, 1), 1),
        ((2, 1), (1, 2), (1, 2), 2),
        ((1, 3), (2, 0), (2, 1), 4),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_convolutions(stride, padding, dilation, groups, biased):
    bias = [draw(8, seed=3)] if biased else []
    x, w = draw(2, 4, 7, 6), draw(8, 4 // groups, 3, 2, seed=1)
    want = loops.conv2d(x, w, bias[0] if biased else None, stride, padding, dilation, groups)
    agree(lambda x, w, *b: F.conv2d(x, w, *b or [None], stride, padding, dilation, groups), want, x, w, *bias)
    w, extra = draw(4, 8 // groups, 3, 2, seed=2), (0, max(stride[1], dilation[1]) - 1)
    want = loops.conv_transpose2d(x, w, bias[0] if biased else None, stride, padding, extra, dilation, groups)
    transposed = (stride, padding, extra, groups, dilation)
    agree(lambda x, w, *b: F.conv_transpose2d(x, w, *b or [None], *transposed), want, x, w, *bias)


def test_convolutions_of_lines_are_those_of_planes_of_height_one():
    x, w = draw(2, 4, 9), draw(6, 2, 3, seed=1)
    want = loops.conv2d(x[:, :, None], w[:, :, None], None, (1, 2), (0, 1), (1, 2), 2)[:, :, 0]
    agree(lambda x, w: F.conv1d(x, w, None, 2, 1, 2, 2), want, x, w)
    w = draw(4, 3, 3, seed=2)
    want = loops.conv_transpose2d(x[:, :, None], w[:, :, None], None, (1, 2), (0, 1), (0, 1), (1, 2), 2)[:, :, 0]
    agree(lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 1, 2, 2), want, x, w)


def test_padding_by_name():
    x, w = draw(2, 4, 9, 8), draw(6, 4, 3, 5, seed=1)
    want = loops.conv2d(x, w, None, (1, 1), (2, 2), (2, 1), 1)
    assert want.shape == (2, 6, 9, 8)
    agree(lambda x, w: F.conv2d(x, w, None, 1, "same", (2, 1)), want, x, w)
    want = loops.conv2d(x, w, None, (2, 2), (0, 0), (1, 1), 1)
    agree(lambda x, w: F.conv2d(x, w, None, 2, "valid"), want, x, w)
    w = draw(6, 4, 4, 2, seed=1)
    want = loops.conv2d(np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1))), w, None, (1, 1), (0, 0), (1, 1), 1)
    assert want.shape == (2, 6, 9, 8)
    agree(lambda x, w: F.conv2d(x, w, None, 1, "same"), want, x, w)
    for padding, stride, size in (("same", 2, 3), ("half", 1, 3)):
        with pytest.raises(ValueError, match="conv2d: padding"):
            F.conv2d(Tensor(x), Tensor(draw(6, 4, size, size)), None, stride, padding)


POOLS = [((2, 3), (2, 1), (1, 0)), ((3, 2), (1, 3), (0, 1)), ((2, 2), (3, 2), (0, 0))]


@pytest.mark.parametrize(("size", "stride", "padding"), POOLS)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling(size, stride, padding, ceil_mode):
    x = draw(2, 3, 7, 8)
    want = loops.pool2d(x, loops.largest, size, stride, padding, (1, 1), ceil_mode)
    agree(lambda x: F.max_pool2d(x, size, stride, padding, 1, ceil_mode), want, x)
    for counted, reduce in ((True, loops.mean_with_padding), (False, loops.mean_of_seen)):
        want = loops.pool2d(x, reduce, size, stride, padding, (1, 1), ceil_mode)
        agree(lambda x, counted=counted: F.avg_pool2d(x, size, stride, padding, ceil_mode, counted), want, x)


def test_pooling_of_lines():
    x = draw(2, 3, 9)
    plane = x[:, :, None]
    want = loops.pool2d(plane, loops.largest, (1, 3), (1, 2), (0, 1), (1, 2))[:, :, 0]
    agree(lambda x: F.max_pool1d(x, 3, 2, 1, 2), want, x)
    want = loops.pool2d(plane, loops.mean_with_padding, (1, 3), (1, 3), (0, 1))[:, :, 0]
    agree(lambda x: F.avg_pool1d(x, 3, None, 1), want, x)
    agree(lambda x: F.adaptive_avg_pool1d(x, 4), loops.adaptive_avg_pool2d(plane, (1, 4))[:, :, 0], x)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 8), (9, 20)])
def test_adaptive_pooling(size):
    x = draw(2, 3, 7, 8)
    agree(lambda x: F.adaptive_avg_pool2d(x, size), loops.adaptive_avg_pool2d(x, size), x)


def test_gradient_of_a_maximum_goes_to_one_element():
    x = Tensor(np.array([[[1.0, 3, 3, 2, np.nan, 5]]]), requires_grad=True)
    y = F.max_pool1d(x, 3)
    np.testing.assert_array_equal(y.data, [[[3, np.nan]]])
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, [[[0, 1, 0, 0, 1, 0]]])


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (5, 6), (12, 7)])
@pytest.mark.parametrize(("mode", "align"), [("nearest", None), ("bilinear", False), ("bilinear", True)])
def test_interpolation(size, mode, align):
    x = draw(2, 3, 5, 6)
    agree(lambda x: F.interpolate(x, size, None, mode, align), loops.interpolate2d(x, size, mode, align), x)


def test_scale_factors_set_size_and_coordinates():
    x = draw(2, 3, 5)
    doubled = np.repeat(x, 2, axis=2)
    agree(lambda x: F.interpolate(x, scale_factor=2), doubled, x)
    agree(nn.Upsample(scale_factor=2.0), doubled, x)
    at = np.clip((np.arange(8) + 0.5) / 1.7 - 0.5, 0, 4)  # 5 * 1.7 = 8.5 elements, the last half of which is none
    want = np.stack([[np.interp(at, np.arange(5), line) for line in sample] for sample in x])
    agree(lambda x: F.interpolate(x, scale_factor=1.7, mode="linear"), want, x)


@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 5), (2, 4, 3, 5)])
def test_norms_of_channels(shape):
    x, gain, shift = draw(*shape) + 3, draw(4, seed=1), draw(4, seed=2)
    by_channel = [[(b, c) for b in range(shape[0])] for c in range(4)]
    want = loops.normalised(x, gain, shift, 1e-3, by_channel)
    agree(lambda *a: F.batch_norm(a[0], None, None, *a[1:], True, eps=1e-3), want, x, gain, shift)
    by_group = [[(b, c) for c in (g, g + 1)] for b in range(shape[0]) for g in (0, 2)]
    want = loops.normalised(x, gain, shift, 1e-3, by_group)
    agree(lambda *a: F.group_norm(a[0], 2, *a[1:], eps=1e-3), want, x, gain, shift)


# ---------------------------------------------------------------- layers
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics(kind, momentum):
    norm = kind(4, momentum=momentum, dtype=np.float64)
    batches = [draw(*((6, 4, 3) if kind is nn.BatchNorm1d else (2, 4, 3, 3)), seed=s) + s for s in range(3)]
    mean, var = np.zeros(4), np.ones(4)
    for count, x in enumerate(batches, 1):
        norm(Tensor(x))
        step = 1 / count if momentum is None else momentum
        values = np.moveaxis(x, 1, 0).reshape(4, -1)
        mean, var = (1 - step) * mean + step * values.mean(1), (1 - step) * var + step * values.var(1, ddof=1)
    assert list(norm.state_dict()) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    np.testing.assert_allclose(norm.running_mean.data, mean, rtol=1e-12)
    np.testing.assert_allclose(norm.running_var.data, var, rtol=1e-12)
    assert int(norm.num_batches_tracked) == 3
    norm.eval()
    of = (None, slice(None), *(None,) * (batches[0].ndim - 2))
    want = (batches[0] - mean[of]) / np.sqrt(var[of] + 1e-5)
    np.testing.assert_allclose(norm(Tensor(batches[0])).data, want, rtol=1e-12)
    assert int(norm.num_batches_tracked) == 3
    check_vjp(norm, batches[0])


def test_batch_norm_without_running_statistics_uses_the_batch():
    norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False, dtype=np.float64).eval()
    x = draw(5, 4)
    np.testing.assert_allclose(norm(Tensor(x)).data, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-12)
    assert norm.state_dict() == {}


def test_a_single_value_has_no_variance():
    norm = nn.BatchNorm1d(3)
    one = Tensor(draw(1, 3).astype(np.float32))
    with pytest.raises(ValueError, match="more than one value a channel"):
        norm(one)
    assert int(norm.num_batches_tracked) == 0
    np.testing.assert_allclose(norm.eval()(one).data, one.data, rtol=1e-4)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d(3), (2, 3, 4, 4)), (nn.BatchNorm2d(3), (2, 3, 4)), (nn.BatchNorm2d(3), (2, 4, 4, 4)),
     (nn.InstanceNorm1d(3), (2, 3)), (nn.InstanceNorm2d(3), (2, 3, 4))],
)  # fmt: skip
def test_norms_refuse_other_shapes(norm, shape):
    with pytest.raises(ValueError, match=rf"{type(norm).__name__}: input.*\n.*\n +expected +\(batch, 3"):
        norm(Tensor(draw(*shape)))


@pytest.mark.parametrize(("kind", "shape"), [(nn.InstanceNorm1d, (2, 4, 5)), (nn.InstanceNorm2d, (2, 4, 3, 5))])
def test_instance_norm_is_that_of_each_channel(kind, shape):
    x = draw(*shape)
    want = loops.normalised(x, np.ones(4), np.zeros(4), 1e-5, [[(b, c)] for b in range(2) for c in range(4)])
    agree(kind(4), want, x)
    assert [p.shape for p in kind(4, affine=True).parameters()] == [(4,), (4,)]


CONVS = [
    (nn.Conv1d, (8, 16, 5), (16, 8, 5), 40),
    (nn.Conv2d, (8, 16, 3, 1, 0, 1, 4), (16, 2, 3, 3), 18),
    (nn.ConvTranspose1d, (8, 16, 5), (8, 16, 5), 80),
    (nn.ConvTranspose2d, (8, 16, (3, 2), 1, 0, 0, 4), (8, 4, 3, 2), 24),
]


@pytest.mark.parametrize(("kind", "arguments", "shape", "fan"), CONVS)
def test_initial_values_are_uniform_in_one_over_the_root_of_the_fan(kind, arguments, shape, fan):
    random.manual_seed(0)
    layer = kind(*arguments)
    assert layer.weight.shape == shape
    assert layer.bias.shape == (16,)
    for p in layer.parameters():
        largest = np.abs(p.data).max() * fan**0.5
        assert largest <= 1
        assert largest > (0.95 if p.size > 100 else 0.6)
    assert np.var(layer.weight.data) * fan == pytest.approx(1 / 3, rel=0.25)
    assert kind(*arguments[:3], bias=False).bias is None


def test_convolutions_refuse_groups_that_do_not_divide():
    with pytest.raises(ValueError, match=r"Conv2d: groups\n +got +3 of 4 and 6 channels"):
        nn.Conv2d(4, 6, 3, groups=3)
    with pytest.raises(ValueError, match=r"Conv2d: kernel_size\n +got +\(3, 3, 3\)"):
        nn.Conv2d(4, 6, (3, 3, 3))
    with pytest.raises(ValueError, match=r"conv1d: stride\n +got +0"):
        F.conv1d(Tensor(draw(2, 4, 9)), Tensor(draw(6, 4, 3)), stride=0)


LAYERS = [
    (nn.Conv1d(4, 6, 3, 2, 1, dtype=np.float64), (2, 4, 9), (2, 6, 5)),
    (nn.Conv2d(4, 6, 3, padding="same", dtype=np.float64), (2, 4, 5, 6), (2, 6, 5, 6)),
    (nn.ConvTranspose1d(4, 6, 4, 2, 1, dtype=np.float64), (2, 4, 5), (2, 6, 10)),
    (nn.ConvTranspose2d(4, 6, 2, 2, dtype=np.float64), (2, 4, 3, 2), (2, 6, 6, 4)),
    (nn.MaxPool1d(2), (2, 4, 9), (2, 4, 4)),
    (nn.MaxPool2d(2, ceil_mode=True), (2, 4, 5, 6), (2, 4, 3, 3)),
    (nn.AvgPool1d(3, 1, 1), (2, 4, 9), (2, 4, 9)),
    (nn.AvgPool2d((2, 1)), (2, 4, 5, 6), (2, 4, 2, 6)),
    (nn.AdaptiveAvgPool1d(3), (2, 4, 9), (2, 4, 3)),
    (nn.AdaptiveAvgPool2d(1), (2, 4, 5, 6), (2, 4, 1, 1)),
    (nn.Upsample((10, 3), mode="bilinear"), (2, 4, 5, 6), (2, 4, 10, 3)),
    (nn.GroupNorm(2, 4, dtype=np.float64), (2, 4, 5, 6), (2, 4, 5, 6)),
    (nn.BatchNorm2d(4, dtype=np.float64), (2, 4, 5, 6), (2, 4, 5, 6)),
    (nn.Flatten(), (2, 4, 5, 6), (2, 120)),
    (nn.Flatten(1, 2), (2, 4, 5, 6), (2, 20, 6)),
    (nn.ReLU(), (2, 4), (2, 4)),
    (nn.GELU("tanh"), (2, 4), (2, 4)),
    (nn.SiLU(), (2, 4), (2, 4)),
    (nn.Tanh(), (2, 4), (2, 4)),
    (nn.Sigmoid(), (2, 4), (2, 4)),
]


@pytest.mark.parametrize(("layer", "before", "after"), LAYERS, ids=[type(case[0]).__name__ for case in LAYERS])
def test_layers_have_gradients(layer, before, after):
    x = draw(*before)
    assert layer(Tensor(x)).shape == after
    check_vjp(layer, x)


ONE_SAMPLE_LESS = [case for case in LAYERS if not isinstance(case[0], nn.BatchNorm2d)]


@pytest.mark.parametrize(("layer", "before", "after"), ONE_SAMPLE_LESS)
def test_no_samples_at_all(layer, before, after):
    layer.zero_grad()
    x = Tensor(np.empty((0, *before[1:])), requires_grad=True)
    y = layer(x)
    assert y.shape == (0, *after[1:])
    y.sum().backward()
    assert x.grad.shape == x.shape
    for p in layer.parameters():
        np.testing.assert_array_equal(p.grad, np.zeros(p.shape))


def test_gradients_add_up_over_micro_batches():
    layer = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 1, 2, 2))
    x = draw(4, 2, 6, 5).astype(np.float32)
    (layer(Tensor(x)) ** 2).sum().backward()
    whole = [p.grad.copy() for p in layer.parameters()]
    layer.zero_grad()
    for part in (x[:1], x[1:]):
        (layer(Tensor(part)) ** 2).sum().backward()
    for p, expected in zip(layer.parameters(), whole, strict=True):
        np.testing.assert_allclose(p.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_are_added_to_what_is_there_in_any_layout(size):
    def both(x, w):
        h = x * 1.0
        # the second's gradient comes first, and is transposed
        return F.conv2d(h, w, None, 1, size // 2), h.transpose(3, 2, 1, 0) * 2.0

    check_vjp(both, draw(2, 4, 5, 6), draw(4, 4, size, size, seed=1))


def test_float16_keeps_its_type_and_sums_in_float32():
    x, w = draw(2, 64, 6, 6).astype(np.float16), draw(4, 64, 3, 3, seed=1).astype(np.float16)
    weight = Tensor(w, requires_grad=True)
    y = F.conv2d(Tensor(x), weight, None, 1, 1)
    assert y.dtype == np.float16
    exact = F.conv2d(Tensor(x.astype(float)), Tensor(w.astype(float)), None, 1, 1).data
    np.testing.assert_allclose(y.data.astype(float), exact, rtol=1e-3, atol=1e-2)
    y.sum().backward()
    assert weight.grad.dtype == np.float16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "size or scale_factor"),
        ({"size": 3, "scale_factor": 2}, "size or scale_factor"),
        ({"size": 3, "mode": "linear"}, "mode"),
        ({"size": 3, "align_corners": True}, "align_corners"),
        ({"scale_factor": 0.1}, "size"),
    ],
)
def test_interpolation_says_what_it_needs(arguments, words):
    with pytest.raises(ValueError, match=f"interpolate.*\n?.*\n?.*{words}"):
        F.interpolate(Tensor(draw(2, 3, 4, 5)), **arguments)


def test_evaluation_needs_statistics():
    with pytest.raises(ValueError, match="running_mean"):
        F.batch_norm(Tensor(draw(2, 3)), None, None)
