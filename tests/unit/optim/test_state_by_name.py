"""State goes by the names of parameters: not by positions, groups or the number of steps of others."""

import numpy as np
import pytest

from hpcdist import nn, optim
from hpcdist.autograd import Tensor


def model(**values):
    return {name: Tensor(np.full(n, x), requires_grad=name != "F") for name, (n, x) in values.items()}


def step(optimizer, params, **grads):
    for name, p in params.items():
        p.grad = np.full(p.shape, grads[name]) if name in grads else None
    optimizer.step()


def trained():
    params = model(A=(5, 1.0), F=(3, 2.0), C=(2, 1.0))
    optimizer = optim.Adam(params.items(), lr=0.1)
    for g in (1.0, 2.0, 3.0):
        step(optimizer, params, A=g)
    return params, optimizer


def after_the_fourth(optimizer, params):
    step(optimizer, params, A=4.0, C=0.5)
    np.testing.assert_allclose(params["A"].data, 0.61164065049, atol=5e-12)
    np.testing.assert_allclose(params["C"].data, 0.9000000020, atol=5e-11)
    np.testing.assert_array_equal(params["F"].data, 2.0)
    assert (optimizer.state["A"]["step"], optimizer.state["C"]["step"]) == (4, 1)


def test_every_parameter_counts_its_own_steps():
    params, optimizer = trained()
    np.testing.assert_allclose(params["A"].data, 0.70768167706, atol=5e-12)
    np.testing.assert_allclose(optimizer.state["A"]["exp_avg"], 0.561, rtol=1e-14)
    np.testing.assert_allclose(optimizer.state["A"]["exp_avg_sq"], 0.013994001, rtol=1e-14)
    assert optimizer.state.keys() == {"A"}
    after_the_fourth(optimizer, params)


@pytest.mark.parametrize("leave_empty", [False, True])
@pytest.mark.parametrize("order", ["AFC", "CAF", "FCA"])
def test_state_finds_its_parameter_in_any_order(order, leave_empty):
    before, optimizer = trained()
    saved = optimizer.state_dict()
    if leave_empty:
        saved["state"]["C"] = {}
    params = {name: Tensor(before[name].data.copy(), before[name].requires_grad) for name in order}
    later = optim.Adam(params.items(), lr=7.0)
    later.load_state_dict(saved)
    assert later.param_groups[0]["lr"] == 0.1
    assert later.param_groups[0]["names"] == list(order)
    after_the_fourth(later, params)


def groups(params, *names, lrs):
    return optim.Adam(
        [{"params": [(n, params[n]) for n in group], "lr": lr} for group, lr in zip(names, lrs, strict=True)]
    )


def test_groups_take_the_options_that_their_parameters_had():
    params = model(A=(5, 1.0), F=(3, 2.0), C=(2, 1.0))
    saved = groups(params, "AF", "C", lrs=(0.1, 0.3)).state_dict()
    later = groups(params, "C", "F", "A", lrs=(7.0, 8.0, 9.0))
    later.load_state_dict(saved)
    assert [(g["names"], g["lr"]) for g in later.param_groups] == [(["C"], 0.3), (["F"], 0.1), (["A"], 0.1)]
    joined = groups(params, "AFC", lrs=(5.0,))
    with pytest.raises(ValueError, match="within a group"):
        joined.load_state_dict(saved)
    assert joined.param_groups[0]["lr"] == 5.0


def test_sizes_that_differ_change_nothing():
    params, optimizer = trained()
    saved = optimizer.state_dict()
    saved["state"] = {"A": {**saved["state"]["A"], "exp_avg": np.ones(6)}}
    with pytest.raises(ValueError, match="exp_avg of A"):
        optimizer.load_state_dict(saved)
    after_the_fourth(optimizer, params)


def test_state_of_a_schedule_is_no_other_option():
    params, optimizer = trained()
    optim.lr_scheduler.ExponentialLR(optimizer, 0.5).step()
    later = optim.Adam(params.items(), lr=7.0)
    later.load_state_dict(optimizer.state_dict())
    schedule = optim.lr_scheduler.ExponentialLR(later, 0.5)
    schedule.load_state_dict({"last_epoch": 3})
    assert schedule.get_last_lr() == [0.1 / 8]


def test_a_parameter_that_came_later_starts_anew():
    params, optimizer = trained()
    saved = optimizer.state_dict()
    params |= model(D=(4, 1.0))
    later = optim.Adam(params.items(), lr=0.1)
    with pytest.raises(ValueError, match=r"unknown \[\]\n  expected \['D'\]"):
        later.load_state_dict(saved)
    assert later.state == {}
    later = optim.Adam([(n, params[n]) for n in "AFC"], lr=0.1)
    later.load_state_dict(saved)
    later.add_param_group({"params": [("D", params["D"])], "lr": 0.2})
    step(later, params, A=4.0, C=0.5, D=2.0)
    np.testing.assert_allclose(params["A"].data, 0.61164065049, atol=5e-12)
    np.testing.assert_allclose(params["D"].data, 0.8, atol=5e-9)
    assert [later.state[n]["step"] for n in "ACD"] == [4, 1, 1]


def test_a_frozen_parameter_keeps_its_state():
    params, optimizer = trained()
    params["A"].requires_grad = False
    step(optimizer, params, C=0.5)
    assert optimizer.state["A"]["step"] == 3
    later = optim.Adam(params.items())
    later.load_state_dict(optimizer.state_dict())
    params["A"].requires_grad = True
    step(later, params, A=4.0)
    np.testing.assert_allclose(params["A"].data, 0.61164065049, atol=5e-12)


def test_a_tied_parameter_is_moved_once():
    tied = nn.Sequential(nn.Linear(2, 2, dtype=np.float64), nn.Linear(2, 2, dtype=np.float64))
    tied[1].weight = tied[0].weight
    before = tied[0].weight.data.copy()
    optimizer = optim.SGD(tied.named_parameters(), lr=1.0)
    assert optimizer.param_groups[0]["names"] == ["0.weight", "0.bias", "1.bias"]
    tied(Tensor(np.ones((1, 2)))).sum().backward()
    gradient = tied[0].weight.grad.copy()
    optimizer.step()
    np.testing.assert_allclose(tied[1].weight.data, before - gradient, rtol=1e-14)
    with pytest.raises(ValueError, match="here already"):
        optim.SGD([("0.weight", tied[0].weight), ("1.weight", tied[1].weight)])
