"""Runtimes that carry out a configured run on this machine as a federation would: server and clients exchange messages,
each agent has an owner with a policy and a ledger. The result is the simulation's.
"""

from __future__ import annotations

import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from pri_rfed import keys
from pri_rfed.coordinator import Coordinator, RunStopped, State
from pri_rfed.experiment.config import Experiment
from pri_rfed.experiment.options import plain
from pri_rfed.owners import agent_name, make_owners
from pri_rfed.simulation import Runtime
from pri_rfed.training.base import Trainer
from server.local_grid import LocalGrid
from server.strategy import Exchange, PriRFed, Registered
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
            link = stack.enter_context(SuperLink(folder, log=logs / "superlink.log"))
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


@contextmanager
def stoppable() -> Iterator[None]:
    """Have the signal SIGTERM end the block as Ctrl-C does, so that it can stop what it started."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def owners(
    experiment: Experiment, trainer: Trainer, folder: Path, clients: int, exchange: Exchange
) -> list[list[int]]:
    """Make the owners of the agents; returns which agents each client speaks for."""
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
