"""Tensors, the tape and the table of operations. Knows arrays only: nothing of modules or ranks."""

from hpcdist.autograd import arrangement, fft, functions, ops, random
from hpcdist.autograd.gradient import check_vjp, grad
from hpcdist.autograd.op import OPS, Op, define
from hpcdist.autograd.pool import POOL, empty
from hpcdist.autograd.random import manual_seed
from hpcdist.autograd.tape import (
    apply,
    backward,
    enable_grad,
    is_grad_enabled,
    is_replaying,
    no_grad,
    queue_callback,
    saved_values,
)
from hpcdist.autograd.tensor import Tensor, tensor

__all__ = [
    "OPS",
    "POOL",
    "Op",
    "Tensor",
    "apply",
    "arrangement",
    "backward",
    "check_vjp",
    "define",
    "empty",
    "enable_grad",
    "fft",
    "functions",
    "grad",
    "is_grad_enabled",
    "is_replaying",
    "manual_seed",
    "no_grad",
    "ops",
    "queue_callback",
    "random",
    "saved_values",
    "tensor",
]
