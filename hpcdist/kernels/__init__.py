"""Computations on arrays, results included: generic forms, and compiled ones for the CPU beside them."""
