"""The table of operations: each a row with forward, vjp and sharding signature."""

from hpcdist.autograd.ops.activation import GELU, SILU, SWIGLU
from hpcdist.autograd.ops.attention import ATTENTION, ROTARY
from hpcdist.autograd.ops.batchnorm import BATCH_NORM, BATCH_NORM_EVAL, GROUP_NORM
from hpcdist.autograd.ops.compare import EQ, GE, GT, LE, LT, NE
from hpcdist.autograd.ops.complex import COMPLEX, CONJ, IMAG, REAL, VIEW_AS_COMPLEX, VIEW_AS_REAL
from hpcdist.autograd.ops.convolution import CONV, CONV_TRANSPOSE
from hpcdist.autograd.ops.criterion import BINARY_CROSS_ENTROPY, CLASS_CROSS_ENTROPY, HUBER, KL_DIV, LOGISTIC
from hpcdist.autograd.ops.dropout import DROPOUT
from hpcdist.autograd.ops.einsum import EINSUM
from hpcdist.autograd.ops.elementwise import (
    ABS,
    ADD,
    CAST,
    COS,
    DIV,
    ERF,
    EXP,
    LOG,
    MUL,
    NEG,
    POW,
    RELU,
    SIGMOID,
    SIN,
    SQRT,
    SUB,
    TANH,
    WHERE,
)  # fmt: skip
from hpcdist.autograd.ops.embedding import EMBEDDING
from hpcdist.autograd.ops.extremes import CLAMP, MAX, MAXIMUM, MIN, MINIMUM
from hpcdist.autograd.ops.fourier import IRFFT, RFFT
from hpcdist.autograd.ops.grouped import UNGROUP
from hpcdist.autograd.ops.indexing import INDEX_SELECT, SCATTER_ADD, TAKE_ALONG_DIM
from hpcdist.autograd.ops.interpolate import INTERPOLATE
from hpcdist.autograd.ops.linalg import LINEAR, MATMUL
from hpcdist.autograd.ops.loss import CROSS_ENTROPY, LINEAR_CROSS_ENTROPY
from hpcdist.autograd.ops.norm import ADD_LAYER_NORM, ADD_RMS_NORM, LAYER_NORM, RMS_NORM
from hpcdist.autograd.ops.order import SORT, TOPK
from hpcdist.autograd.ops.pad import PAD
from hpcdist.autograd.ops.pooling import ADAPTIVE_AVG_POOL, AVG_POOL, MAX_POOL
from hpcdist.autograd.ops.recurrent import GRU, LSTM
from hpcdist.autograd.ops.reduce import CUMSUM, MEAN, SUM
from hpcdist.autograd.ops.shape import BROADCAST_TO, CAT, GETITEM, PUT, RESHAPE, SPLIT, STACK, TRANSPOSE
from hpcdist.autograd.ops.softmax import LOG_SOFTMAX, SOFTMAX
from hpcdist.autograd.ops.statistics import NORM, STD, VAR

__all__ = [
    "ABS", "ADAPTIVE_AVG_POOL", "ADD", "ADD_LAYER_NORM", "ADD_RMS_NORM", "ATTENTION", "AVG_POOL", "BATCH_NORM",
    "BATCH_NORM_EVAL", "BINARY_CROSS_ENTROPY", "BROADCAST_TO", "CAST", "CAT", "CLAMP", "CLASS_CROSS_ENTROPY",
    "COMPLEX", "CONJ", "CONV", "CONV_TRANSPOSE", "COS", "CROSS_ENTROPY", "CUMSUM", "DIV", "DROPOUT", "EINSUM",
    "EMBEDDING", "EQ", "ERF", "EXP", "GE", "GELU", "GETITEM", "GROUP_NORM", "GRU", "GT", "HUBER", "IMAG",
    "INDEX_SELECT", "INTERPOLATE", "IRFFT", "KL_DIV", "LAYER_NORM", "LE", "LINEAR", "LINEAR_CROSS_ENTROPY", "LOG",
    "LOGISTIC", "LOG_SOFTMAX", "LSTM", "LT", "MATMUL", "MAX", "MAXIMUM", "MAX_POOL", "MEAN", "MIN", "MINIMUM", "MUL",
    "NE", "NEG", "NORM", "PAD", "POW", "PUT", "REAL", "RELU", "RESHAPE", "RFFT", "RMS_NORM", "ROTARY", "SCATTER_ADD",
    "SIGMOID", "SILU", "SIN", "SOFTMAX", "SORT", "SPLIT", "SQRT", "STACK", "STD", "SUB", "SUM", "SWIGLU",
    "TAKE_ALONG_DIM", "TANH", "TOPK", "TRANSPOSE", "UNGROUP", "VAR", "VIEW_AS_COMPLEX", "VIEW_AS_REAL", "WHERE",
]  # fmt: skip
