"""The folder of one run.

    config.toml     the resolved configuration: `pri-rfed run` of it reproduces the run
    versions.json   versions of Python and of the libraries
    plan.json       what agents will release (events), to account for a run that goes on
    data.sha256     a hash of all records, so that nobody goes on with others; not public: guesses can be checked by it
    rounds.jsonl    one line a round, appended
    checkpoint.npz  the state after the last round, or one shortly before; replaced atomically
    point.npy       the output, at the end
    privacy.json    what was released (events) and both privacy figures
    summary.json    the figures of the whole run, at the end; its presence says that the run is finished
    stopped.json    after how many rounds the run stopped and why, and draws that came to nothing; gone when it goes on
    *.png, *.svg    plots
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pri_rfed.files import write_atomically

LIBRARIES = ("numpy", "scipy", "dp-accounting", "autodp", "scikit-learn", "pri-rfed")


_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
"""What file systems say that have no locks, or none for folders."""


class RunFolderError(ValueError):
    """A folder that cannot be used for what was asked."""


def versions() -> dict[str, str]:
    """What a run depends on beside its configuration."""
    libraries = {name: metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "platform": platform.platform(), **libraries}


def check_out(path: Path | None) -> None:
    """Raises RunFolderError unless files can be written into that folder, which need not exist yet."""
    if path is None:
        return
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise RunFolderError(f"--out {path}: {there} is a file; it must be a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunFolderError(f"--out {path}: nothing may be written into {there}; choose another folder")


def to_json(value: Any, indent: int | None = 2) -> str:
    """JSON, by default laid out for people; null for what is infinite or no number, which JSON has no word for."""
    return json.dumps(without_infinities(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def without_infinities(value: Any) -> Any:
    """Dictionaries and lists with None for every number that is infinite or none."""
    if isinstance(value, dict):
        return {key: without_infinities(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_infinities(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_line(path: Path, record: Any) -> None:
    """One more record in a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(to_json(record, indent=None))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records in a file of JSON lines, none where it is not there; a line that was cut off when the process died,
    perhaps in the middle of a letter, is left out."""
    content = path.read_bytes() if path.is_file() else b""
    return [json.loads(line) for line in content[: _whole(content)].splitlines()]


def mend_lines(path: Path) -> None:
    """Drop a line that was cut off, so that the next one does not continue it."""
    content = path.read_bytes() if path.is_file() else b""
    if _whole(content) < len(content):
        write_atomically(path, content[: _whole(content)])


def _whole(content: bytes) -> int:
    """The length of all lines but one that was cut off."""
    return content.rfind(b"\n") + 1


@dataclass(frozen=True)
class RunFolder:
    """A run's folder; make a new one with `create`, use one that is there with `open`."""

    path: Path

    @classmethod
    def create(cls, name: str, out: Path | None) -> RunFolder:
        """A new folder: `out`, or one named by the run and the time under `runs`. Raises RunFolderError rather than
        write into a folder that holds anything."""
        if out is None:
            stem = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
            path, copies = stem, 1
            while True:
                try:
                    path.mkdir(parents=True)
                    return cls(path)
                except FileExistsError:
                    copies += 1
                    path = stem.with_name(f"{stem.name}-{copies}")
        try:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise RunFolderError(
                    f"--out {out}: the folder is not empty, and a run never overwrites another; choose another folder, "
                    f"or continue the run in it with `pri-rfed resume {out}`"
                )
        except OSError as error:
            raise RunFolderError(f"--out {out}: {error.strerror}") from error
        return cls(out)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that was started. Raises RunFolderError if it is none."""
        if not (path / "config.toml").is_file():
            raise RunFolderError(f"{path} is no run folder: it holds no config.toml")
        return cls(path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Work on the run alone: two processes that went on with it would each draw agents that the other knows nothing
        of, and account for their own draws only. Raises RunFolderError while another process works on it."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFolderError(f"{self.path}: another process works on this run; wait for it or end it") from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            yield
        finally:
            os.close(descriptor)

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.npz"

    def write(self, name: str, content: str) -> None:
        """Write a text file, atomically."""
        write_atomically(self.path / name, content.encode())

    def append_round(self, record: Mapping[str, Any]) -> None:
        """One more line of rounds.jsonl."""
        append_line(self.path / "rounds.jsonl", record)

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl."""
        return read_lines(self.path / "rounds.jsonl")

    def write_rounds(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write rounds.jsonl anew: what was appended after the checkpoint is dropped, as those rounds are run again."""
        self.write("rounds.jsonl", "".join(to_json(record, indent=None) for record in records))

    def write_point(self, point: NDArray[np.float64]) -> None:
        """Write the output [*point_shape], atomically."""
        buffer = io.BytesIO()
        np.save(buffer, point)
        write_atomically(self.path / "point.npy", buffer.getvalue())

    def read(self, name: str) -> dict[str, Any] | None:
        """What a JSON file of the folder holds; None where it is not there."""
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return content
