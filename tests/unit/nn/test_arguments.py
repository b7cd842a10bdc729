"""What modules and functions accept, and that they compute with it: options of torch's, lists, wrong kinds."""

import inspect
import pickle

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor, check_vjp, tensor
from hpcdist.nn import functional as F


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# ---------------------------------------------------------------- modules
@pytest.mark.parametrize("value", [np.ones(2), tensor([1.0, 1.0]), [1.0, 1.0]], ids=["array", "tensor", "list"])
def test_parameters_and_buffers_hold_arrays(value):
    net = nn.Module()
    net.register_buffer("kept", value)
    net.trained = nn.Parameter(value)
    for found in net.state_dict().values():
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, [1, 1])
    net.kept = value
    assert type(net.kept.data) is np.ndarray
    with pytest.raises(TypeError, match=r"parameter or buffer\n +got +NoneType"):
        net.register_buffer("none", None)


def test_a_state_of_another_kind_is_refused():
    net = nn.BatchNorm1d(2)
    for name, value in (("weight", np.ones(2, complex)), ("num_batches_tracked", np.array(1.5)), ("bias", "ab")):
        with pytest.raises((TypeError, ValueError), match=r"complex128|float64|str"):
            net.load_state_dict({"running_mean": np.ones(2), name: value}, strict=False)
        assert not net.running_mean.data.any()
    net.load_state_dict({"weight": [2, 3], "bias": tensor([1.0, 2.0])}, strict=False)
    np.testing.assert_array_equal(net.weight.data, [2, 3])


def test_a_function_is_applied_from_the_leaves_up():
    net, seen = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())), []
    assert net.apply(seen.append) is net
    assert seen == [net[0], net[1][0], net[1], net]


def test_slices_of_containers_are_containers():
    net = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.SiLU())
    assert type(net[1:]) is nn.Sequential
    assert list(net[1:]) == [net[1], net[2]]
    assert type(nn.ModuleList(net)[::2]) is nn.ModuleList
    x = Tensor(draw(2, 3))
    np.testing.assert_array_equal(net[:2](x).data, net[1](net[0](x)).data)


def test_functions_for_lines_and_planes_look_like_functions():
    assert list(inspect.signature(F.conv2d).parameters)[:4] == ["x", "weight", "bias", "stride"]
    assert inspect.signature(F.max_pool1d).parameters["ceil_mode"].default is False
    for name in ("conv1d", "conv2d", "conv_transpose1d", "max_pool2d", "avg_pool1d", "adaptive_avg_pool2d"):
        function = getattr(F, name)
        assert function.__name__ == name
        assert function.__doc__.startswith("Return")
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Embedding(3, 4, 0),
        lambda: nn.InstanceNorm1d(4, 1e-5, 0.1, True),
        lambda: nn.MaxPool1d(2, 2, 0, 1, True),
    ],
    ids=["padding_idx", "momentum", "return_indices"],
)
def test_places_where_torch_has_another_argument_are_not_taken(build):
    with pytest.raises(TypeError, match="positional"):
        build()


# ---------------------------------------------------------------- norms of rows
@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5)])
def test_norms_over_several_dimensions(shape):
    x, gain, shift = draw(2, 3, 4, 5), draw(*shape, seed=1), draw(*shape, seed=2)
    dims = tuple(range(-len(shape), 0))
    mean, square = x.mean(dims, keepdims=True), (x**2).mean(dims, keepdims=True)
    layer = (x - mean) / np.sqrt(x.var(dims, keepdims=True) + 1e-3)
    root = x / np.sqrt(square + 1e-3)
    for found, want in (
        (F.layer_norm(Tensor(x), shape, Tensor(gain), Tensor(shift), 1e-3), layer * gain + shift),
        (F.layer_norm(Tensor(x), shape, Tensor(gain), eps=1e-3), layer * gain),
        (F.layer_norm(Tensor(x), shape, eps=1e-3), layer),
        (F.rms_norm(Tensor(x), shape, Tensor(gain), 1e-3), root * gain),
        (F.rms_norm(Tensor(x), shape, eps=1e-3), root),
        (nn.LayerNorm(shape, 1e-3, dtype=np.float64)(Tensor(x)), layer),
        (nn.LayerNorm(shape, 1e-3, elementwise_affine=False)(Tensor(x)), layer),
        (nn.LayerNorm(shape, 1e-3, bias=False, dtype=np.float64)(Tensor(x)), layer),
        (nn.RMSNorm(shape, 1e-3, elementwise_affine=False)(Tensor(x)), root),
    ):
        np.testing.assert_allclose(found.data, want, rtol=1e-10, atol=1e-12)
    check_vjp(lambda x, w, b: F.layer_norm(x, shape, w, b, 1e-3), x, gain, shift)


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm((4, 5)), nn.LayerNorm(5, bias=False), nn.LayerNorm(5, elementwise_affine=False), nn.RMSNorm((4, 5)),
     nn.RMSNorm(5, elementwise_affine=False), nn.RMSNorm(5)],
)  # fmt: skip
def test_a_branch_is_added_whatever_the_weights_are(norm):
    x, branch = (Tensor(draw(2, 4, 5, seed=s).astype(np.float32)) for s in (0, 1))
    total, y = norm(x, branch)
    np.testing.assert_array_equal(total.data, x.data + branch.data)
    np.testing.assert_allclose(y.data, norm(Tensor(total.data)).data, rtol=1e-5, atol=1e-6)


def test_the_least_mean_square_is_the_machine_epsilon():
    for dtype, eps in ((np.float64, 2.0**-52), (np.float32, 2.0**-23), (np.float16, 2.0**-23)):
        x = np.full((1, 4), 2.0**-12, dtype)
        want = 2.0**-12 / np.sqrt(2.0**-24 + eps)
        np.testing.assert_allclose(nn.RMSNorm(4, dtype=dtype)(Tensor(x)).data, want, rtol=1e-3)


def test_norms_refuse_other_extents():
    for shape in ((4,), (3, 5), (), (2, 3, 4, 5)):
        with pytest.raises(ValueError, match=r"layer_norm: x\n +got +\(3, 4, 5\)"):
            F.layer_norm(Tensor(draw(3, 4, 5)), shape)
    with pytest.raises(ValueError, match=r"GroupNorm: input\n +got +\(2, 6, 3\)\n +expected +\(batch, 4, \.\.\.\)"):
        nn.GroupNorm(2, 4, affine=False)(Tensor(draw(2, 6, 3)))


def test_variances_past_the_range_of_float16():
    norm = nn.BatchNorm1d(2)
    x = (draw(200, 2) * 600).astype(np.float16)
    assert norm(Tensor(x)).dtype == np.float16
    np.testing.assert_allclose(norm.running_var.data, 0.9 + 0.1 * x.astype(float).var(0, ddof=1), rtol=1e-3)


# ---------------------------------------------------------------- lines and planes
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_convolutions_pad_with_what_they_are_told(mode):
    x = draw(2, 4, 6, 5)
    named = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    for padding, widths in (((2, 1), ((2, 2), (1, 1))), ("same", ((0, 1), (1, 1)))):
        layer = nn.Conv2d(4, 3, (2, 3), padding=padding, padding_mode=mode, dtype=np.float64)
        full = np.pad(x, ((0, 0), (0, 0), *widths), named)
        want = F.conv2d(Tensor(full), layer.weight, layer.bias).data
        np.testing.assert_allclose(layer(Tensor(x)).data, want, rtol=1e-12)
        check_vjp(layer, x)
    line = nn.Conv1d(4, 3, 3, 2, 1, padding_mode=mode, dtype=np.float64)
    full = np.pad(x[..., 0], ((0, 0), (0, 0), (1, 1)), named)
    np.testing.assert_allclose(
        line(Tensor(x[..., 0])).data, F.conv1d(Tensor(full), line.weight, line.bias, 2).data, rtol=1e-12
    )


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.Conv1d(2, 2, 3, 0), r"Conv1d: stride\n +got +0"),
        (lambda: nn.Conv1d(2, 2, 3.0), r"Conv1d: kernel_size\n +got +3\.0"),
        (lambda: nn.Conv2d(2, 2, 3, padding="sam"), r"Conv2d: padding\n +got +'sam'"),
        (lambda: nn.Conv2d(2, 2, 3, padding="same", stride=2), r"Conv2d: padding\n +got +'same' with stride \(2, 2\)"),
        (lambda: nn.Conv2d(2, 2, 3, padding_mode="mirror"), r"padding_mode\n +got +'mirror'"),
        (lambda: nn.Conv2d(2, 2, 3, dilation=(1, 2, 3)), r"Conv2d: dilation"),
        (lambda: nn.ConvTranspose1d(2, 2, 3, output_padding=-1), r"ConvTranspose1d: output_padding"),
        (lambda: nn.GRU(3, 4, dropout=1.5), r"GRU: dropout\n +got +1\.5"),
        (lambda: nn.AdaptiveAvgPool2d((3, 4, 5))(Tensor(draw(1, 1, 4, 4))), r"output_size\n +got +\(3, 4, 5\)"),
        (lambda: nn.Upsample(scale_factor=float("nan"))(Tensor(draw(1, 1, 4))), r"scale_factor\n +got +nan"),
        (lambda: nn.Upsample(scale_factor=(2, 2))(Tensor(draw(1, 1, 4))), r"scale_factor\n +got +\(2, 2\)"),
        (lambda: nn.Flatten(7)(Tensor(draw(2, 3))), "7 is out of range"),
        (lambda: nn.Flatten(1, 0)(Tensor(draw(2, 3))), "the first one first"),
    ],
)
def test_wrong_options_are_said_at_once(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_numbers_may_be_numpys_and_extents_may_stay():
    x = Tensor(draw(2, 3, 6, 5))
    assert nn.Conv2d(3, 4, np.int64(3), np.array([2, 1]))(x).shape == (2, 4, 2, 3)
    assert nn.Upsample(scale_factor=np.float32(2))(x).shape == (2, 3, 12, 10)
    found = nn.AdaptiveAvgPool2d((None, 1))(x)
    np.testing.assert_allclose(found.data, x.data.mean(-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_first_states_are_as_many_as_there_are(kind):
    x, state = Tensor(draw(5, 2, 3).astype(np.float32)), Tensor(draw(1, 2, 4).astype(np.float32))
    module, count = kind(3, 4), 2 if kind is nn.LSTM else 1
    np.testing.assert_array_equal(module(x, [state] * count)[0].data, module(x, (state,) * count)[0].data)
    for wrong in ((state,) * (3 - count), (state,) * 3):
        with pytest.raises(ValueError, match=rf"first state\n.*\n +expected {count} of \(1, 2, 4\)"):
            module(x, wrong if len(wrong) > 1 else wrong[0])


# ---------------------------------------------------------------- losses and models
@pytest.mark.parametrize(
    "loss", [F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.kl_div]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_targets_that_are_no_tensors_take_the_type_of_the_input(loss, dtype):
    x = Tensor(np.array([0.25, 0.5, 0.75], dtype), True)
    want = loss(x, Tensor(np.array([0, 1, 1], dtype)))
    for target in (np.array([0, 1, 1]), [0.0, 1.0, 1.0], np.array([False, True, True]), tensor([0, 1, 1])):
        found = loss(x, target)
        assert found.dtype == dtype
        assert found.item() == want.item()


def test_weights_of_losses_may_be_of_any_kind():
    x, t = Tensor(draw(4, 3).astype(np.float32)), np.array([0, 2, 1, 1])
    want = F.cross_entropy(x, t, np.array([1, 2, 3], np.float32)).item()
    for weight in ([1, 2, 3], tensor([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])):
        assert nn.CrossEntropyLoss(weight)(x, t).item() == want
        found = nn.BCEWithLogitsLoss(weight, pos_weight=weight)(x, np.ones((4, 3)))
        exact = (np.log1p(np.exp(-x.data.astype(float))) * np.array([1, 4, 9])).mean()
        assert found.item() == pytest.approx(exact, rel=1e-6)
    assert F.binary_cross_entropy_with_logits(x, np.ones((4, 3)), 2.0, pos_weight=np.full(3, 2.0)).dtype == np.float32
    with pytest.raises(ValueError, match=r"smooth_l1_loss: beta\n +got +-1"):
        F.smooth_l1_loss(x, x, beta=-1)


def test_tokens_may_be_lists_and_temperatures_are_not_negative():
    model = nn.GPT(nn.GPTConfig(vocab_size=5, seq=4, num_layers=1, num_heads=2, width=8))
    np.testing.assert_array_equal(model([[1, 2]]).data, model(np.array([[1, 2]])).data)
    assert model([[1, 2]], [[2, 3]]).item() == model(np.array([[1, 2]]), np.array([[2, 3]])).item()
    with pytest.raises(ValueError, match=r"temperature\n +got +-1"):
        model.generate([1], 2, temperature=-1)
