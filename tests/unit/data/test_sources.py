"""Arrays, HDF5 fields and NetCDF variables as datasets, and how samples become batches."""

import pickle
import sys
from collections import namedtuple

import h5py
import numpy as np
import pytest

from hpcdist.data import ArrayDataset, DataLoader, HDF5Dataset, NetCDFDataset, TensorDataset, default_collate

Pair = namedtuple("Pair", "a b")


class TestCollate:
    def test_numbers_and_arrays(self):
        assert default_collate([1, 2]).dtype == np.int64
        assert default_collate([1.5, 2]).tolist() == [1.5, 2]
        assert default_collate([True, False]).dtype == np.bool_
        assert default_collate([np.float32(1)]).dtype == np.float32
        rows = [np.full((2, 3), i, np.float32) for i in range(4)]
        np.testing.assert_array_equal(default_collate(rows), np.stack(rows))

    def test_structures_keep_their_kind(self):
        samples = [{"x": (i, [np.ones(2) * i]), "name": f"s{i}", "none": None} for i in range(3)]
        batch = default_collate(samples)
        assert isinstance(batch["x"], tuple)
        assert batch["x"][0].tolist() == [0, 1, 2]
        assert isinstance(batch["x"][1], list)
        assert batch["x"][1][0].shape == (3, 2)
        assert batch["name"] == ["s0", "s1", "s2"]
        assert batch["none"] == [None] * 3
        pair = default_collate([Pair(1, 2), Pair(3, 4)])
        assert isinstance(pair, Pair)
        assert (pair.a.tolist(), pair.b.tolist()) == ([1, 3], [2, 4])

    @pytest.mark.parametrize(
        ("samples", "says"),
        [
            ([], "no samples"),
            ([{"x": np.ones(2)}, {"x": np.ones(3)}], r"sample\['x'\]: different shapes"),
            ([(1, 2), (1, 2, 3)], "different lengths"),
            ([{"a": 1}, {"b": 1}], "different keys"),
            ([1, "a"], "different kinds"),
        ],
    )
    def test_samples_that_differ(self, samples, says):
        with pytest.raises(ValueError, match=says):
            default_collate(samples)

    def test_what_has_no_batch(self):
        with pytest.raises(TypeError, match=r"sample\[0\]"):
            default_collate([(object(),)])


class TestArrays:
    def test_in_order(self):
        x, y = np.arange(12).reshape(6, 2), np.arange(6.0)
        data = TensorDataset(x, y)
        assert len(data) == 6
        assert [part.tolist() for part in data[-1]] == [[10, 11], 5]
        a, b = data.batch([3, 0, 3])
        np.testing.assert_array_equal(a, x[[3, 0, 3]])
        np.testing.assert_array_equal(b, y[[3, 0, 3]])
        a[:] = 0
        assert x[3, 0] == 6
        assert ArrayDataset([1, 2, 3]).batch([2])[0].tolist() == [3]

    def test_by_name(self):
        data = ArrayDataset(x=np.arange(4), y=np.ones((4, 2)))
        assert {key: value.shape for key, value in data.batch([0, 1]).items()} == {"x": (2,), "y": (2, 2)}
        assert data[2]["x"] == 2

    def test_bad(self):
        for arguments in ((np.ones(2), np.ones(3)), (np.ones(()),), ()):
            with pytest.raises(ValueError, match="ArrayDataset"):
                ArrayDataset(*arguments)
        with pytest.raises(IndexError, match="0 to 1"):
            ArrayDataset(np.ones(2)).batch([2])
        with pytest.raises(IndexError, match="0 to 1"):
            ArrayDataset(np.ones(2))[2]
        for numbers in ([0.5], [True], 1, [[0]]):
            with pytest.raises(TypeError, match="integers, 1-D"):
                ArrayDataset(np.ones(2)).batch(numbers)

    def test_no_samples(self):
        assert len(ArrayDataset(np.ones((0, 3)))) == 0
        assert ArrayDataset(np.ones((2, 3))).batch([])[0].shape == (0, 3)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as f:
        f["group/x"] = np.arange(20, dtype=np.float32).reshape(10, 2)
        f.create_dataset("y", data=np.arange(10), chunks=(3,), compression="gzip")
        f["short"] = np.ones(3)
        f["text"] = np.array([b"a"] * 10)
        f["scalar"] = 1.0
        f["strings"] = ["a"] * 10
        f["records"] = np.zeros(10, [("a", "f4")])
        f["elsewhere"] = h5py.ExternalLink("gone.h5", "x")
        f["swapped"] = np.arange(10, dtype=">f4" if sys.byteorder == "little" else "<f4")
    return path


class TestHDF5:
    def test_fields(self, file):
        data = HDF5Dataset(file, {"x": "group/x", "y": "y"})
        assert len(data) == 10
        batch = data.batch([7, 2, 7, 3])
        assert batch["x"].dtype == np.float32
        np.testing.assert_array_equal(batch["x"], np.arange(20).reshape(10, 2)[[7, 2, 7, 3]])
        assert batch["y"].tolist() == [7, 2, 7, 3]
        assert data.batch([4, 5, 6])["y"].tolist() == [4, 5, 6]
        assert data.batch([])["x"].shape == (0, 2)
        assert (data[-1]["x"].tolist(), data[-1]["y"]) == ([18, 19], 9)
        data.close()
        assert data.batch([1])["y"].tolist() == [1]  # opened again
        data.close()

    def test_travels_to_another_process_without_its_file(self, file):
        data = HDF5Dataset(file, ["y"])
        data.batch([0])
        clone = pickle.loads(pickle.dumps(data))
        assert clone.batch([3])["y"].tolist() == [3]
        data.close()
        clone.close()

    def test_by_workers(self, file):
        loader = DataLoader(HDF5Dataset(file, "y"), 4, num_workers=2)
        assert [batch["y"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        loader.close()

    @pytest.mark.parametrize(
        "name", ["nothing", "group", "text", "scalar", "strings", "records", "elsewhere", "group/nothing"]
    )
    def test_what_is_no_field(self, file, name):
        with pytest.raises(ValueError, match=f"field\n  got +'{name}'(?s:.*)choose of group/x, short, swapped, y"):
            HDF5Dataset(file, name)

    def test_the_machines_byte_order(self, file):
        data = HDF5Dataset(file, "swapped")
        for indices in ([3, 1], []):
            rows = data.batch(indices)["swapped"]
            assert rows.dtype == np.float32
            assert rows.dtype.isnative
            assert rows.tolist() == indices

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"CDF\x01" + bytes(60), "nccopy"),
            (b"", "no whole HDF5 file"),
            (b"hello", "no whole HDF5 file"),
            (None, "cut off"),
        ],
    )
    def test_what_is_no_hdf5(self, file, tmp_path, content, says):
        path = tmp_path / "bad.h5"
        path.write_bytes(file.read_bytes()[:-500] if content is None else content)
        for kind in (HDF5Dataset, NetCDFDataset):
            with pytest.raises(OSError, match=f"(?s)bad.h5.*{says}|{says}.*bad.h5"):
                kind(path, "y")
        with pytest.raises(IsADirectoryError):
            HDF5Dataset(tmp_path, "y")

    def test_bad(self, file, tmp_path):
        with pytest.raises(ValueError, match="the same number"):
            HDF5Dataset(file, ["y", "short"])
        with pytest.raises(ValueError, match="the same number"):
            HDF5Dataset(file, [])
        with pytest.raises(IndexError, match="0 to 9"):
            HDF5Dataset(file, "y").batch([10])
        with pytest.raises(OSError, match=r"(?i)no such file"):
            HDF5Dataset(tmp_path / "no.h5", "y")


@pytest.fixture
def netcdf(tmp_path):
    """A file as the NetCDF-4 library lays it out: dimensions are scales, time is unlimited and longer than one user."""
    path = tmp_path / "d.nc"
    with h5py.File(path, "w", track_order=True) as f:
        time = f.create_dataset("time", data=np.arange(5.0), maxshape=(None,), chunks=(1024,))
        time.make_scale("time")
        cell = f.create_dataset("cell", (3,), ">f4")
        cell.make_scale("This is a netCDF dimension but not a netCDF variable         3")
        packed = np.array([[0, 1, -32767]] * 5, np.int16) + np.arange(5, dtype=np.int16)[:, None] * [[1, 1, 0]]
        t2m = f.create_dataset("t2m", data=packed.astype(np.int16), maxshape=(None, 3), chunks=(1, 3))
        t2m.attrs["_FillValue"] = np.array([-32767], np.int16)
        t2m.attrs["scale_factor"], t2m.attrs["add_offset"] = np.array([0.5]), np.array([100.0])
        late = f.create_dataset(
            "late", data=np.ones((3, 3), ">f4"), maxshape=(None, 3), chunks=(1, 3), fillvalue=9.9e36
        )
        late.attrs["missing_value"] = np.float32(-1)
        late[1, 1] = -1
        f.create_dataset("count", data=np.arange(5, dtype=np.int32)).attrs["_FillValue"] = np.int32(3)
        f.create_dataset("flag", data=np.arange(5, dtype=np.int8))
        for name in ("t2m", "late"):
            f[name].dims[0].attach_scale(time)
    return path


class TestNetCDF:
    def test_packed_values(self, netcdf):
        values = NetCDFDataset(netcdf, "t2m").batch([4, 0])["t2m"]
        assert values.dtype == np.float64
        np.testing.assert_array_equal(values, [[102, 102.5, np.nan], [100, 100.5, np.nan]])

    def test_a_variable_shorter_than_the_unlimited_dimension(self, netcdf):
        data = NetCDFDataset(netcdf, ["t2m", "late", "time"])
        assert len(data) == 5
        batch = data.batch([4, 1, 2])
        np.testing.assert_array_equal(batch["late"], [[np.nan] * 3, [1, np.nan, 1], [1, 1, 1]])
        assert batch["late"].dtype == np.float32
        assert batch["time"].tolist() == [4, 1, 2]
        data.close()

    def test_types(self, netcdf):
        batch = NetCDFDataset(netcdf, ["count", "flag"]).batch([3, 2])
        np.testing.assert_array_equal(batch["count"], [np.nan, 2])
        assert batch["count"].dtype == np.float64
        assert (batch["flag"].dtype, batch["flag"].tolist()) == (np.int8, [3, 2])

    def test_a_dimension_is_no_variable(self, netcdf):
        with pytest.raises(ValueError, match="a dimension without values"):
            NetCDFDataset(netcdf, "cell")

    @pytest.fixture
    def odd(self, tmp_path):
        path = tmp_path / "odd.nc"
        with h5py.File(path, "w") as f:
            f.create_dataset("time", data=np.arange(4.0), maxshape=(None,))
            f.create_dataset("short", data=np.arange(2, dtype=np.int32), maxshape=(None,), fillvalue=-2147483647)
            f.create_dataset("unwritten", (4,), ">f4", fillvalue=9.9692099683868690e36)
            f["large"] = np.arange(4, dtype=np.int32) + 2**24
            f["large"].attrs["scale_factor"] = np.float32(1)
            f["wide"] = np.arange(4) / 3
            f["wide"].attrs["add_offset"] = np.float32(0)
            f["unsigned"] = np.array([-1, 1, -2, 3], np.int8)
            f["unsigned"].attrs["_Unsigned"] = "true"
            f["unsigned"].attrs["_FillValue"] = np.int8(-2)
            f["named"] = np.arange(4)
            f["named"].attrs["NAME"] = "named"
            f["nan"] = np.arange(4.0)
            f["nan"].attrs["_FillValue"] = np.array([np.nan])
            for name, value in (("text", "0.1"), ("none", np.empty(0)), ("two", np.ones(2))):
                f[name] = np.ones(4)
                f[name].attrs["scale_factor"] = value
        return path

    @pytest.mark.parametrize(
        ("name", "values", "dtype"),
        [
            ("unwritten", [np.nan] * 4, np.float32),
            ("large", [2**24 + i for i in range(4)], np.float64),
            ("wide", [0, 1 / 3, 2 / 3, 1], np.float64),
            ("unsigned", [255, 1, np.nan, 3], np.float32),
            ("named", [0, 1, 2, 3], np.int64),
            ("nan", [0, 1, 2, 3], np.float64),
        ],
    )
    def test_nothing_is_silently_wrong(self, odd, name, values, dtype):
        got = NetCDFDataset(odd, name).batch(range(4))[name]
        np.testing.assert_array_equal(got, values)
        assert got.dtype == dtype

    def test_integers_that_end_early_can_be_missing(self, odd):
        data = NetCDFDataset(odd, ["short", "time"])
        for indices, values in (([0, 3], [0, np.nan]), ([1], [1])):
            got = data.batch(indices)["short"]
            np.testing.assert_array_equal(got, values)
            assert got.dtype == np.float64  # of every batch

    @pytest.mark.parametrize("name", ["text", "none", "two"])
    def test_a_scale_that_is_no_number(self, odd, name):
        with pytest.raises(ValueError, match="attribute scale_factor"):
            NetCDFDataset(odd, name).batch([0])
