"""Cases of test_ops: losses."""

import numpy as np


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def fractions(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 0.9, shape)


TARGETS = np.array([[1, 2, -100], [4, 0, 0]])
SMOOTH = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.2}
FLOATING = {"binary_cross_entropy", "class_cross_entropy", "huber", "kl_div", "logistic"}

CASES = [
    ("huber", (2 * normal(3, 4), normal(3, 4, seed=1)), {"delta": 0.7}),
    ("huber", (2 * normal(3, 4), normal(4, seed=1)), {"delta": 0.7}),
    ("binary_cross_entropy", (fractions(3, 4), fractions(3, 4, seed=1)), {}),
    ("logistic", (3 * normal(3, 4), fractions(3, 4)), {}),
    ("logistic", (3 * normal(3, 4), fractions(3, 4), fractions(4, seed=1)), {}),
    ("kl_div", (normal(3, 4), fractions(3, 4)), {"log_target": False}),
    ("kl_div", (normal(3, 4), normal(3, 4, seed=1)), {"log_target": True}),
    ("class_cross_entropy", (normal(2, 3, 5), TARGETS), SMOOTH),
    ("class_cross_entropy", (normal(2, 3, 5), TARGETS), {**SMOOTH, "reduction": "sum"}),
    ("class_cross_entropy", (normal(2, 3, 5), TARGETS), {**SMOOTH, "reduction": "none", "label_smoothing": 0.0}),
]

ERRORS = [
    ("huber", (normal(3), normal(4)), {"delta": 1.0}, r"huber.*\(3,\) float64, \(4,\) float64"),
    ("binary_cross_entropy", (normal(3) + 2, normal(3)), {}, "expected probabilities.*with_logits"),
    ("class_cross_entropy", (normal(2, 3, 5), TARGETS, normal(4)), SMOOTH, r"each of the 5 classes, not \(4,\)"),
    ("class_cross_entropy", (normal(2, 3, 5), TARGETS), {**SMOOTH, "label_smoothing": 1.5}, "label_smoothing"),
    ("class_cross_entropy", (normal(2, 3, 5), TARGETS), {**SMOOTH, "reduction": "max"}, "'mean' or 'sum'"),
    ("class_cross_entropy", (normal(2, 3, 5), np.full((2, 3), 5)), SMOOTH, "target 5 is not a class"),
]
