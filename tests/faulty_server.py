"""`pri-rfed`, killed or held at a point of a round.

    python faulty_server.py POINT ROUND -- ARGUMENTS OF PRI-RFED
    python faulty_server.py POINT FILE  -- ARGUMENTS OF PRI-RFED

With a number it is killed there in that round; with a file it waits there in every round until the file holds a number
as large as the round's, and says in FILE.held which round waits.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message

from pri_rfed.cli import main
from pri_rfed.coordinator import Coordinator, State
from pri_rfed.experiment.folder import RunFolder
from server import strategy

POINTS = ("drawn", "sent", "some replies", "aggregated", "written", "saved")
"""In the order in which a round comes to them."""


def die_at(point: str, round: int) -> None:
    """Have this process killed in round 1, 2, ... at a point of it."""

    def here(name: str, now: int) -> None:
        if name == point and now == round:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(here)


def hold_at(point: str, file: Path) -> None:
    """Have this process wait at a point of every round until it may go on."""

    def here(name: str, now: int) -> None:
        if name == point and int(file.read_text()) < now:
            file.with_name(f"{file.name}.held").write_text(f"{now}\n")
            while int(file.read_text()) < now:
                time.sleep(0.02)

    watch(here)


def watch(here: Callable[[str, int], None]) -> None:
    """Have `here` called with each point, and round, that this process comes to."""
    exchange, close = strategy.exchange_messages, Coordinator.close
    append, save = RunFolder.append_round, State.save

    def watched_exchange(grid: Any, messages: Sequence[Message], timeout: float) -> list[Message]:
        now = int(messages[0].metadata.group_id)
        here("drawn", now)
        push, pull = grid.push_messages, grid.pull_messages

        def watched_push(pushed: Iterable[Message]) -> Iterable[str]:
            ids = list(push(pushed))
            here("sent", now)
            return ids

        def watched_pull(ids: Iterable[str]) -> Iterable[Message]:
            pulled = list(pull(ids))
            if pulled:
                here("some replies", now)
            return pulled

        grid.push_messages, grid.pull_messages = watched_push, watched_pull
        try:
            return exchange(grid, messages, timeout)
        finally:
            grid.push_messages, grid.pull_messages = push, pull

    def watched_close(self: Coordinator, *arguments: Any, **options: Any) -> bool:
        done = close(self, *arguments, **options)
        here("aggregated", self.state.round)
        return done

    def watched_append(self: RunFolder, record: dict[str, Any]) -> None:
        append(self, record)
        here("written", int(record["round"]))

    def watched_save(self: State, path: str | Path) -> None:
        save(self, path)
        if not self.failed:
            here("saved", self.round)

    strategy.exchange_messages = watched_exchange
    Coordinator.close = watched_close  # type: ignore[method-assign]
    RunFolder.append_round = watched_append  # type: ignore[method-assign]
    State.save = watched_save  # type: ignore[method-assign]


if __name__ == "__main__":
    split = sys.argv.index("--")
    point, where = sys.argv[1:3]
    if where.isdecimal():
        die_at(point, int(where))
    else:
        hold_at(point, Path(where))
    sys.argv[1:] = sys.argv[split + 1 :]
    main()
