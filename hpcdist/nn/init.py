"""Initial values under torch's names, drawn from the seed and the place of each element: the same on every mesh.

Glorot and Bengio 2010; He et al. 2015, arXiv:1502.01852; Saxe et al. 2014, arXiv:1312.6120.
"""

from __future__ import annotations

import math

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd import Tensor, random
from hpcdist.errors import explain
from hpcdist.nn.deferral import Box, Deferred, Initial, Values

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, *, name: str | None = None) -> Tensor:
    """Fill with numbers from ``a`` to ``b``; ``name`` as in :func:`normal_`."""
    if not a <= b:
        raise ValueError(explain("uniform_", got=f"{a} to {b}", expected="the smaller one first"))
    key = _key(tensor, name)
    return _begin(tensor, lambda box: random.uniform(key, box.shape, index=box.index) * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, name: str | None = None) -> Tensor:
    """Fill with normal numbers.

    Parameters
    ----------
    name : str, optional
        Draw by this name (and the seed), whenever it happens; None: by how many draws went before.
    """
    if not std >= 0:
        raise ValueError(explain("normal_: std", got=std, expected="0 or above"))
    key = _key(tensor, name)
    return _begin(tensor, lambda box: random.normal(key, box.shape, index=box.index) * std + mean)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    name: str | None = None,
) -> Tensor:
    """Fill with normal numbers in [a, b]: those outside are drawn again; ``name`` as in :func:`normal_`."""
    if not (std > 0 and _mass((b - mean) / std) - _mass((a - mean) / std) > LEAST_MASS):
        raise ValueError(
            explain("trunc_normal_", got=f"[{a}, {b}]", expected=f"a range that holds {LEAST_MASS} of the numbers")
        )
    key, low, high = _key(tensor, name), (a - mean) / std, (b - mean) / std
    return _begin(tensor, lambda box: np.clip(_inside(key, low, high, box) * std + mean, a, b))


LEAST_MASS = 1e-3


def _mass(x: float) -> float:
    return 0.5 * math.erf(x / math.sqrt(2))


def _inside(key: random.Key, low: float, high: float, box: Box) -> Array:
    """Return standard normal numbers in [low, high]; an element is drawn again by a key of the attempt."""
    whole = random.box_index(box.whole, box.start, box.shape).reshape(-1)
    values: Array = random.normal(key, (whole.size,), np.float64, whole)
    outside = np.flatnonzero((values < low) | (values > high))
    attempt = 0
    while outside.size:
        attempt += 1
        again = (*key[:3], (key[3] + attempt) & 0xFFFFFFFF)
        values[outside] = random.normal(again, (outside.size,), np.float64, whole[outside])
        outside = outside[(values[outside] < low) | (values[outside] > high)]
    return values.reshape(box.shape)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one number."""
    return _begin(tensor, lambda _: val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0."""
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1."""
    return constant_(tensor, 1)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with 1 on the diagonal and 0 elsewhere."""
    if tensor.ndim != 2:
        raise ValueError(explain("eye_: tensor", got=tensor.shape, expected="a matrix"))
    return _begin(tensor, lambda box: box.coordinate(0) == box.coordinate(1))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill the weight of a convolution, (out, in, ...), so that it keeps as many channels as it can, group by group."""
    if not 3 <= tensor.ndim <= 5 or groups < 1 or tensor.shape[0] % groups:
        raise ValueError(
            explain(
                "dirac_",
                got=f"{tensor.shape}, {groups} groups",
                expected="3 to 5 dimensions, groups that divide the first",
            )
        )
    each = tensor.shape[0] // groups

    def values(box: Box) -> Array:
        ones: Array = box.coordinate(0) % each == box.coordinate(1)
        for dim in range(2, len(box.whole)):
            ones = ones & (box.coordinate(dim) == box.whole[dim] // 2)
        return ones

    return _begin(tensor, values)


# ---------------------------------------------------------------- by the number of inputs and outputs
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, *, name: str | None = None) -> Tensor:
    """Fill with numbers from +-gain * sqrt(6 / (inputs + outputs))."""
    bound = gain * math.sqrt(6 / max(sum(_fans(tensor)), 1))
    return uniform_(tensor, -bound, bound, name=name)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, *, name: str | None = None) -> Tensor:
    """Fill with normal numbers of deviation gain * sqrt(2 / (inputs + outputs))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / max(sum(_fans(tensor)), 1)), name=name)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    name: str | None = None,
) -> Tensor:
    """Fill with numbers from +-gain * sqrt(3 / fan); see :func:`kaiming_normal_`."""
    bound = math.sqrt(3) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, name=name)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    name: str | None = None,
) -> Tensor:
    """Fill with normal numbers of deviation gain / sqrt(fan).

    Parameters
    ----------
    a : float
        Slope of the leaky ReLU below 0.
    mode : str
        ``"fan_in"`` or ``"fan_out"``: the number of inputs of an output, or of outputs of an input.
    nonlinearity : str
        What follows; see :func:`calculate_gain`.
    """
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity), name=name)


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(explain("kaiming: mode", got=repr(mode), expected="'fan_in' or 'fan_out'"))
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor that makes up for what a nonlinearity takes from the deviation; ``param``: its slope."""
    slope = 0.01 if param is None else param
    gains = dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1.0)
    gains |= {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75, "leaky_relu": math.sqrt(2 / (1 + slope**2))}
    if nonlinearity not in gains:
        raise ValueError(explain("calculate_gain: nonlinearity", got=nonlinearity, expected=", ".join(gains)))
    return gains[nonlinearity]


def orthogonal_(tensor: Tensor, gain: float = 1.0, *, name: str | None = None) -> Tensor:
    """Fill with orthonormal rows, or columns where these are fewer, times ``gain``; later dimensions count as columns.

    A part is cut from a draw of everything.
    """
    if tensor.ndim < 2:
        raise ValueError(explain("orthogonal_: tensor", got=tensor.shape, expected="two dimensions or more"))
    key = _key(tensor, name)

    def values(box: Box) -> Array:
        rows, columns = box.whole[0], math.prod(box.whole[1:])
        flat = random.normal(key, (rows, columns), np.float64)
        q, r = np.linalg.qr(flat.T if rows < columns else flat)
        q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
        result: Array = gain * (q.T if rows < columns else q).reshape(box.whole)
        return result

    return _start(tensor, Initial(values, local=False))


# ---------------------------------------------------------------- what they share
def _fans(tensor: Tensor) -> tuple[int, int]:
    """Return the number of inputs of an output, and of outputs of an input."""
    if tensor.ndim < 2:
        raise ValueError(explain("initial values by fan: tensor", got=tensor.shape, expected="two dimensions or more"))
    window = math.prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def _key(tensor: Tensor, name: str | None) -> random.Key:
    if _checked(tensor).dtype.kind not in "fV":
        raise TypeError(explain("initial values: tensor", got=tensor.dtype, expected="a floating dtype"))
    return random.next_key("init") if name is None else random.key(random.get_state()["seed"], f"init {name}")


def _checked(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(explain("initial values: tensor", got=type(tensor).__name__, expected="a tensor"))
    return tensor


def _begin(tensor: Tensor, values: Values) -> Tensor:
    return _start(tensor, Initial(values))


def _start(tensor: Tensor, initial: Initial) -> Tensor:
    """Fill a tensor, or record how it will be."""
    _checked(tensor)
    if isinstance(tensor, Deferred):
        tensor.initial = initial
    else:
        tensor.data[...] = initial.draw(Box.all_of(tensor.shape), tensor.dtype)
    return tensor
