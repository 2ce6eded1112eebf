"""A SuperLink as a process of this program's own, and the Grid that reaches clients through it.

The SuperLink's APIs share one port. Its Fleet API knows clients by registered keys; its Control API has no
authentication at all, so that port must never be reachable from other machines: a proxy that lets nothing through but
/v1/fleet/ goes in front of it. The ServerApp is not started by the SuperLink: this program claims its task and runs the
code that is installed. Written against flwr 1.41.0, whose Control and Runtime clients it uses.
"""

from __future__ import annotations

import ctypes
import io
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import flwr.supercore.inflatable.inflatable_utils as inflatable
import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.serverapp import Grid
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.superexec_auth import SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from pri_rfed import keys
from pri_rfed.coordinator import RunStopped
from pri_rfed.wire import PROJECT

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment in which Flower's processes make no connection to the internet."""

UNSENT_SECONDS = 5.0
"""How long to wait for the numbers of a reply that was announced."""

GONE_SECONDS = 10.0
"""After how long without an answer a SuperLink, a process on this machine, is taken for gone."""

_TASK = "flwr-serverapp"
_MANIFEST = f"""\
[project]
name = "pri-rfed"
version = "{PROJECT}"
description = "Runs the project that is installed; nothing is shipped"
[tool.flwr.app]
publisher = "pri-rfed"
[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"
[tool.flwr.app.config]
"""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stop(process: subprocess.Popen[bytes], seconds: float = 3.0) -> None:
    """Stop a process and all that it started: politely first, for good after some seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def start_process(command: list[str], log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, which gets no Ctrl-C from the terminal; its output goes to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **QUIET, **(env or {})},
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )


def _end_with_parent() -> None:
    """Have the kernel stop this process when its parent is killed and cannot stop it any more."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class SuperLink:
    """A running SuperLink. Use it as a context: it is stopped at the end, however that comes.

    It listens on the loopback interface, and keeps in memory who is registered.

    folder: with ca.crt, server.crt and server.key (`pri_rfed.keys`). work: a folder for files that live as long as it.
    log: a file for what it prints. health: HOST:PORT of a gRPC health service without TLS.
    """

    def __init__(self, folder: Path, work: Path, log: Path, health: str | None = None):
        self.folder, self.log, self.host = folder, log, "127.0.0.1"
        self.port = free_port()
        self._work, self._health = work, health
        self._secret = secrets.token_bytes(32)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: ControlHttpClient | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of the APIs, as this program reaches them."""
        return f"{self.host}:{self.port}"

    def __enter__(self) -> SuperLink:
        secret = self._work / "superexec.secret"
        keys.write_secret(secret, self._secret)
        command = [
            str(Path(sys.executable).parent / "flower-superlink"),
            *("--host", self.host, "--port", str(self.port)),
            *("--ssl-ca-certfile", str(self.folder / keys.AUTHORITY)),
            *("--ssl-certfile", str(self.folder / keys.SERVER), "--ssl-keyfile", str(self.folder / keys.SERVER_KEY)),
            *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
            "--enable-supernode-auth",
            *(("--health-server-address", self._health) if self._health else ()),
        ]
        self._process = start_process(command, self.log, {"FLWR_HOME": str(self._work / "flwr")})
        try:
            self._control = ControlHttpClient.from_server_address(
                self.address,
                insecure=False,
                root_certificates=self._authority,
                interceptors=[RuntimeVersionHttpInterceptor(component_name="pri-rfed")],
            )
            self._await_start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            stop(self._process)

    @property
    def _authority(self) -> bytes:
        return (self.folder / keys.AUTHORITY).read_bytes()

    def _await_start(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        assert self._process is not None
        while True:
            try:
                with socket.create_connection((self.host, self.port), timeout=1):
                    return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RunStopped(f"the SuperLink did not start; the end of {self.log}:\n{tail(self.log)}") from None
            time.sleep(0.05)

    def register(self, public_key: Path) -> int:
        """Make a client known by its public key; returns its node's number. Raises ValueError if it is no such key,
        RunStopped where the SuperLink cannot be reached."""
        assert self._control is not None
        pem = keys.public_pem(public_key)
        with _reached():
            return int(self._control.RegisterNode(RegisterNodeRequest(public_key=pem)).node_id)

    @contextmanager
    def run(self) -> Iterator[Grid]:
        """A new run, and the Grid to its clients; it is over when the context is left. Raises RunStopped where the
        SuperLink cannot be reached, from the start on."""
        with _reached(), self._begin() as grid:
            yield grid

    @contextmanager
    def _begin(self) -> Iterator[Grid]:
        assert self._control is not None
        self._control.StartRun(StartRunRequest(fab=Fab(content=_manifest(), hash_str="")))
        acquire = "/flwr.proto.Runtime/AcquireTask"
        with RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=False,
            root_certificates=self._authority,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name=_TASK),
                SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=[acquire]),
            ],
        ) as runtime:
            token = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[_TASK])).token
        # Replies are asked for so often that some are seen before their numbers have arrived: wait briefly for those,
        # and give up on what is announced and never sent. Flower has no public setting for it.
        defaults = inflatable.pull_objects.__kwdefaults__
        assert defaults is not None
        defaults |= {"initial_backoff": 0.01, "backoff_cap": 0.5, "max_time": UNSENT_SECONDS}
        with closing(HttpGrid(self.address, insecure=False, root_certificates=self._authority, token=token)) as grid:
            grid._retry_invoker.max_time = GONE_SECONDS  # Flower would try for ever
            client = grid._runtime_client
            task = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
            TaskIdentity.node_id = task.context.node_id
            grid.set_run(run_from_proto(task.run))
            heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
            heartbeat.start()
            status = SubStatus.FAILED
            try:
                yield grid
                status = SubStatus.COMPLETED
            finally:
                heartbeat.stop()
                with suppress(httpx.HTTPError):  # it may be gone already
                    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))


@contextmanager
def _reached() -> Iterator[None]:
    """Say in words where the SuperLink cannot be reached."""
    try:
        yield
    except httpx.HTTPError as error:
        raise RunStopped(f"the SuperLink cannot be reached: {error}") from error


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]) if log.is_file() else ""


def _manifest() -> bytes:
    """A Flower app that consists of its description alone."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("pyproject.toml", _MANIFEST)
    return buffer.getvalue()
