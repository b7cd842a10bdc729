"""Strategies that place a model on a mesh."""

from hpcdist.parallel.replicate import Replica, replicate

__all__ = ["Replica", "replicate"]
