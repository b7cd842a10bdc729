"""Modules and their operations, under torch.nn's names. Knows nothing about ranks."""

from hpcdist.nn import functional, init
from hpcdist.nn.activation import GELU, Flatten, ReLU, Sigmoid, SiLU, Tanh
from hpcdist.nn.channelnorm import BatchNorm1d, BatchNorm2d, GroupNorm, InstanceNorm1d, InstanceNorm2d
from hpcdist.nn.convolution import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from hpcdist.nn.gpt import GPT, GPTConfig
from hpcdist.nn.layers import CrossEntropyLoss, Dropout, Embedding, LayerNorm, Linear, ModuleList, RMSNorm, Sequential
from hpcdist.nn.module import Module, Parameter
from hpcdist.nn.resolution import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
    Upsample,
)
from hpcdist.nn.transformer import MLP, MultiheadAttention, TransformerBlock

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
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
    "GELU",
    "GPT",
    "GPTConfig",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "LayerNorm",
    "Linear",
    "MLP",
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
    "Tanh",
    "TransformerBlock",
    "Upsample",
    "functional",
    "init",
]
