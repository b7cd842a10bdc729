"""Compiled forms of the kernels: numba, float32, contiguous arrays on the host."""
