import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcdist.data import open_tokens, split


class TestStandardLibrary:
    def test_is_the_sorted_sources_without_packages_and_tests(self):
        data = open_tokens()
        root = Path(sysconfig.get_path("stdlib"))
        skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
        files = [f for f in root.rglob("*.py") if not skipped & set(f.relative_to(root).parts[:-1])]
        files.sort(key=lambda f: os.fsencode(f.relative_to(root)))
        assert data.tokens.tobytes() == b"".join(f.read_bytes() for f in files)
        assert data.vocab_size == 256
        assert f"{len(files)} files" in data.description
        assert data.tokens.size > 5_000_000

    def test_is_quick(self):
        start = time.monotonic()
        open_tokens()
        assert time.monotonic() - start < 2

    def test_a_python_without_sources(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
        with pytest.raises(ValueError, match="empty folder"):
            open_tokens()


class TestText:
    def test_a_file_is_its_bytes(self, tmp_path):
        path = tmp_path / "a b:c.txt"  # a colon in the name of a file that is there names no dataset
        path.write_bytes(bytes(range(256)))
        data = open_tokens(path)
        assert data.tokens.tolist() == list(range(256))
        assert data.tokens.dtype == np.uint8
        assert not data.tokens.flags.writeable
        assert (data.vocab_size, str(path) in data.description) == (256, True)

    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"(?s)cannot be read.*nothing\.txt: No such file"):
            open_tokens(tmp_path / "nothing.txt")
        with pytest.raises(FileNotFoundError, match="No such file"):
            open_tokens(f"{tmp_path}/nothing.h5:ids")

    def test_empty(self, tmp_path):
        (tmp_path / "e.txt").touch()
        with pytest.raises(ValueError, match=r"(?s)empty file.*e\.txt"):
            open_tokens(tmp_path / "e.txt")

    def test_unreadable(self, tmp_path, monkeypatch):
        (tmp_path / "secret").write_text("x")

        def refuse(self, *args, **kw):
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(PermissionError, match="secret: Permission denied"):
            open_tokens(tmp_path / "secret")

    def test_a_pipe_is_refused_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match="regular file"):
            open_tokens(tmp_path / "pipe")

    def test_a_dataset_name_on_a_text_file(self, tmp_path):
        (tmp_path / "t.txt").write_text("x")
        with pytest.raises(ValueError, match="HDF5"):
            open_tokens(f"{tmp_path}/t.txt:ids")
        with pytest.raises(IsADirectoryError, match="Is a directory"):
            open_tokens(f"{tmp_path}:ids")


class TestFolder:
    def test_all_files_by_relative_path(self, tmp_path):
        for name, text in {"b.txt": "2", "a/z.bin": "1", "b/c/d": "4", "b-": "3", ".hid": "0"}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        # by byte: '.hid', 'a/z.bin', 'b-', 'b.txt', 'b/c/d'
        data = open_tokens(tmp_path)
        assert data.tokens.tobytes() == b"01324"
        assert "5 files" in data.description

    def test_links(self, tmp_path):
        (tmp_path / "real").write_text("r")
        (tmp_path / "same").symlink_to("real")
        (tmp_path / "broken").symlink_to("nowhere")
        (tmp_path / "self").symlink_to("self")
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub/up").symlink_to("..")
        os.mkfifo(tmp_path / "pipe")
        assert open_tokens(tmp_path).tokens.tobytes() == b"rr"

    def test_empty(self, tmp_path):
        with pytest.raises(ValueError, match="empty folder"):
            open_tokens(tmp_path)
        (tmp_path / "zero").touch()
        with pytest.raises(ValueError, match="empty folder"):
            open_tokens(tmp_path)


def write(path, ids, name="tokens", **kw):
    attrs = kw.pop("attrs", {})
    with h5py.File(path, "w", **({"userblock_size": kw.pop("userblock")} if "userblock" in kw else {})) as file:
        dataset = file.create_dataset(name, data=ids, **kw)
        dataset.attrs.update(attrs)
    return path


class TestHDF5:
    @pytest.mark.parametrize("dtype", ["u1", "u2", "<i4", ">i4", "i8"])
    @pytest.mark.parametrize("kw", [{}, {"chunks": (7,), "compression": "gzip"}, {"userblock": 1024}], ids=str)
    def test_ids_and_vocabulary(self, tmp_path, dtype, kw):
        ids = np.random.default_rng(0).integers(0, 200, 100).astype(dtype)
        path = write(tmp_path / "t.h5", ids, **kw)
        data = open_tokens(path)
        np.testing.assert_array_equal(data.tokens, ids)
        assert data.vocab_size == ids.max() + 1
        assert not data.tokens.flags.writeable

    def test_a_plain_dataset_is_mapped_not_read(self, tmp_path):
        data = open_tokens(write(tmp_path / "t.h5", np.arange(1000)))
        assert isinstance(data.tokens, np.memmap)

    def test_stated_vocabulary_and_named_dataset(self, tmp_path):
        path = write(tmp_path / "t.h5", np.array([1, 2]), "train/ids", attrs={"vocab_size": 50257})
        data = open_tokens(f"{path}:train/ids")
        assert data.vocab_size == 50257
        assert data.tokens.tolist() == [1, 2]

    def test_no_such_dataset_lists_the_others(self, tmp_path):
        path = write(tmp_path / "t.h5", np.array([1, 2]), "train/ids")
        with pytest.raises(ValueError, match=r"(?s)'tokens' in .*one of train/ids"):
            open_tokens(path)
        with pytest.raises(ValueError, match="'train'"):
            open_tokens(f"{path}:train")

    @pytest.mark.parametrize(
        ("ids", "attrs", "message"),
        [
            (np.array([0, 7]), {"vocab_size": 7}, r"(?s)got +0 to 7.*expected +0 to 6"),
            (np.array([3, -1]), {}, "got +-1 to 3"),
            (np.array([0.5]), {}, "float64"),
            (np.zeros((2, 2), int), {}, r"shape \(2, 2\)"),
            (np.zeros(0, int), {}, r"shape \(0,\)"),
            (np.array([1]), {"vocab_size": "many"}, "vocab_size"),
            (np.array([1]), {"vocab_size": 0}, "vocab_size"),
        ],
    )
    def test_what_is_no_stream_of_tokens(self, tmp_path, ids, attrs, message):
        with pytest.raises(ValueError, match=message):
            open_tokens(write(tmp_path / "t.h5", ids, attrs=attrs))

    def test_cut_off_file(self, tmp_path):
        path = write(tmp_path / "t.h5", np.arange(1000))
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(OSError, match=r"(?s)no whole HDF5 file.*t\.h5: .*truncated"):
            open_tokens(path)

    def test_text_needs_no_h5py(self):
        code = "import sys, hpcdist.data as d; d.open_tokens(); print('h5py' in sys.modules, 'mpi4py' in sys.modules)"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert out.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(("n", "held"), [(100, 5), (99, 4), (19, 0), (1, 0)])
def test_split_holds_out_the_last_twentieth(n, held):
    train, held_out = split(np.arange(n))
    assert np.concatenate([train, held_out]).tolist() == list(range(n))
    assert len(held_out) == held


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_bad_fraction(fraction):
    with pytest.raises(ValueError, match="fraction"):
        split(np.arange(5), fraction)


class TestMapped:
    @pytest.mark.parametrize("dtype", ["u1", "<u2", ">i4", "i8"])
    def test_npy(self, tmp_path, dtype):
        ids = np.random.default_rng(0).integers(0, 200, 100).astype(dtype)
        np.save(tmp_path / "t.npy", ids)
        data = open_tokens(tmp_path / "t.npy")
        assert isinstance(data.tokens, np.memmap)
        np.testing.assert_array_equal(data.tokens, ids)
        assert (data.tokens.dtype, data.vocab_size) == (ids.dtype, ids.max() + 1)

    def test_raw_ids_of_a_type(self, tmp_path):
        ids = np.array([1, 50256, 7], "<u2")
        ids.tofile(tmp_path / "t.bin")
        for data in (open_tokens(f"{tmp_path}/t.bin:uint16"), open_tokens(tmp_path / "t.bin", "uint16")):
            assert isinstance(data.tokens, np.memmap)
            assert (data.tokens.tolist(), data.vocab_size) == (ids.tolist(), 50257)
        assert open_tokens(tmp_path / "t.bin").tokens.tobytes() == ids.tobytes()  # without a type: bytes

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            (np.array([0.5]), "float64"),
            (np.zeros((2, 2), int), r"shape \(2, 2\)"),
            (np.zeros(0, int), r"shape \(0,\)"),
            (np.array([3, -1]), "none below 0"),
            (np.array([None]), "damaged"),
        ],
    )
    def test_what_is_no_stream_of_tokens(self, tmp_path, ids, message):
        np.save(tmp_path / "t.npy", ids, allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            open_tokens(tmp_path / "t.npy")

    def test_damaged_files(self, tmp_path):
        np.save(tmp_path / "t.npy", np.arange(1000))
        path = tmp_path / "t.npy"
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(ValueError, match="damaged"):
            open_tokens(path)
        (tmp_path / "odd.bin").write_bytes(b"123")
        with pytest.raises(ValueError, match="multiple of 2"):
            open_tokens(f"{tmp_path}/odd.bin:uint16")
