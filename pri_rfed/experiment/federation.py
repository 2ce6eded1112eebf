"""The configuration of a server: a run's, with the agents that have registered in place of data.

    [run] [problem] [trainer] [aggregation] [privacy]     as in the configuration of a run

    [federation]
    record_shape = [64]            # of the agents' records

    [[federation.agents]]          # one for each, as its owner's policy says
    name = "ward-3"
    records = 179
    key = "ward-3.pub"             # public key of the client that speaks for it

    [federation.exchange]          # how the server deals with clients; see `Exchange`
    timeout = 300.0
    min_replies = 5
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pri_rfed.data.agents import RegisteredAgents
from pri_rfed.experiment.config import Experiment, Population, assemble, named_like, read_toml
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.options import build


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How the server deals with clients.

    timeout: how many seconds a round waits for replies. min_replies: with fewer usable ones a round is drawn anew, at
    most `attempts` times in a row; then the run stops, to be resumed. draw_from: all "registered" agents, or those
    whose client is "connected" at that moment. wait: how many seconds to wait at the start for clients to connect; for
    all of them, or with draw_from "connected" for enough to sample from.
    """

    timeout: float = 600.0
    min_replies: int = 1
    attempts: int = 3
    draw_from: Literal["registered", "connected"] = "registered"
    wait: float = 120.0

    def __post_init__(self) -> None:
        wrong = [f"{n} = {getattr(self, n)!r} must be > 0" for n in ("timeout", "wait") if not getattr(self, n) > 0]
        for name in ("min_replies", "attempts"):
            if getattr(self, name) < 1:
                wrong.append(f"{name} = {getattr(self, name)!r} must be >= 1")
        if self.draw_from not in ("registered", "connected"):
            wrong.append(f"draw_from = {self.draw_from!r} must be 'registered' or 'connected'")
        if wrong:
            raise ValueError("; ".join(wrong))


@dataclass(frozen=True)
class RegisteredAgent:
    """An entry of [[federation.agents]]."""

    name: str
    records: int
    key: str

    def __post_init__(self) -> None:
        if self.records < 1:
            raise ValueError(f"records = {self.records}: must be at least 1")


@dataclass(frozen=True)
class Federation:
    """A server's run, the agents with their keys, and how to deal with them."""

    experiment: Experiment
    agents: list[RegisteredAgent]
    exchange: Exchange


def open_run(config: Path, out: Path) -> tuple[Federation, RunFolder, bool]:
    """The federation, the folder `out` of its run, and whether the run was begun there: then it goes on by the
    configuration in its folder. A new folder nobody else can read: it holds the seed by which agents are drawn.

    Raises ConfigError, RunFolderError.
    """
    begun = (out / "config.toml").is_file()
    source = out / "config.toml" if begun else config
    federation = load_federation(named_like(config, read_toml(source)), source.parent)
    if begun:
        return federation, RunFolder.open(out), True
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    return federation, RunFolder.create(federation.experiment.run.name, out), False


def load_federation(tables: Mapping[str, Any], folder: Path) -> Federation:
    """The federation that the tables describe; keys are files relative to `folder`.

    Without a seed the run gets a secret one: the server's choice of agents is then not to be predicted, and still the
    same when the run is resumed from its folder, which holds it.

    Raises ConfigError with everything that is wrong.
    """
    agents: list[RegisteredAgent] = []
    exchange = Exchange()

    def obtain(table: dict[str, Any], seed: int, errors: list[str]) -> Population | None:
        nonlocal exchange
        before = len(errors)
        errors += [
            f"federation.{key}: unknown key" for key in table if key not in ("record_shape", "agents", "exchange")
        ]
        shape, entries, dealing = table.get("record_shape"), table.get("agents"), table.get("exchange", {})
        if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
            errors.append("federation.record_shape: must be a list of numbers, such as [64]")
        if not isinstance(entries, list) or not entries:
            errors.append("federation.agents: at least one is needed, as [[federation.agents]]")
            entries = []
        for i, entry in enumerate(entries):
            built = build(f"federation.agents[{i}]", RegisteredAgent, entry if isinstance(entry, dict) else {})
            errors += built.errors
            if built.value is not None:
                path = folder / built.value.key
                if not path.is_file():
                    errors.append(f"federation.agents[{i}].key: there is no file {path}")
                agents.append(RegisteredAgent(built.value.name, built.value.records, str(path.resolve())))
        names = [agent.name for agent in agents]
        errors += sorted({f"federation.agents: {name!r} is there twice" for name in names if names.count(name) > 1})
        options = build("federation.exchange", Exchange, dealing if isinstance(dealing, dict) else {})
        errors += options.errors
        if len(errors) > before or options.value is None or not isinstance(shape, list):
            return None
        exchange = options.value
        complete = {
            "record_shape": shape,
            "agents": [{"name": agent.name, "records": agent.records, "key": agent.key} for agent in agents],
            "exchange": options.table,
        }
        known = RegisteredAgents([agent.records for agent in agents], names)
        return Population(known, tuple(shape), "records that are with their owners", complete)

    run = tables.get("run", {})
    seeded = dict(tables)
    if isinstance(run, dict):
        seeded["run"] = {"seed": secrets.randbits(62)} | run
    return Federation(assemble(seeded, "federation", obtain), agents, exchange)
