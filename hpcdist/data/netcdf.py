"""Samples that are records of NetCDF-4 variables, read as the HDF5 that they are.

Applied, by the conventions of NetCDF and CF (section 8.1): ``_FillValue`` and ``missing_value`` become NaN, then
``scale_factor`` multiplies and ``add_offset`` is added. A variable with an unlimited first dimension may be shorter
in the file than the dimension is; what it lacks is missing, too. Not applied: ``valid_min``, ``valid_max``,
``valid_range``, ``_Unsigned``, units and calendars.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.data.fields import HDF5Dataset, read_rows
from hpcdist.errors import explain

__all__ = ["NetCDFDataset"]

_ONLY_A_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"


class NetCDFDataset(HDF5Dataset):
    """Samples are dicts of records of several variables, along their first dimension.

    Values have the wider type of ``scale_factor`` and ``add_offset`` (float64 if those are integers); without these,
    integers that can be missing are float32 up to 16 bits and float64 above, and all else keeps its type.

    Parameters
    ----------
    path : path
        A NetCDF-4 file (NetCDF-3 is no HDF5: ``nccopy -k nc4`` converts it).
    fields : str, sequence of str, or mapping of str to str
        Variables, under their own names; or key to variable. Their first dimensions have the same length.

    Raises
    ------
    OSError, ValueError
        As for :class:`HDF5Dataset`.
    """

    def _agreed_count(self, counts: dict[str, int]) -> int:
        """Let variables with an unlimited first dimension be as long as the longest one."""
        open_ended = [name for name in counts if self._dataset(name).maxshape[0] is None]
        longest = max((counts[name] for name in open_ended), default=0)
        return super()._agreed_count({**counts, **dict.fromkeys(open_ended, longest)})

    def _dataset(self, name: str) -> Any:
        found = super()._dataset(name)
        if found.attrs.get("NAME", b"").startswith(_ONLY_A_DIMENSION):
            what, expected = f"NetCDFDataset: field {name!r} of {self.path}", "a variable"
            raise ValueError(explain(what, got="a dimension without values", expected=expected))
        return found

    def _rows(self, dataset: Any, index: npt.NDArray[np.int64]) -> Array:
        there = index < dataset.shape[0]
        attributes = dataset.attrs
        if not there.all():
            raw = np.full((len(index), *dataset.shape[1:]), _fill(dataset), dataset.dtype)
            raw[there] = read_rows(dataset, index[there])
        else:
            raw = read_rows(dataset, index)
        missing = _is_missing(raw, attributes)
        missing[~there] = True
        dtype = _unpacked_type(raw.dtype, attributes)
        values = raw.astype(dtype)
        if dtype.kind == "f":
            values[missing] = np.nan
        if "scale_factor" in attributes:
            values *= _number(attributes["scale_factor"]).astype(dtype)
        if "add_offset" in attributes:
            values += _number(attributes["add_offset"]).astype(dtype)
        return values


def _is_missing(raw: Array, attributes: Any) -> npt.NDArray[np.bool_]:
    missing = np.zeros(raw.shape, np.bool_)
    for name in ("_FillValue", "missing_value"):
        for value in np.ravel(attributes.get(name, [])):
            missing |= raw == value
    return missing


def _fill(dataset: Any) -> Any:
    return _number(dataset.attrs["_FillValue"]) if "_FillValue" in dataset.attrs else dataset.fillvalue


def _unpacked_type(raw: np.dtype[Any], attributes: Any) -> np.dtype[Any]:
    native = raw.newbyteorder("=")
    stated = [_number(attributes[name]).dtype for name in ("scale_factor", "add_offset") if name in attributes]
    if stated:
        wide = np.result_type(*stated).newbyteorder("=")
        return wide if wide.kind == "f" else np.dtype(np.float64)
    if native.kind in "iu" and ("_FillValue" in attributes or "missing_value" in attributes):
        return np.dtype(np.float32 if native.itemsize <= 2 else np.float64)
    return native


def _number(value: Any) -> npt.NDArray[Any]:
    """Return an attribute as a scalar: NetCDF writes arrays of one element."""
    return np.asarray(value).reshape(-1)[0]
