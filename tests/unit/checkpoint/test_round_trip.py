import json
import shutil
import subprocess
import sys

import h5py
import ml_dtypes
import numpy as np
import pytest

from hpcdist.checkpoint import CheckpointError, latest, load, save, steps, verify

RNG = np.random.default_rng(0)

ARRAYS = {
    "float32": RNG.standard_normal((3, 4)).astype("f4"),
    "float64": RNG.standard_normal(5),
    "float16": RNG.standard_normal((2, 3)).astype("f2"),
    "bfloat16": RNG.standard_normal((4, 3)).astype(ml_dtypes.bfloat16),
    "bool": RNG.random((5, 2)) > 0.5,
    "int8": np.arange(-3, 3, dtype="i1"),
    "uint64": np.array([0, 2**64 - 1], "u8"),
    "complex64": (RNG.standard_normal(3) + 1j).astype("c8"),
    "complex128": RNG.standard_normal((1, 2)) + 2j,
    "big-endian": np.arange(4, dtype=">f4"),
    "fortran": np.asfortranarray(RNG.standard_normal((3, 5))),
    "strided": RNG.standard_normal((6, 8))[1::2, ::-3],
    "transposed": RNG.standard_normal((2, 3, 4)).transpose(2, 0, 1),
    "broadcast": np.broadcast_to(np.float32(7), (3, 2)),
    "read-only": np.frombuffer(b"12345678", "u1"),
    "0-d": np.array(2.5),
    "0-d bfloat16": np.array(1.5, ml_dtypes.bfloat16),
    "empty": np.empty(0),
    "empty (0, 3)": np.empty((0, 3), "f4"),
    "empty bfloat16": np.empty((2, 0), ml_dtypes.bfloat16),
    "special": np.array([np.nan, np.inf, -np.inf, -0.0]),
    "numpy scalar": np.float32(0.1),
    "numpy bool": np.bool_(True),
    "large": RNG.standard_normal(3 << 20),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_bit_by_bit(tmp_path, name):
    save(tmp_path, {name: ARRAYS[name]}, step=1)
    back, array = load(tmp_path)[name], np.asarray(ARRAYS[name])
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.c_contiguous
    assert back.flags.writeable
    assert back.flags.owndata


@pytest.mark.parametrize(
    "value",
    [
        0,
        -(2**63),
        2**64 - 1,
        0.1,
        float("inf"),
        -0.0,
        True,
        False,
        "",
        "text",
        "h\u00e9llo \u2211\n",
        "{" + "x" * 150_000,
    ],
    ids=lambda value: repr(value)[:12],
)
def test_scalars_keep_value_and_type(tmp_path, value):
    save(tmp_path, {"x": value}, step=1)
    back = load(tmp_path)["x"]
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_nan_and_an_integer_subclass(tmp_path):
    class Count(int):
        pass

    save(tmp_path, {"nan": float("nan"), "count": Count(3)}, step=1)
    back = load(tmp_path)
    assert np.isnan(back["nan"])
    assert (back["count"], type(back["count"])) == (3, int)


STATE = {
    "blocks.0.attn.qkv.weight": ARRAYS["float32"],
    "optim/exp_avg/blocks.0.attn.qkv.weight": ARRAYS["fortran"],
    "optim/step": 3,
    "half": ARRAYS["bfloat16"],
    "Gr\u00f6\u00dfe": ARRAYS["float64"],
    "sampler/seen": 640,
    "flag": True,
    "config": '{"width": 64}',
}


def test_the_file_is_plain_hdf5_with_whole_arrays(tmp_path):
    save(tmp_path, STATE, step=100)
    assert sorted(p.name for p in (tmp_path / "step-00000100").iterdir()) == ["index.h5", "manifest.json"]
    with h5py.File(tmp_path / "step-00000100/index.h5") as file:
        np.testing.assert_array_equal(file["optim/exp_avg/blocks.0.attn.qkv.weight"], ARRAYS["fortran"])
        np.testing.assert_array_equal(file["half"][()], ARRAYS["bfloat16"].astype("f4"))
        assert file["sampler/seen"][()] == 640
        assert file["config"][()] == b'{"width": 64}'
        assert list(file) == [
            "blocks.0.attn.qkv.weight",
            "optim",
            "half",
            "Gr\u00f6\u00dfe",
            "sampler",
            "flag",
            "config",
        ]
        assert file.libver == ("v110", "v110") or file.libver[1] != "earliest"


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="no h5dump here")
def test_h5dump_reads_it(tmp_path):
    save(tmp_path, STATE, step=100)
    command = ["h5dump", "-m", "%.9g", "-d", "/half", str(tmp_path / "step-00000100/index.h5")]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for number in ARRAYS["bfloat16"].astype("f4").ravel():
        assert f"{number:.9g}" in out


def test_manifest(tmp_path):
    save(tmp_path, STATE, step=100)
    folder = tmp_path / "step-00000100"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["schema"] == 1
    assert manifest["step"] == 100
    assert manifest["files"] == {"index.h5": {"size": (folder / "index.h5").stat().st_size}}
    assert manifest["versions"]["h5py"] == h5py.__version__
    assert list(manifest["entries"]) == list(STATE)
    assert manifest["entries"]["half"]["shape"] == [4, 3]
    assert manifest["entries"]["half"]["dtype"] == "bfloat16"
    assert manifest["entries"]["optim/step"]["kind"] == "int"


def test_selected_names_and_steps(tmp_path):
    assert latest(tmp_path / "nothing") is None
    for step in (5, 20, 100_000_000):
        save(tmp_path, STATE | {"optim/step": step}, step=step)
    assert steps(tmp_path) == [5, 20, 100_000_000]
    assert latest(tmp_path) == 100_000_000
    assert load(tmp_path, ["optim/step"]) == {"optim/step": 100_000_000}
    assert load(tmp_path, (n for n in ["flag", "optim/step"]), step=20) == {"flag": True, "optim/step": 20}
    assert load(tmp_path, []) == {}


def test_an_empty_state(tmp_path):
    save(tmp_path, {}, step=0)
    assert latest(tmp_path) == 0
    assert load(tmp_path) == {}
    verify(tmp_path, 0)


def test_what_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint to load"):
        load(tmp_path)
    save(tmp_path, STATE, step=7)
    with pytest.raises(CheckpointError, match=r"(?s)no checkpoint of step 8.*got +steps 7"):
        load(tmp_path, step=8)
    with pytest.raises(CheckpointError, match=r"(?s)lacks entries.*got +optim/lr"):
        load(tmp_path, ["optim/step", "optim/lr"])
    with pytest.raises(TypeError, match="iterable of names"):
        load(tmp_path, "optim/step")


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/", ".", "a/./b", "../a", "nul\0", "line\nbreak", "\ud800"])
def test_names_hdf5_would_change(tmp_path, name):
    with pytest.raises(ValueError, match="name of an entry"):
        save(tmp_path, {name: 1}, step=1)
    assert list(tmp_path.iterdir()) == []


def test_names_inside_each_other(tmp_path):
    with pytest.raises(ValueError, match="lies inside another"):
        save(tmp_path, {"optim/lr/x": 1, "optim/lr": 2}, step=1)
    save(tmp_path, {"optim.lr": 1, "optim": 2, "optim-lr/x": 3}, step=1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "NoneType"),
        ([1, 2], "list"),
        (np.array(["a"]), "<U1"),
        (np.array([object()]), "object"),
        (np.array(["2020"], "M8[D]"), "datetime64"),
        (np.zeros(2, "i4,f4"), "dtype of 'x'"),
        (2**64, "64 bits"),
        ("a\0b", "NUL"),
    ],
)
def test_values_it_cannot_hold(tmp_path, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        save(tmp_path, {"x": value}, step=1)
    assert latest(tmp_path) is None


def test_bad_names_type_and_step(tmp_path):
    with pytest.raises(TypeError, match="name of an entry"):
        save(tmp_path, {3: 1}, step=1)
    with pytest.raises(ValueError, match="step"):
        save(tmp_path, {}, step=-1)


def test_importing_loads_no_h5py():
    code = "import sys, hpcdist.checkpoint as c; c.latest('.'); print('h5py' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "False"


def test_a_held_lock_does_not_matter(tmp_path):
    """Case B38 (a): another process holds the file's lock."""
    save(tmp_path, STATE, step=1)
    path = tmp_path / "step-00000001/index.h5"
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        holder.stdout.readline()
        assert load(tmp_path, ["optim/step"]) == {"optim/step": 3}
        holder.communicate(b"\n", timeout=10)
