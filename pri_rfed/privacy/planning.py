"""What a plan would cost before anything runs, and which plan fits a budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pri_rfed.privacy.accountants import theorem_4_2
from pri_rfed.privacy.calibration import (
    PublishedComparison,
    calibrate_noise,
    largest_count,
    optimise_alpha,
    published_comparison,
    with_options,
)
from pri_rfed.privacy.dominance import hardest
from pri_rfed.privacy.events import Event, Gaussian, Participation, Unit, repeat
from pri_rfed.privacy.gaussian import gaussian_mu
from pri_rfed.privacy.report import (
    AgentGroup,
    Rounds,
    by_accountant,
    finite_or_none,
    global_event,
    neighbours,
    run_privacy,
)

if TYPE_CHECKING:
    from pri_rfed.problems.base import Problem
    from pri_rfed.training.base import Trainer

MOST_GROUPS = 8
"""Agents are shown in at most this many groups; in each, the figure is that of its hardest agent."""
MOST_COUNT = 10**6
"""Rounds and local steps are not looked for above this."""

Unknown = Literal["noise", "rounds", "sampled", "steps"]
Figures = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A run that is thought about: who trains how, and how often.

    counts: the numbers of records of all agents, the pool that `sampled` are drawn from in each of the `rounds` rounds.
    """

    trainer: Trainer
    problem: Problem
    counts: tuple[int, ...]
    sampled: int
    rounds: int
    delta: float

    @property
    def pool(self) -> int:
        return len(self.counts)

    def groups(self) -> list[AgentGroup]:
        """The agents, the fewest records first, those of similar numbers together under the hardest of them."""
        agents = Counter(self.counts)
        sizes = sorted(agents)
        per_group = math.ceil(len(sizes) / MOST_GROUPS)
        groups = []
        for start in range(0, len(sizes), per_group):
            part = sizes[start : start + per_group]
            for event in hardest(self.trainer.event(self.problem, n) for n in part):
                groups.append(AgentGroup(part[0], sum(agents[n] for n in part), event))
        return groups


def account(plan: Plan) -> Figures:
    """Both figures of a plan, by every accountant and for every group of agents, as plain values for JSON.

    The ledger is that of an agent that takes part in every round.
    """
    out = figures(plan.groups(), [Rounds(plan.sampled, plan.pool, plan.rounds)], plan.delta)
    unit = out["unit"] and Unit(out["unit"])
    return out | {"neighbours": neighbours(unit, plan.problem.protects)}


def figures(
    groups: Sequence[AgentGroup],
    rounds: Sequence[Rounds],
    delta: float,
    participations: Mapping[int, int] | None = None,
) -> Figures:
    """The same for groups of agents. participations: as in `report.run_privacy`. An infinite epsilon is null."""
    run = run_privacy(groups, rounds, delta, participations)
    before = [global_event(event, rounds) for event in hardest(group.local for group in groups)]
    after = hardest(repeat(group.group.local, group.participations) for group in run.groups)
    return {
        "unit": run.unit and str(run.unit),
        "neighbours": neighbours(run.unit),
        "delta": delta,
        "private": run.is_private and math.isfinite(run.epsilon_global),
        "global": {"epsilon": finite_or_none(run.epsilon_global)},
        "ledger": {
            "epsilon": finite_or_none(run.epsilon_ledger_max),
            "participations": max(group.participations for group in run.groups),
        },
        "accountants": _by_accountant(before, after, delta),
        "draws": [{"sampled": r.sampled, "pool": r.pool, "count": r.count} for r in rounds],
        "groups": [
            {
                "records": g.group.records,
                "agents": g.group.agents,
                "participations": g.participations,
                "local": {"epsilon": finite_or_none(g.epsilon_local)},
                "global": {"epsilon": finite_or_none(g.epsilon_global)},
                "ledger": {"epsilon": finite_or_none(g.epsilon_ledger)},
            }
            for g in run.groups
        ],
    }


def _by_accountant(before: Sequence[Event], after: Sequence[Event], delta: float) -> dict[str, Any]:
    """What each accountant says of the hardest agent; null with a reason where it does not know such an event."""
    out: dict[str, Any] = {}
    for figure, events in (("global", before), ("ledger", after)):
        for name, said in by_accountant(events, delta).items():
            entry = out.setdefault(name, {key: said[key] for key in ("sound", "caveat") if key in said})
            entry[f"{figure}_epsilon"] = said.get("epsilon")
            if "unsupported" in said:
                entry[f"{figure}_unsupported"] = said["unsupported"]
    return out


# Backwards ------------------------------------------------------------------------------------------------------------


def solve(plan: Plan, epsilon: float, unknown: Unknown, split: bool = False) -> Plan:
    """`plan` with its `unknown` such that the global figure of every agent is at most (epsilon, plan.delta).

    The least noise, or the most rounds, sampled agents or local steps; rounds and steps up to 10^6. split: find the
    best share alpha of the variance for DP-RSVRG as well.

    Raises ValueError where nothing fits.
    """
    if split and unknown != "noise":
        raise ValueError("the split of variance is optimised together with the noise only")
    if unknown == "noise":
        arguments = (plan.problem, plan.counts, plan.sampled, plan.pool, plan.rounds)
        trainer = calibrate_noise(plan.trainer, *arguments, epsilon, plan.delta)
        if split:
            for _ in range(2):
                trainer = optimise_alpha(trainer, *arguments, plan.delta)
                trainer = calibrate_noise(trainer, *arguments, epsilon, plan.delta)
        return replace(plan, trainer=trainer)
    most = plan.pool if unknown == "sampled" else MOST_COUNT
    hard = hardest(plan.trainer.event(plan.problem, n) for n in sorted(set(plan.counts)))
    sizes = [n for n in sorted(set(plan.counts)) if plan.trainer.event(plan.problem, n) in hard]
    count = most
    for n in sizes:
        count = min(count, largest_count(_counting(plan, unknown, n), epsilon, plan.delta, count) if count else 0)
    if count == 0:
        name = {"rounds": "round", "sampled": "sampled agent", "steps": "local step"}[unknown]
        raise ValueError(f"epsilon = {epsilon:g} at delta = {plan.delta:g}: already one {name} spends more; add noise")
    return with_count(plan, unknown, count)


def _counting(plan: Plan, unknown: Unknown, records: int) -> Callable[[int], Event]:
    def event_of(count: int) -> Event:
        counted = with_count(plan, unknown, count)
        local = counted.trainer.event(plan.problem, records)
        return repeat(Participation(local, counted.sampled, plan.pool), counted.rounds)

    return event_of


def with_count(plan: Plan, unknown: Unknown, count: int) -> Plan:
    """`plan` with another number of rounds, sampled agents or local steps."""
    if unknown == "rounds":
        return replace(plan, rounds=count)
    if unknown == "sampled":
        return replace(plan, sampled=count)
    field = steps_field(plan.trainer)
    if field is None:
        raise ValueError(f"trainer = {plan.trainer.name!r} takes no local steps")
    return replace(plan, trainer=with_options(plan.trainer, **{field: count}))


def steps_field(trainer: Trainer | type[Trainer]) -> str | None:
    """The option that says how many local steps this training takes; None where there is none."""
    fields = getattr(trainer, "__dataclass_fields__", {})
    return next((name for name in ("steps", "inner_steps") if name in fields), None)


def published_rule(plan: Plan, epsilon: float) -> PublishedComparison | None:
    """The noise that the papers' rule (c = 1) gives one local training for (epsilon, plan.delta), and what is true of
    it for the agent with the fewest records; None for a training that the rule does not speak of."""
    from pri_rfed.problems.clipping import ClippedGradient
    from pri_rfed.training import DPRSGD, DPRSVRG

    trainer, records = plan.trainer, min(plan.counts)
    if isinstance(trainer, DPRSGD) and trainer.sampling == "without-replacement":
        bound, steps = ClippedGradient(plan.problem, trainer.clip).norm_bound, trainer.steps
    elif isinstance(trainer, DPRSVRG):
        clips = (trainer.clip_full, trainer.clip_step)
        bound = max(ClippedGradient(plan.problem, clip).norm_bound for clip in clips)
        steps = trainer.total_epochs * trainer.inner_steps
    else:
        return None

    def event_of(sigma: float) -> Event:
        return with_options(trainer, noise=sigma, noise_unit="absolute").event(plan.problem, records)

    return published_comparison(event_of, bound, steps, records, epsilon, plan.delta)


# The published table --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClaimedRow:
    """One row of Table 1: `sampled` of `agents` agents in each of `rounds` rounds."""

    agents: int
    sampled: int
    rounds: int

    def __post_init__(self) -> None:
        wrong = [
            f"{name} = {getattr(self, name)} must be at least 1"
            for name in ("agents", "sampled", "rounds")
            if getattr(self, name) < 1
        ]
        if self.sampled > self.agents:
            wrong.append(f"sampled = {self.sampled} must not exceed agents = {self.agents}")
        if wrong:
            raise ValueError("; ".join(wrong))


@dataclass(frozen=True, kw_only=True)
class ClaimedTable:
    """Table 1 of papers/prirfed: what its Theorem 4.2 makes of local trainings that are (epsilon, delta)-private, with
    delta_hat for advanced composition; and what is true where a local training is one Gaussian release of exactly
    that."""

    epsilon: float
    delta: float
    delta_hat: float = 1e-3

    def __post_init__(self) -> None:
        wrong = []
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            wrong.append(f"epsilon = {self.epsilon} must be a positive finite number")
        for name in ("delta", "delta_hat"):
            if not 0 < getattr(self, name) < 1:
                wrong.append(f"{name} = {getattr(self, name)} must lie strictly between 0 and 1")
        if wrong:
            raise ValueError("; ".join(wrong))

    def figures(self, rows: Sequence[ClaimedRow]) -> list[Figures]:
        """For each row: both compositions of the theorem, each with its delta, and the true figures at the delta of
        the advanced one (null where that is no probability)."""
        local = Gaussian(gaussian_mu(self.epsilon, self.delta), 1.0)
        out: list[Figures] = []
        for row in rows:
            claim = theorem_4_2(self.epsilon, self.delta, row.sampled, row.agents, row.rounds, self.delta_hat)
            delta = claim.delta + self.delta_hat
            rounds = [Rounds(row.sampled, row.agents, row.rounds)]
            run = run_privacy([AgentGroup(1, row.agents, local)], rounds, delta) if delta < 1 else None
            out.append(
                {
                    "agents": row.agents,
                    "sampled": row.sampled,
                    "rate": row.sampled / row.agents,
                    "rounds": row.rounds,
                    "theorem-4.2": {
                        "sound": False,
                        "sequential": {"epsilon": finite_or_none(claim.sequential), "delta": claim.delta},
                        "advanced": {"epsilon": finite_or_none(claim.advanced), "delta": delta},
                    },
                    "delta": delta,
                    "global": {"epsilon": None if run is None else run.epsilon_global},
                    "ledger": {"epsilon": None if run is None else run.epsilon_ledger_max},
                }
            )
        return out
