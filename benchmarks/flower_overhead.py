"""What a round costs beside training: PriRFed's runtime `flower` against Flower's own processes with FedAvg.

Both send a point of 64 numbers to every client and back, on this machine, over TLS, to clients with keys; training is
next to nothing. PriRFed's clients keep their policy and their ledger as always. A round is the time from the end of one
aggregation to the end of the next; the first round of each, in which processes warm up, is left out. All processes are
stopped at the end, however it comes.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tomli_w
from flwr.cli.build import build_fab_from_files
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from pri_rfed import keys
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import load, read_toml
from pri_rfed.experiment.federation import Exchange
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.run import NamedRuntime, Progress, start
from server.rehearsal import over_flower
from server.superlink import free_port, start_process, stop, tail

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
QUICKSTART_ROUNDS, QUICKSTART_CLIENTS = 100, 4
PATIENCE = 600.0
"""Longest wait for one of Flower's runs, in seconds."""


def prirfed(tables: dict[str, Any], clients: int, folder: Path) -> list[float]:
    """When each round of a run in real processes ended, in seconds."""
    ends: list[float] = []

    def report(progress: Progress) -> None:
        ends.append(time.perf_counter())

    experiment = load(tables, DataFolders(None))
    run = RunFolder.create(experiment.run.name, folder)
    runtime = NamedRuntime("flower", over_flower(experiment, clients, Exchange(), run.path / "logs"))
    start(experiment, run, report, runtime)
    assert len(ends) == experiment.run.rounds and not any(record["refused"] for record in run.rounds())
    return ends


def trivial(clients: int, rounds: int) -> dict[str, Any]:
    """A run in which every client has one agent, which takes one step."""
    return {
        "run": {"name": "overhead", "rounds": rounds, "sampled": clients, "seed": 0},
        "problem": {"name": "principal-eigenvector"},
        "data": {"source": "digits", "partition": {"name": "iid", "agents": clients, "equal": True}},
        "trainer": {
            "name": "dp-rsgd", "steps": 1, "batch": 1, "noise": 2.0, "noise_unit": "sensitivity", "step_size": 0.01,
        },
    }  # fmt: skip


def stock(clients: int, rounds: int, folder: Path) -> list[float]:
    """When each round of FedAvg ended, in a SuperLink and SuperNodes with all their own settings, in seconds."""
    folder.mkdir()
    keys.make_authority(folder)
    keys.make_server_certificate(folder, ["127.0.0.1"])
    authority, log, times = folder / keys.AUTHORITY, folder / "superlink.log", folder / "times.json"
    # They start each other by name.
    environment = {"FLWR_HOME": str(folder / "flwr"), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    address = f"127.0.0.1:{free_port()}"
    project = tomllib.loads((HERE / "flower_fedavg" / "pyproject.toml").read_text())
    project["tool"]["flwr"]["app"]["config"] |= {"rounds": rounds, "clients": clients, "times": str(times)}
    files: dict[str, bytes | Path] = {
        "pyproject.toml": tomli_w.dumps(project).encode(),
        "fedavg.py": HERE / "flower_fedavg" / "fedavg.py",
    }
    deadline = time.monotonic() + PATIENCE
    with ExitStack() as stack:

        def run(log: Path, program: str, *options: str | Path) -> Any:
            process = start_process([str(BIN / program), *map(str, options)], log, environment)
            stack.callback(stop, process)
            return process

        def wait(done: Any, seconds: float) -> None:
            while not done():
                if superlink.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Flower's processes failed; the end of the SuperLink's log:\n{tail(log, 60)}")
                time.sleep(seconds)

        superlink = run(
            log, "flower-superlink", "--host", "127.0.0.1", "--port", address.rpartition(":")[2],
            "--ssl-ca-certfile", authority, "--ssl-certfile", folder / keys.SERVER,
            "--ssl-keyfile", folder / keys.SERVER_KEY, "--enable-supernode-auth",
        )  # fmt: skip
        wait(lambda: "Uvicorn running" in log.read_text(), 0.1)
        control = stack.enter_context(
            ControlHttpClient.from_server_address(
                address,
                insecure=False,
                root_certificates=authority.read_bytes(),
                interceptors=[RuntimeVersionHttpInterceptor(component_name="benchmarks")],
            )
        )
        for i in range(clients):
            key = folder / f"client-{i}"
            keys.make_client_key(key)
            control.RegisterNode(RegisterNodeRequest(public_key=keys.public_pem(key.with_suffix(".pub"))))
            run(
                folder / f"client-{i}.log", "flower-supernode", "--superlink", address, "--port", str(free_port()),
                "--root-certificates", authority, "--auth-supernode-private-key", key,
            )  # fmt: skip
        control.StartRun(StartRunRequest(fab=Fab(content=build_fab_from_files(files)[0], hash_str="")))
        wait(times.is_file, 0.5)
    return list(json.loads(times.read_text()))[1:]  # without the one before the first round


def rounds_of(ends: list[float]) -> list[float]:
    """How long each round but the first took."""
    return [after - before for before, after in itertools.pairwise(ends)]


def compare(clients: int, rounds: dict[str, int], folder: Path) -> dict[str, Any]:
    """Both, one after the other."""
    result: dict[str, Any] = {"clients": clients}
    for name, seconds in (
        ("flower", lambda: stock(clients, rounds["flower"], folder / f"flower-{clients}")),
        ("prirfed", lambda: prirfed(trivial(clients, rounds["prirfed"]), clients, folder / f"prirfed-{clients}")),
    ):
        print(f"{clients} clients, {name} ...", file=sys.stderr, flush=True)
        taken = rounds_of(seconds())
        result[name] = {
            "rounds": len(taken),
            "median_seconds": statistics.median(taken),
            "least_seconds": min(taken),
            "most_seconds": max(taken),
            "load_after": os.getloadavg()[0],
        }
    return result


def quickstart(folder: Path) -> dict[str, Any]:
    """The quickstart with more rounds, in real processes."""
    print(f"{QUICKSTART_ROUNDS} rounds of the quickstart ...", file=sys.stderr, flush=True)
    tables = read_toml(HERE.parent / "configs" / "quickstart.toml")
    tables["run"] |= {"name": "quickstart", "rounds": QUICKSTART_ROUNDS}
    began = time.perf_counter()
    ends = prirfed(tables, QUICKSTART_CLIENTS, folder / "quickstart")
    return {
        "rounds": QUICKSTART_ROUNDS,
        "clients": QUICKSTART_CLIENTS,
        "seconds": time.perf_counter() - began,
        "median_seconds": statistics.median(rounds_of(ends)),
        "load_after": os.getloadavg()[0],
    }
