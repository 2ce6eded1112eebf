"""The folder of one run.

    config.toml     the resolved configuration: `pri-rfed run` of it reproduces the run
    versions.json   versions of Python and of the libraries
    plan.json       what agents will release (events), to account for a run that goes on
    rounds.jsonl    one line a round, appended
    checkpoint.npz  the state after the last round, or one shortly before; replaced atomically
    point.npy       the output, at the end
    privacy.json    what was released (events) and both privacy figures
    summary.json    the figures of the whole run, at the end; its presence says that the run is finished
    stopped.json    after how many rounds the run stopped and why, and draws that came to nothing; gone when it goes on
    *.png, *.svg    plots
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pri_rfed.files import write_atomically

LIBRARIES = ("numpy", "scipy", "dp-accounting", "autodp", "scikit-learn", "pri-rfed")


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
    if isinstance(value, dict):
        return {key: without_infinities(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_infinities(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.npz"

    def write(self, name: str, content: str) -> None:
        """Write a text file, atomically."""
        write_atomically(self.path / name, content.encode())


    def append_round(self, record: dict[str, Any]) -> None:
        """One more line of rounds.jsonl."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(to_json(record, indent=None))

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl; one that was cut off when the process died is left out."""
        path = self.path / "rounds.jsonl"
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(True) if line.endswith("\n")]

    def keep_rounds(self, last: int) -> None:
        """Drop what was written after round `last`, the checkpoint: those rounds are run again, to the same effect."""
        kept = [record for record in self.rounds() if record["round"] <= last]
        self.write("rounds.jsonl", "".join(to_json(record, indent=None) for record in kept))

    def write_point(self, point: NDArray[np.float64]) -> None:
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
