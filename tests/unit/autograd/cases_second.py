"""Cases of test_second: every row whose gradient can be differentiated."""

import math

import numpy as np


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def integers(limit, *shape):
    return np.random.default_rng(3).integers(0, limit, shape)


def positive(*shape):
    return np.abs(normal(*shape)) + 1


CASES = [
    ("add", (normal(3, 1, 4), normal(2, 4)), {}),
    ("sub", (normal(3, 1, 4), normal(2, 4)), {}),
    ("mul", (normal(3, 1, 4), normal(2, 4)), {}),
    ("div", (normal(3, 4), positive(4)), {}),
    ("neg", (normal(3, 2),), {}),
    ("pow", (positive(3, 2),), {"exponent": 2.5}),
    ("maximum", (normal(3, 4), normal(4, seed=1)), {}),
    ("minimum", (normal(3, 4), normal(4, seed=1)), {}),
    ("clamp", (normal(3, 4),), {"min": -0.5, "max": None}),
    ("where", (normal(3, 4) > 0, normal(3, 4, seed=1), normal(4)), {}),
    ("cast", (normal(3, 2),), {"dtype": np.dtype(np.float64)}),
    ("exp", (normal(3, 2),), {}),
    ("log", (positive(3, 2),), {}),
    ("sqrt", (positive(3, 2),), {}),
    ("tanh", (normal(3, 2),), {}),
    ("sigmoid", (normal(3, 2),), {}),
    ("relu", (normal(3, 2),), {}),
    ("erf", (normal(3, 2),), {}),
    ("sin", (normal(3, 2),), {}),
    ("cos", (normal(3, 2),), {}),
    ("abs", (normal(3, 2),), {}),
    ("silu", (normal(3, 2),), {}),
    ("gelu", (normal(3, 2),), {"tanh": False}),
    ("gelu", (normal(3, 2),), {"tanh": True}),
    ("sum", (normal(3, 4, 2),), {"dim": (0, -1), "keepdim": True}),
    ("sum", (normal(3, 4, 2),), {"dim": None, "keepdim": False}),
    ("mean", (normal(3, 4, 2),), {"dim": 1, "keepdim": False}),
    ("matmul", (normal(2, 3, 4), normal(4, 5)), {}),
    ("linear", (normal(2, 3, 4), normal(5, 4), normal(5)), {}),
    ("linear", (normal(3, 4), normal(5, 4)), {}),
    ("reshape", (normal(3, 4, 2),), {"shape": (3, 8)}),
    ("transpose", (normal(3, 4, 2),), {"dims": (2, 0, 1)}),
    ("getitem", (normal(3, 4),), {"index": (slice(None), slice(1, 3))}),
    ("getitem", (normal(3, 4),), {"index": np.array([0, 0, 2])}),
    ("put", (normal(3, 4),), {"index": np.array([0, 0, 2]), "shape": (5, 4)}),
    ("cat", (normal(3, 4), normal(3, 2)), {"dim": 1}),
    ("stack", (normal(3, 4), normal(3, 4, seed=1)), {"dim": -1}),
    ("broadcast_to", (normal(3, 1, 4),), {"shape": (2, 3, 5, 4)}),
    ("split", (normal(3, 5),), {"sizes": (2, 3), "dim": -1}),
    ("linear", (normal(4), normal(5, 4), normal(5)), {}),
    ("matmul", (normal(2, 1, 3, 4), normal(3, 4, 5)), {}),
    ("dropout", (normal(6, 4),), {"p": 0.3, "key": (1, 2, 3, 4)}),
    ("softmax", (normal(3, 4, 2),), {"dim": 1}),
    ("softmax", (normal(3, 4),), {"dim": -1}),
    ("log_softmax", (normal(3, 4, 2),), {"dim": 0}),
    ("cumsum", (normal(3, 4, 2),), {"dim": -2}),
    ("var", (normal(3, 4, 2),), {"dim": (0, 2), "correction": 1, "keepdim": True}),
    ("var", (normal(3, 4),), {"dim": None, "correction": 0, "keepdim": False}),
    ("std", (normal(3, 4, 2),), {"dim": -1, "correction": 0.5, "keepdim": False}),
    ("norm", (normal(3, 4, 2),), {"p": 2, "dim": (0, 1), "keepdim": True}),
    ("norm", (normal(3, 4),), {"p": 1, "dim": None, "keepdim": False}),
    ("norm", (normal(3, 4),), {"p": 3.5, "dim": 0, "keepdim": False}),
    ("norm", (normal(3, 4),), {"p": 0.5, "dim": 1, "keepdim": False}),
    ("norm", (normal(3, 4),), {"p": math.inf, "dim": 1, "keepdim": False}),
    ("max", (normal(3, 4, 2),), {"dim": 1, "keepdim": False}),
    ("max", (normal(3, 4, 2),), {"dim": (2, 0), "keepdim": True}),
    ("min", (normal(3, 4, 2),), {"dim": None, "keepdim": False}),
    ("sort", (normal(3, 4, 2),), {"dim": 1, "descending": True}),
    ("topk", (normal(3, 5),), {"k": 2, "dim": -1, "largest": True}),
    ("take_along_dim", (normal(3, 4, 2), integers(4, 3, 6, 2)), {"dim": 1}),
    ("take_along_dim", (normal(1, 4), integers(4, 3, 2)), {"dim": -1}),
    ("scatter_add", (normal(3, 4), integers(4, 3, 6), normal(3, 6)), {"dim": 1}),
    ("scatter_add", (normal(3, 4), integers(3, 5, 2), normal(5, 2)), {"dim": 0}),
    ("index_select", (normal(3, 4, 2), integers(4, 5)), {"dim": -2}),
    ("embedding", (integers(5, 2, 3), normal(5, 3)), {}),
    ("einsum", (normal(3, 4, 2), normal(3, 2, 5)), {"equation": "bij,bjk->bik"}),
    ("einsum", (normal(3, 4), normal(4, 5), normal(5, seed=1)), {"equation": "ij,jk,k->i"}),
    ("einsum", (normal(3, 3, 4), normal(4)), {"equation": "iij,j->ij"}),
    ("einsum", (normal(3, 4), normal(2, 5)), {"equation": "ij,kl->il"}),
    ("einsum", (normal(2, 1, 3, 4), normal(5, 4, 2)), {"equation": "...ij,...jk"}),
    ("einsum", (normal(3, 1), normal(4, 5)), {"equation": "ij,jk->ik"}),
    ("pad", (normal(3, 4),), {"widths": ((-1, 2), (1, -2)), "mode": "constant", "value": 0.5}),
    ("pad", (normal(2, 3, 4),), {"widths": ((0, 0), (2, 1), (1, 3)), "mode": "reflect", "value": 0.0}),
    ("pad", (normal(2, 3, 4),), {"widths": ((0, 0), (5, 1), (0, 6)), "mode": "replicate", "value": 0.0}),
    ("pad", (normal(2, 3, 4),), {"widths": ((0, 0), (3, 1), (2, 4)), "mode": "circular", "value": 0.0}),
]
