"""Schedules against rates multiplied up step by step, written out here."""

import math

import numpy as np
import pytest

from hpcdist import optim
from hpcdist.autograd import Tensor
from hpcdist.optim import lr_scheduler as S

N = 40


def optimizer(kind=optim.SGD, **options):
    groups = [{"params": [Tensor(np.ones(1), True)], "lr": lr} for lr in (0.5, 0.2)]
    return kind(groups, **options)


def cos(progress):
    return (1 + math.cos(math.pi * progress)) / 2


def warm_restarts(t, length, mult):
    while t >= length:
        t, length = t - length, length * mult
    return cos(t / length)


FACTORS = {
    "StepLR": ({"step_size": 7, "gamma": 0.5}, lambda t: 0.5 ** (t // 7)),
    "MultiStepLR": ({"milestones": [9, 3, 9]}, lambda t: 0.1 ** ((t >= 3) + 2 * (t >= 9))),
    "ConstantLR": ({"factor": 0.2, "total_iters": 6}, lambda t: 0.2 if t < 6 else 1),
    "LinearLR": ({"start_factor": 0.2, "end_factor": 0.8, "total_iters": 6}, lambda t: 0.2 + 0.1 * min(t, 6)),
    "ExponentialLR": ({"gamma": 0.9}, lambda t: 0.9**t),
    "PolynomialLR": ({"total_iters": 20, "power": 2}, lambda t: (1 - min(t, 20) / 20) ** 2),
    "CosineAnnealingLR": ({"T_max": 20}, lambda t: cos(t / 20)),
    "CosineAnnealingWarmRestarts": ({"T_0": 5, "T_mult": 2}, lambda t: warm_restarts(t, 5, 2)),
    "LambdaLR": ({"lr_lambda": lambda t: 1 / (1 + t)}, lambda t: 1 / (1 + t)),
}


def rates(schedule, count=N):
    seen = []
    for _ in range(count):
        seen.append(schedule.get_last_lr())
        schedule.step()
    return np.array(seen)


@pytest.mark.parametrize("name", FACTORS)
def test_rates_are_the_initial_ones_times_a_factor(name):
    options, factor = FACTORS[name]
    want = np.outer([factor(t) for t in range(N)], [0.5, 0.2])
    np.testing.assert_allclose(rates(getattr(S, name)(optimizer(), **options)), want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", FACTORS)
def test_a_schedule_goes_on_from_its_state(name):
    options, factor = FACTORS[name]
    first = getattr(S, name)(optimizer(), **options)
    rates(first, 13)
    later = getattr(S, name)(optimizer(), **options)
    later.load_state_dict(first.state_dict())
    assert later.get_last_lr() == first.get_last_lr()
    assert later.get_last_lr()[0] == pytest.approx(0.5 * factor(13))
    told = getattr(S, name)(first.optimizer, **options, last_epoch=12)
    assert told.get_last_lr() == first.get_last_lr()


def test_initial_rates_may_be_given():
    groups = [{"params": [Tensor(np.ones(1), True)], "lr": 0.1, "initial_lr": 0.8}]
    assert S.StepLR(optim.SGD(groups), 1, 0.5, last_epoch=2).get_last_lr() == [0.1]


def test_the_lowest_rate_of_a_cosine():
    schedule = S.CosineAnnealingLR(optimizer(), T_max=10, eta_min=0.1)
    seen = rates(schedule, 11)
    np.testing.assert_allclose(seen[10], 0.1, rtol=1e-12)
    np.testing.assert_allclose(seen[5], [0.3, 0.15], rtol=1e-12)


def test_one_after_another():
    o = optimizer()
    parts = [S.LinearLR(o, 0.1, 1.0, 5), S.CosineAnnealingLR(o, 20), S.ConstantLR(o, 0.5, 100)]
    schedule = S.SequentialLR(o, parts, [5, 25])

    def factor(t):
        return 0.1 + 0.18 * t if t < 5 else cos((t - 5) / 20) if t < 25 else 0.5

    np.testing.assert_allclose(rates(schedule), np.outer([factor(t) for t in range(N)], [0.5, 0.2]), rtol=1e-12)
    schedule.load_state_dict({"last_epoch": 15})
    np.testing.assert_allclose(schedule.get_last_lr(), [0.25, 0.1], rtol=1e-12)


def test_all_at_once():
    o = optimizer()
    schedule = S.ChainedScheduler([S.ConstantLR(o, 0.1, 5), S.ExponentialLR(o, 0.9)])
    factors = [(0.1 if t < 5 else 1) * 0.9**t for t in range(N)]
    np.testing.assert_allclose(rates(schedule), np.outer(factors, [0.5, 0.2]), rtol=1e-12)


def test_one_cycle_of_rate_and_momentum():
    o = optimizer(momentum=0.9)
    schedule = S.OneCycleLR(o, max_lr=[1.0, 2.0], total_steps=20, pct_start=0.3)
    momenta, seen = [], []
    for _ in range(20):
        momenta.append(o.param_groups[0]["momentum"])
        seen.append(schedule.get_last_lr())
        schedule.step()
    np.testing.assert_allclose(seen[0], [1 / 25, 2 / 25], rtol=1e-12)
    np.testing.assert_allclose(seen[5], [1, 2], rtol=1e-12)  # 0.3 * 20 - 1
    np.testing.assert_allclose(seen[19], [1 / 25e4, 2 / 25e4], rtol=1e-9)
    np.testing.assert_allclose(seen[12], [1 / 25e4 + (1 - 1 / 25e4) / 2, 1.000004], rtol=1e-12)
    assert [momenta[i] for i in (0, 5, 12, 19)] == pytest.approx([0.95, 0.85, 0.9, 0.95])
    with pytest.raises(ValueError, match="the cycle is over"):
        schedule.step()


def test_one_cycle_in_three_phases_with_betas():
    o = optimizer(optim.AdamW)
    schedule = S.OneCycleLR(
        o, max_lr=1.0, epochs=4, steps_per_epoch=5, pct_start=0.3, anneal_strategy="linear", three_phase=True
    )
    seen = rates(schedule, 20)[:, 0]
    np.testing.assert_allclose(seen[[0, 5, 10, 19]], [0.04, 1, 0.04, 4e-6], rtol=1e-9)
    assert o.param_groups[0]["betas"] == pytest.approx((0.95, 0.999))


def test_a_plateau_lowers_the_rate():
    o = optimizer()
    schedule = S.ReduceLROnPlateau(o, factor=0.5, patience=2, cooldown=1, min_lr=[0.0, 0.08])
    for metric, rate in ((3, 0.5), (2, 0.5), (2, 0.5), (2, 0.5), (2, 0.25), (9, 0.25), (9, 0.25), (1, 0.25), (2, 0.25)):
        schedule.step(metric)
        assert o.param_groups[0]["lr"] == rate, metric
    state = schedule.state_dict()
    later = S.ReduceLROnPlateau(o, factor=0.5, patience=2, min_lr=0.08)
    later.load_state_dict(state)
    assert later.best == 1
    later.step(math.nan)
    later.step(2)
    assert [g["lr"] for g in o.param_groups] == [0.125, 0.08]


@pytest.mark.parametrize(("mode", "values"), [("max", (1.0, 1.05, 1.06)), ("min", (1.0, 0.95, 0.94))])
def test_progress_is_more_than_the_threshold(mode, values):
    schedule = S.ReduceLROnPlateau(optimizer(), mode, threshold=0.1, threshold_mode="abs", patience=1)
    for v in values:
        schedule.step(v)
    assert schedule.get_last_lr()[0] == pytest.approx(0.05)


def test_rates_move_to_that_of_averaging():
    o = optimizer()
    schedule = S.SWALR(o, [0.1, 0.3], anneal_epochs=4, anneal_strategy="linear")
    np.testing.assert_allclose(rates(schedule, 6)[:, 0], [0.5, 0.4, 0.3, 0.2, 0.1, 0.1], rtol=1e-12)
    later = S.SWALR(optimizer(), [0.1, 0.3], anneal_epochs=4, anneal_strategy="linear")
    later.load_state_dict({"last_epoch": 2, "start_lrs": [0.5, 0.2]})
    np.testing.assert_allclose(later.get_last_lr(), [0.3, 0.25], rtol=1e-12)


def test_averaging_begins_where_another_schedule_has_come():
    o = optimizer()
    cosine, averaging = S.CosineAnnealingLR(o, 20), S.SWALR(o, 0.01, anneal_epochs=4, anneal_strategy="linear")
    for _ in range(10):
        cosine.step()
    np.testing.assert_allclose(averaging.get_last_lr(), [0.25, 0.1], rtol=1e-12)
    averaging.step()
    np.testing.assert_allclose(averaging.get_last_lr(), [0.25 - 0.06, 0.1 - 0.0225], rtol=1e-12)
    rates(averaging, 4)
    np.testing.assert_allclose(averaging.get_last_lr(), 0.01, rtol=1e-12)


def test_a_rate_that_something_else_changed_is_not_lost_silently():
    o = optimizer()
    first, second = S.ExponentialLR(o, 0.9), S.StepLR(o, 1)
    second.step()
    with pytest.raises(RuntimeError, match="ChainedScheduler"):
        first.step()
    o = optimizer()
    schedule = S.ExponentialLR(o, 0.5)
    o.param_groups[1]["lr"] = 7.0
    with pytest.raises(RuntimeError, match="initial_lr"):
        schedule.step()
    o = optimizer()
    schedule = S.ExponentialLR(o, 0.5)
    o.param_groups[1]["initial_lr"] = 8.0
    o.add_param_group({"params": [("later", Tensor(np.ones(1), True))], "lr": 6.0})
    schedule.step()
    assert schedule.get_last_lr() == [0.25, 4.0, 3.0]
    again = S.ExponentialLR(o, 0.5)
    again.load_state_dict(schedule.state_dict())
    again.step()
    assert again.get_last_lr() == [0.125, 2.0, 1.5]


@pytest.mark.parametrize(
    "make",
    [
        lambda o: S.OneCycleLR(o, 1.0, 9, cycle_momentum=False),
        lambda o: S.SWALR(o, 0.1),
        lambda o: S.LambdaLR(o, [abs, abs]),
    ],
)
def test_a_group_that_came_later_has_no_rate(make):
    o = optimizer()
    schedule = make(o)
    o.add_param_group({"params": [("later", Tensor(np.ones(1), True))]})
    with pytest.raises(ValueError, match="add_param_group"):
        schedule.step()


def test_wrong_options():
    o, other = optimizer(), optimizer()
    exponential = S.ExponentialLR(o, 0.9)
    for make in (
        lambda: S.StepLR(o, 0),
        lambda: S.LinearLR(o, 0.0),
        lambda: S.LinearLR(o, 0.5, 1.5),
        lambda: S.ConstantLR(o, 1.5),
        lambda: S.CosineAnnealingLR(o, 0),
        lambda: S.LambdaLR(o, [lambda _: 1.0]),
        lambda: S.OneCycleLR(o, 1.0),
        lambda: S.OneCycleLR(optimizer(optim.Adagrad), 1.0, total_steps=5),
        lambda: S.OneCycleLR(o, 1.0, total_steps=5, anneal_strategy="sine"),
        lambda: S.SequentialLR(o, [exponential, exponential], [5, 6]),
        lambda: S.ChainedScheduler([]),
        lambda: S.ChainedScheduler([exponential], other),
        lambda: S.ReduceLROnPlateau(o, "best"),
        lambda: S.ReduceLROnPlateau(o, factor=1.0),
        lambda: S.SWALR(o, [0.1]),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 (each message is another)
            make()
    with pytest.raises(TypeError, match="LRScheduler"):
        S.SequentialLR(o, [S.ReduceLROnPlateau(o)], [])
