"""Files: written as a whole or not at all, and read so that damage of whatever kind is one error."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at once and for good: whoever reads it, after a failure of power as well, sees the old content
    or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_arrays(path: Path, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of these names in an .npz file, and those of the optional ones that it holds; the array of an .npy
    file is the first of them.

    Raises FileNotFoundError; ValueError, with the reason, where the file cannot be read, is none of these or is
    damaged, or an array is missing. Nothing is ever unpickled.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            there, held = [names[0]], {names[0]: loaded}
        else:
            with loaded:
                there, held = loaded.files, {name: loaded[name] for name in (*names, *optional) if name in loaded}
    except FileNotFoundError:
        raise
    except Exception as error:  # of a damaged file NumPy, zipfile and zlib raise whatever they come upon
        raise ValueError(str(error) or type(error).__name__) from error
    if missing := [name for name in names if name not in held]:
        raise ValueError(f"no array `{missing[0]}` among {', '.join(there) or 'none'}")
    return held
