"""Cases of test_ops: recurrent layers, grouped heads."""

import numpy as np


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


FLOATING = {"gru", "lstm"}

CASES = [
    ("lstm", (normal(4, 3, 8), normal(3, 2), normal(3, 2, seed=1), normal(8, 2)), {"reverse": False}),
    ("lstm", (normal(4, 3, 8), normal(3, 2), normal(3, 2, seed=1), normal(8, 2)), {"reverse": True}),
    ("gru", (normal(4, 3, 6), normal(3, 2), normal(6, 2)), {"reverse": False}),
    ("gru", (normal(4, 3, 6), normal(3, 2), normal(6, 2), normal(6, seed=1)), {"reverse": True}),
    ("ungroup", (normal(2, 3, 24),), {"num_heads": 4, "num_kv_heads": 2}),
    ("ungroup", (normal(3, 12),), {"num_heads": 2, "num_kv_heads": 2}),
]

ERRORS = [
    ("lstm", (normal(4, 3, 7), normal(3, 2), normal(3, 2), normal(8, 2)), {"reverse": False}, r"4 \* hidden"),
    ("lstm", (normal(4, 3, 8), normal(2, 2), normal(3, 2), normal(8, 2)), {"reverse": False}, r"state of.*\(3, 2\)"),
    ("gru", (normal(4, 3, 6), normal(3, 2), normal(6, 2), normal(4)), {"reverse": False}, r"bias of.*\(6,\)"),
    ("ungroup", (normal(2, 3, 24),), {"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads that divides"),
]
