"""Files that are replaced as a whole, and files that are damaged."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pri_rfed.coordinator import State
from pri_rfed.data.download import DataFolders
from pri_rfed.data.images import read_medmnist
from pri_rfed.data.sources import Table
from pri_rfed.experiment.folder import RunFolder, RunFolderError, append_line, mend_lines, read_lines
from pri_rfed.files import read_arrays, write_atomically

ARRAYS = {"records": np.arange(60.0).reshape(20, 3), "train_images": np.zeros((2, 4, 4, 3), dtype=np.uint8)}
STATE = State(3, np.eye(3)[0], np.array([1, 2], dtype=np.int32))


def written(save: Callable[..., None], **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def damaged(content: bytes) -> list[bytes]:
    """The file cut off, and with wrong bytes here and there."""
    rng = np.random.default_rng(0)
    cut = [content[:length] for length in rng.integers(0, len(content), 40)]
    wrong = []
    for _ in range(400):
        new = bytearray(content)
        new[int(rng.integers(len(new)))] = int(rng.integers(256))
        wrong.append(bytes(new))
    return [b"", *cut, *wrong]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, lambda file, records, **_: np.save(file, records)])
def test_a_damaged_file_is_a_value_error_and_nothing_else(save: Callable[..., None], tmp_path: Path) -> None:
    path, refused = tmp_path / "records.npz", 0
    for content in damaged(written(save, **ARRAYS)):
        path.write_bytes(content)
        try:
            read_arrays(path, ("records",), optional=("train_images",))
        except ValueError as error:
            refused += 1
            assert str(error)
    assert refused > 40
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none.npz", ("records",))


def test_whoever_reads_arrays_says_what_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    path.write_bytes(written(np.savez, **ARRAYS)[:-10])
    with pytest.raises(ValueError, match=r"cut.npz is not the state of a run"):
        State.load(path)
    with pytest.raises(ValueError, match=r"path = '.*cut.npz'"):
        Table(path=str(path)).load(DataFolders(tmp_path), np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"cut.npz is no file of MedMNIST"):
        read_medmnist(path, "train")


def test_only_the_arrays_that_were_asked_for_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    assert list(read_arrays(tmp_path / "a.npz", ("records",), optional=("labels",))) == ["records"]
    with pytest.raises(ValueError, match="no array `labels` among records, train_images"):
        read_arrays(tmp_path / "a.npz", ("records", "labels"))
    np.save(tmp_path / "a.npy", ARRAYS["records"])
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npy", ("points",))["points"], ARRAYS["records"])
    with pytest.raises(ValueError, match="no array `labels` among points"):
        read_arrays(tmp_path / "a.npy", ("points", "labels"))
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_arrays(tmp_path / "pickled.npy", ("records",))


@pytest.mark.parametrize("save", [lambda path: write_atomically(path, b"new"), STATE.save])
def test_what_is_written_is_on_disk_with_its_name(
    save: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose folder is not synced can be the old one again after a failure of power: a server would then draw the
    same agents once more, for a round that they have answered."""
    synced: list[tuple[bool, bytes]] = []

    def fsync(descriptor: int) -> None:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((folder, path.read_bytes()))

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr("os.fsync", fsync)
    save(path)
    (of_file, before), (of_folder, after) = synced
    assert (of_file, before, of_folder) == (False, b"old", True)
    assert after == path.read_bytes() != b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_lines_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    records = [{"n": 0, "said": "ends\u2028no line\u2029of\x85it\x0bself"}, {"n": 1, "said": "ε"}]
    assert read_lines(path) == []
    mend_lines(path)
    for record in records:
        append_line(path, record)
    assert read_lines(path) == records
    whole = path.read_bytes()
    for length in range(len(whole)):  # the process died, or the disk was full, perhaps in the middle of a letter
        path.write_bytes(whole[:length])
        done = whole[:length].count(b"\n")
        assert read_lines(path) == records[:done]
        mend_lines(path)
        append_line(path, records[1])
        assert read_lines(path) == [*records[:done], records[1]]


HOLD = """
import sys
from pathlib import Path
from pri_rfed.experiment.folder import RunFolder
with RunFolder(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_one_processs_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match="another process works on this run"), folder.held():
            raise AssertionError("it is the other's")
        other.kill()  # whoever dies lets go of it
    for _ in range(2):
        with folder.held():
            folder.write("plan.json", "{}")


def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError("no space left on device")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OSError, match="no space"):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
