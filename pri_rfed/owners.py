"""Owners for the agents of a configured run, all of them on this machine: what a rehearsal of a federation needs.

Each agent gets a folder entry of its own: its records, a ledger with a budget that covers the run, and a policy that
allows the run's plan and no other. Seeded as the simulation is, so that both give the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from pri_rfed.data.agents import AgentArrays
from pri_rfed.participant import least_noise
from pri_rfed.privacy.events import Event
from pri_rfed.privacy.ledger import Ledger, Renyi
from pri_rfed.problems.base import Problem
from pri_rfed.training.base import Trainer

ORDER = 8
"""Renyi order of the ledgers: any will do, since the budget is made to fit the run."""


def agent_name(agent: int) -> str:
    """The name of agent 0, 1, ... on the wire."""
    return f"agent-{agent}"


def make_owners(
    folder: Path,
    problem: Problem,
    table: Mapping[str, Any],
    agents: AgentArrays,
    trainer: Trainer,
    *,
    releases: int,
    delta: float,
    seed: int,
    clients: int,
) -> list[list[int]]:
    """Write policies, records and ledgers into `folder`/client-0, client-1, ...; agents are dealt out in turn.

    table: the problem as in a resolved configuration. releases: how many trainings each budget must cover.

    Returns which agents each client speaks for. Raises ValueError unless 1 <= clients <= agents and the run is private:
    a client trains nothing that has no mechanism.
    """
    if not 1 <= clients <= len(agents):
        raise ValueError(f"clients = {clients} must lie between 1 and the number of agents, {len(agents)}")
    budgets: dict[int, tuple[Event, float]] = {}
    rule = Renyi(ORDER)
    for n in np.unique(agents.counts).tolist():
        event = trainer.event(problem, n)
        if not event.is_private:
            raise ValueError(
                f"trainer {trainer.name} releases something without noise, which no client does; run it as a simulation"
            )
        rule = Renyi(ORDER) if event.unit is None else Renyi(ORDER, event.unit)
        budgets[n] = event, rule.epsilon(rule.cost(event) * releases * (1 + 1e-6), delta) * (1 + 1e-6)
    dealt = [list(range(client, len(agents), clients)) for client in range(clients)]
    for client, held in enumerate(dealt):
        home = folder / f"client-{client}"
        home.mkdir(parents=True)
        for agent in held:
            name = agent_name(agent)
            event, epsilon = budgets[int(agents.counts[agent])]
            np.save(home / f"{name}.npy", agents[agent].astype(agents.precision))
            Ledger.create(home / f"{name}.ledger").set_budget(name, epsilon, delta, rule)
            policy = {
                "agent": name,
                "dataset": name,
                "data": f"{name}.npy",
                "ledger": f"{name}.ledger",
                "trainers": [trainer.name],
                "least_noise": min(least_noise(event), 1e9),
                "most_records": trainer.gradient_calls(int(agents.counts[agent])),
                "precision": agents.precision,
                "budget": {"epsilon": epsilon, "delta": delta},
                "problems": [dict(table)],
                "test": {"seed": seed, "stream": agent},
            }
            (home / f"{name}.toml").write_text(tomli_w.dumps(policy), encoding="utf-8")
    return dealt
