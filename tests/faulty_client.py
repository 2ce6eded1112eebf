"""`pri-rfed client` with a fault: `python faulty_client.py FAULT [VALUE] -- ARGUMENTS OF PRI-RFED CLIENT`."""

from __future__ import annotations

import datetime
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message
from flwr.supercore import date

from clients import process
from pri_rfed import wire
from pri_rfed.cli import main
from pri_rfed.privacy.ledger import Ledger, Status

App = Callable[[Message, Context], Message]


def never_sends() -> None:
    """Announce each reply, and never send what is in it."""
    process.push_objects = lambda *arguments, **options: set()  # type: ignore[assignment]


def replays() -> None:
    """Answer every plan with what the first one was answered with."""
    honest, first = process.app, list[Message]()

    def app(message: Message, context: Context) -> Message:
        first.append(honest(message, context))
        return Message(first[0].content, reply_to=message)

    process.app = app  # type: ignore[assignment]


def slow(seconds: str) -> None:
    """Train, and take so many seconds with the first answer."""
    honest, pauses = process.app, [float(seconds)]

    def app(message: Message, context: Context) -> Message:
        answer = honest(message, context)
        if pauses:
            time.sleep(pauses.pop())
        return answer

    process.app = app  # type: ignore[assignment]


def resends(answers: str) -> None:
    """After every reply send it again, and those of all rounds before, under the messages' own numbers.

    answers: a file for what the server says to that."""
    connect, sent, due = process.http_request_response, list[Any](), list[Any]()

    @contextmanager
    def connection(*arguments: Any) -> Iterator[tuple[Any, ...]]:
        with connect(*arguments) as (node, receive, send, run, fab, pull, push, confirm):

            def send_once(*reply: Any) -> Any:
                sent.append(reply)
                due[:] = sent
                return send(*reply)

            def send_again() -> Any:
                while due:
                    wanted, _ = send(*due.pop())
                    with Path(answers).open("a") as file:
                        file.write(f"{len(wanted)} objects wanted\n")
                return receive()

            yield node, send_again, send_once, run, fab, pull, push, confirm

    process.http_request_response = connection  # type: ignore[assignment]


def other_version() -> None:
    """A project whose protocol is another."""
    wire.PROTOCOL, wire.PROJECT = 99, "7.0"


def full_disk() -> None:
    """No file can grow while a ledger is written, as on a full disk."""
    charge = Ledger.charge

    def without_space(self: Ledger, *arguments: Any) -> Status:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
        try:
            return charge(self, *arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    Ledger.charge = without_space  # type: ignore[assignment, method-assign]


def dies(marker: str) -> None:
    """Be killed once, with the first answer ready; `marker`: a file that says that it has happened."""
    honest = process.app

    def app(message: Message, context: Context) -> Message:
        answer = honest(message, context)
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    process.app = app  # type: ignore[assignment]


def clock(seconds: str) -> None:
    """A clock that is so many seconds ahead, for all that Flower and this project do with it."""
    ahead, real = float(seconds), time.time

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=ahead)

    time.time = lambda: real() + ahead
    date.datetime = SimpleNamespace(datetime=Shifted, UTC=datetime.UTC)  # type: ignore[assignment]


FAULTS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (never_sends, slow, replays, resends, other_version, full_disk, dies, clock)
}

if __name__ == "__main__":
    split = sys.argv.index("--")
    FAULTS[sys.argv[1]](*sys.argv[2:split])
    sys.argv[1:] = ["client", *sys.argv[split + 1 :]]
    main()
