"""Sources, samplers and loaders [torch.utils.data]: what is read, in which order, and by whom."""

from hpcdist.data.loader import DataLoader
from hpcdist.data.plan import BatchPlan, assign
from hpcdist.data.sampler import DistributedSampler
from hpcdist.data.tokens import TokenData, open_tokens, split
from hpcdist.data.windows import Windows

__all__ = [
    "BatchPlan",
    "DataLoader",
    "DistributedSampler",
    "TokenData",
    "Windows",
    "assign",
    "open_tokens",
    "split",
]
