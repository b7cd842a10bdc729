"""One batch made of single samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.errors import explain

__all__ = ["default_collate"]


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack samples along a new first dimension, inside whatever structure they have.

    Arrays and numbers become arrays, shape (n, ...): int64, float64, complex128 and bool for Python's numbers. Dicts,
    tuples (named ones, too) and lists keep their kind, and are gone through entry by entry. Strings, bytes and None
    become a list.

    Raises
    ------
    ValueError
        If there is no sample, or samples differ in shape, length or keys; says where.
    TypeError
        For anything else.
    """
    if not batch:
        raise ValueError(explain("default_collate: no samples", expected="at least one"))
    return _collated(list(batch), "")


def _collated(samples: list[Any], place: str) -> Any:
    first = samples[0]
    kinds = {_kind(sample) for sample in samples}
    if len(kinds) > 1:
        raise ValueError(_different(place, "kinds", sorted(kinds)))
    if isinstance(first, str | bytes) or first is None:
        return samples
    if isinstance(first, np.ndarray | np.generic | bool | int | float | complex):
        return _stacked(samples, place)
    if isinstance(first, Mapping):
        return _mapped(samples, place)
    if isinstance(first, tuple | list):
        return _sequence(samples, place)
    expected = "arrays, numbers, strings, None, and dicts, tuples and lists of them"
    do = "pass a collate_fn to the DataLoader"
    raise TypeError(explain(f"default_collate: sample{place}", got=type(first).__name__, expected=expected, do=do))


def _kind(sample: Any) -> str:
    if isinstance(sample, np.ndarray | np.generic | bool | int | float | complex):
        return "number or array"
    return type(sample).__name__


def _stacked(samples: list[Any], place: str) -> Any:
    arrays = [np.asarray(sample) for sample in samples]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise ValueError(_different(place, "shapes", shapes))
    return np.stack(arrays)


def _mapped(samples: list[Any], place: str) -> dict[Any, Any]:
    keys = [list(sample) for sample in samples]
    if any(set(k) != set(keys[0]) for k in keys):
        raise ValueError(_different(place, "keys", keys))
    return {key: _collated([sample[key] for sample in samples], f"{place}[{key!r}]") for key in keys[0]}


def _sequence(samples: list[Any], place: str) -> Any:
    lengths = sorted({len(sample) for sample in samples})
    if len(lengths) > 1:
        raise ValueError(_different(place, "lengths", lengths))
    parts = [_collated(list(part), f"{place}[{i}]") for i, part in enumerate(zip(*samples, strict=True))]
    kind = type(samples[0])
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _different(place: str, what: str, got: Any) -> str:
    return explain(f"default_collate: sample{place}: different {what}", got=got, expected="the same in every sample")
