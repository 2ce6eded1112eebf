"""PriRFed in one process: rounds of local training, all sampled agents batched, and of aggregation.

(prirfed.txt, Algorithm 1)
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from pri_rfed.aggregation import Aggregation, ProjectedMean, TangentMean
from pri_rfed.coordinator import Coordinator, RoundRecord, State
from pri_rfed.data.agents import AgentArrays, AgentData, Records, agents_by_size, most_by_size, pieces
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.events import Event, compose, repeat
from pri_rfed.problems.base import Problem
from pri_rfed.randomness import AgentStreams
from pri_rfed.training.base import Trainer

if TYPE_CHECKING:
    from pri_rfed.privacy.report import RunPrivacy

_NUMBERS_AT_ONCE = 1 << 26
"""How many numbers of records are trained on, or evaluated, together: a bound on memory, not on the size of a run."""

_NUMBERS_IN_CACHE = 1 << 21
"""The same where every step reads all records: they then stay in the processor's cache from step to step, and of those
that are held in single precision few are in double at a time."""


Runtime = Callable[[Coordinator, Trainer, Callable[[State], None]], None]
"""Carries out all rounds of a coordinator with this training, and calls the function with every new state."""


@dataclass(frozen=True)
class Budget:
    """A target for the whole run: (epsilon, delta) before it, against everybody, for every agent."""

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        wrong = []
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            wrong.append(f"epsilon = {self.epsilon!r} must be a positive finite number")
        if not 0 < self.delta < 1:
            wrong.append(f"delta = {self.delta!r} must lie strictly between 0 and 1")
        if wrong:
            raise ValueError("budget: " + "; ".join(wrong))


@dataclass(frozen=True)
class Result:
    """A finished run.

    point: the output. history: a record of every round. local_events: what one local training of an agent releases, by
    its number of records. trainer: as it ran, with the noise that was found for a budget.
    """

    point: Array
    history: tuple[RoundRecord, ...]
    participations: NDArray[np.int32]
    counts: NDArray[np.int64]
    rounds: int
    sampled: int
    delta: float
    trainer: Trainer
    aggregation: Aggregation
    local_events: dict[int, Event]
    final: State

    @cached_property
    def privacy(self) -> RunPrivacy:
        """Both figures at record level, before and after the run, by the smallest sound accountant."""
        from pri_rfed.privacy.report import AgentGroup, Rounds, run_privacy

        groups = [AgentGroup(n, a, self.local_events[n]) for n, a in agents_by_size(self.counts).items()]
        most = most_by_size(self.counts, self.participations)
        return run_privacy(groups, [Rounds(*draw, times) for draw, times in self._draws.items()], self.delta, most)

    @property
    def agent_level_event(self) -> Event | None:
        """What the whole run released about a whole agent, if the aggregation is a mechanism for that; else None."""
        events = [(self.aggregation.event(*draw), times) for draw, times in self._draws.items()]
        mechanisms = [repeat(event, times) for event, times in events if event is not None]
        return compose(mechanisms) if mechanisms else None

    @property
    def _draws(self) -> Counter[tuple[int, int]]:
        """How often so many agents were drawn out of so many."""
        return Counter(self.final.draws)


def simulate(
    problem: Problem,
    agents: AgentData | Sequence[Array],
    trainer: Trainer,
    *,
    rounds: int,
    sampled: int | None = None,
    aggregation: Aggregation | None = None,
    budget: Budget | None = None,
    delta: float = 1e-5,
    start: Array | None = None,
    seed: int = 0,
    output: Literal["last", "uniform"] = "last",
    evaluate_every: int = 1,
    on_round: Callable[[State], None] | None = None,
    resume_from: State | None = None,
    runtime: Runtime | None = None,
    evaluation: Evaluation | None = None,
) -> Result:
    """Run PriRFed: in each of `rounds` rounds `sampled` agents (default: all), drawn uniformly without replacement,
    train from the current point, and the server aggregates what they upload (default: the tangent mean).

    agents: who holds which records; a list with one array [n_i, *record_shape] for each does.

    budget: the trainer's noise is replaced by the least that keeps the whole run within it; its delta then stands for
    `delta`, which goes with the privacy figures. output: the last point, or one of the T points that rounds began with,
    drawn without regard to the data. evaluate_every: diagnostics at every so many rounds and after the last one; 0 for
    never. on_round: called after each round with a state that the run can be resumed from, even if the process is
    interrupted right then. resume_from: such a state; the result is the one that the run would have had unbroken, and
    the plan has to be the same, but that `rounds` may grow as long as nothing else depends on it.
    runtime: carries out the rounds in place of this process, to the same result. evaluation: of the same problem and
    agents, where it was made before.

    Raises ValueError with everything that is wrong, before any work is done.
    """
    aggregation = TangentMean() if aggregation is None else aggregation
    for name, value, kind in (
        ("problem", problem, Problem),
        ("trainer", trainer, Trainer),
        ("aggregation", aggregation, Aggregation),
        ("budget", Budget(1.0) if budget is None else budget, Budget),
    ):
        if not isinstance(value, kind):
            raise ValueError(f"{name} = {value!r} must be an instance of {kind.__module__}.{kind.__name__}")
    if isinstance(agents, (Sequence, np.ndarray)):
        agents = AgentArrays(list(agents))
    counts = np.asarray(agents.counts)
    pool = len(counts)
    sampled = pool if sampled is None else sampled
    delta = delta if budget is None else budget.delta
    wrong = _misfits(problem, agents, rounds, sampled, delta, start, seed, output, evaluate_every, resume_from)
    if budget is not None and hasattr(trainer, "noise"):
        trainer = replace(trainer, noise=1.0)  # type: ignore[type-var]
    elif budget is not None:
        wrong.append(f"budget needs a trainer with noise; {trainer.name} has none")
    if trainer.exchanges_gradients and aggregation.event(1, 1) is not None:
        wrong.append(
            f"aggregation {aggregation.name} bounds what an agent changes by its own upload; with trainer "
            f"{trainer.name} an agent's data enters the uploads of all others"
        )
    if trainer.leaves_manifold and not aggregation.takes_ambient:
        wrong.append(
            f"aggregation {aggregation.name} takes points of the manifold only; trainer {trainer.name} uploads others, "
            f"which {ProjectedMean.name} takes"
        )
    sizes = list(agents_by_size(counts))
    for n in sizes:
        if lines := trainer.check(problem, n):
            wrong.append(f"trainer {trainer.name}, for an agent with {n} records: " + ", ".join(lines))
            break
    try:
        agents = _prepared(problem, agents)
    except ValueError as error:
        wrong.append(str(error))
    if wrong:
        raise ValueError("; ".join(wrong))
    rounds, sampled = int(rounds), int(sampled)  # events take no numbers of NumPy's
    if budget is not None:
        from pri_rfed.privacy.calibration import calibrate_noise

        trainer = calibrate_noise(trainer, problem, sizes, sampled, pool, rounds, budget.epsilon, budget.delta)

    events = {n: trainer.event(problem, n) for n in sizes}
    last = f", output {output} of {rounds} rounds" if output != "last" else ""
    plan = (
        f"{problem.name} on {problem.manifold}, {trainer}, {aggregation}, sampled {sampled}, seed {seed}{last}, "
        f"releases {_digest(events, counts)}"
    )
    if resume_from is not None and resume_from.plan != plan:
        raise ValueError(
            f"resume_from is of another plan: {resume_from.plan or 'none was written down'}; this one is: {plan}. What "
            "was released by one plan cannot be accounted for by another"
        )
    coordinator = Coordinator(
        problem,
        counts,
        aggregation,
        rounds=rounds,
        sampled=sampled,
        seed=seed,
        start=start,
        output=output,
        state=resume_from,
        plan=plan,
        evaluate=(evaluation or Evaluation(problem, agents)) if evaluate_every else None,
        evaluate_every=evaluate_every,
    )
    on_round = (lambda state: None) if on_round is None else on_round
    if runtime is not None:
        runtime(coordinator, trainer, on_round)
    while not coordinator.finished:
        began = time.perf_counter()
        chosen, point = coordinator.draw(), coordinator.state.point
        uploads = train_agents(problem, agents, trainer, point, chosen, seed, coordinator.state.round)
        coordinator.close(chosen, uploads, seconds=time.perf_counter() - began)
        on_round(coordinator.state)

    state = coordinator.state
    return Result(
        state.output,
        state.history,
        state.participations,
        counts,
        rounds,
        sampled,
        delta,
        trainer,
        aggregation,
        events,
        state,
    )


def _digest(events: dict[int, Event], counts: NDArray[np.int64]) -> str:
    """What tells apart who holds how many records, and what a local training releases."""
    described = json.dumps({n: event.to_dict() for n, event in events.items()}, sort_keys=True)
    digest = hashlib.sha256(described.encode())
    for piece in pieces(len(counts)):
        digest.update(counts[piece].astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def train_agents(
    problem: Problem,
    agents: AgentData,
    trainer: Trainer,
    point: Array,
    chosen: NDArray[np.int64],
    seed: int | None,
    round: int,
) -> Array:
    """The uploads of the chosen agents in a round, [len(chosen), *point_shape]."""
    batch = getattr(trainer, "batch", "full")
    numbers = _NUMBERS_IN_CACHE if batch == "full" else _NUMBERS_AT_ONCE
    parts = [chosen] if trainer.exchanges_gradients else _parts(problem, agents.counts, chosen, numbers)
    uploads = [
        trainer.train(problem, point, agents.records(part), AgentStreams(seed, round, part.tolist())) for part in parts
    ]
    return uploads[0] if len(uploads) == 1 else np.concatenate(uploads)


def _parts(
    problem: Problem, counts: NDArray[np.int64], agents: NDArray[np.int64], numbers: int
) -> list[NDArray[np.int64]]:
    """The agents, divided so that the records of a part are at most so many numbers."""
    longest = int(counts[agents].max()) * math.prod(problem.record_shape)
    length = max(1, numbers // max(1, longest))
    return [agents[i : i + length] for i in range(0, len(agents), length)]


class _PreparedOnDemand:
    """Agents whose records pass through the problem's preparation whenever they are made."""

    def __init__(self, problem: Problem, agents: AgentData):
        self._problem, self._agents = problem, agents

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._agents.counts

    def records(self, agents: NDArray[np.int64]) -> Records:
        records = self._agents.records(agents)
        if records.stored.shape[2:] != self._problem.record_shape:
            raise ValueError(
                f"agents: records of {self._problem.name} must come as [agents, n, "
                f"{', '.join(map(str, self._problem.record_shape))}], not in the shape {records.stored.shape}"
            )
        return Records(self._problem.prepare_records(records.values), records.counts)


def _prepared(problem: Problem, agents: AgentData) -> AgentData:
    """The agents with their records as the problem uses them. Raises ValueError naming the first bad one."""
    if not isinstance(agents, AgentArrays):
        return _PreparedOnDemand(problem, agents)
    try:
        return agents.prepared(problem)
    except ValueError as error:
        raise ValueError(f"agents: {error}") from error


def _misfits(
    problem: Problem,
    agents: AgentData,
    rounds: int,
    sampled: int,
    delta: float,
    start: Array | None,
    seed: int,
    output: str,
    evaluate_every: int,
    resume_from: State | None,
) -> list[str]:
    """What is wrong with a run, but for its trainer and its records."""
    pool = len(agents.counts)
    wrong = []
    for name, value, least in (("rounds", rounds, 1), ("seed", seed, 0), ("evaluate_every", evaluate_every, 0)):
        if not (_is_whole(value) and value >= least):
            wrong.append(f"{name} = {value!r} must be a whole number >= {least}")
    if not (_is_whole(sampled) and 1 <= sampled <= pool):
        wrong.append(f"sampled = {sampled!r} must be a whole number from 1 to that of the agents, {pool}")
    if not 0 < delta < 1:
        wrong.append(f"delta = {delta!r} must lie strictly between 0 and 1")
    if output not in ("last", "uniform"):
        wrong.append(f"output = {output!r} must be 'last' or 'uniform'")
    if output == "uniform" and rounds == 1:
        wrong.append("output = 'uniform' draws from the points that rounds begin with: for rounds = 1, the start")
    point = start if resume_from is None else resume_from.point
    if point is not None:
        name = "start" if resume_from is None else "resume_from"
        fine, why = problem.manifold.check_point(np.asarray(point, dtype=float), explain=True)
        if not fine or np.shape(point) != problem.manifold.point_shape:
            wrong.append(f"{name} must be one point of {problem.manifold}; {why or f'its shape is {np.shape(point)}'}")
    if resume_from is not None and (len(resume_from.participations) != pool or resume_from.round > rounds):
        wrong.append(
            f"resume_from is after round {resume_from.round} of a run with {len(resume_from.participations)} agents; "
            f"this one has {rounds} rounds and {pool} agents"
        )
    return wrong


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class Evaluation:
    """Diagnostics on the records of all agents, as the problem uses them (`Problem.prepare_records`). Not private."""

    def __init__(self, problem: Problem, agents: AgentData):
        self._problem = problem
        self._total = int(np.sum(agents.counts))
        self._agents = agents
        self._everything = self._optimum = None
        if isinstance(agents, AgentArrays):
            self._optimum = problem.optimum(agents.all_stored())
            if agents.precision == "float64":  # else it is widened by parts, whenever it is needed
                self._everything = agents.all_records()
        self._least = None if self._optimum is None else self.cost(self._optimum)

    def _records(self) -> Iterator[tuple[Array, NDArray[np.bool_] | None]]:
        """All records in parts [A, n, *record_shape], with the mask of those that count."""
        if self._everything is not None:
            length = max(1, _NUMBERS_AT_ONCE // math.prod(self._problem.record_shape))
            for i in range(0, len(self._everything), length):
                yield self._everything[None, i : i + length], None
            return
        everybody = np.arange(len(self._agents.counts))
        for part in _parts(self._problem, self._agents.counts, everybody, _NUMBERS_IN_CACHE):
            records = self._agents.records(part)
            yield records.values, records.mask

    def cost(self, point: Array) -> float:
        """F(w), the mean loss of all records."""
        return sum(self._losses(point, values, mask) for values, mask in self._records()) / self._total

    def _losses(self, point: Array, values: Array, mask: NDArray[np.bool_] | None) -> float:
        """The sum of the losses of the records that count."""
        loss = self._problem.loss(point, values)
        return float(np.sum(loss if mask is None else np.where(mask, loss, 0.0)))

    def __call__(self, point: Array) -> RoundRecord:
        manifold = self._problem.manifold
        with np.errstate(all="ignore"):
            gradient, losses = np.zeros(manifold.point_shape), 0.0
            for values, mask in self._records():
                size = np.full(len(values), float(self._total))
                base = np.broadcast_to(point, (len(values), *manifold.point_shape))
                gradient = gradient + self._problem.clipped_mean(base, values, None, mask, size).sum(axis=0)
                losses += self._losses(point, values, mask)
            cost = losses / self._total
            record: RoundRecord = {"cost": cost, "gradient_norm": float(manifold.norm(point, gradient))}
            if self._optimum is not None and self._least is not None:
                record["excess_risk"] = cost - self._least
                record["distance"] = float(self._problem.distance(point, self._optimum))
        return record
