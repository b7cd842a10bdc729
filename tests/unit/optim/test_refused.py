"""What optimizers refuse: parameters, groups, gradients and states that would be updated wrongly or not at all."""

import numpy as np
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor
from hpcdist.dtensor import Invariant, Partial, Replicate, Shard

KINDS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.LAMB, optim.LARS]


def parameter(*shape, dtype=np.float32):
    return Tensor(np.ones(shape, dtype), True)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({parameter(1)}, TypeError, "no order"),
        ([{"params": {parameter(1)}}], TypeError, "no order"),
        ([{"params": [parameter(1)]}, parameter(1)], TypeError, '"params"'),
        ([{"lr": 0.1}], TypeError, '"params"'),
        ([("a", parameter(1), 1)], TypeError, "a name, a tensor"),
        ([(0, parameter(1))], TypeError, "a name, a tensor"),
        ({"a": parameter(1)}, TypeError, "a tensor"),
        ([{"params": [parameter(1)], "lr": -1.0}], ValueError, "SGD: lr"),
        ([{"params": [parameter(1)], "momentum": float("nan")}], ValueError, "SGD: momentum"),
        ([{"params": [parameter(1)], "lr": "0.1"}], ValueError, "'0.1'"),
    ],
)
def test_parameters_and_groups(params, error, message):
    with pytest.raises(error, match=message):
        optim.SGD(params)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("gradient", "error", "message"),
    [
        (np.ones((3, 2), np.float32), ValueError, r"\(3, 2\)"),
        (np.ones(6, np.float32), ValueError, r"\(6,\)"),
        (Tensor(np.ones(3, np.float32)), TypeError, "Tensor"),
        ([1.0, 1.0, 1.0], TypeError, "list"),
        (np.ones(3, complex), TypeError, "complex128"),
        (np.ones(3, int), TypeError, "int64"),
    ],
)
def test_gradients_that_do_not_fit(kind, gradient, error, message):
    p = parameter(3)
    p.grad = gradient
    with pytest.raises(error, match=message):
        kind([p]).step()
    np.testing.assert_array_equal(p.data, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_strides_that_came_later(kind):
    p = parameter(2, 3)
    optimizer = kind([p])
    p.data = np.ones((3, 2), np.float32).T
    p.grad = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match="C order"):
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_gradients_of_another_dtype_leave_no_state_of_it(kind, dtype):
    p, q = parameter(2, 3), parameter(2, 3)
    p.grad, q.grad = np.arange(6).reshape(3, 2).T.astype(dtype), np.arange(6, dtype=np.float32).reshape(3, 2).T
    options = {"momentum": 0.9} if kind is optim.SGD else {}
    one, other = kind([p], lr=0.1, **options), kind([q], lr=0.1, **options)
    one.step()
    other.step()
    np.testing.assert_array_equal(p.data, q.data)
    arrays = [v for v in one.state["0"].values() if isinstance(v, np.ndarray)]
    assert arrays
    assert {v.dtype for v in arrays} == {np.dtype(np.float32)}


class Placed(Tensor):
    """A parameter as strategies place it: ``placements`` say what each rank holds."""

    placements = (Invariant(),)


@pytest.mark.parametrize("kind", [optim.LAMB, optim.LARS, optim.LBFGS])
def test_norms_need_whole_parameters(kind):
    p = Placed(np.ones(3, np.float32), True)
    for placements in ((Shard(0),), (Invariant(), Shard(0))):
        Placed.placements = placements
        with pytest.raises(TypeError, match=f"{kind.__name__}: parameter 'w' is a part"):
            kind([("w", p)])
        optim.Adam([("w", p)])
    Placed.placements = (Invariant(), Invariant())
    assert kind([("w", p)]).param_groups[0]["names"] == ["w"]


@pytest.mark.parametrize("kind", [*KINDS, optim.LBFGS])
@pytest.mark.parametrize("placement", [Replicate(), Partial(), Partial("avg")])
def test_gradients_that_are_not_finished(kind, placement):
    p = Placed(np.ones(3, np.float32), True)
    Placed.placements = (Shard(0), placement)
    with pytest.raises(TypeError, match="parameter 'w' are sums that are not finished"):
        kind([("w", p)])


def test_states_of_other_forms_and_names():
    a, b = parameter(3), parameter(2)
    optimizer = optim.Adam([("a", a)])
    for state in (
        {},
        {"state": {}},
        {"state": {0: {}}, "param_groups": [{"lr": 0.1, "params": [0]}]},  # torch's, by positions
    ):
        with pytest.raises(ValueError, match='"names"'):
            optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match=r"got      unknown \['b'\]\n  expected \[\]"):
        optimizer.load_state_dict(optim.Adam([("a", a), ("b", b)]).state_dict())
    with pytest.raises(ValueError, match=r"got      unknown \[\]\n  expected \['a'\]"):
        optimizer.load_state_dict({**optimizer.state_dict(), "param_groups": []})


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_another_kind_of_optimizer(kind):
    p = parameter(2)
    optimizer = kind([("a", p)])
    with pytest.raises(ValueError, match="a has the state of another optimizer"):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {"a": {"n_iter": 3, "move_0": np.ones(2)}}})
    with pytest.raises(ValueError, match="another optimizer"):
        optim.LBFGS([("a", p)]).load_state_dict(
            {**optim.LBFGS([("a", p)]).state_dict(), "state": {"a": {"exp_avg": np.ones(2)}}}
        )


def test_gradients_made_zero():
    p, q = parameter(2), parameter(2)
    p.grad = kept = np.ones(2, np.float32)
    optimizer = optim.SGD([p, q])
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is kept
    assert not kept.any()
    assert q.grad is None
    optimizer.zero_grad()
    assert p.grad is None
