"""Attacks on the real trainers: thousands of repetitions on two neighbouring data sets made to be told apart.

What comes out is a lower bound on epsilon (`pri_rfed.privacy.evidence`), to be held against what the accountants claim
for the very event that the trainer reports. A repetition is an agent of one batched training, with its own random
streams. The attacker sees every point that the training computes a gradient at, and the upload: the guarantee covers
all of them, because every step is charged.
"""

from __future__ import annotations

import copy
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pri_rfed.aggregation import AgentLevelMean, Aggregation, TangentMean
from pri_rfed.data.agents import AgentArrays, Records
from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.privacy.events import Event, Participation, Unit
from pri_rfed.privacy.evidence import SOUND, Claim, Evidence, check_options, evidence
from pri_rfed.privacy.report import finite_or_none, neighbours
from pri_rfed.problems.base import Problem
from pri_rfed.problems.frechet import FrechetMean
from pri_rfed.problems.matrix_completion import MatrixCompletion
from pri_rfed.problems.pca import PrincipalEigenvector, PrincipalSubspace
from pri_rfed.problems.structured_prediction import HyperbolicStructuredPrediction
from pri_rfed.randomness import AgentStreams, Role, stream
from pri_rfed.simulation import simulate
from pri_rfed.training.base import Trainer
from pri_rfed.training.dp_rsgd import DPRSGD
from pri_rfed.training.sgd import RGD

Progress = Callable[[int, int], None]
"""Called with how many repetitions are done, and of how many."""

OVERSHOOT = 10.0
"""How many times the clip bound the gradients of an attack are long: without clipping they would be felt."""

CLIPS = ("clip", "clip_full", "clip_step")
"""What trainers call their clip bounds."""

_NUMBERS_AT_ONCE = 1 << 21
"""How many numbers of gradients one batched call computes: a bound on memory."""
_REPETITIONS_AT_ONCE = 2000
"""How many repetitions it computes at most, so that there is progress to be seen."""


class WorstCaseGradients(Problem):
    """Losses whose gradient at every point w is a chosen vector: the tangent vector with the coordinates z at w.

    With it, two records can be as far apart as clipping allows at every step, on every manifold. bound: a norm that the
    records are refused above, for trainers that do not clip; None for no bound. turning: the sign is reversed at
    `start`, so that differences between gradients there and elsewhere are as large as clipping allows, too.

    `loss` is linear in the normal coordinates at the start; its gradient is the above there and to first order nearby.
    """

    name = "worst-case-gradients"

    def __init__(self, manifold: Manifold, start: Array, bound: float | None = None, turning: bool = False):
        self.manifold = manifold
        self.record_shape = (manifold.dim,)
        self.gradient_bound = bound
        self._start, self._turning = start, turning

    def loss(self, w: Array, z: Array) -> Array:
        seen = self.manifold.coordinates(self._start, self.manifold.log(self._start, w, strict=False))
        return np.vecdot(seen, z) * self._signs(w)

    def gradient(self, w: Array, z: Array) -> Array:
        return self.manifold.from_coordinates(w, z * self._signs(w)[..., None])

    def check_records(self, z: Array) -> None:
        super().check_records(z)
        longest = float(np.sqrt(np.max(np.vecdot(z, z))))
        if self.gradient_bound is not None and longest > self.gradient_bound * (1 + 1e-12):
            raise ValueError(f"{self.name}: a record has norm {longest:.6g}, above bound = {self.gradient_bound:.6g}")

    def start(self, rng: np.random.Generator) -> Array:
        return self._start

    def _signs(self, w: Array) -> Array:
        """-1 at the start, else 1, shape [...]."""
        axes = tuple(range(-len(self.manifold.point_shape), 0))
        return np.where(self._turning & (w == self._start).all(axis=axes), -1.0, 1.0)


# Attacks on a training ------------------------------------------------------------------------------------------------


class Attack(ABC):
    """A way to tell two neighbouring data sets apart by what a mechanism releases about them."""

    name: str

    @property
    @abstractmethod
    def target(self) -> str:
        """What is attacked, in words."""

    @property
    @abstractmethod
    def claim(self) -> Claim:
        """What is said of the mechanism."""

    @property
    def protects(self) -> str:
        """As of a problem: what of a record the claim is about, where that is not all of it."""
        return ""

    @abstractmethod
    def samples(self, repetitions: int, seed: int, progress: Progress) -> tuple[Array, Array]:
        """What an attacker sees, in numbers, of so many releases about either data set: two [repetitions, numbers]."""


@dataclass(frozen=True)
class TrainingAttack(Attack):
    """A training from `start` on `data` or `other`, [n, *record_shape] each, which differ in their first record;
    or `other` is `data` without it."""

    name: str
    trainer: Trainer
    problem: Problem
    start: Array
    data: Array
    other: Array

    @property
    def target(self) -> str:
        return f"one local training by {self.trainer.name} on {self.problem.manifold}"

    @property
    def claim(self) -> Claim:
        return Claim(self.trainer.event(self.problem, len(self.data)))

    @property
    def protects(self) -> str:
        return self.problem.protects

    def samples(self, repetitions: int, seed: int, progress: Progress) -> tuple[Array, Array]:
        numbers = len(self.data) * math.prod(self.problem.manifold.point_shape)
        length = min(_REPETITIONS_AT_ONCE, max(1, _NUMBERS_AT_ONCE // numbers))
        sides: list[list[Array]] = []
        for side, data in enumerate((self.data, self.other)):
            sides.append([])
            for begin in range(side * repetitions, (side + 1) * repetitions, length):
                agents = range(begin, min(begin + length, (side + 1) * repetitions))
                values = np.broadcast_to(data, (len(agents), *data.shape))
                records = Records(values, np.full(len(agents), len(data), dtype=np.int64))
                sides[side].append(self._observe(records, AgentStreams(seed, 0, agents)))
                progress(agents.stop, 2 * repetitions)
        # A broken training may stand still for a step, and is then seen at fewer points.
        longest = max(part.shape[1] for side in sides for part in side)
        padded = [[np.pad(part, ((0, 0), (0, longest - part.shape[1]))) for part in side] for side in sides]
        return np.concatenate(padded[0]), np.concatenate(padded[1])

    def _observe(self, records: Records, streams: AgentStreams) -> Array:
        """What there is to see of a batch of trainings, [repetitions, numbers]: each step in the direction in which the
        two data sets pull apart at the point it is taken from."""
        problem, path = _watched(self.problem)
        upload = self.trainer.train(problem, self.start, records, streams)
        if not path and isinstance(problem, FrechetMean):
            return self._nearness(upload)
        points = [*path, upload] if path else [np.broadcast_to(self.start, upload.shape), upload]
        return np.stack([self._towards(w, x) for w, x in itertools.pairwise(points)], axis=1)

    def _nearness(self, x: Array) -> Array:
        """How much better a released Fréchet mean [repetitions, *point_shape] fits `data` than `other`: by the distance
        to their means, which decides the likelihood of a Laplace law, and by the norm of the gradient, which decides
        that of the K-norm gradient mechanism."""
        manifold = self.problem.manifold
        fits = []
        for data in (self.other, self.data):
            pull = manifold.log(x[:, None], data, strict=False).mean(axis=1)
            fits.append(
                np.stack([manifold.dist(x, frechet_mean(manifold, data).point), manifold.norm(x, pull)], axis=1)
            )
        return fits[0] - fits[1]

    @np.errstate(all="ignore")  # what cannot be computed tells the attacker nothing
    def _towards(self, w: Array, x: Array) -> Array:
        """The component of the step from w to x [repetitions, *point_shape] along the descent of the record that
        differs, less that of the one in its place."""
        manifold = self.problem.manifold
        apart = -self.problem.gradient(w, self.data[0])
        if len(self.other) == len(self.data):
            apart = apart + self.problem.gradient(w, self.other[0])
        return np.nan_to_num(manifold.inner(w, manifold.log(w, x, strict=False), apart) / manifold.norm(w, apart))


def _watched(problem: Problem) -> tuple[Problem, list[Array]]:
    """`problem`, and a list that every new array of points [A, *point_shape] is put on that it is evaluated at."""
    watched, path = copy.copy(problem), list[Array]()
    met: set[bytes] = set()
    axes = len(problem.manifold.point_shape)

    def note(w: Array) -> None:
        w = w.reshape(len(w), *w.shape[w.ndim - axes :])
        if (key := w.tobytes()) not in met:
            met.add(key)
            path.append(w)

    def gradient(w: Array, z: Array) -> Array:
        note(w)
        return problem.gradient(w, z)

    def clipped_mean(w: Array, *rest: Any) -> Array:
        note(w)
        return problem.clipped_mean(w, *rest)

    watched.gradient = gradient  # type: ignore[method-assign]
    watched.clipped_mean = clipped_mean  # type: ignore[method-assign, assignment]
    return watched, path


def worst_case(
    trainer: Trainer,
    manifold: Manifold,
    records: int,
    seed: int = 0,
    bound: float | None = None,
    turning: bool = False,
) -> TrainingAttack:
    """Gradients that are ±C u at every point, for one unit vector u and the trainer's clip bound C.

    The differing record's is one of them, the other records' are all the opposite: of attacks on subsampled steps this
    one is nearly as strong as the bound. For add-or-remove neighbours the others' are 0. bound: C where the trainer
    leaves it to the problem to bound its gradients (default 1). turning: see `WorstCaseGradients`; it is what brings
    out the differences that variance reduction works with.

    Raises ValueError with what the trainer says is wrong.
    """
    start = manifold.random_point(stream(seed, Role.START))
    clips = [getattr(trainer, name) for name in CLIPS if hasattr(trainer, name)]
    if bound is None and (not clips or None in clips):
        bound = 1.0
    length = bound if bound is not None else OVERSHOOT * max(clips)
    problem = WorstCaseGradients(manifold, start, bound, turning)
    direction = length * np.eye(1, manifold.dim)[0]
    name = "turning gradients" if turning else "worst-case gradients"
    return _attack(name, trainer, problem, start, direction, -direction, records)


def canary(trainer: Trainer, problem: Problem, records: int, seed: int = 0) -> TrainingAttack:
    """A real problem, with two records that pull as far apart as its records can, and others all like one of them.

    Principal components: records at 45 degrees to the start's subspace, on either side of it; matrix completion: the
    same, as complete columns so long that they are clipped. Fréchet mean, and labels of structured prediction: points
    at opposite ends of the public ball; without one, as far from the start as the clip bound reaches.

    Raises ValueError where no canary is known for the problem, or with what the trainer says is wrong.
    """
    manifold = problem.manifold
    start = problem.start(stream(seed, Role.START))
    if isinstance(problem, (PrincipalEigenvector, PrincipalSubspace, MatrixCompletion)):
        columns = start.reshape(problem.record_shape[-1], -1)
        ambient = stream(seed, Role.DATA).standard_normal(len(columns))
        off = ambient - columns @ (columns.T @ ambient)
        off /= np.linalg.norm(off)
        one, other = ((columns[:, 0] + sign * off) / math.sqrt(2) for sign in (1.0, -1.0))
        if isinstance(problem, MatrixCompletion):  # then the gradient is longer than length^2/(1 + ridge)
            length = math.sqrt(OVERSHOOT * (1 + problem.ridge) * max(_clips(trainer), default=1.0))
            one, other = (np.stack([length * z, np.ones(len(z))]) for z in (one, other))
    elif isinstance(problem, (FrechetMean, HyperbolicStructuredPrediction)):
        away = manifold.from_coordinates(start, _reach(trainer, problem, start) * np.eye(1, manifold.dim)[0])
        one, other = manifold.exp(start, away), manifold.exp(start, -away)
        if isinstance(problem, HyperbolicStructuredPrediction):  # the same weight, other labels
            weight = 1.0 if problem.weight_bound is None else problem.weight_bound
            one, other = (np.concatenate([[weight], y]) for y in (one, other))
    else:
        raise ValueError(
            f"problem = {problem.name!r}: no canary is known for it, only for principal-eigenvector, "
            "principal-subspace, matrix-completion, frechet-mean and hyperbolic-structured-prediction; attack its "
            "trainer with worst-case gradients"
        )
    return _attack("canary record", trainer, problem, start, one, other, records)


def _reach(trainer: Trainer, problem: FrechetMean | HyperbolicStructuredPrediction, start: Array) -> float:
    """How far from the start the canary lies."""
    if problem.radius is not None:
        return problem.radius * (1 - 1e-9)
    return min(max(_clips(trainer), default=1.0), 0.9 * float(problem.manifold.injectivity_radius(start)))


def _clips(trainer: Trainer) -> list[float]:
    """The clip bounds that the trainer has."""
    clips = [getattr(trainer, name, None) for name in CLIPS]
    return [clip for clip in clips if clip is not None]


def _attack(
    name: str, trainer: Trainer, problem: Problem, start: Array, one: Array, other: Array, records: int
) -> TrainingAttack:
    """Two data sets of so many records: all `other`, but for the first, which is `one`; or, for neighbours that lack a
    record, `one` besides records without a gradient."""
    if wrong := trainer.check(problem, records):
        raise ValueError(f"trainer {trainer.name}: " + "; ".join(wrong))
    if trainer.event(problem, records).unit is Unit.ADD_REMOVE_RECORD:
        if records < 2:
            raise ValueError(f"records = {records} must be at least 2, so that one can be removed")
        if not isinstance(problem, WorstCaseGradients):
            raise ValueError("Poisson batches are attacked by worst-case gradients; a canary replaces a record")
        if isinstance(trainer, DPRSGD) and trainer.nominal is None:
            trainer = replace(trainer, nominal=records)  # the public number, the same for both neighbours
        data = np.zeros((records, *problem.record_shape))
        data[0] = one
        return TrainingAttack(name, trainer, problem, start, problem.prepare_records(data), data[1:])
    without = np.broadcast_to(other, (records, *problem.record_shape)).copy()
    data = without.copy()
    data[0] = one
    return TrainingAttack(
        name, trainer, problem, start, problem.prepare_records(data), problem.prepare_records(without)
    )


# Attacks on a round ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentAttack(Attack):
    """A whole agent's data are replaced, in a round of which only the server's aggregate is seen: all agents go as far
    one way as clipping allows (and beyond), the agent in question goes the other way, or with them."""

    aggregation: AgentLevelMean
    manifold: Manifold
    sampled: int
    pool: int
    name: str = "agent-level"

    @property
    def target(self) -> str:
        return f"{self.aggregation.name} of {self.sampled} out of {self.pool} agents on {self.manifold}"

    @property
    def claim(self) -> Claim:
        return Claim(self.aggregation.event(self.sampled, self.pool))

    def samples(self, repetitions: int, seed: int, progress: Progress) -> tuple[Array, Array]:
        start = self.manifold.random_point(stream(seed, Role.START))
        reach = min(OVERSHOOT * self.aggregation.clip, 0.9 * float(self.manifold.injectivity_radius(start)))
        there = reach * np.eye(1, self.manifold.dim)
        round_ = _Round(
            WorstCaseGradients(self.manifold, start), RGD(step_size=1.0), self.aggregation, self.sampled, start
        )
        others = [there] * (self.pool - 1)
        released = round_.repeat(([-there, *others], [there, *others]), repetitions, seed, progress)
        ones, twos = (self.manifold.coordinates(start, round_.moves(points))[:, :1] for points in released)
        return ones, twos


@dataclass(frozen=True)
class ParticipationAttack(Attack):
    """A record is replaced in the first of two agents, of whom one is drawn, and the next point is seen. All other
    gradients of the first agent point one way and all of the second the opposite way, so the point tells who was drawn.

    trainer: DP-RSGD of one step, clipping. claimed_by: which accountants' word is audited.
    """

    trainer: DPRSGD
    manifold: Manifold
    records: int
    claimed_by: tuple[str, ...] = SOUND
    name: str = "participation"

    def __post_init__(self) -> None:
        if self.trainer.steps != 1 or self.trainer.clip is None:
            raise ValueError("participation attack: trainer must clip, and take one step")
        if self.manifold.dim < 2:
            raise ValueError(f"participation attack: {self.manifold} must have at least 2 dimensions")

    @property
    def target(self) -> str:
        return f"a round of 1 out of 2 agents, {self.trainer.name} on {self.manifold}"

    @property
    def claim(self) -> Claim:
        problem = WorstCaseGradients(self.manifold, self.manifold.random_point(stream(0, Role.START)))
        return Claim(Participation(self.trainer.event(problem, self.records), 1, 2), self.claimed_by)

    def samples(self, repetitions: int, seed: int, progress: Progress) -> tuple[Array, Array]:
        start = self.manifold.random_point(stream(seed, Role.START))
        round_ = _Round(WorstCaseGradients(self.manifold, start), self.trainer, TangentMean(), 1, start)
        assert self.trainer.clip is not None
        aside, away = self.trainer.clip * np.eye(2, self.manifold.dim)
        first = np.tile(away, (self.records, 1))
        data, other = first.copy(), first.copy()
        data[0], other[0] = -aside, aside
        released = round_.repeat(([data, -first], [other, -first]), repetitions, seed, progress)
        seen = []
        for points in released:
            along = self.manifold.coordinates(start, round_.moves(points))
            # A descent goes against the gradient; where the second agent took part there is nothing to learn.
            seen.append(np.where(along[:, 1:2] < 0, along[:, :1], 0.0))
        return seen[0], seen[1]


@dataclass(frozen=True)
class _Round:
    """One round of the real simulation, to be repeated."""

    problem: Problem
    trainer: Trainer
    aggregation: Aggregation
    sampled: int
    start: Array

    def repeat(
        self, federations: tuple[list[Array], list[Array]], repetitions: int, seed: int, progress: Progress
    ) -> list[Array]:
        """The next points [repetitions, *point_shape] for each of the federations, lists of agents' records."""
        seeds = stream(seed, Role.DATA).integers(2**62, size=(len(federations), repetitions)).tolist()
        out = []
        for side, arrays in enumerate(federations):
            agents = AgentArrays(arrays)
            points = np.empty((repetitions, *self.problem.manifold.point_shape))
            for i, own in enumerate(seeds[side]):
                points[i] = simulate(
                    self.problem, agents, self.trainer, rounds=1, sampled=self.sampled, aggregation=self.aggregation,
                    start=self.start, seed=own, evaluate_every=0,
                ).point  # fmt: skip
                if i % 500 == 499 or i == repetitions - 1:
                    progress(side * repetitions + i + 1, len(federations) * repetitions)
            out.append(points)
        return out

    def moves(self, points: Array) -> Array:
        """Where the round has gone to, as tangent vectors at the start; 0 where that cannot be told."""
        return np.nan_to_num(self.problem.manifold.log(self.start, points, strict=False))


# The audit ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Audit:
    """What an attack has shown of a claim."""

    attack: Attack
    evidence: Evidence
    event: Event

    @property
    def unit(self) -> Unit | None:
        return self.event.unit

    @property
    def neighbours(self) -> str | None:
        """What the two data sets differ in, in words."""
        return neighbours(self.unit, self.attack.protects)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = self.evidence
        return {
            "attack": self.attack.name,
            "target": self.attack.target,
            "unit": self.unit and str(self.unit),
            "neighbours": self.neighbours,
            "delta": found.delta,
            "confidence": found.confidence,
            "repetitions": found.samples,
            "claimed_epsilon": found.claimed.epsilon,
            "accountant": found.claimed.accountant,
            "lower_bounds": {"clopper-pearson": found.clopper_pearson, "gaussian": found.gaussian},
            "witness": {
                "epsilon": found.witness.epsilon,
                "delta_lower_bound": found.witness.delta,
                "delta_claimed": found.witness.claimed,
            },
            "ratio": finite_or_none(found.ratio),
            "verdict": "refuted" if found.refuted else "not refuted",
            "event": self.event.to_dict(),
        }


def audit(
    attack: Attack,
    *,
    repetitions: int = 20_000,
    delta: float = 1e-5,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Audit:
    """Run an attack so many times on either data set, and hold what it shows against what is claimed.

    Guarantee: if the claim is right, then it is refuted with a probability of at most 1 - confidence. That a claim is
    not refuted proves nothing.

    Raises ValueError on a bad argument, or where nothing is claimed (infinite epsilon), before any work is done.
    """
    claim = attack.claim
    check_options(repetitions, delta, confidence)
    if not claim.event.is_private:
        raise ValueError(f"nothing to audit: {attack.target} has no mechanism, its epsilon is infinite")
    claim.figure(delta)
    ones, others = attack.samples(repetitions, seed, progress)
    return Audit(attack, evidence(ones, others, claim, delta, confidence), claim.event)
