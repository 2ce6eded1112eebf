"""Flower's own SuperLink, SuperExec and SuperNodes run the two apps as well, only slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from conftest import ROOT
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from test_flower_server import AGENTS, PATIENCE, tables
from test_participant import make

from pri_rfed import keys
from pri_rfed.coordinator import State
from pri_rfed.privacy.ledger import Ledger
from server.superlink import QUIET, free_port, start_process, stop, tail

BIN = Path(sys.executable).parent


@pytest.mark.slow
def test_flwr_run_of_the_repository(tmp_path: Path) -> None:
    """The commands of docs/deployment.md."""
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
            superlink = {"address": f"127.0.0.1:{port}", "root-certificates": ca}
            connections = {"superlink": {"default": "wards", "wards": superlink}}
            (tmp_path / "flwr").mkdir(exist_ok=True)
            (tmp_path / "flwr" / "config.toml").write_text(tomli_w.dumps(connections))
            files = f'federation="{tmp_path / "federation.toml"}" out="{tmp_path / "run"}"'
            said = subprocess.run(
                [str(BIN / "flwr"), "run", str(ROOT), "wards", "--run-config", files],
                env={**os.environ, **QUIET, **home}, capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
            assert said.returncode == 0, said.stdout + said.stderr
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
    # The SuperNodes' machines were given the server's code, and ran that: why `pri-rfed client` is not one of them.
    shipped = list((tmp_path / "flwr" / "apps").glob("*/clients/app.py"))
    assert len(shipped) == 1 and shipped[0].read_bytes() == (ROOT / "clients" / "app.py").read_bytes()
