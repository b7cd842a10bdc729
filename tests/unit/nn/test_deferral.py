"""Modules without storage: parts and wholes have the bits of plain modules; what cannot be done with them."""

import copy
import math
import tracemalloc

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor, manual_seed
from hpcdist.nn.deferral import SLAB, Deferred, draw

LAYERS = {
    "Linear": lambda: nn.Linear(3, 4, dtype=np.float16),
    "Embedding": lambda: nn.Embedding(5, 4),
    "LayerNorm": lambda: nn.LayerNorm((3, 4)),
    "RMSNorm": lambda: nn.RMSNorm(4),
    "BatchNorm2d": lambda: nn.BatchNorm2d(4),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(4, affine=True),
    "Conv1d": lambda: nn.Conv1d(4, 6, 3),
    "Conv2d": lambda: nn.Conv2d(4, 6, (3, 2), groups=2),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(4, 6, 3),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 6, 3, bias=False),
    "LSTM": lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    "GRU": lambda: nn.GRU(3, 4),
    "SpectralConv1d": lambda: nn.SpectralConv1d(2, 3, 4),
    "SpectralConv2d": lambda: nn.SpectralConv2d(2, 3, 4, 2),
    "UNet": lambda: nn.UNet(1, 2, 4, 2),
    "TransformerBlock": lambda: nn.TransformerBlock(8, 2, 16, num_kv_heads=1),
    "CrossEntropyLoss": lambda: nn.CrossEntropyLoss([1.0, 2.0]),
    "cast": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(np.float16).to(np.float64),
    "orthogonal": lambda: nn.Linear(5, 7).apply(lambda m: nn.init.orthogonal_(m.weight)).to(np.float64),
    "deepcopy": lambda: nn.Sequential(*[copy.deepcopy(layer) for layer in [nn.Linear(3, 3)] for _ in range(2)]),
    "assigned": lambda: assigned(nn.Linear(2, 3)),
}


def assigned(layer):
    layer.weight.data = np.arange(6.0).reshape(3, 2)
    return layer


@pytest.mark.parametrize("name", LAYERS)
def test_parts_and_wholes_have_the_bits_of_a_plain_layer(name):
    manual_seed(3)
    plain = LAYERS[name]().state_dict()
    manual_seed(3)
    with nn.deferred():
        late = LAYERS[name]()
    manual_seed(4)  # what counts is the seed when it was built
    for key, p in late.named_parameters():
        part = tuple(slice(n // 3, None) for n in p.shape)
        found = draw(p, tuple(n // 3 for n in p.shape))
        assert found.dtype == plain[key].dtype
        np.testing.assert_array_equal(found, plain[key][part], err_msg=key)
    state = nn.materialize(late).state_dict()
    assert state.keys() == plain.keys()
    for key, values in state.items():
        assert values.dtype == plain[key].dtype
        np.testing.assert_array_equal(values, plain[key], err_msg=key)


def test_a_state_can_be_loaded_instead_of_drawn():
    with nn.deferred():
        layer = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
        layer[1].weight = layer[0].weight
    for wrong in (np.eye(3), np.eye(4, dtype=complex)):
        with pytest.raises(ValueError, match=r"load_state_dict: 0\.weight"):
            layer.load_state_dict({"0.bias": np.ones(4), "0.weight": wrong}, strict=False)
    assert all(isinstance(p, Deferred) for p in layer.parameters())
    given = np.eye(4)
    layer.load_state_dict({"0.weight": given, "2.running_mean": np.ones(4)}, strict=False)
    given[0] = 7
    assert layer[1].weight is layer[0].weight
    np.testing.assert_array_equal(layer[0].weight.data, np.eye(4, dtype=np.float32))
    assert layer[0].weight.dtype == np.float32
    np.testing.assert_array_equal(layer[2].running_mean.data, 1)
    assert isinstance(layer[0].bias, Deferred)
    nn.materialize(layer)
    np.testing.assert_array_equal(layer[1].weight.data, np.eye(4))


def test_copies_keep_ties_and_share_nothing_else():
    with nn.deferred():
        layer = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        layer[1].weight = layer[0].weight
    twin = copy.deepcopy(layer)
    assert twin[0].weight is twin[1].weight
    assert twin[0].weight is not layer[0].weight
    np.testing.assert_array_equal(nn.materialize(twin)[0].weight.data, nn.materialize(layer)[0].weight.data)
    assert twin[0].weight.data is not layer[0].weight.data


def test_hooks_go_with_a_parameter():
    with nn.deferred():
        layer = nn.Linear(2, 3)
    done = []
    layer.weight.register_hook(lambda g: 0 * g + 2)
    layer.weight.register_post_accumulate_grad_hook(done.append)
    nn.materialize(layer)(Tensor(np.ones((1, 2), np.float32))).sum().backward()
    np.testing.assert_array_equal(layer.weight.grad, 2)
    assert done == [layer.weight]


@pytest.mark.parametrize(("shape", "extent"), [((64, 1 << 15), (8, 1 << 15)), ((1, 1, 1 << 21), (1, 1, 1 << 21))])
def test_drawing_takes_little_more_memory_than_the_part(monkeypatch, shape, extent):
    monkeypatch.setattr("hpcdist.nn.deferral.SLAB", 1 << 14)
    with nn.deferred():
        parameter = nn.init.uniform_(nn.Parameter(np.broadcast_to(np.float32(0), shape)))
    tracemalloc.start()
    part = draw(parameter, None, extent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - part.nbytes < 2e6


def model():
    config = nn.GPTConfig(vocab_size=50, seq=8, num_layers=2, num_heads=2, width=16, norm="rms", activation="swiglu")
    return nn.Sequential(nn.GPT(config), nn.Linear(50, 3), nn.LayerNorm(3), nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4))


def test_materialized_modules_have_the_bits_of_others():
    manual_seed(1)
    plain = model().state_dict()
    manual_seed(1)
    with nn.deferred():
        late = model()
    assert {n: (p.shape, p.dtype) for n, p in late.named_parameters()}.items() <= {
        n: (a.shape, a.dtype) for n, a in plain.items()
    }.items()
    state = nn.materialize(late).state_dict()
    assert state.keys() == plain.keys()
    for name, values in state.items():
        np.testing.assert_array_equal(values, plain[name], err_msg=name)
    assert all(type(p) is Tensor for p in late.parameters())


def test_values_that_were_given_are_kept():
    with nn.deferred():
        module = nn.Sequential(nn.Linear(2, 2))
        module.scale = nn.Parameter(np.array([1.0, 2.0]))
        module.frozen = nn.Parameter(np.ones(1), requires_grad=False)
        module[0].bias = module.scale
    nn.materialize(module)
    np.testing.assert_array_equal(module.scale.data, [1, 2])
    assert module[0].bias is module.scale
    assert not module.frozen.requires_grad


def test_building_takes_no_memory_for_parameters():
    with nn.deferred():
        tracemalloc.start()
        layer = nn.Sequential(nn.Linear(4096, 4096), nn.Embedding(100000, 512), nn.Conv2d(512, 512, 3))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sum(p.size for p in layer.parameters()) > 70e6
    assert peak < 1e6
    assert math.prod(layer[0].weight.shape) > SLAB


def test_use_before_there_are_values_is_an_error():
    with nn.deferred():
        layer = nn.Linear(3, 2)
    for use in (
        lambda: layer(Tensor(np.ones((1, 3), np.float32))),
        lambda: layer.weight + 1,
        lambda: 2 * layer.weight,
        lambda: layer.weight.data,
        lambda: layer.weight.numpy(),
        lambda: layer.weight.sum(),
        lambda: layer.state_dict(),
        lambda: optim.SGD(layer.parameters()),
    ):
        with pytest.raises(RuntimeError, match=r"shape \(2, 3\) is deferred.*\n.*materialize"):
            use()
    assert "weight: (2, 3) float32" in repr(layer)
    assert repr(layer.weight) == "deferred(shape=(2, 3), dtype=float32)"
    assert (layer.weight.ndim, layer.weight.size, len(layer.weight)) == (2, 6, 2)


def test_only_the_block_defers():
    with pytest.raises(KeyError), nn.deferred():
        raise KeyError
    assert type(nn.Linear(2, 2).weight) is Tensor
