"""The explorer as a process of its own, and the browsers of this machine."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSERS = [path for path in (os.environ.get("PRIRFED_CHROMIUM"), *map(shutil.which, NAMES)) if path][:1]
"""[a Chromium], or nothing where there is none: parametrise by it what needs one."""
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def started(*command: object, program: Sequence[object] = ("-m", "pri_rfed.cli")) -> Iterator[subprocess.Popen[str]]:
    """A `pri-rfed` command as a process; it is ended if it has not ended by itself. program: what does it."""
    arguments = [sys.executable, *map(str, program), *map(str, command)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


class Held:
    """A run that waits in every round until it may go on. process: of the command."""

    def __init__(self, process: subprocess.Popen[str], gate: Path, out: Path):
        self.process, self._gate, self._out = process, gate, out

    def release(self, rounds: int) -> None:
        """Let so many rounds be done."""
        self._gate.with_suffix(".new").write_text(str(rounds))
        self._gate.with_suffix(".new").replace(self._gate)

    def go_to(self, done: int) -> None:
        """Let so many rounds be done, and wait until the next one waits. They stay young: a page that opens late must
        not take the run for one that stopped."""
        self.release(done)
        held = self._gate.with_name(f"{self._gate.name}.held")
        while not (held.is_file() and held.read_text() == f"{done + 1}\n"):
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            time.sleep(0.02)
        later = time.time() + 3600
        os.utime(self._out / "rounds.jsonl", (later, later))


@contextmanager
def held_run(point: str, config: Path, out: Path, *options: object) -> Iterator[Held]:
    """`pri-rfed run`, which waits at that point of every round (see faulty_server.py) until that round may be done."""
    gate = out.with_name(f"{out.name}.gate")
    gate.write_text("0")
    program = (Path(__file__).with_name("faulty_server.py"), point, gate, "--")
    with started("run", config, "--out", out, "--json", *options, program=program) as process:
        yield Held(process, gate, out)


@contextmanager
def explorer(*arguments: object) -> Iterator[str]:
    """The address of an explorer that serves."""
    with started("explore", *arguments) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("http://"), line + process.stderr.read()
        yield line.split()[0].rstrip("/")


def ask(
    address: str, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and content of an answer; a body that is no bytes is sent as JSON."""
    to = urlsplit(address)
    assert to.hostname is not None
    connection = http.client.HTTPConnection(to.hostname, to.port, timeout=300)
    try:
        given = {"Host": to.netloc} | (headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            given = {"Content-Type": "application/json"} | given
        connection.putrequest(method or ("GET" if body is None else "POST"), path, skip_host=True)
        for name, value in given.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body or b"")))
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        kind = answer.headers.get_content_type()
        shown = json.loads(content) if kind == "application/json" else content.decode()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, shown
    finally:
        connection.close()


def folder_of_run(config: Path, out: Path, *assignments: str) -> Path:
    """A run's folder, made by the command."""
    settings = [argument for assignment in assignments for argument in ("--set", assignment)]
    command = [sys.executable, "-m", "pri_rfed.cli", "run", str(config), "--out", str(out), "--json", *settings]
    subprocess.run(command, check=True, capture_output=True)
    return out
