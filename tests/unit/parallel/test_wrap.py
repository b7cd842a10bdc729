"""Policies that choose units, for FullyShardedDataParallel and for fully_shard."""

from functools import partial

import numpy as np
import pytest

from hpcdist import nn
from hpcdist.comm.local import run
from hpcdist.parallel import (
    CustomPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    ModuleWrapPolicy,
    always_wrap_policy,
    fully_shard,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


class Small(nn.Linear):
    """A Linear that policies can tell from others."""


def stack():
    """Return modules of 20, 20 + 20 and 420 elements of parameters."""
    inner = nn.Sequential(Small(4, 4), nn.GELU(), Small(4, 4))
    return nn.Sequential(nn.Linear(4, 4), inner, nn.Linear(20, 20))


POLICIES = {
    "classes": (ModuleWrapPolicy({Small}), {"1.0", "1.2"}),
    "a base class": (ModuleWrapPolicy({nn.Linear}), {"0", "1.0", "1.2", "2"}),
    "custom": (CustomPolicy(lambda m: isinstance(m, Small) and {}), {"1.0", "1.2"}),
    "custom, True": (CustomPolicy(lambda m: isinstance(m, nn.Sequential)), {"1"}),
    "always": (always_wrap_policy, {"0", "1", "1.0", "1.2", "2"}),
    "lambda": (partial(lambda_auto_wrap_policy, lambda_fn=lambda m: type(m) is nn.Linear), {"0", "2"}),
    "transformer": (partial(transformer_auto_wrap_policy, transformer_layer_cls={Small}), {"1.0", "1.2"}),
    "20": (partial(size_based_auto_wrap_policy, min_num_params=20), {"0", "1.0", "1.2", "2"}),
    "40": (partial(size_based_auto_wrap_policy, min_num_params=40), {"1", "2"}),
    "41": (partial(size_based_auto_wrap_policy, min_num_params=41), {"2"}),
    "excluded": (
        partial(size_based_auto_wrap_policy, min_num_params=20, exclude_wrap_modules={Small}),
        {"0", "1", "2"},
    ),
    "default size": (size_based_auto_wrap_policy, set()),
}


def units(model):
    names = {id(m): name for name, m in model.named_modules()}
    return {names[id(m)] for m in model.modules() if isinstance(m, FSDPModule)} - {""}


@pytest.mark.parametrize("name", POLICIES)
def test_units_of_a_wrapped_module(name):
    policy, expected = POLICIES[name]
    run(2, lambda comm: _check(FullyShardedDataParallel(stack(), comm, auto_wrap_policy=policy), expected))


@pytest.mark.parametrize("name", POLICIES)
def test_units_of_fully_shard(name):
    """The same, and modules without parameters where the policy wants them."""
    policy, expected = POLICIES[name]
    expected = expected | ({"1.1"} if policy is always_wrap_policy else set())
    run(2, lambda comm: _check(fully_shard(stack(), mesh=comm, auto_wrap_policy=policy), expected))


def _check(model, expected):
    assert units(model) == expected


def test_containers_are_no_units():
    blocks = nn.ModuleList([nn.Linear(50, 50)])
    assert not always_wrap_policy(blocks)
    assert not size_based_auto_wrap_policy(blocks, min_num_params=10)


def test_refusals():
    with pytest.raises(TypeError, match="module_classes"):
        ModuleWrapPolicy([nn.Linear(2, 2)])
    with pytest.raises(ValueError, match="returned"):
        CustomPolicy(lambda _: np.True_)(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="has options"):
        CustomPolicy(lambda _: {"forward_prefetch": True})(nn.Linear(2, 2))


def test_repr():
    assert repr(ModuleWrapPolicy([nn.Linear, Small])) == "ModuleWrapPolicy(Linear, Small)"
