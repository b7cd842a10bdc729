"""Modules: names, slots, hooks, state."""

import copy
import pickle

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.autograd import Tensor, manual_seed


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.scale = nn.Parameter(np.ones(4, np.float32))
        self.register_buffer("count", np.zeros(2))
        self.note = "not a parameter"

    def forward(self, x):
        for layer in self.rest:
            x = layer(x) if x.shape[-1] == 4 else layer(self.first(x))
        return x * self.scale


NAMES = ["scale", "first.weight", "first.bias", "rest.0.weight", "rest.0.bias", "rest.1.weight", "rest.1.bias"]


def test_names_walk_the_tree():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert [n for n, _ in net.named_modules()] == ["", "first", "rest", "rest.0", "rest.1"]
    assert [n for n, _ in net.named_buffers()] == ["count"]
    assert list(net.state_dict()) == [*NAMES, "count"]
    assert net.rest[1] is list(net.rest)[1]
    assert len(net.rest) == 2
    assert "first: Linear(" in repr(net)


def test_a_tied_parameter_has_its_first_name():
    net = Net()
    net.rest[0].weight = net.scale
    names = [n for n, _ in net.named_parameters()]
    assert names == [n for n in NAMES if n != "rest.0.weight"]
    assert [n for n, _, _ in net.named_slots()] == [*NAMES[:3], "rest.0.bias", "rest.0.weight", *NAMES[5:]]


def test_an_attribute_changes_its_kind():
    layer = nn.Linear(3, 4, bias=False)
    assert layer.bias is None
    layer.bias = nn.Parameter(np.zeros(4, np.float32))
    assert [n for n, _ in layer.named_parameters()] == ["weight", "bias"]
    assert layer.bias.shape == (4,)
    layer.bias = None
    assert [n for n, _ in layer.named_parameters()] == ["weight"]
    with pytest.raises(AttributeError, match="'wieght'"):
        _ = layer.wieght


def test_super_init_is_asked_for():
    class Late(nn.Module):
        def __init__(self):
            self.x = nn.Parameter(np.ones(1))

    with pytest.raises(AttributeError, match="super"):
        Late()


def test_hooks_run_around_forward_also_when_it_fails():
    net, log = nn.Linear(3, 4), []
    net.pre.append(lambda m: log.append("pre"))
    net.post += [lambda m: log.append("post 1"), lambda m: log.append("post 2")]
    net.around.append(lambda call: lambda *args: log.append("around") or call(*args))
    net(Tensor(np.ones((1, 3), np.float32)))
    assert log == ["around", "pre", "post 2", "post 1"]
    log.clear()
    with pytest.raises(ValueError, match="linear"):
        net(Tensor(np.ones((1, 5), np.float32)))
    assert log == ["around", "pre", "post 2", "post 1"]


def test_state_goes_from_one_model_to_another():
    manual_seed(1)
    one, two = Net(), Net()
    assert (one.first.weight.data != two.first.weight.data).any()
    two.load_state_dict({k: v.copy() for k, v in one.state_dict().items()})
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(two.state_dict()[name], value)
    assert not np.shares_memory(one.first.weight.data, two.first.weight.data)


def test_a_state_that_does_not_fit_changes_nothing():
    net = Net()
    before = net.scale.data.copy()
    state = {k: v + 1 for k, v in net.state_dict().items()}
    with pytest.raises(ValueError, match="unknown"):
        net.load_state_dict({**state, "other": np.ones(1)})
    with pytest.raises(ValueError, match=r"first.weight") as error:
        net.load_state_dict({**state, "first.weight": np.ones((4, 2))})
    assert "(4, 2)" in str(error.value)
    assert "(4, 3)" in str(error.value)
    np.testing.assert_array_equal(net.scale.data, before)
    net.load_state_dict({"scale": before + 1}, strict=False)
    np.testing.assert_array_equal(net.scale.data, before + 1)


def test_modes_dtypes_and_gradients_reach_all_modules():
    net = Net()
    assert not net.eval().rest[0].training
    assert net.train().rest[0].training
    assert {p.dtype for p in net.to(np.float64).parameters()} == {np.dtype(np.float64)}
    net(Tensor(np.ones((2, 3)))).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())


def test_sequential_is_one_after_another():
    a, b = nn.Linear(3, 4), nn.LayerNorm(4)
    x = Tensor(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(nn.Sequential(a, b)(x).data, b(a(x)).data)


def test_linear_starts_in_torchs_range():
    manual_seed(0)
    layer = nn.Linear(100, 200)
    assert abs(layer.weight.data).max() <= 0.1
    assert layer.weight.data.std() == pytest.approx(0.1 / 3**0.5, rel=0.05)


def test_embedding_takes_rows_and_adds_gradients_up():
    layer = nn.Embedding(5, 2)
    layer(np.array([[0, 3], [3, 3]])).sum().backward()
    np.testing.assert_array_equal(layer.weight.grad[:, 0], [1, 0, 0, 3, 0])


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_norms_take_a_branch(kind):
    norm, rng = kind(4), np.random.default_rng(0)
    x, branch = (Tensor(rng.standard_normal((2, 3, 4)).astype(np.float32)) for _ in range(2))
    total, y = norm(x, branch)
    np.testing.assert_array_equal(total.data, x.data + branch.data)
    np.testing.assert_allclose(y.data, norm(Tensor(total.data)).data, rtol=1e-5, atol=1e-6)


def test_attention_is_causal_or_not():
    manual_seed(0)
    x = np.random.default_rng(0).standard_normal((1, 6, 8)).astype(np.float32)
    changed = x.copy()
    changed[0, 4] += 1
    for causal, same in ((True, True), (False, False)):
        attention = nn.MultiheadAttention(8, 2, is_causal=causal, rotary_base=100.0)
        one, two = attention(Tensor(x)).data, attention(Tensor(changed)).data
        assert np.array_equal(one[0, :4], two[0, :4]) == same
        assert (one[0, 4:] != two[0, 4:]).any()
    with pytest.raises(ValueError, match="even"):
        nn.MultiheadAttention(6, 2, rotary_base=100.0)
    with pytest.raises(ValueError, match="multiple of the 3 heads"):
        nn.MultiheadAttention(8, 3)


def test_gelu_kinds():
    x = Tensor(np.array([1.0]))
    exact, tanh = (nn.functional.gelu(x, kind).item() for kind in ("none", "tanh"))
    assert exact == pytest.approx(0.8413447460685429, abs=1e-12)
    assert tanh == pytest.approx(0.8411919906082768, abs=1e-12)
    with pytest.raises(ValueError, match="approximate"):
        nn.functional.gelu(x, "erf")


def test_cross_entropy_ignores_what_it_is_told_to():
    logits = Tensor(np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 0.0]]), True)
    loss = nn.CrossEntropyLoss(ignore_index=7)(logits, np.array([0, 7, 1]))
    assert loss.item() == pytest.approx(np.log(2))
    loss.backward()
    np.testing.assert_allclose(logits.grad, [[-0.25, 0.25], [0, 0], [0.25, -0.25]])


def test_attributes_of_all_kinds_can_be_deleted():
    net = Net()
    for name in ("scale", "count", "rest", "note"):
        delattr(net, name)
        assert not hasattr(net, name)
    assert list(net.state_dict()) == NAMES[1:3]
    with pytest.raises(AttributeError):
        del net.scale


@pytest.mark.parametrize("value", [np.full(2, 5.0), Tensor(np.full(2, 5.0)), Tensor(np.full(2, 2.5), True) * 2])
def test_what_is_assigned_to_a_buffer_stays_one(value):
    net = Net()
    net.count = value
    np.testing.assert_array_equal(net.state_dict()["count"], [5, 5])
    assert not net.count.requires_grad
    assert [n for n, _ in net.named_parameters()] == NAMES


def test_a_parameter_is_not_lost_by_assigning_an_array():
    net = Net()
    with pytest.raises(TypeError, match=r"Net\.scale"):
        net.scale = np.ones(4, np.float32)
    assert "scale" in net.state_dict()
    net.scale = None
    assert "scale" not in net.state_dict()


def test_what_was_computed_does_not_become_a_parameter():
    net = Net()
    net.kept = net(Tensor(np.ones((1, 3), np.float32)))
    assert list(net.state_dict()) == [*NAMES, "count"]


@pytest.mark.parametrize("name", ["pre", "post", "children", "slots", "training", "forward", "to"])
def test_modules_do_not_hide_behind_names_that_modules_use(name):
    with pytest.raises(AttributeError, match=name):
        setattr(Net(), name, nn.Linear(1, 1))


def test_a_buffer_does_not_take_the_name_of_something_else():
    net = Net()
    for name in ("scale", "first", "note", "forward"):
        with pytest.raises(ValueError, match=name):
            net.register_buffer(name, np.zeros(1))
    net.register_buffer("count", np.ones(3))
    assert net.count.shape == (3,)


def test_containers_hold_modules_only():
    for wrong in (lambda x: x, [nn.Linear(1, 1)]):
        with pytest.raises(TypeError, match="a module"):
            nn.Sequential(wrong)


def test_a_cast_takes_gradients_along_and_goes_to_floating_dtypes_only():
    layer = nn.Linear(2, 3)
    layer(Tensor(np.ones((1, 2), np.float32))).sum().backward()
    layer.to(np.float64)
    assert layer.weight.grad.dtype == np.float64
    layer(Tensor(np.ones((1, 2)))).sum().backward()
    np.testing.assert_array_equal(layer.weight.grad, np.full((3, 2), 2.0))
    layer.weight.home = layer.weight.grad
    for dtype, kind in ((np.int32, TypeError), (np.float32, ValueError)):
        with pytest.raises(kind, match=r"Module\.to"):
            layer.to(dtype)
    assert layer.weight.dtype == np.float64


def test_integers_are_not_trained():
    net = nn.Module()
    net.table = nn.Parameter(np.arange(3), requires_grad=False)
    with pytest.raises(TypeError, match="table"):
        net.requires_grad_()
    net.requires_grad_(False)


@pytest.mark.parametrize("activation", ["gelu_tanh", "swiglu"])
def test_models_are_copied_and_pickled(activation):
    config = nn.GPTConfig(vocab_size=5, seq=4, num_layers=1, num_heads=1, width=4, activation=activation)
    model, tokens = nn.GPT(config), np.array([[1, 2, 3]])
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(twin(tokens).data, model(tokens).data)
        twin.wte.weight.data[...] = 0
    assert model.wte.weight.data.any()


def test_indices_may_be_lists():
    table = nn.Embedding(3, 2)
    np.testing.assert_array_equal(table([2, 0]).data, table.weight.data[[2, 0]])
    logits = Tensor(np.zeros((2, 3)))
    assert nn.functional.cross_entropy(logits, [0, 2]).item() == pytest.approx(np.log(3))
