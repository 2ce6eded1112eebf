"""What several test files share."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine import ENGINE
from hypothesis import settings

if TYPE_CHECKING:
    from pri_rfed.data.download import DataFolders

# A property test looks at other examples every time, except in CI: there a change passes or fails by itself.
settings.register_profile("ci", derandomize=True, database=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

# One thread for linear algebra in each process: tests run in several, and threads that outnumber cores wait on another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell starts what runs in the background with SIGINT ignored, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent


def _data_folder() -> Path | None:
    """Real data at hand: where PRIRFED_DATA points to, else a `shared/data` beside the repository; None without."""
    named = os.environ.get("PRIRFED_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


DATA = _data_folder()


def at_hand(*paths: str) -> list[Path]:
    """[the data folder] if it holds all `paths`, else []: parametrise by it what needs real files."""
    return [DATA] if DATA is not None and all((DATA / path).is_file() for path in paths) else []


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFolders:
    """Nothing but a temporary folder is searched for data, or written to."""
    from pri_rfed.data.download import DataFolders

    monkeypatch.delenv("PRIRFED_DATA", raising=False)
    monkeypatch.setattr("pri_rfed.data.download.cache_folder", lambda: tmp_path / "cache")
    return DataFolders(tmp_path)


class Ended(tuple[int, str, str]):
    """How a command ended: exit code, stdout, stderr."""

    code = property(lambda self: self[0])
    out = property(lambda self: self[1])
    err = property(lambda self: self[2])


@pytest.fixture
def pri_rfed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run a command line in this process, in an empty folder."""
    from pri_rfed.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["pri-rfed", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Ended((code if isinstance(code, int) else 0 if code is None else 1, *capsys.readouterr()))

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say whether `docker compose up` and sweeps on Ray could be tried."""
    ended = [report.nodeid for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    if any("test_compose.py" in test for test in ended):
        runs = sum("test_it_runs" in test or "test_it_ends" in test for test in ended)
        tried = f"run {runs} times, by {' '.join(ENGINE)}" if ENGINE else "NOT RUN: no container engine answers here"
        terminalreporter.write_line(f"docker compose up: {tried}")
    if any("test_a_sweep_that_is_stopped" in test for test in ended):
        tried = "stopped and continued" if importlib.util.find_spec("ray") else "NOT RUN: Ray is not installed"
        terminalreporter.write_line(f"sweeps on Ray: {tried}")
