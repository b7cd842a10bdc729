"""What a refusal says to call makes the operation work, on thread ranks."""

import itertools
import re

import numpy as np
import pytest
from dtensor_suite import placed
from move_suite import INV, S0, S1, P

import hpcdist as hd
from hpcdist import dtensor
from hpcdist.autograd import Tensor
from hpcdist.comm import init_device_mesh
from hpcdist.comm.local import run
from hpcdist.dtensor import Shard
from hpcdist.dtensor.dispatch import LayoutError
from hpcdist.nn import functional as F

CALL = re.compile(r"(redistribute\(placements=\[.*?\](?:, order=\(.*?\))?\)) of input (\d)")
OPERATIONS = {
    "add": ((4, 6), (4, 6), lambda x, y: x + y),
    "matmul": ((4, 6), (6, 4), lambda x, y: x @ y),
    "vector at the left": ((6,), (6, 4), lambda x, y: x @ y),
    "vector at the right": ((4, 6), (6,), lambda x, y: x @ y),
    "linear": ((4, 6), (3, 6), F.linear),
    "cat": ((4, 6), (2, 6), lambda x, y: hd.cat([x, y], 0)),
    "reshape": ((4, 6), (1, 1), lambda x, y: x.reshape(3, 8) + y),
    "getitem": ((4, 6), (1, 1), lambda x, y: x[1:, ::2] + y),
    "sort": ((4, 6), (1, 1), lambda x, y: x.sort(0)[0] * y),
    "split": ((4, 6), (1, 1), lambda x, y: x.split(2, 1)[1] * y),
}


def whole(shape, seed):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def doing_as_told(fn, inputs):
    """Return the result after doing what each refusal says, and how many there were."""
    for told in range(4):
        try:
            return fn(*inputs), told
        except LayoutError as error:
            do_as_told(str(error), inputs)
    raise AssertionError("what refusals say does not help")


def do_as_told(message, inputs):
    """Replace inputs by what the calls in a message return; it has to name one."""
    calls = CALL.findall(message)
    assert calls, message
    for call, i in calls:
        inputs[int(i)] = eval(f"x.{call}", {**vars(dtensor), "x": inputs[int(i)]})


def layouts(array, mesh):
    """Return placements of an array, one an axis."""
    each = [p for p in (INV, P, S0, S1) if not isinstance(p, Shard) or p.dim < array.ndim]
    return list(itertools.product(each, repeat=mesh.ndim))


@pytest.mark.parametrize("mesh_shape", [(3,), (2, 2)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_refusal_says_helps(name, mesh_shape):
    *shapes, fn = OPERATIONS[name]
    arrays = [whole(shape, seed) for seed, shape in enumerate(shapes)]
    expected = fn(*map(Tensor, arrays)).data

    def main(comm):
        mesh = init_device_mesh(mesh_shape, ("dp", "tp")[: len(mesh_shape)], comm)
        refused = 0
        for places in list(itertools.product(*(layouts(a, mesh) for a in arrays)))[:: mesh.ndim]:
            inputs = [placed(a, mesh, p) for a, p in zip(arrays, places, strict=True)]
            found, told = doing_as_told(fn, inputs)
            refused += told
            np.testing.assert_array_equal(found.full_tensor().data, expected)
        assert refused > 0

    run(int(np.prod(mesh_shape)), main)
