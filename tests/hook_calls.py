"""Every public callable of communication hooks, and of SyncBatchNorm, called on a communicator that counts."""

import numpy as np

from hpcdist import nn
from hpcdist.parallel import comm_hooks, convert_sync_batchnorm

PREFIX = "parallel.comm_hooks"


def bucket(comm):
    """Return a bucket of two gradients."""
    parameters = [nn.Parameter(np.ones((4, 3), np.float32)), nn.Parameter(np.ones(3, np.float32))]
    return comm_hooks.GradBucket(np.ones(15, np.float32), parameters, comm, index=0, is_last=True)


def hook(name):
    return bucket, lambda made: getattr(comm_hooks, name)(None, made)


HOOKS = ("allreduce_hook", "bf16_compress_hook", "fp16_compress_hook", "noop_hook")
WRAPPERS = ("bf16_compress_wrapper", "fp16_compress_wrapper")
CALLS = {f"{PREFIX}.{name}": hook(name) for name in HOOKS}
CALLS |= {
    f"{PREFIX}.{name}": (bucket, lambda _, name=name: getattr(comm_hooks, name)(comm_hooks.allreduce_hook))
    for name in WRAPPERS
}
CALLS |= {
    f"{PREFIX}.GradBucket": (lambda comm: comm, bucket),
    f"{PREFIX}.GradBucket.index": (bucket, lambda made: made.index()),
    f"{PREFIX}.GradBucket.is_last": (bucket, lambda made: made.is_last()),
    f"{PREFIX}.GradBucket.buffer": (bucket, lambda made: made.buffer()),
    f"{PREFIX}.GradBucket.parameters": (bucket, lambda made: made.parameters()),
    f"{PREFIX}.GradBucket.gradients": (bucket, lambda made: made.gradients()),
    f"{PREFIX}.GradBucket.set_buffer": (bucket, lambda made: made.set_buffer(made.buffer())),
}
CALLS["parallel.convert_sync_batchnorm"] = (lambda _: nn.BatchNorm1d(2), convert_sync_batchnorm)
