"""Operations on lines and planes of channels, and on norms of channels."""

import numpy as np


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


ONE = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
TWO = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
ODD = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 1}
POOL = {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True}
LINES = {"kernel_size": (3,), "stride": (1,), "padding": (0,), "dilation": (1,), "ceil_mode": False}
TWO_GROUPS = {"groups": 2, "output_padding": (0, 1)}
SIZES = {"scale": None, "align_corners": False}
FLOATING = {"adaptive_avg_pool", "avg_pool", "batch_norm", "batch_norm_eval", "conv", "conv_transpose", "group_norm"}
FLOATING |= {"interpolate", "max_pool"}

CASES = [
    ("conv", (normal(2, 4, 7), normal(6, 4, 3)), {**ONE, "stride": (2,), "padding": (1,)}),
    ("conv", (normal(2, 4, 7), normal(6, 4, 1), normal(6)), ONE),
    ("conv", (normal(2, 4, 5, 6), normal(6, 4, 3, 2), normal(6)), ODD),
    ("conv", (normal(2, 4, 5, 6), normal(6, 2, 3, 2), normal(6)), {**ODD, "groups": 2}),
    ("conv", (normal(2, 4, 5, 6), normal(6, 4, 1, 1)), TWO),
    ("conv", (normal(2, 4, 5, 6), normal(6, 4, 1, 1)), {**TWO, "stride": (2, 2)}),
    ("conv_transpose", (normal(2, 4, 5), normal(4, 6, 3)), {**ONE, "stride": (2,), "output_padding": (1,)}),
    ("conv_transpose", (normal(2, 4, 3, 4), normal(4, 3, 3, 2), normal(6)), {**ODD, **TWO_GROUPS}),
    ("conv_transpose", (normal(2, 4, 3, 4), normal(4, 6, 1, 1), normal(6)), {**TWO, "output_padding": (0, 0)}),
    ("max_pool", (normal(2, 4, 5, 6),), {**POOL, "dilation": (1, 2)}),
    ("max_pool", (normal(2, 4, 7),), LINES),
    ("avg_pool", (normal(2, 4, 5, 6),), {**POOL, "count_include_pad": True}),
    ("avg_pool", (normal(2, 4, 5, 6),), {**POOL, "count_include_pad": False}),
    ("adaptive_avg_pool", (normal(2, 4, 7),), {"output_size": (3,)}),
    ("adaptive_avg_pool", (normal(2, 4, 5, 6),), {"output_size": (1, 9)}),
    ("interpolate", (normal(2, 4, 5, 6),), {**SIZES, "size": (3, 13), "mode": "nearest"}),
    ("interpolate", (normal(2, 4, 5, 6),), {**SIZES, "size": (3, 13), "mode": "bilinear"}),
    ("interpolate", (normal(2, 4, 5),), {"size": (8,), "scale": (1.7,), "mode": "linear", "align_corners": True}),
    ("batch_norm", (normal(3, 4, 5), normal(4), normal(4)), {"eps": 1e-5}),
    ("batch_norm", (normal(5, 4), normal(4), normal(4)), {"eps": 1e-2}),
    ("batch_norm_eval", (normal(3, 4, 2, 5), normal(4), normal(4) ** 2 + 1, normal(4), normal(4)), {"eps": 1e-5}),
    ("group_norm", (normal(3, 4, 2, 5), normal(4), normal(4)), {"num_groups": 2, "eps": 1e-5}),
    ("group_norm", (normal(3, 4), normal(4), normal(4)), {"num_groups": 1, "eps": 1e-5}),
]  # fmt: skip

ERRORS = [
    ("conv", (normal(2, 4, 7), normal(6, 3, 3)), ONE, r"1 groups.*\(2, 4, 7\).*\(6, 3, 3\)"),
    ("conv", (normal(2, 4, 7), normal(6, 4, 3, 3)), TWO, "2 dimensions more"),
    ("conv", (normal(2, 4, 7), normal(6, 4, 3), normal(4)), ONE, "one bias an output channel"),
    ("conv", (normal(2, 4, 7), normal(6, 4, 8)), ONE, r"over 8 elements does not fit in 7 \+ 2 \* 0"),
    ("conv_transpose", (normal(2, 4, 7), normal(6, 4, 3)), {**ONE, "output_padding": (0,)}, "in, out / groups"),
    ("conv_transpose", (normal(2, 4, 7), normal(4, 4, 3)), {**ONE, "output_padding": (1,)}, "output padding below"),
    ("conv_transpose", (normal(2, 4, 1), normal(4, 4, 1)), {**ONE, "padding": (1,), "output_padding": (0,)}, "leaves"),
    ("max_pool", (normal(2, 4, 7),), {**POOL, "dilation": (1, 1)}, "2 dimensions more"),
    ("max_pool", (normal(2, 4, 5, 6),), {**POOL, "padding": (2, 0), "dilation": (1, 1)}, "at most half the window"),
    ("avg_pool", (normal(2, 4, 1, 0),), {**POOL, "count_include_pad": True}, "does not fit in 0"),
    ("adaptive_avg_pool", (normal(2, 4, 0),), {"output_size": (3,)}, "at least one element"),
    ("interpolate", (normal(2, 4, 5),), {**SIZES, "size": (0,), "mode": "nearest"}, "at least one element"),
    ("batch_norm", (normal(1, 4), normal(4), normal(4)), {"eps": 1e-5}, "more than one value a channel"),
    ("batch_norm", (normal(3, 4), normal(3), normal(4)), {"eps": 1e-5}, r"\(channels,\)"),
    ("group_norm", (normal(3, 4), normal(4), normal(4)), {"num_groups": 3, "eps": 1e-5}, "in 3 groups of one size"),
]  # fmt: skip
