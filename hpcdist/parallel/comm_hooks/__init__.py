"""Communication hooks: how the ranks of a replicated model bring the gradients of a bucket together."""

from hpcdist.parallel.comm_hooks.answer import Answer
from hpcdist.parallel.comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
    noop_hook,
)
from hpcdist.parallel.comm_hooks.grad_bucket import GradBucket
from hpcdist.parallel.comm_hooks.post_local_sgd import PostLocalSGDState, post_localSGD_hook
from hpcdist.parallel.comm_hooks.powersgd import powerSGD_hook
from hpcdist.parallel.comm_hooks.powersgd_state import PowerSGDState

__all__ = [
    "Answer",
    "GradBucket",
    "PostLocalSGDState",
    "PowerSGDState",
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
    "noop_hook",
    "post_localSGD_hook",
    "powerSGD_hook",
]
