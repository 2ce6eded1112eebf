"""A client of a rehearsal in containers: it joins at the meeting place, is given agents, and leaves at the end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

from clients.process import HEALTH, serve
from pri_rfed import keys
from pri_rfed.meeting import DONE, PORT

log = logging.getLogger(__name__)


def join(meeting: Path, server: str = "server") -> int:
    """Take part in the run that meets in this folder; the exit status: 0 when it is over.

    The private key is made here and never leaves this container.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = socket.gethostname()
    with tempfile.TemporaryDirectory(prefix="pri-rfed-") as folder:
        key = Path(folder) / "key"
        keys.make_client_key(key)
        new = meeting / f".{name}"
        new.write_bytes(key.with_name("key.pub").read_bytes())
        public = meeting / f"{name}.pub"
        os.replace(new, public)
        log.info("joined as %s", name)
        try:
            agents, authority, done = meeting / name, meeting / keys.AUTHORITY, meeting / DONE
            while not (agents.is_dir() and authority.is_file()):
                if done.exists():
                    log.info("the run is over; %s was given no agents", name)
                    return 0
                time.sleep(0.1)
            return serve(f"{server}:{PORT}", authority, key, agents, HEALTH, done.exists)
        finally:
            public.unlink(missing_ok=True)
