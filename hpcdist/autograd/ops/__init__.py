"""The table of operations: each a row with forward, vjp and sharding signature."""

from hpcdist.autograd.ops.activation import GELU, SILU, SWIGLU
from hpcdist.autograd.ops.attention import ATTENTION, ROTARY
from hpcdist.autograd.ops.dropout import DROPOUT
from hpcdist.autograd.ops.elementwise import (
    ADD,
    CAST,
    DIV,
    ERF,
    EXP,
    LOG,
    MUL,
    NEG,
    POW,
    RELU,
    SIGMOID,
    SQRT,
    SUB,
    TANH,
    WHERE,
)  # fmt: skip
from hpcdist.autograd.ops.embedding import EMBEDDING
from hpcdist.autograd.ops.linalg import LINEAR, MATMUL
from hpcdist.autograd.ops.loss import CROSS_ENTROPY, LINEAR_CROSS_ENTROPY
from hpcdist.autograd.ops.norm import ADD_LAYER_NORM, ADD_RMS_NORM, LAYER_NORM, RMS_NORM
from hpcdist.autograd.ops.reduce import MEAN, SUM
from hpcdist.autograd.ops.shape import CAT, GETITEM, PUT, RESHAPE, SPLIT, TRANSPOSE
from hpcdist.autograd.ops.softmax import LOG_SOFTMAX, SOFTMAX

__all__ = [
    "ADD", "ADD_LAYER_NORM", "ADD_RMS_NORM", "ATTENTION", "CAST", "CAT", "CROSS_ENTROPY", "DIV", "DROPOUT",
    "EMBEDDING", "ERF", "EXP", "GELU", "GETITEM", "LAYER_NORM", "LINEAR", "LINEAR_CROSS_ENTROPY", "LOG",
    "LOG_SOFTMAX", "MATMUL", "MEAN", "MUL", "NEG", "POW", "PUT", "RELU", "RESHAPE", "RMS_NORM", "ROTARY", "SIGMOID",
    "SILU", "SOFTMAX", "SPLIT", "SQRT", "SUB", "SUM", "SWIGLU", "TANH", "TRANSPOSE", "WHERE",
]  # fmt: skip
