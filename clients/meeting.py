"""A client of a rehearsal in containers: it joins at the meeting place, is given agents, and leaves at the end."""

from __future__ import annotations

import logging
import signal
import socket
import tempfile
import time
from pathlib import Path

from clients.process import serve
from pri_rfed import keys
from pri_rfed.files import write_atomically
from pri_rfed.meeting import DONE, HEALTH, PORT, outlive

log = logging.getLogger(__name__)


def join(meeting: Path, server: str = "server") -> int:
    """Take part in the run that meets in this folder; the exit status: 0 when it is over. This process ends after the
    server's, so that who stops everything at the first end does not stop the server.

    The private key is made here and never leaves this container.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = socket.gethostname()
    with tempfile.TemporaryDirectory(prefix="pri-rfed-") as folder:
        status = 0
        key = Path(folder) / "key"
        keys.make_client_key(key)
        public = meeting / f"{name}.pub"
        write_atomically(public, key.with_name("key.pub").read_bytes())
        log.info("joined as %s", name)
        try:
            agents, authority, done = meeting / name, meeting / keys.AUTHORITY, meeting / DONE
            while not done.exists() and not (agents.is_dir() and authority.is_file()):
                time.sleep(0.1)
            if agents.is_dir():
                status = serve(f"{server}:{PORT}", authority, key, agents, HEALTH, done.exists)
            else:
                log.info("the run is over; %s was given no agents", name)
        finally:
            public.unlink(missing_ok=True)
        if done.exists():
            outlive(meeting)
            time.sleep(1.0)
        return status
