"""The privacy of a whole run: both figures, for every group of agents.

- global, *before the run*: every round is a mixture of the agent's local training, with probability sampled/pool, and
  of nothing; who takes part is known to everybody. It assumes that agents are drawn as announced.
- ledger, *after it*: the local training composed as often as the agent really took part. It assumes nothing of the
  server.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pri_rfed.privacy.accountants import ACCOUNTANTS, UnsupportedEvent, best_epsilon
from pri_rfed.privacy.dominance import hardest
from pri_rfed.privacy.events import FORMAT_VERSION, Event, Participation, Unit, compose, repeat

MOST_FIGURES = 8
"""How many groups of agents are told apart by their epsilon."""
POINTS = 25
"""Of curves of epsilon over rounds."""

UNIT_IN_WORDS = {
    Unit.REPLACE_RECORD: "one record of one agent is replaced by any other; how many records an agent holds is public",
    Unit.ADD_REMOVE_RECORD: "one record of one agent is added or removed; the expected batch size is public",
    Unit.AGENT: "the whole data set of one agent is replaced by any other",
}


def neighbours(unit: Unit | None, protects: str = "") -> str | None:
    """What neighbours differ in, in words; None for a run without privacy. protects: of the problem."""
    if unit is None:
        return None
    return f"{UNIT_IN_WORDS[unit]}; {protects}" if protects else UNIT_IN_WORDS[unit]


@dataclass(frozen=True)
class AgentGroup:
    """Agents that hold equally many records, and so release alike."""

    records: int
    agents: int
    local: Event
    """What one local training of each releases."""


@dataclass(frozen=True)
class Rounds:
    """So many rounds in which `sampled` agents were drawn uniformly from a `pool`."""

    sampled: int
    pool: int
    count: int


@dataclass(frozen=True)
class GroupPrivacy:
    """Both figures of one group of agents."""

    group: AgentGroup
    participations: int
    """The most rounds that one of the group took part in."""
    epsilon_local: float
    epsilon_global: float
    epsilon_ledger: float


@dataclass(frozen=True)
class RunPrivacy:
    """What a run guarantees. An infinite epsilon: something was released without a mechanism."""

    unit: Unit | None
    delta: float
    groups: tuple[GroupPrivacy, ...]
    rounds: tuple[Rounds, ...]

    @property
    def epsilon_global(self) -> float:
        """Before the run, the largest over agents."""
        return max(group.epsilon_global for group in self.groups)

    @property
    def epsilon_ledger_max(self) -> float:
        """After it, the largest over agents."""
        return max(group.epsilon_ledger for group in self.groups)

    @property
    def is_private(self) -> bool:
        return math.isfinite(self.epsilon_ledger_max)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the events, so that a run can be accounted for anew. Infinity is null."""
        return {
            "version": FORMAT_VERSION,
            "unit": self.unit and str(self.unit),
            "neighbours": neighbours(self.unit),
            "delta": self.delta,
            "private": self.is_private,
            "epsilon_global": finite_or_none(self.epsilon_global),
            "epsilon_ledger_max": finite_or_none(self.epsilon_ledger_max),
            "rounds": [{"sampled": r.sampled, "pool": r.pool, "count": r.count} for r in self.rounds],
            "groups": [
                {
                    "records": g.group.records,
                    "agents": g.group.agents,
                    "most_participations": g.participations,
                    "epsilon_local": finite_or_none(g.epsilon_local),
                    "epsilon_global": finite_or_none(g.epsilon_global),
                    "epsilon_ledger": finite_or_none(g.epsilon_ledger),
                    "local_event": g.group.local.to_dict(),
                    "global_event": global_event(g.group.local, self.rounds).to_dict(),
                }
                for g in self.groups
            ],
        }


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def global_event(local: Event, rounds: Sequence[Rounds]) -> Event:
    """What a run is to one agent, before it is known in which rounds the agent takes part."""
    return compose([repeat(Participation(local, r.sampled, r.pool), r.count) for r in rounds if r.count])


def run_privacy(
    groups: Sequence[AgentGroup],
    rounds: Sequence[Rounds],
    delta: float,
    participations: Mapping[int, int] | None = None,
) -> RunPrivacy:
    """Both figures of a run, by the smallest sound accountant.

    participations: for each number of records, the most rounds that an agent holding so many took part in; without it,
    an agent that took part in every round. Of more than MOST_FIGURES groups, those of similar numbers of records are
    given the figures of the hardest among them, which bound their own.

    Raises ValueError unless 0 < delta < 1 and there is a group, all of one unit; UnsupportedEvent where no sound
    accountant knows what an agent released.
    """
    if not groups:
        raise ValueError("groups: at least one group of agents is needed, not an empty list")
    units = {group.local.unit for group in groups} - {None}
    if len(units) > 1:
        raise ValueError(f"groups: events of different units never mix: {', '.join(sorted(map(str, units)))}")
    total = sum(r.count for r in rounds)
    if participations is not None and (unknown := [g.records for g in groups if g.records not in participations]):
        raise ValueError(
            f"participations: nothing is said of agents with {', '.join(map(str, unknown))} records; known are "
            f"{', '.join(map(str, participations))}"
        )
    took_part = [total if participations is None else participations[group.records] for group in groups]
    figures: dict[int, GroupPrivacy] = {}
    for together in _alike(groups):
        locals_ = hardest(groups[i].local for i in together)
        most = max(took_part[i] for i in together)
        epsilons = (
            largest_epsilon(locals_, delta),
            largest_epsilon([global_event(local, rounds) for local in locals_], delta),
            largest_epsilon([repeat(local, most) for local in locals_], delta),
        )
        figures |= {i: GroupPrivacy(groups[i], took_part[i], *epsilons) for i in together}
    return RunPrivacy(
        next(iter(units), None), delta, tuple(figures[i] for i in range(len(groups))), tuple(rounds)
    )


def _alike(groups: Sequence[AgentGroup]) -> list[list[int]]:
    """The groups' indices: each by itself, or those of similar numbers of records together where there are many."""
    order = sorted(range(len(groups)), key=lambda i: groups[i].records)
    length = math.ceil(len(groups) / MOST_FIGURES)
    return [order[start : start + length] for start in range(0, len(order), length)]


def largest_epsilon(events: Iterable[Event], delta: float) -> float:
    """The epsilon of the hardest of the events, each by the smallest sound accountant."""
    return max(best_epsilon(event, delta).epsilon for event in events)


def by_accountant(events: Sequence[Event], delta: float) -> dict[str, dict[str, Any]]:
    """What every accountant says of the hardest of the events: {name: {epsilon, sound, caveat}}, or {unsupported:
    reason} in place of epsilon. An infinite epsilon is None."""
    out: dict[str, dict[str, Any]] = {}
    for name, accountant in ACCOUNTANTS.items():
        entry: dict[str, Any] = {"sound": accountant.sound}
        if accountant.caveat:
            entry["caveat"] = accountant.caveat
        try:
            entry["epsilon"] = finite_or_none(max(accountant.epsilon(event, delta) for event in events))
        except UnsupportedEvent as error:
            entry["unsupported"] = str(error)
        out[name] = entry
    return out


def rounds_of_curve(rounds: int) -> list[int]:
    """Numbers of rounds at which a curve of epsilon is worked out: POINTS at most, evenly spread on a logarithmic
    scale, the last one being `rounds`. In between, the later figure holds: a bound that errs on the safe side."""
    return sorted({max(1, round(rounds ** (i / (POINTS - 1)))) for i in range(POINTS)}) if rounds > 0 else []


def epsilon_by_round(
    local: Event, sampled: int, pool: int, rounds: int, delta: float
) -> list[tuple[int, float]]:
    """(t, the global epsilon spent after t rounds) at the rounds of a curve."""
    return [
        (t, best_epsilon(repeat(Participation(local, sampled, pool), t), delta).epsilon)
        for t in rounds_of_curve(rounds)
    ]
