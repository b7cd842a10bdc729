"""Samples that are records of NetCDF-4 variables, read as the HDF5 that they are.

Applied, by the conventions of NetCDF and CF (section 8.1): ``_FillValue`` and ``missing_value`` become NaN, then
``scale_factor`` multiplies and ``add_offset`` is added. Floating-point numbers without ``_FillValue`` are missing where
they are what the library writes by default, 9.97e36. A variable with an unlimited first dimension may be shorter in the
file than the dimension is; what it lacks is missing, too. ``_Unsigned`` integers are read so. Not applied:
``valid_min``, ``valid_max``, ``valid_range``, units and calendars.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.data.fields import HDF5Dataset, read_rows
from hpcdist.errors import explain

__all__ = ["NetCDFDataset"]

_ONLY_A_DIMENSION = "This is a netCDF dimension but not a netCDF variable"
_DEFAULT_FILL = 9.9692099683868690e36
"""NC_FILL_FLOAT and NC_FILL_DOUBLE of netcdf.h."""


class NetCDFDataset(HDF5Dataset):
    """Samples are dicts of records of several variables, along their first dimension.

    Values have the type that NumPy finds for the variable with ``scale_factor`` and ``add_offset`` (float64 if all are
    integers); without these, integers that can be missing are float32 up to 16 bits and float64 above, and all else
    keeps its type.

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
        if _text(found.attrs.get("NAME")).startswith(_ONLY_A_DIMENSION):
            what, expected = f"NetCDFDataset: field {name!r} of {self.path}", "a variable"
            raise ValueError(explain(what, got="a dimension without values", expected=expected))
        return found

    def _rows(self, dataset: Any, index: npt.NDArray[np.int64]) -> Array:
        attributes, there = dataset.attrs, index < dataset.shape[0]
        raw = np.zeros((len(index), *dataset.shape[1:]), dataset.dtype.newbyteorder("="))
        raw[there] = read_rows(dataset, index[there])
        missing = _is_missing(raw, attributes)
        missing[~there] = True
        if _text(attributes.get("_Unsigned")) == "true" and raw.dtype.kind == "i":
            raw = raw.view(f"u{raw.dtype.itemsize}")
        values = raw.astype(_unpacked_type(raw.dtype, attributes, shorter=dataset.shape[0] < len(self)))
        if values.dtype.kind in "fc":
            values[missing] = np.nan
        if "scale_factor" in attributes:
            values *= _number(attributes, "scale_factor")
        if "add_offset" in attributes:
            values += _number(attributes, "add_offset")
        return values


def _is_missing(raw: Array, attributes: Any) -> npt.NDArray[np.bool_]:
    missing = np.zeros(raw.shape, np.bool_)
    if raw.dtype.kind == "f" and raw.dtype.itemsize >= 4 and "_FillValue" not in attributes:
        missing |= raw == raw.dtype.type(_DEFAULT_FILL)
    for name in ("_FillValue", "missing_value"):
        for value in np.ravel(attributes.get(name, [])):
            missing |= raw == value
    return missing


def _unpacked_type(raw: np.dtype[Any], attributes: Any, *, shorter: bool) -> np.dtype[Any]:
    stated = [_number(attributes, name).dtype for name in ("scale_factor", "add_offset") if name in attributes]
    if stated:
        wide = np.result_type(raw, *stated)
        return wide if wide.kind in "fc" else np.dtype(np.float64)
    if raw.kind in "iub" and (shorter or "_FillValue" in attributes or "missing_value" in attributes):
        return np.dtype(np.float32 if raw.itemsize <= 2 else np.float64)
    return raw


def _number(attributes: Any, name: str) -> npt.NDArray[Any]:
    """Return an attribute as a scalar: NetCDF writes arrays of one element."""
    value = np.asarray(attributes[name])
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise ValueError(explain(f"NetCDFDataset: attribute {name}", got=repr(attributes[name]), expected="one number"))
    return value.astype(value.dtype.newbyteorder("=")).reshape(-1)[0]


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
