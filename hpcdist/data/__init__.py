"""Sources, samplers and loaders [torch.utils.data]: what is read, in which order, and by whom."""

from hpcdist.data.arrays import ArrayDataset, TensorDataset
from hpcdist.data.batch import BatchSampler
from hpcdist.data.collate import default_collate
from hpcdist.data.dataset import ConcatDataset, Dataset, Subset, random_split
from hpcdist.data.distributed import DistributedSampler
from hpcdist.data.fields import HDF5Dataset
from hpcdist.data.loader import DataLoader
from hpcdist.data.netcdf import NetCDFDataset
from hpcdist.data.plan import BatchPlan, assign, deal
from hpcdist.data.sampler import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from hpcdist.data.stream import IterableDataset, StreamSampler
from hpcdist.data.tokens import TokenData, open_tokens, split
from hpcdist.data.windows import Windows
from hpcdist.data.workers import start_server

__all__ = [
    "ArrayDataset",
    "BatchPlan",
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "HDF5Dataset",
    "IterableDataset",
    "NetCDFDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StreamSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TokenData",
    "WeightedRandomSampler",
    "Windows",
    "assign",
    "deal",
    "default_collate",
    "open_tokens",
    "random_split",
    "split",
    "start_server",
]
