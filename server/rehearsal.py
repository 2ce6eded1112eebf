"""Runtimes that carry out a configured run on this machine as a federation would: server and clients exchange messages,
each agent has an owner with a policy and a ledger. The result is the simulation's.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from pri_rfed import keys
from pri_rfed.coordinator import Coordinator, RunStopped, State
from pri_rfed.data.agents import AgentArrays
from pri_rfed.experiment.config import Experiment
from pri_rfed.experiment.federation import Exchange
from pri_rfed.experiment.options import plain
from pri_rfed.experiment.run import stoppable
from pri_rfed.files import write_atomically
from pri_rfed.meeting import DONE, HEALTH, LATE_SECONDS, PORT, hold
from pri_rfed.owners import agent_name, make_owners
from pri_rfed.simulation import Runtime
from pri_rfed.training.base import Trainer
from server.local_grid import LocalGrid
from server.strategy import PriRFed, Registered
from server.superlink import SuperLink, start_process, stop, tail


def in_process(
    experiment: Experiment, client: Callable[[Message, Context], Message], clients: int, exchange: Exchange
) -> Runtime:
    """Both apps in this process, `client` being the one of the clients."""

    def carry_out(coordinator: Coordinator, trainer: Trainer, on_state: Callable[[State], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="pri-rfed-") as folder:
            dealt = owners(experiment, trainer, Path(folder), clients, exchange)
            nodes = {client + 2: {"policies": str(Path(folder) / f"client-{client}")} for client in range(clients)}
            strategy = make_strategy(experiment, coordinator, trainer, dealt, list(nodes), exchange, on_state)
            strategy.run(LocalGrid(client, nodes))

    return carry_out


def over_flower(experiment: Experiment, clients: int, exchange: Exchange, logs: Path) -> Runtime:
    """A SuperLink and client processes on the loopback interface, with TLS and keys made for this run. Everything is
    stopped at the end, at Ctrl-C and at errors. The processes log into the folder `logs`."""

    def carry_out(coordinator: Coordinator, trainer: Trainer, on_state: Callable[[State], None]) -> None:
        logs.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="pri-rfed-") as name, stoppable(), ExitStack() as stack:
            folder = Path(name)
            keys.make_authority(folder)
            keys.make_server_certificate(folder, ["127.0.0.1"])
            dealt = owners(experiment, trainer, folder, clients, exchange)
            link = stack.enter_context(SuperLink(folder, folder, logs / "superlink.log"))
            nodes, processes = [], []
            for client in range(clients):
                key, log = folder / f"client-{client}.key", logs / f"client-{client}.log"
                keys.make_client_key(key)
                nodes.append(link.register(key.with_name(f"{key.name}.pub")))
                process = start_process(
                    [
                        *(sys.executable, "-m", "pri_rfed.cli", "client", str(folder / f"client-{client}")),
                        *("--server", link.address, "--ca", str(folder / keys.AUTHORITY), "--key", str(key)),
                    ],
                    log,
                )
                stack.callback(stop, process)
                processes.append((process, log))

            def watch() -> None:
                for process, log in processes:
                    if process.poll() is not None:
                        raise RunStopped(f"a client ended with exit status {process.returncode}:\n{tail(log)}")

            strategy = make_strategy(experiment, coordinator, trainer, dealt, nodes, exchange, on_state, watch)
            with link.run() as grid:
                strategy.run(grid)

    return carry_out


def over_containers(experiment: Experiment, meeting: Path, exchange: Exchange, logs: Path) -> Runtime:
    """A SuperLink behind the proxy in this container, and clients in containers of their own (`clients.meeting`) that
    have the folder `meeting` in common with it: as many as come. There this side finds their public keys, and they find
    the authority, and the policies, records and ledgers of their agents."""

    def carry_out(coordinator: Coordinator, trainer: Trainer, on_state: Callable[[State], None]) -> None:
        logs.mkdir(exist_ok=True)
        hold(meeting)
        with tempfile.TemporaryDirectory(prefix="pri-rfed-") as name, stoppable(), ExitStack() as stack:
            folder = Path(name)
            keys.make_authority(folder)
            keys.make_server_certificate(folder, ["server", "127.0.0.1"])
            stack.callback(dismiss, meeting, 0.0)
            link = stack.enter_context(SuperLink(folder, folder, logs / "superlink.log", health=HEALTH))
            proxy = [sys.executable, "-m", "server.proxy", "--keys", str(folder), "--superlink", link.address]
            stack.callback(stop, start_process([*proxy, "--listen", f"0.0.0.0:{PORT}"], logs / "proxy.log"))
            stack.callback(dismiss, meeting, LATE_SECONDS)
            write_atomically(meeting / keys.AUTHORITY, (folder / keys.AUTHORITY).read_bytes())
            joined = await_joined(meeting, len(experiment.agents), exchange.wait)
            dealt = owners(experiment, trainer, folder / "owners", len(joined), exchange)
            nodes = [link.register(key) for key in joined]
            for client, key in enumerate(joined):
                shutil.copytree(folder / "owners" / f"client-{client}", meeting / f"{key.stem}.new")
                (meeting / f"{key.stem}.new").rename(meeting / key.stem)
            strategy = make_strategy(experiment, coordinator, trainer, dealt, nodes, exchange, on_state)
            with link.run() as grid:
                strategy.run(grid)

    return carry_out


def dismiss(meeting: Path, seconds: float) -> None:
    """Tell the clients that the run is over, and wait so long at most until all have left."""
    write_atomically(meeting / DONE, b"")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(meeting.glob("*.pub")):
        time.sleep(0.1)


def await_joined(meeting: Path, most: int, seconds: float) -> list[Path]:
    """The public keys of the clients that came, once no more have come for some seconds; at most so many."""
    deadline, seen, since = time.monotonic() + seconds, list[Path](), time.monotonic()
    while True:
        joined = sorted(meeting.glob("*.pub"))
        if joined != seen:
            seen, since = joined, time.monotonic()
        if seen and (time.monotonic() - since > LATE_SECONDS or len(seen) >= most):
            return seen[:most]
        if time.monotonic() > deadline:
            raise RunStopped(f"no client came to {meeting} within {seconds:g} s")
        time.sleep(0.1)


def owners(
    experiment: Experiment, trainer: Trainer, folder: Path, clients: int, exchange: Exchange
) -> list[list[int]]:
    """Make the owners of the agents; returns which agents each client speaks for."""
    assert isinstance(experiment.agents, AgentArrays), "a rehearsal has everybody's records"
    return make_owners(
        folder,
        experiment.problem,
        experiment.resolved["problem"],
        experiment.agents,
        trainer,
        releases=experiment.run.rounds * exchange.attempts,
        delta=experiment.privacy.delta,
        seed=experiment.run.seed,
        clients=clients,
    )


def trainer_table(trainer: Trainer) -> dict[str, Any]:
    """A trainer as in a configuration."""
    return {"name": trainer.name, **plain(trainer)}


def make_strategy(
    experiment: Experiment,
    coordinator: Coordinator,
    trainer: Trainer,
    dealt: Sequence[Sequence[int]],
    nodes: Sequence[int],
    exchange: Exchange,
    on_state: Callable[[State], None],
    watch: Callable[[], None] | None = None,
) -> PriRFed:
    """The strategy of a run whose agents `dealt`[k] are spoken for by node `nodes`[k]."""
    speaker = {agent: node for agents, node in zip(dealt, nodes, strict=True) for agent in agents}
    counts = coordinator.counts.tolist()
    roster = [Registered(agent_name(i), n, speaker[i]) for i, n in enumerate(counts)]
    return PriRFed(
        coordinator,
        roster,
        experiment.resolved["problem"],
        trainer_table(trainer),
        run=f"{experiment.run.name}-{secrets.token_hex(4)}",
        exchange=exchange,
        on_state=on_state,
        watch=watch,
    )
