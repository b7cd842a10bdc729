"""A checkpoint counts only when it is whole, and damage is named."""

import json
import logging
import os
import pickle
import shutil

import numpy as np
import pytest

from hpcdist.checkpoint import CheckpointError, latest, load, save, steps, verify

STATE = {"a": np.arange(1000.0), "b/c": np.arange(7, dtype="i2"), "n": 3}


@pytest.fixture
def folder(tmp_path):
    save(tmp_path, STATE, step=10)
    save(tmp_path, STATE, step=20)
    return tmp_path


def flip(path, needle):
    """Flip one bit inside ``needle``, which occurs once."""
    data = bytearray(path.read_bytes())
    assert data.count(needle) == 1
    data[data.find(needle) + len(needle) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["a", "b/c"])
def test_a_flipped_bit_names_its_entry(folder, name):
    flip(folder / "step-00000020/index.h5", STATE[name].tobytes())
    with pytest.raises(CheckpointError, match=rf"step-00000020: entry '{name}' is damaged"):
        load(folder)
    with pytest.raises(CheckpointError, match=rf"(?s)is damaged.*got +{name}\n"):
        verify(folder, 20)
    assert load(folder, ["n"]) == {"n": 3}
    verify(folder, 10)


def test_verify_names_all_damaged_entries(folder):
    for name in ("a", "b/c"):
        flip(folder / "step-00000020/index.h5", STATE[name].tobytes())
    with pytest.raises(CheckpointError, match="a, b/c"):
        verify(folder)


def spoil_json(**changes):
    def spoil(home):
        path = home / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def cut(name, keep):
    def spoil(home):
        path = home / name
        path.write_bytes(path.read_bytes()[:keep])

    return spoil


SPOILED = {
    "no manifest": lambda home: (home / "manifest.json").unlink(),
    "half a manifest": cut("manifest.json", 200),
    "empty manifest": cut("manifest.json", 0),
    "manifest of binary": lambda home: (home / "manifest.json").write_bytes(b"\xff\xfe"),
    "manifest is a list": lambda home: (home / "manifest.json").write_text("[1]"),
    "no data file": lambda home: (home / "index.h5").unlink(),
    "cut data file": cut("index.h5", -1),
    "longer data file": lambda home: (home / "index.h5").write_bytes((home / "index.h5").read_bytes() + b"\0"),
    "newer schema": spoil_json(schema=2),
    "other format": spoil_json(format="something"),
    "other step": spoil_json(step=21),
    "file outside": spoil_json(files={"../x": {"size": 1}}),
    "unknown kind": spoil_json(entries={"a": {"kind": "pickle", "shape": [], "dtype": "f4", "xxh3_64": "0"}}),
    "unknown dtype": spoil_json(entries={"a": {"kind": "array", "shape": [], "dtype": "q9", "xxh3_64": "0"}}),
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_not_whole_is_passed_over(folder, how, caplog):
    SPOILED[how](folder / "step-00000020")
    with caplog.at_level(logging.WARNING, "hpcdist"):
        assert latest(folder) == 10
    assert "step-00000020" in caplog.text or "step 20" in caplog.text
    assert steps(folder) == [10]
    np.testing.assert_array_equal(load(folder)["a"], STATE["a"])
    with pytest.raises(CheckpointError):
        load(folder, step=20)
    with pytest.raises(CheckpointError):
        verify(folder, 20)
    save(folder, STATE, step=20)
    assert latest(folder) == 20


def test_a_manifest_that_tells_of_another_shape(folder):
    path = folder / "step-00000020/manifest.json"
    path.write_text(path.read_text().replace("[1000]", "[999]"))
    with pytest.raises(CheckpointError, match="entry 'a'"):
        load(folder)


def test_a_manifest_that_tells_of_a_missing_entry(folder):
    path = folder / "step-00000020/manifest.json"
    path.write_text(path.read_text().replace('"b/c"', '"b/d"'))
    with pytest.raises(CheckpointError, match="entry 'b/d'"):
        load(folder)


def test_hdf5_that_is_none_any_more(folder):
    path = folder / "step-00000020/index.h5"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(CheckpointError, match="cannot be opened"):
        load(folder)


def test_other_things_in_the_folder_do_not_count(folder):
    (folder / "step-00000030.tmp").mkdir()
    (folder / "step-00000040").touch()
    (folder / "step-50").mkdir()
    (folder / "metrics.jsonl").touch()
    assert latest(folder) == 20


def test_a_pickle_is_never_opened(folder, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "boom"),)

    (folder / "step-00000020/extra.pkl").write_bytes(pickle.dumps(Bomb()))
    (folder / "step-00000020/index.h5").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError):
        load(folder, step=20)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("data", ["flipped", "not HDF5"])
def test_the_remedy_for_a_damaged_checkpoint_works(folder, data):
    home = folder / "step-00000020"
    if data == "flipped":
        flip(home / "index.h5", STATE["a"].tobytes())
    else:
        (home / "index.h5").write_bytes(b"x" * (home / "index.h5").stat().st_size)
    with pytest.raises(CheckpointError, match=f"remove {home}"):
        load(folder)
    shutil.rmtree(home)
    assert load(folder)["n"] == 3
    assert latest(folder) == 10
