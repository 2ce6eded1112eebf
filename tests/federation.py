"""A small federation for tests: a configured run, owners for its agents, and both Flower apps in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message

from clients import app as client_app
from pri_rfed.coordinator import Coordinator, RoundRecord, State
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import Experiment, load
from pri_rfed.experiment.federation import Exchange
from pri_rfed.owners import agent_name
from pri_rfed.privacy.ledger import Ledger
from pri_rfed.simulation import Result, Runtime, simulate, train_agents
from server.local_grid import LocalGrid
from server.rehearsal import make_strategy, owners
from server.strategy import PriRFed

EIGENVECTOR: dict[str, Any] = {
    "run": {"name": "eigenvector", "rounds": 4, "sampled": 4, "seed": 3, "evaluate_every": 2},
    "problem": {"name": "principal-eigenvector"},
    "data": {"source": "digits", "partition": {"name": "iid", "agents": 8}},
    "trainer": {
        "name": "dp-rsgd", "steps": 3, "batch": 5, "noise": 1.5, "noise_unit": "sensitivity", "step_size": 0.3,
    },
    "aggregation": {"name": "tangent-mean"},
    "privacy": {"delta": 1e-5},
}  # fmt: skip
SPD: dict[str, Any] = {
    "run": {"name": "spd", "rounds": 3, "sampled": 3, "seed": 5},
    "problem": {"name": "frechet-mean", "manifold": "spd-affine-invariant"},
    "data": {"source": "synthetic-spd", "size": 3, "records": 60, "partition": {"name": "iid", "agents": 5}},
    "trainer": {
        "name": "dp-rsvrg", "epochs": 2, "inner_steps": 3, "batch": 2, "noise": 0.3, "step_size": 0.1,
        "clip_full": 1.0, "clip_step": 1.0,
    },
}  # fmt: skip


def experiment(tables: Mapping[str, Any] = EIGENVECTOR, **changes: Mapping[str, Any]) -> Experiment:
    """The experiment of these tables, with entries of sections changed."""
    merged = {section: dict(table) | dict(changes.get(section, {})) for section, table in tables.items()}
    return load(merged, DataFolders(None))


def simulated(of: Experiment, runtime: Runtime | None = None, **options: Any) -> Result:
    """The run of an experiment."""
    return simulate(
        of.problem,
        of.agents,
        of.trainer,
        rounds=of.run.rounds,
        sampled=of.sampled,
        aggregation=of.aggregation,
        delta=of.privacy.delta,
        seed=of.run.seed,
        evaluate_every=of.run.evaluate_every,
        runtime=runtime,
        **options,
    )


def replayed(of: Experiment, history: Sequence[RoundRecord]) -> State:
    """What a run comes to whose rounds were drawn anew where this history says so, each draw with its own agents."""
    coordinator = Coordinator(
        of.problem, of.agents.counts, of.aggregation, rounds=of.run.rounds, sampled=of.sampled, seed=of.run.seed
    )
    for record in history:
        for lost in record.get("repeated", ()):
            chosen = coordinator.draw()
            assert chosen.tolist() == lost["sampled"]
            coordinator.state = coordinator.abandoned(chosen, lost["sampled"])
        chosen, state = coordinator.draw(), coordinator.state
        uploads = train_agents(of.problem, of.agents, of.trainer, state.point, chosen, of.run.seed, state.round)
        coordinator.close(chosen, uploads, seconds=0.0)
    return coordinator.state


class Federation:
    """Owners in a folder, and a grid whose client can be tampered with.

    tamper: what the clients really do; it is given the message, the context and the honest app.
    """

    def __init__(
        self,
        of: Experiment,
        folder: Path,
        *,
        clients: int = 4,
        exchange: Exchange | None = None,
        tamper: Callable[[Message, Context, Callable[[Message, Context], Message]], Message] | None = None,
    ):
        self.experiment, self.folder = of, folder
        self.exchange = Exchange() if exchange is None else exchange
        self.dealt = owners(of, of.trainer, folder, clients, self.exchange)
        client_app.participants.cache_clear()
        self.nodes = {client + 2: {"policies": str(folder / f"client-{client}")} for client in range(clients)}
        honest = client_app.app
        client = honest if tamper is None else lambda message, context: tamper(message, context, honest)
        self.grid = LocalGrid(client, self.nodes)
        self.states: list[State] = []

    def strategy(self, state: State | None = None) -> PriRFed:
        """A strategy with a coordinator of its own, which begins at `state`."""
        of = self.experiment
        coordinator = Coordinator(
            of.problem, of.agents.counts, of.aggregation, rounds=of.run.rounds, sampled=of.sampled, seed=of.run.seed,
            state=state,
        )  # fmt: skip
        return make_strategy(
            of, coordinator, of.trainer, self.dealt, list(self.nodes), self.exchange, self.states.append
        )

    def run(self, state: State | None = None) -> State:
        return self.strategy(state).run(self.grid)

    def node_of(self, agent: int) -> int:
        """The node that speaks for an agent."""
        return next(node for node, agents in zip(self.nodes, self.dealt, strict=True) if agent in agents)

    def ledger(self, agent: int) -> Ledger:
        home = self.folder / f"client-{self.node_of(agent) - 2}"
        return Ledger.open(home / f"{agent_name(agent)}.ledger")

    def charges(self) -> np.ndarray[Any, Any]:
        """How many releases each agent's ledger counts."""
        agents = range(len(self.experiment.agents))
        return np.array([self.ledger(agent).status(agent_name(agent)).releases for agent in agents])


def session_of(leader: int) -> list[int]:
    """The processes that descend from `leader`, those in sessions of their own included, dead ones not."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found, grown = {leader}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} | found
        grown, found = len(more) > len(found), more
    return sorted(found - {leader})
