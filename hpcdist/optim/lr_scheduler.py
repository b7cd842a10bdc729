"""The schedules, under the name of torch's module."""

from hpcdist.optim.averaging import SWALR
from hpcdist.optim.composed import ChainedScheduler, SequentialLR
from hpcdist.optim.curves import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from hpcdist.optim.one_cycle import OneCycleLR
from hpcdist.optim.plateau import ReduceLROnPlateau
from hpcdist.optim.schedule import LambdaLR, LRScheduler

__all__ = [
    "SWALR",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
