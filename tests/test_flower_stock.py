"""Flower's own SuperLink, SuperExec and SuperNodes run the two apps as well, only slower."""

from __future__ import annotations

import json
import os
import sys
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w
from conftest import ROOT
from flwr.cli.build import build_fab_from_files
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from test_flower_server import AGENTS, PATIENCE, tables
from test_participant import make

from pri_rfed import keys
from pri_rfed.coordinator import State
from pri_rfed.privacy.ledger import Ledger
from server.superlink import free_port, start_process, stop, tail

BIN = Path(sys.executable).parent


def flower_app(config: dict[str, str]) -> bytes:
    """The repository's own description as a Flower app, with its run configuration filled in and nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project["tool"]["flwr"]["app"]["config"] |= config
    return build_fab_from_files({"pyproject.toml": tomli_w.dumps(project).encode()})[0]


@pytest.mark.slow
def test_the_stock_processes_run_the_apps(tmp_path: Path) -> None:
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    port, processes = free_port(), []
    ca = str(tmp_path / keys.AUTHORITY)
    home = {
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # they start each other by name
    }
    try:
        certificates = ["--ssl-certfile", str(tmp_path / keys.SERVER), "--ssl-keyfile", str(tmp_path / keys.SERVER_KEY)]
        command = [str(BIN / "flower-superlink"), "--host", "127.0.0.1", "--port", str(port), "--ssl-ca-certfile", ca]
        processes.append(
            start_process([*command, *certificates, "--enable-supernode-auth"], tmp_path / "superlink.log", home)
        )
        for i in range(AGENTS):
            keys.make_client_key(tmp_path / f"ward-{i}")
            make(tmp_path / f"home-{i}", agent=f"ward-{i}", epsilon=20.0)
        with ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}",
            insecure=False,
            root_certificates=Path(ca).read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="tests")],
        ) as control:
            deadline = time.monotonic() + PATIENCE
            while "Uvicorn running" not in (tmp_path / "superlink.log").read_text():
                assert time.monotonic() < deadline and processes[0].poll() is None, tail(tmp_path / "superlink.log")
                time.sleep(0.1)
            for i in range(AGENTS):
                public = keys.public_pem(tmp_path / f"ward-{i}.pub")
                control.RegisterNode(RegisterNodeRequest(public_key=public))
                command = [str(BIN / "flower-supernode"), "--superlink", f"127.0.0.1:{port}", "--root-certificates", ca]
                policies = tmp_path / f"home-{i}" / "policy.toml"
                options = ["--port", str(free_port()), "--node-config", f'policies="{policies}"']
                key = ["--auth-supernode-private-key", str(tmp_path / f"ward-{i}")]
                processes.append(start_process([*command, *options, *key], tmp_path / f"node-{i}.log", home))
            config = tables(tmp_path, run={"name": "wards", "rounds": 2, "sampled": 3})
            (tmp_path / "federation.toml").write_text(tomli_w.dumps(config))
            app = flower_app({"federation": str(tmp_path / "federation.toml"), "out": str(tmp_path / "run")})
            control.StartRun(StartRunRequest(fab=Fab(content=app, hash_str="")))
            while not (tmp_path / "run" / "summary.json").is_file():
                assert time.monotonic() < deadline, tail(tmp_path / "superlink.log", 60)
                time.sleep(0.2)
    finally:
        for process in reversed(processes):
            stop(process)
    state = State.load(tmp_path / "run" / "checkpoint.npz")
    assert state.round == 2 and not any(record["refused"] for record in state.history)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["private"] and summary["runtime"] == "flower app"
    for i in range(AGENTS):
        assert Ledger.open(tmp_path / f"home-{i}" / "ledger").status("ward/2026").releases == 2
