"""Options and methods of fully_shard on thread ranks: the bodies of tests/fsdp_options_suite.py."""

import functools
import logging
import tracemalloc

import fsdp_options_suite as suite
import fsdp_suite
import numpy as np
import pytest

from hpcdist import manual_seed, nn
from hpcdist.comm.local import run
from hpcdist.parallel import fully_shard

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
expected = functools.cache(functools.partial(fsdp_suite.alone, steps=4))


@functools.cache
def expected_tp():
    def main(comm):
        manual_seed(0)
        return suite.tp_train(nn.GPT(suite.tp_config()), comm)

    return run(1, main)[0]


def test_neighbours():
    run(4, suite.check_neighbours, expected())


@SIZES
@pytest.mark.parametrize("reduce_dtype", [None, suite.BFLOAT16])
@pytest.mark.parametrize("cast_inputs", [False, True])
def test_rounded_parameters(size, cast_inputs, reduce_dtype):
    run(size, suite.check_rounded_parameters, cast_inputs, reduce_dtype)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bytes_of_rounded_parameters(size):
    run(size, suite.check_bytes_of_rounded_parameters)


@pytest.mark.parametrize("size", [1, 2])
def test_offload_on_a_host(size):
    run(size, suite.check_offload_on_a_host, expected())


@pytest.mark.parametrize("size", [2, 4])
def test_named_axes(size):
    run(size, suite.check_named_axes, expected())


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        (("dp", "tp"), (2, 1)),
        (("dp", "tp"), (2, 2)),
        (("dp", "tp"), (1, 4)),
        (("dp", "tp"), (3, 2)),
        (("copies", "shards", "tp"), (2, 1, 2)),
        (("copies", "shards", "tp"), (2, 2, 1)),
        (("copies", "shards", "tp"), (1, 2, 2)),
    ],
)
def test_with_tensor_parallel(axes, shape):
    run(int(np.prod(shape)), suite.check_with_tensor_parallel, axes, shape, expected_tp())


@SIZES
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_drawn_shards(size, apart, dim):
    run(size, suite.check_drawn_shards, apart, dim)


@pytest.mark.parametrize(("size", "tp"), [(4, 2), (3, 3), (3, 1), (6, 2)])
@pytest.mark.parametrize("apart", [False, True])
def test_drawn_shards_of_parts(size, tp, apart):
    run(size, functools.partial(suite.check_drawn_shards_of_parts, apart=apart), tp)


@pytest.mark.parametrize("size", [2, 4])
def test_copies_add_up_later(size):
    run(size, suite.check_copies_add_up_later)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    "check",
    [
        suite.check_numbers_of_neighbours,
        suite.check_output_dtype,
        suite.check_masters_of_several_dtypes,
        suite.check_loaded_without_drawing,
        suite.check_other_methods,
        suite.check_hook_of_reductions,
        suite.check_gathering_only_where_asked,
        suite.check_ignored,
        suite.check_containers,
        suite.check_even_memory,
    ],
)
def test_options(size, check):
    run(size, check)


def test_peak_memory_of_a_model_that_is_larger_than_a_share():
    """Four ranks of one process draw 16 MiB together; whole models would be 64."""

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(512, 512, bias=False) for _ in range(16)])

        def forward(self, x):
            for layer in self.layers.children.values():
                x = layer(x)
            return x

    def main(comm):
        with nn.deferred():
            model = Stack()
        for layer in model.layers.children.values():
            fully_shard(layer, mesh=comm)
        return sum(p.data.nbytes for p in fully_shard(model, mesh=comm).parameters())

    run(4, main)  # what is made once
    tracemalloc.start()
    held = run(4, main)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held == [4 << 20] * 4
    assert peak < 40 << 20


@pytest.mark.parametrize("size", [1, 2])
def test_a_stack_of_blocks_that_becomes_one_unit_is_warned_about(size, caplog):
    with caplog.at_level(logging.WARNING, "hpcdist.parallel"):
        run(size, lambda comm: fully_shard(fsdp_suite.gpt(), mesh=comm))
        assert [r.message for r in caplog.records] == [
            "fully_shard: all parameters of GPT are gathered at the same time; to hold one block at a time, call it on"
            " each item of 'blocks' first, or pass auto_wrap_policy"
        ]
        caplog.clear()
        run(size, lambda comm: fsdp_suite.shard(fsdp_suite.gpt(), comm))
        assert not caplog.records
