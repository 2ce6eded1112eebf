"""What every process pays at its start.

A client process imports the package whenever it starts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.clock import side_by_side
from benchmarks.table import Row, limited

PLACE = 80


def rows(quick: bool) -> Iterator[Row]:
    command = str(Path(sys.executable).with_name("pri-rfed"))

    def run(*arguments: str) -> None:
        subprocess.run(arguments, check=True, capture_output=True)

    nothing, imported, used, helped = side_by_side(
        lambda: run(sys.executable, "-c", "pass"),
        lambda: run(sys.executable, "-c", "import pri_rfed"),
        lambda: run(sys.executable, "-c", "from pri_rfed import simulate"),
        lambda: run(command, "--help"),
        repeats=2 if quick else 9,
    )
    note = f"Whole processes: the interpreter by itself takes {nothing * 1e3:.0f} ms of it."
    yield limited("import pri_rfed", imported, 0.3, note=note)
    yield limited("from pri_rfed import simulate", used, 0.3, note=note)
    yield limited("pri-rfed --help", helped, 0.5, note=note)
