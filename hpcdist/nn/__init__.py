"""Modules and their operations, under torch.nn's names. Knows nothing about ranks."""

from hpcdist.nn import functional, init
from hpcdist.nn.activation import GELU, Flatten, ReLU, Sigmoid, SiLU, Tanh
from hpcdist.nn.channelnorm import BatchNorm1d, BatchNorm2d, GroupNorm, InstanceNorm1d, InstanceNorm2d
from hpcdist.nn.convolution import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from hpcdist.nn.deferral import deferred, materialize
from hpcdist.nn.gpt import GPT, GPTConfig
from hpcdist.nn.layers import Dropout, Embedding, LayerNorm, Linear, ModuleList, RMSNorm, Sequential
from hpcdist.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    SmoothL1Loss,
)
from hpcdist.nn.module import Module, Parameter
from hpcdist.nn.recurrent import GRU, LSTM
from hpcdist.nn.resolution import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
    Upsample,
)
from hpcdist.nn.spectral import SpectralConv1d, SpectralConv2d
from hpcdist.nn.transformer import MLP, MultiheadAttention, TransformerBlock
from hpcdist.nn.unet import UNet

__all__ = [
    "GELU",
    "GPT",
    "GRU",
    "LSTM",
    "MLP",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GPTConfig",
    "GroupNorm",
    "HuberLoss",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "SpectralConv1d",
    "SpectralConv2d",
    "Tanh",
    "TransformerBlock",
    "UNet",
    "Upsample",
    "deferred",
    "functional",
    "init",
    "materialize",
]
