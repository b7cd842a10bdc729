"""Cases of test_ops: extremes, order, indexing, statistics, einsum, Fourier transforms, padding, complex numbers."""

import math

import numpy as np


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def spectrum(*shape, seed=0):
    return normal(*shape, seed=seed) + 1j * normal(*shape, seed=seed + 1)


def integers(limit, *shape):
    return np.random.default_rng(3).integers(0, limit, shape)


CASES = [
    ("abs", (normal(3, 4),), {}),
    ("abs", (spectrum(3, 4),), {}),
    ("sin", (normal(3, 4),), {}),
    ("cos", (normal(3, 4),), {}),
    *[
        (name, (integers(3, 3, 1, 4) * 1.0, integers(3, 2, 4) * 1.0), {})
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ],
    ("maximum", (normal(3, 1, 4), normal(2, 4, seed=1)), {}),
    ("minimum", (normal(3, 4), normal(3, 1, seed=1)), {}),
    ("clamp", (normal(3, 4),), {"min": -0.5, "max": 0.25}),
    ("clamp", (normal(3, 4),), {"min": None, "max": 0.25}),
    ("max", (normal(3, 4, 2),), {"dim": 1, "keepdim": False}),
    ("max", (normal(3, 4, 2),), {"dim": (2, 0), "keepdim": True}),
    ("min", (normal(3, 4, 2),), {"dim": None, "keepdim": False}),
    ("sort", (normal(3, 4, 2),), {"dim": 1, "descending": False}),
    ("sort", (normal(3, 4, 2),), {"dim": -1, "descending": True}),
    ("topk", (normal(3, 5),), {"k": 2, "dim": -1, "largest": True}),
    ("topk", (normal(3, 5),), {"k": 3, "dim": 0, "largest": False}),
    ("cumsum", (normal(3, 4, 2),), {"dim": 1}),
    ("stack", (normal(3, 4), normal(3, 4, seed=1)), {"dim": 1}),
    ("stack", (normal(3, 4), normal(3, 4, seed=1), normal(3, 4, seed=2)), {"dim": -1}),
    ("broadcast_to", (normal(3, 1, 4),), {"shape": (2, 3, 5, 4)}),
    ("take_along_dim", (normal(3, 4, 2), integers(4, 3, 6, 2)), {"dim": 1}),
    ("take_along_dim", (normal(3, 4), integers(4, 1, 2)), {"dim": -1}),
    ("take_along_dim", (normal(1, 4), integers(4, 3, 2)), {"dim": 1}),
    ("scatter_add", (normal(3, 4), integers(4, 3, 6), normal(3, 6)), {"dim": 1}),
    ("scatter_add", (normal(3, 4), integers(3, 5, 2), normal(5, 2)), {"dim": 0}),
    ("index_select", (normal(3, 4, 2), integers(4, 5)), {"dim": 1}),
    ("var", (normal(3, 4, 2),), {"dim": (0, 2), "correction": 1, "keepdim": True}),
    ("var", (normal(3, 4),), {"dim": None, "correction": 0, "keepdim": False}),
    ("var", (spectrum(3, 4),), {"dim": 1, "correction": 1, "keepdim": False}),
    ("std", (normal(3, 4, 2),), {"dim": -1, "correction": 0.5, "keepdim": False}),
    ("norm", (normal(3, 4, 2),), {"p": 2, "dim": (0, 1), "keepdim": True}),
    ("norm", (spectrum(3, 4),), {"p": 2, "dim": 1, "keepdim": False}),
    ("norm", (normal(3, 4),), {"p": 1, "dim": None, "keepdim": False}),
    ("norm", (normal(3, 4),), {"p": 3.5, "dim": 0, "keepdim": False}),
    ("norm", (normal(3, 4),), {"p": 0.5, "dim": 1, "keepdim": False}),
    ("norm", (normal(3, 4),), {"p": math.inf, "dim": 1, "keepdim": False}),
    ("einsum", (normal(3, 4, 2), normal(3, 2, 5)), {"equation": "bij,bjk->bik"}),
    ("einsum", (normal(3, 4), normal(4, 5), normal(5, seed=1)), {"equation": "ij,jk,k->i"}),
    ("einsum", (normal(3, 3, 4),), {"equation": "iij->j"}),
    ("einsum", (normal(3, 3, 4), normal(4)), {"equation": "iij,j->ij"}),
    ("einsum", (normal(3, 4), normal(2, 5)), {"equation": "ij,kl->il"}),
    ("einsum", (normal(2, 1, 3, 4), normal(5, 4, 2)), {"equation": "...ij,...jk"}),
    ("einsum", (normal(3, 1), normal(4, 5)), {"equation": "ij,jk->ik"}),
    ("einsum", (normal(3, 4),), {"equation": "... -> "}),
    ("einsum", (spectrum(2, 3, 4), spectrum(3, 5, 4)), {"equation": "bix,iox->box"}),
    ("einsum", (normal(2, 3), spectrum(3, 2)), {"equation": "ij,jk->ik"}),
    *[
        (name, (values(3, 5, 4),), {"n": (n,), "dim": (1,), "norm": norm})
        for name, values in (("rfft", normal), ("irfft", spectrum))
        for n in (4, 5, 8, 9, 1)
        for norm in ("backward", "ortho", "forward")
    ],
    ("rfft", (normal(2, 6, 3, 4),), {"n": (6, 4), "dim": (1, -1), "norm": "backward"}),
    ("rfft", (normal(2, 5, 3),), {"n": (4, 7), "dim": (2, 1), "norm": "ortho"}),
    ("irfft", (spectrum(2, 6, 3, 4),), {"n": (6, 7), "dim": (1, -1), "norm": "backward"}),
    ("irfft", (spectrum(2, 5, 3),), {"n": (4, 6), "dim": (2, 1), "norm": "forward"}),
    ("pad", (normal(3, 4),), {"widths": ((0, 0), (2, 1)), "mode": "constant", "value": 0.5}),
    ("pad", (normal(3, 4),), {"widths": ((-1, 2), (1, -2)), "mode": "constant", "value": 0.0}),
    ("pad", (normal(2, 3, 4),), {"widths": ((0, 0), (2, 1), (1, 3)), "mode": "reflect", "value": 0.0}),
    ("pad", (normal(2, 3, 4),), {"widths": ((0, 0), (5, 1), (0, 6)), "mode": "replicate", "value": 0.0}),
    ("pad", (normal(2, 3, 4),), {"widths": ((0, 0), (3, 1), (2, 4)), "mode": "circular", "value": 0.0}),
    ("complex", (normal(3, 1), normal(2, seed=1)), {}),
    ("real", (spectrum(3, 4),), {}),
    ("imag", (spectrum(3, 4),), {}),
    ("conj", (spectrum(3, 4),), {}),
    ("view_as_real", (spectrum(3, 4),), {}),
    ("view_as_complex", (normal(3, 2),), {}),
]

ALONG = {"dim": 0, "keepdim": False}
ERRORS = [
    ("maximum", (normal(3), normal(4)), {}, r"maximum.*\(3,\) float64, \(4,\) float64"),
    ("max", (normal(2, 0),), {"dim": 1, "keepdim": False}, "maximum of no elements"),
    ("min", (normal(2, 3),), {"dim": 2, "keepdim": False}, "dim 2 is out of range"),
    ("sort", (normal(2, 3),), {"dim": 2, "descending": True}, "dim 2 is out of range"),
    ("topk", (normal(2, 3),), {"k": 4, "dim": 1, "largest": True}, r"k = 4 is not in 0 \.\. 3"),
    ("cumsum", (normal(2, 3),), {"dim": -3}, "dim -3 is out of range"),
    ("stack", (normal(2, 3), normal(2, 4)), {"dim": 0}, r"same shape.*\(2, 3\).*\(2, 4\)"),
    ("broadcast_to", (normal(2, 3),), {"shape": (2, 4)}, r"\(2, 3\).*shape.*\(2, 4\)"),
    ("take_along_dim", (normal(2, 3), integers(3, 2)), {"dim": 1}, "as many dimensions"),
    ("take_along_dim", (normal(2, 3), np.array([[3]])), {"dim": 1}, r"out of range.*got +3.*0 to 2"),
    ("take_along_dim", (normal(2, 3), normal(2, 3)), {"dim": 1}, "integer indices"),
    ("take_along_dim", (normal(2, 3), integers(3, 4, 3)), {"dim": 1}, r"\(2, 3\).*\(4, 3\)"),
    ("scatter_add", (normal(2, 3), integers(3, 2, 3), normal(2, 4)), {"dim": 1}, r"one shape.*\(2, 4\)"),
    ("scatter_add", (normal(2, 3), integers(3, 4, 3), normal(4, 3)), {"dim": 1}, "reach past"),
    ("scatter_add", (normal(2, 3), np.array([[-1]]), normal(1, 1)), {"dim": 1}, "got +-1"),
    ("index_select", (normal(2, 3), integers(3, 2, 2)), {"dim": 1}, r"indices \(n,\)"),
    ("index_select", (normal(2, 3), np.array([0, 2])), {"dim": 0}, "got +2"),
    ("var", (normal(2, 3),), {**ALONG, "correction": 2}, "2 elements less a correction of 2"),
    ("var", (integers(4, 2, 3),), {**ALONG, "correction": 1}, "floating-point values, not int64"),
    ("std", (normal(0, 3),), {**ALONG, "correction": 0}, "0 elements"),
    ("norm", (normal(2, 3),), {**ALONG, "p": 0}, "p = 0 is not a positive number"),
    ("norm", (integers(4, 2, 3),), {**ALONG, "p": 2}, "floating-point values"),
    ("einsum", (normal(2, 3), normal(2, 3)), {"equation": "ij,jk->ik"}, "letter 'j' has extents 3 and 2"),
    ("einsum", (normal(2, 3),), {"equation": "ij,jk->ik"}, "for 2 operands, not 1"),
    ("einsum", (normal(2, 3),), {"equation": "ijk->i"}, "names 3 dimensions of an operand that has 2"),
    ("einsum", (normal(2, 3),), {"equation": "ij->ii"}, "each letter of the result is there once"),
    ("einsum", (normal(2, 3),), {"equation": "ij->k"}, "in an operand"),
    ("einsum", (normal(2, 3),), {"equation": "i.j->i"}, "signs other than letters"),
    ("rfft", (normal(2, 3),), {"n": (4,), "dim": (1,), "norm": "unitary"}, "'unitary': expected 'backward'"),
    ("rfft", (normal(2, 3),), {"n": (0,), "dim": (1,), "norm": "ortho"}, "transform of 0 elements"),
    ("rfft", (normal(2, 3),), {"n": (4, 4), "dim": (1, -1), "norm": "ortho"}, "different dimensions"),
    ("rfft", (spectrum(2, 3),), {"n": (4,), "dim": (1,), "norm": "ortho"}, "real values"),
    ("irfft", (normal(2, 3),), {"n": (4,), "dim": (1,), "norm": "ortho"}, "complex values"),
    ("pad", (normal(2, 3),), {"widths": ((0, 0), (3, 0)), "mode": "reflect", "value": 0.0}, "reflect can put 0 to 2"),
    ("pad", (normal(2, 3),), {"widths": ((0, 0), (4, 0)), "mode": "circular", "value": 0.0}, "circular can put 0 to 3"),
    (
        "pad",
        (normal(2, 0),),
        {"widths": ((0, 0), (1, 0)), "mode": "replicate", "value": 0.0},
        "replicate can put 0 to 0",
    ),
    ("pad", (normal(2, 3),), {"widths": ((0, 0), (0, -4)), "mode": "constant", "value": 0.0}, "cannot cut 4"),
    ("pad", (normal(2, 3),), {"widths": ((0, 0), (1, 1)), "mode": "edge", "value": 0.0}, "mode is 'edge'"),
    ("complex", (normal(2), normal(3)), {}, r"complex.*\(2,\).*\(3,\)"),
    ("complex", (integers(4, 2), normal(2)), {}, "not int64"),
    ("real", (normal(2),), {}, "complex values"),
    ("view_as_complex", (normal(2, 3),), {}, "in the last dimension"),
]
