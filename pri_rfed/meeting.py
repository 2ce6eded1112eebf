"""Where the containers of a rehearsal find each other: a folder that they have in common, and a port.

    ca.crt      the authority of this run; the server has begun
    NAME.pub    a client's public key, while the client is there
    NAME/       policies, records and ledgers of the agents that client speaks for
    done        the rounds are over
    server      locked as long as the server's process lives
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

PORT = 8443
"""Where the server is reached."""
HEALTH = "127.0.0.1:8081"
"""Where either side answers, in its own container, whether it is well."""
DONE = "done"
LATE_SECONDS = 5.0
"""When no client has come for so long, the agents are divided among those that have."""


def folder() -> Path:
    """The folder, which the environment variable PRIRFED_MEETING names. Raises ValueError if there is none."""
    path = Path(os.environ.get("PRIRFED_MEETING", ""))
    if not os.environ.get("PRIRFED_MEETING") or not path.is_dir():
        raise ValueError(
            f"PRIRFED_MEETING = {os.environ.get('PRIRFED_MEETING')!r} must be a folder that the containers of a run "
            "have in common; `docker compose up` sets it"
        )
    return path


def hold(meeting: Path) -> None:
    """Let the clients see that this process lives; until it ends."""
    descriptor = os.open(meeting / "server", os.O_RDWR | os.O_CREAT, 0o644)  # closed, and unlocked, by the system
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def outlive(meeting: Path) -> None:
    """Wait until the server's process has ended."""
    with (meeting / "server").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
