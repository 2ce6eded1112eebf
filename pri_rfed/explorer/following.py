"""A run while it goes on, from what it appends to its folder: any runtime leaves the same."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

from pri_rfed.experiment.config import read_toml
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.spending import Spending

SHOWN = ("round", "cost", "excess_risk", "gradient_norm", "distance")
MOST_AT_ONCE = 2000
"""Rounds in one answer; the page asks for the next ones at once."""
QUIET_AFTER = 60.0
"""Seconds without a new round, or thirty times what one takes, after which a run may have stopped."""


class Follower:
    """Reads a run's folder again and again, each line once. Threads may share it."""

    def __init__(self, folder: RunFolder):
        self.folder = folder
        tables = read_toml(folder.config)
        self.name = str(tables.get("run", {}).get("name", folder.path.name))
        self._goes_on = f"pri-rfed {'server ... --out' if 'federation' in tables else 'resume'} {folder.path}"
        self._lock = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self._file: tuple[int, int] = (0, 0)
        """Inode of rounds.jsonl, and how far it was read."""
        self._rounds: list[dict[str, Any]] = []
        self._draws: list[dict[str, Any]] = []
        """Who was drawn in each round, and before that in vain."""
        self._seen: list[tuple[float, int]] = []
        """When how many rounds were there, the first time and the last time that there were more."""
        self._spending: Spending | None = None
        self._before: list[tuple[int, float]] = []
        """The global epsilon after t rounds, of the whole plan."""
        self._spent: dict[tuple[int, int], tuple[float, float]] = {}
        """Both figures after t rounds and so many draws in vain: the global epsilon, and the largest ledger."""

    def since(self, after: int) -> dict[str, Any]:
        """What happened after round `after`, and how the run stands. Figures that are diagnostics are not private."""
        with self._lock:
            # Written after the last round, so read before it: whatever is said to be over is seen whole.
            summary = self.folder.read("summary.json")
            stopped = None if summary is not None else self.folder.read("stopped.json")
            self._read()
            spending = self._plan()
            new = [record for record in self._rounds if record["round"] > after][:MOST_AT_ONCE]
            done = self._rounds[-1]["round"] if self._rounds else 0
            rounds = spending.rounds if spending is not None else None
            failed = stopped["failed"] if stopped and stopped["round"] == done else []
            return {
                "name": self.name,
                "state": "finished" if summary is not None else "stopped" if stopped is not None else self._state(),
                "done": done,
                "rounds": rounds,
                "left": None if rounds is None or summary or stopped else self._seconds_left(rounds - done),
                "stopped": stopped
                and {"reason": stopped["reason"], "drawn": bool(failed), "goes_on": self._goes_on},
                "new": new,
                "delta": None if spending is None else spending.delta,
                "private": None if spending is None else spending.is_private,
                "agents": None if spending is None else len(spending.counts),
                "sampled": None if spending is None else spending.sampled,
                "epsilon": self._epsilon(spending, done, failed),
                "summary": summary,
            }

    def _plan(self) -> Spending | None:
        if self._spending is None:
            self._spending = Spending.of(self.folder)
        return self._spending

    def _epsilon(
        self, spending: Spending | None, done: int, failed: list[dict[str, Any]]
    ) -> dict[str, list[tuple[int, float]]] | None:
        """Both figures so far, (t, epsilon) at some rounds and at the last one: before the run, for so many rounds; and
        the largest ledger. Between two the later one holds. failed: draws of a run that stopped before their round was
        done; agents may have answered."""
        if spending is None or not spending.is_private:
            return None
        self._before = self._before or spending.before()
        rounds = [(t, 0) for t, _ in self._before if t < done] + [(done, len(failed))] * (done > 0 or bool(failed))
        for t, vain in rounds:
            if (t, vain) not in self._spent:
                drawn, lost = self._draws[:t], failed[:vain]
                self._spent[t, vain] = (
                    spending.spent(drawn, self._before, lost),
                    spending.after(spending.participations(drawn, lost)),
                )
        return {name: [(at[0], self._spent[at][i]) for at in rounds] for i, name in enumerate(("global", "ledger"))}

    def _read(self) -> None:
        path = self.folder.path / "rounds.jsonl"
        try:
            status = path.stat()
        except FileNotFoundError:
            return
        inode, offset = self._file
        if inode and (status.st_ino != inode or status.st_size < offset):
            self._start_over()  # the run was resumed, which drops the rounds after its checkpoint
            offset = 0
        if status.st_size > offset:
            with path.open("rb") as file:
                file.seek(offset)
                content = file.read()
            content = content[: content.rfind(b"\n") + 1]  # the last line may still be on its way
            offset += len(content)
            for line in content.splitlines():
                record = json.loads(line)
                self._rounds.append({key: record[key] for key in SHOWN if key in record})
                self._draws.append({key: record[key] for key in ("sampled", "pool", "repeated") if key in record})
        self._file = (status.st_ino, offset)
        done = len(self._rounds)
        if not self._seen:
            self._seen = [(time.monotonic(), done)]
        elif done > self._seen[-1][1]:
            self._seen = [self._seen[0], (time.monotonic(), done)]

    def _state(self) -> str:
        """Of a run of which nobody said that it is over."""
        if not self._rounds:
            return "starting"
        quiet = time.time() - (self.folder.path / "rounds.jsonl").stat().st_mtime
        return "quiet" if quiet > max(QUIET_AFTER, 30 * (self._pace() or 0.0)) else "going on"

    def _pace(self) -> float | None:
        """Seconds a round takes, as seen from here; before that is known, by the files' times."""
        (then, before), (now, done) = self._seen[0], self._seen[-1]
        if done > before:
            return (now - then) / (done - before)
        if not self._rounds:
            return None
        began = (self.folder.path / "plan.json").stat().st_mtime if self._spending is not None else math.nan
        took = (self.folder.path / "rounds.jsonl").stat().st_mtime - began
        return took / len(self._rounds) if took >= 0 else None

    def _seconds_left(self, rounds: int) -> float | None:
        pace = self._pace() if self._seen else None
        return None if pace is None else pace * rounds


def is_run(path: Path) -> bool:
    return (path / "config.toml").is_file() and (path / "rounds.jsonl").is_file()
