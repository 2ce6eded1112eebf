"""The figures of a setting: first an upper bound in a moment, then the smallest that any sound accountant shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from pri_rfed.experiment.config import protects
from pri_rfed.explorer.setting import Base, Setting
from pri_rfed.privacy import planning
from pri_rfed.privacy.accountants import ACCOUNTANTS, UnsupportedEvent, best_epsilon
from pri_rfed.privacy.calibration import calibrate_noise
from pri_rfed.privacy.dominance import hardest
from pri_rfed.privacy.events import Event, repeat
from pri_rfed.privacy.loss_distribution import COARSE, Precision, computed_at
from pri_rfed.privacy.planning import Plan
from pri_rfed.privacy.report import Rounds, finite_or_none, global_event, neighbours

ROUGH = Precision(50, 1 << 14)
"""Noise is looked for on such a grid: it is enough for the target, and up to 0.02 % more than the least."""
POINTS = 9
"""Of the curves over rounds."""


@dataclass(frozen=True)
class _Question:
    """What is accounted for: of the agents for whom it is hardest, what one training of each releases."""

    plan: Plan
    local: list[Event]

    @classmethod
    def of(cls, plan: Plan) -> _Question:
        return cls(plan, hardest(plan.trainer.event(plan.problem, n) for n in sorted(set(plan.counts))))

    @property
    def busiest(self) -> int:
        return busiest(self.plan.pool, self.plan.sampled, self.plan.rounds)

    def before(self, rounds: int | None = None) -> list[Event]:
        drawn = [Rounds(self.plan.sampled, self.plan.pool, self.plan.rounds if rounds is None else rounds)]
        return [global_event(event, drawn) for event in self.local]

    def after(self, times: int) -> list[Event]:
        return [repeat(event, times) for event in self.local]


def busiest(pool: int, sampled: int, rounds: int) -> int:
    """In how many rounds the agent that takes part most will: as likely as not, no more than that.

    Each agent's number is binomial(T, s/N); by a union bound over the N agents.
    """
    if sampled == pool:
        return rounds
    more = special.bdtrc(np.arange(rounds + 1.0), rounds, sampled / pool)  # P(more than 0, 1, ... rounds)
    return max(1, int(np.argmax(more <= 0.5 / pool)))


def quick(base: Base, setting: Setting) -> dict[str, Any]:
    """All figures in a moment, by the accountant that is the tightest nearly always, on a coarse grid: each is an upper
    bound. With a target, the noise for it too. Raises ValueError, in words, where there is none.
    """
    with computed_at(COARSE):
        return _quick(base, setting)


def _quick(base: Base, setting: Setting) -> dict[str, Any]:
    plan = _with_noise(base.plan(setting), setting)
    asked = _Question.of(plan)
    noise = getattr(plan.trainer, "noise", None)
    return {
        "noise": noise,
        "busiest": asked.busiest,
        "exact": False,
        "accountant": "pld",
        "neighbours": neighbours(asked.local[0].unit, protects(base.tables["problem"])),
        "local": _worst("pld", asked.local, setting.delta),
        "global": _worst("pld", asked.before(), setting.delta),
        "ledger": _worst("pld", asked.after(asked.busiest), setting.delta),
        "claimed": _worst("theorem-4.2", asked.before(), setting.delta),
        "caveat": ACCOUNTANTS["theorem-4.2"].caveat,
        "misfit": base.misfit(setting),
    }


def exact(base: Base, setting: Setting) -> dict[str, Any]:
    """The same by the smallest sound accountant, what each accountant says, and the ledger of an agent that takes part
    in every round. The noise must be given."""
    plan = base.plan(setting)
    asked = _Question.of(plan)
    every = planning.account(plan)
    return {
        "busiest": asked.busiest,
        "exact": True,
        "local": finite_or_none(_best(asked.local, setting.delta)),
        "global": every["global"]["epsilon"],
        "ledger": finite_or_none(_best(asked.after(asked.busiest), setting.delta)),
        "every_round": every["ledger"]["epsilon"],
        "accountants": every["accountants"],
    }


def points_of_curves(rounds: int) -> list[int]:
    """Rounds at which the curves are drawn, the last one first: it is what one looks at."""
    return sorted({max(1, round(rounds * i / POINTS)) for i in range(1, POINTS + 1)}, reverse=True)


def point_of_curves(base: Base, setting: Setting, rounds: int) -> dict[str, Any]:
    """Both figures after so many rounds. The noise must be given."""
    asked = _Question.of(replace(base.plan(setting), rounds=rounds))
    with computed_at(COARSE):
        return _point(asked, rounds, setting.delta)


def _point(asked: _Question, rounds: int, delta: float) -> dict[str, Any]:
    return {
        "round": rounds,
        "global": _worst("pld", asked.before(), delta),
        "ledger": _worst("pld", asked.after(asked.busiest), delta),
    }


def _with_noise(plan: Plan, setting: Setting) -> Plan:
    if setting.epsilon is None:
        return plan
    arguments = (plan.problem, set(plan.counts), plan.sampled, plan.pool, plan.rounds, setting.epsilon, plan.delta)
    with computed_at(ROUGH):
        return replace(plan, trainer=calibrate_noise(plan.trainer, *arguments))


def _worst(accountant: str, events: Sequence[Event], delta: float) -> float | None:
    """The largest epsilon; None where it is infinite, or the accountant does not know such an event."""
    try:
        return finite_or_none(max(ACCOUNTANTS[accountant].epsilon(event, delta) for event in events))
    except UnsupportedEvent:
        return None


def _best(events: Sequence[Event], delta: float) -> float:
    return max((best_epsilon(event, delta).epsilon for event in events), default=math.inf)
