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
STATE = comm_hooks.PowerSGDState
TOLD = f"{PREFIX}.PowerSGDState"
CALLS |= {
    f"{PREFIX}.powerSGD_hook": (bucket, lambda made: comm_hooks.powerSGD_hook(STATE(), made)),
    TOLD: (bucket, lambda made: STATE(made.group)),
    f"{TOLD}.error": (bucket, lambda made: STATE().error(made)),
    f"{TOLD}.starts_of": (bucket, lambda made: STATE().starts_of(made, made.gradients()[:1])),
    f"{TOLD}.is_thin": (bucket, lambda made: STATE().is_thin(made.gradients()[0])),
    f"{TOLD}.keep": (bucket, lambda made: STATE().keep(made)),
    f"{TOLD}.state_dict": (bucket, lambda made: STATE(made.group).state_dict()),
    f"{TOLD}.load_state_dict": (bucket, lambda made: STATE(made.group).load_state_dict(STATE().state_dict())),
}
LOCAL = comm_hooks.PostLocalSGDState
OF_LOCAL = f"{PREFIX}.PostLocalSGDState"
CALLS |= {
    f"{PREFIX}.post_localSGD_hook": (bucket, lambda made: comm_hooks.post_localSGD_hook(LOCAL(None, None, 1), made)),
    OF_LOCAL: (lambda comm: comm, lambda comm: LOCAL(comm, None, 0)),
    f"{OF_LOCAL}.part_of": (lambda comm: comm, lambda comm: LOCAL(None, None, 0).part_of(comm)),
    f"{OF_LOCAL}.state_dict": (lambda comm: LOCAL(comm, None, 0), lambda state: state.state_dict()),
    f"{OF_LOCAL}.load_state_dict": (
        lambda comm: LOCAL(comm, None, 0),
        lambda state: state.load_state_dict({"iter": 1}),
    ),
}
CALLS["parallel.convert_sync_batchnorm"] = (lambda _: nn.BatchNorm1d(2), convert_sync_batchnorm)
