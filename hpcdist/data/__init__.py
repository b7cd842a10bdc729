"""Sources, samplers and loaders [torch.utils.data]: what is read, in which order, and by whom."""

from hpcdist.data.arrays import ArrayDataset, TensorDataset
from hpcdist.data.batch import BatchSampler
from hpcdist.data.collate import default_collate
from hpcdist.data.distributed import DistributedSampler
from hpcdist.data.fields import HDF5Dataset
from hpcdist.data.loader import DataLoader
from hpcdist.data.netcdf import NetCDFDataset
from hpcdist.data.plan import BatchPlan, assign
from hpcdist.data.sampler import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from hpcdist.data.tokens import TokenData, open_tokens, split
from hpcdist.data.windows import Windows
from hpcdist.data.workers import start_server

__all__ = [
    "ArrayDataset",
    "BatchPlan",
    "BatchSampler",
    "DataLoader",
    "DistributedSampler",
    "HDF5Dataset",
    "NetCDFDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "TensorDataset",
    "TokenData",
    "WeightedRandomSampler",
    "Windows",
    "assign",
    "default_collate",
    "open_tokens",
    "split",
    "start_server",
]
