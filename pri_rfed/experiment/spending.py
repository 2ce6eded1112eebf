"""What a run has spent so far, from its folder alone: the plan that it left there and the rounds that are done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pri_rfed.coordinator import draws_of
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.dominance import hardest
from pri_rfed.privacy.events import Event, event_from_dict, repeat
from pri_rfed.privacy.report import Rounds, epsilon_by_round, global_event

MOST_PARTICIPATIONS = 40
"""Of more different numbers of participations, those of similar size are given the figure of the largest."""


@dataclass(frozen=True)
class Spending:
    """The plan of a run: counts are the records of all agents, local what a training of one with so many releases."""

    counts: tuple[int, ...]
    sampled: int
    rounds: int
    delta: float
    local: dict[int, Event]
    _known: dict[Event, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, folder: RunFolder) -> Spending | None:
        """As the run in the folder planned; None where it left no plan. Raises ValueError if that cannot be read."""
        plan = folder.read("plan.json")
        if plan is None:
            return None
        try:
            local = {entry["records"]: event_from_dict(entry["event"]) for entry in plan["local_events"]}
            return cls(tuple(plan["counts"]), plan["sampled"], plan["rounds"], plan["delta"], local)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder.path / 'plan.json'}: no plan of this project: {error!r}") from error

    @property
    def is_private(self) -> bool:
        return all(event.is_private for event in self.local.values())

    def participations(
        self, rounds: Iterable[Mapping[str, Any]], failed: Iterable[Mapping[str, Any]] = ()
    ) -> list[int]:
        """In how many of these rounds (and of their draws in vain) each agent took part. failed: draws in vain for a
        round that was not done."""
        taken: Counter[int] = Counter()
        for draw in (*draws_of(rounds), *failed):
            taken.update(draw["sampled"])
        return [taken[agent] for agent in range(len(self.counts))]

    def spent(
        self,
        rounds: Sequence[Mapping[str, Any]],
        planned: Sequence[tuple[int, float]],
        failed: Sequence[Mapping[str, Any]] = (),
    ) -> float:
        """The global epsilon of these rounds as they were drawn, those in vain included. planned: `before()`, which
        holds where every round took one draw, from all agents. failed: as in `participations`."""
        draws = Counter(
            (len(draw["sampled"]), draw.get("pool", len(self.counts))) for draw in (*draws_of(rounds), *failed)
        )
        if not failed and draws == {(self.sampled, len(self.counts)): len(rounds)}:
            return next(epsilon for t, epsilon in planned if t >= len(rounds))
        drawn = [Rounds(*draw, times) for draw, times in draws.items()]
        return max(self._epsilon(global_event(event, drawn)) for event in hardest(self.local.values()))

    def before(self) -> list[tuple[int, float]]:
        """(t, the global epsilon after t rounds) at the rounds of a curve; in between, the next one holds."""
        curves = [
            epsilon_by_round(event, self.sampled, len(self.counts), self.rounds, self.delta)
            for event in hardest(self.local.values())
        ]
        return [(together[0][0], max(epsilon for _, epsilon in together)) for together in zip(*curves, strict=True)]

    def after(self, participations: Sequence[int]) -> float:
        """The largest epsilon of an agent's ledger."""
        most: dict[int, int] = {}
        for n, times in zip(self.counts, participations, strict=True):
            most[n] = max(times, most.get(n, 0))
        return max(self._epsilon(event) for event in hardest(repeat(self.local[n], k) for n, k in most.items()))

    def ledgers(self, participations: Sequence[int]) -> list[float]:
        """The epsilon of each agent's ledger, or of one that has spent no less."""
        different = sorted(set(participations))
        step = -(-len(different) // MOST_PARTICIPATIONS)
        stands_for = {k: different[min(i - i % step + step, len(different)) - 1] for i, k in enumerate(different)}
        return [
            self._epsilon(repeat(self.local[n], stands_for[k]))
            for n, k in zip(self.counts, participations, strict=True)
        ]

    def _epsilon(self, event: Event) -> float:
        if event not in self._known:
            self._known[event] = best_epsilon(event, self.delta).epsilon
        return self._known[event]
