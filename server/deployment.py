"""The server of a real federation: a SuperLink, the proxy before it, and the run's rounds with clients elsewhere."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from flwr.serverapp import Grid

from pri_rfed.coordinator import Coordinator, RunStopped, State
from pri_rfed.experiment.federation import Federation
from pri_rfed.experiment.run import stoppable
from pri_rfed.simulation import Runtime
from pri_rfed.training.base import Trainer
from server.rehearsal import trainer_table
from server.strategy import PriRFed, Registered
from server.superlink import SuperLink, start_process, stop, tail


def over_network(federation: Federation, folder: Path, listen: str, logs: Path, health: str | None = None) -> Runtime:
    """Clients reach this server at `listen`, HOST:PORT. folder: with the certificates (`pri_rfed.keys`). The processes
    of the SuperLink and the proxy log into `logs`. health: HOST:PORT of a gRPC health service without TLS."""

    def carry_out(coordinator: Coordinator, trainer: Trainer, on_state: Callable[[State], None]) -> None:
        logs.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="pri-rfed-") as name, stoppable(), ExitStack() as stack:
            link = stack.enter_context(SuperLink(folder, Path(name), logs / "superlink.log", health))
            nodes = {key: link.register(Path(key)) for key in sorted({agent.key for agent in federation.agents})}
            log = logs / "proxy.log"
            command = [sys.executable, "-m", "server.proxy", "--keys", str(folder), "--superlink", link.address]
            proxy = start_process([*command, "--listen", listen], log)
            stack.callback(stop, proxy)

            def watch() -> None:
                if proxy.poll() is not None:
                    raise RunStopped(f"the proxy ended with exit status {proxy.returncode}:\n{tail(log)}")

            with link.run() as grid:
                over_grid(federation, grid, nodes, coordinator, trainer, on_state, watch)

    return carry_out


def over_grid(
    federation: Federation,
    grid: Grid,
    nodes: Mapping[str, int],
    coordinator: Coordinator,
    trainer: Trainer,
    on_state: Callable[[State], None],
    watch: Callable[[], None] | None = None,
) -> None:
    """Carry out the rounds with the clients of a Grid; nodes: which one speaks for each key file."""
    experiment = federation.experiment
    strategy = PriRFed(
        coordinator,
        [Registered(agent.name, agent.records, nodes[agent.key]) for agent in federation.agents],
        experiment.resolved["problem"],
        trainer_table(trainer),
        run=f"{experiment.run.name}-{secrets.token_hex(4)}",
        exchange=federation.exchange,
        on_state=on_state,
        watch=watch,
    )
    strategy.run(grid)
