"""An agent in a real federation: it decides for itself what it does with its data.

The server proposes a plan. The agent computes on its own what the plan would release, holds it against its owner's
policy and the ledger, and only then trains. Nothing leaves it but the privatised point, or a refusal whose reason
depends on the plan, the policy and what was spent before, never on a record.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pri_rfed.data.agents import AgentArrays, Records
from pri_rfed.experiment.config import build_named, build_problem
from pri_rfed.experiment.options import Built
from pri_rfed.files import read_arrays
from pri_rfed.manifolds.base import Array
from pri_rfed.policy import Policy
from pri_rfed.privacy.events import Approximate, Event, Gaussian, NonPrivate, Pure
from pri_rfed.privacy.ledger import BudgetExceeded, Ledger, LedgerError, content_hash
from pri_rfed.problems.base import Problem
from pri_rfed.randomness import AgentStreams
from pri_rfed.training import TRAINERS, Trainer
from pri_rfed.wire import Answer, Plan, clean

log = logging.getLogger(__name__)


class Refused(ValueError):
    """A plan that the agent does not follow. The reason is told to the server."""


class Participant:
    """One agent: its owner's policy, its records, its ledger.

    Raises ValueError if the data cannot be read, or are no records of a problem that the policy names: the owner learns
    it here, and no server later by a refusal.
    """

    def __init__(self, policy: Policy):
        self.policy = policy
        records = read_records(policy)
        self.count = len(records)
        self._problems: dict[str, tuple[Problem, AgentArrays]] = {}
        own = AgentArrays([records], [policy.agent], policy.precision)
        for table in policy.problems:
            built = build_problem(table, records.shape[1:])
            problem = _made(built)
            self._problems[_key(built.table)] = problem, own.prepared(problem)
            if problem.protects:
                log.warning("%s: problem %s: %s", policy.agent, problem.name, problem.protects)
        if policy.test is not None:
            log.warning(
                "%s: the section [test] of its policy fixes the seed of its noise, and whoever knows it can take the "
                "noise away; for tests and rehearsals alone",
                policy.agent,
            )
        self._content = content_hash(records)
        self._ledger = _open_ledger(policy)

    def train(self, plan: Plan) -> Array:
        """The upload [*point_shape] for `plan`, after everything is checked and what it releases stands in the ledger.

        Raises Refused, with nothing released, where the policy or the ledger forbids it.
        """
        problem, records = self._problem(plan)
        trainer = self._trainer(plan, problem)
        event = trainer.event(problem, self.count)
        self._check(event)
        fixed = self.policy.test
        streams = AgentStreams(fixed.seed if fixed else None, plan.round, [fixed.stream if fixed else 0])
        self._charge(event, plan, problem)
        upload: Array = trainer.train(problem, plan.point, records, streams)[0]
        return upload

    def _problem(self, plan: Plan) -> tuple[Problem, Records]:
        """The owner's own problem that the plan speaks of, and the records as it uses them."""
        announced = plan.agents[self.policy.agent]
        if announced != self.count:
            raise Refused(f"it is registered with {announced} records and holds {self.count}")
        if _key(plan.problem) not in self._problems:
            raise Refused(f"the owner does not allow the problem {_key(plan.problem)}")
        problem, own = self._problems[_key(plan.problem)]
        fine, why = problem.manifold.check_point(plan.point, explain=True)
        if plan.point.shape != problem.manifold.point_shape or not fine:
            raise Refused(f"the base point is none of {problem.manifold}: {why or plan.point.shape}")
        return problem, own.records(np.array([0]))

    def _trainer(self, plan: Plan, problem: Problem) -> Trainer:
        """The training that the plan describes, if the owner allows it."""
        name = plan.trainer.get("name")
        if name not in self.policy.trainers:
            raise Refused(f"the owner does not allow the trainer {name}")
        try:
            trainer = _made(build_named("trainer", TRAINERS, plan.trainer))
        except ValueError as error:
            raise Refused(str(error)) from None
        if trainer.exchanges_gradients:
            raise Refused(f"{name} needs agents that see each other's gradients")
        wrong = trainer.check(problem, self.count)
        if wrong:
            raise Refused("; ".join(wrong))
        touched = trainer.gradient_calls(self.count)
        if touched > self.policy.most_records:
            raise Refused(f"it evaluates {touched} gradients of records; the owner allows {self.policy.most_records}")
        return trainer

    def _check(self, event: Event) -> None:
        """Raise Refused unless everything is released by a mechanism, with as much noise as the owner asks for."""
        if not event.is_private:
            raise Refused("it would release something without noise")
        least = least_noise(event)
        # A multiple that was asked for and is given exactly may differ by rounding.
        if least < self.policy.least_noise * (1 - 1e-9):
            raise Refused(
                f"its noise is {least:.6g} times the sensitivity; the owner asks for {self.policy.least_noise:g}"
            )


    def _charge(self, event: Event, plan: Plan, problem: Problem) -> None:
        """Have the ledger count the release. Raises Refused if it does not; the owner's log says more than the server
        learns."""
        label = f"{clean(plan.run)}: round {plan.round + 1}, attempt {plan.attempt + 1}"
        try:
            status = self._ledger.charge(self.policy.dataset, event, label, self._content, problem.protects)
        except BudgetExceeded as error:
            log.warning("%s: %s", self.policy.agent, error)
            raise Refused("it would pass the owner's budget") from None
        except LedgerError as error:
            log.error("%s: %s", self.policy.agent, error)
            raise Refused("its ledger does not vouch for the release") from None
        if status.content_changed:
            log.warning("%s: the records are not those of the last release; a budget belongs to one data set", label)


def answer(participants: Mapping[str, Participant], plan: Plan) -> Answer:
    """What these agents answer to `plan`: everyone that is asked trains or refuses on its own.

    An agent whose training fails is left out of the answer, without details, which could depend on records; its owner
    finds them in the log.
    """
    points: dict[str, Array] = {}
    refused: dict[str, str] = {}
    for name in plan.agents:
        if name not in participants:
            refused[name] = "it is not here"
            continue
        try:
            points[name] = participants[name].train(plan)
            log.info("%s: round %d: answered", name, plan.round + 1)
        except Refused as refusal:
            refused[name] = str(refusal)
            log.warning("%s: round %d: refused: %s", name, plan.round + 1, refusal)
        except Exception:
            log.exception("%s: round %d: the training failed; it has spent what the plan costs", name, plan.round + 1)
    return Answer(plan.digest, points, refused)


def _open_ledger(policy: Policy) -> Ledger:
    """The data set's ledger. Raises ValueError if there is none, or its budget is not the one of the policy."""
    wanted, dataset = policy.budget, policy.dataset
    try:
        ledger = Ledger.open(policy.ledger)
        held = ledger.status(dataset).budget
    except LedgerError as error:
        raise ValueError(str(error)) from error
    if (held.epsilon, held.delta) != (wanted.epsilon, wanted.delta):
        raise ValueError(
            f"{policy.ledger}: the budget of data set {dataset!r} is epsilon = {held.epsilon:g} at delta = "
            f"{held.delta:g}; the policy of {policy.agent} says {wanted.epsilon:g} at {wanted.delta:g}"
        )
    return ledger


def read_records(policy: Policy) -> Array:
    """The records [n, *record_shape] of a policy's data file. Raises ValueError if it holds none."""
    try:
        records = read_arrays(policy.data, ("records",))["records"]
    except (OSError, ValueError) as error:
        raise ValueError(f"data = '{policy.data}' cannot be read as .npy, or as .npz with records: {error}") from None
    if records.ndim < 2 or len(records) == 0 or records.dtype.kind not in "fiu":
        raise ValueError(
            f"data = '{policy.data}' must hold numbers [n, ...] with n >= 1, not {records.shape} of {records.dtype}"
        )
    return records.astype(float)


def least_noise(event: Event) -> float:
    """The least noise of the releases that an event is made of, as a multiple of their sensitivity: the standard
    deviation of a Gaussian one, the scale 1/epsilon that a Laplace one has at least; 0 where no more is known."""
    match event:
        case Gaussian():
            return event.sigma / event.sensitivity
        case Pure():
            return 1 / event.epsilon
        case Approximate() | NonPrivate():
            return 0.0
    return min(map(least_noise, event.parts), default=math.inf)


def _key(table: Mapping[str, Any]) -> str:
    """A table as a text that is the same for equal tables."""
    return json.dumps(table, sort_keys=True)


def _made(built: Built[Any]) -> Any:
    if built.errors or built.value is None:
        raise ValueError("; ".join(built.errors))
    return built.value
