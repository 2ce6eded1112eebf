"""Quick simulations: what `pri-rfed run` makes of a setting's configuration, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pri_rfed.experiment.folder import RunFolder
from pri_rfed.explorer.following import Follower, is_run
from pri_rfed.explorer.setting import Base, Setting, SettingError

MOST_RECORDS = 200_000
MOST_STEPS = 2_000_000
"""T s K: above these a simulation is not quick."""
POINTS = 50
"""Rounds at which diagnostics are computed."""


@dataclass
class Trial:
    """One simulation. state: running, finished, failed, cancelled."""

    number: int
    setting: Setting
    path: Path
    process: subprocess.Popen[bytes]
    follower: Follower | None = None
    cancelled: bool = False

    def to_dict(self, after: int = 0) -> dict[str, Any]:
        code = self.process.poll()
        if self.follower is None and is_run(self.path / "run"):
            self.follower = Follower(RunFolder(self.path / "run"))
        progress = None if self.follower is None else self.follower.since(after)
        state = "running" if code is None else "cancelled" if self.cancelled else "failed" if code else "finished"
        out: dict[str, Any] = {
            "number": self.number, "setting": asdict(self.setting), "state": state, "progress": progress
        }  # fmt: skip
        if state == "failed":
            out["error"] = (self.path / "errors").read_text(encoding="utf-8", errors="replace")[-2000:].strip()
        return out


class Trials:
    """The simulations of one explorer, one at a time; their folders go when it ends."""

    def __init__(self, base: Base, data_dir: Path | None):
        self._base, self._data_dir = base, data_dir
        self._folder = tempfile.TemporaryDirectory(prefix="pri-rfed-explore-")
        self._lock = threading.Lock()
        self.all: list[Trial] = []

    def start(self, setting: Setting) -> Trial:
        """Raises SettingError where the setting cannot be simulated, is too large for that, or another one runs."""
        with self._lock:
            if any(trial.process.poll() is None for trial in self.all):
                raise SettingError(["a simulation is running; wait for it, or cancel it"])
            self._check(setting)
            number = len(self.all) + 1
            path = Path(self._folder.name) / str(number)
            path.mkdir()
            tables = self._base.config(setting)
            tables["run"]["evaluate_every"] = max(1, setting.rounds // POINTS)
            config = path / "config.toml"
            config.write_text(self._base.as_toml(tables), encoding="utf-8")
            command = [sys.executable, "-m", "pri_rfed.cli", "run", str(config), "--out", str(path / "run"), "--json"]
            if self._data_dir is not None:
                command += ["--data-dir", str(self._data_dir)]
            with (path / "errors").open("wb") as errors:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                    start_new_session=True,  # Ctrl-C in the terminal is for the explorer, which ends this one itself
                )
            trial = Trial(number, setting, path, process)
            self.all.append(trial)
            return trial

    def _check(self, setting: Setting) -> None:
        if "federation" in self._base.tables:
            raise SettingError(["the records are with their owners: there is nothing here to simulate with"])
        if (misfit := self._base.misfit(setting)) is not None:
            raise SettingError([misfit])
        self._base.plan(setting)
        records = sum(self._base.counts) if self._base.counts is not None else setting.agents * setting.records
        work = setting.rounds * setting.sampled * setting.steps
        wrong = []
        if records > MOST_RECORDS:
            wrong.append(f"N n = {records}: a quick simulation has at most {MOST_RECORDS} records")
        if work > MOST_STEPS:
            wrong.append(f"T s K = {work}: a quick simulation takes at most {MOST_STEPS} local steps")
        if wrong:
            raise SettingError([*wrong, "copy the configuration, and run it by `pri-rfed run`"])

    def find(self, number: int) -> Trial | None:
        return next((trial for trial in self.all if trial.number == number), None)

    def cancel(self, trial: Trial) -> None:
        if trial.process.poll() is None:
            trial.cancelled = True
            trial.process.send_signal(signal.SIGTERM)
            try:
                trial.process.wait(5)
            except subprocess.TimeoutExpired:
                trial.process.kill()
                trial.process.wait()

    def close(self) -> None:
        for trial in self.all:
            self.cancel(trial)
        self._folder.cleanup()
