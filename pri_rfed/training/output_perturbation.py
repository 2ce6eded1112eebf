"""Output perturbation: each agent computes the Fréchet mean of its own records and releases it, perturbed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array
from pri_rfed.mechanisms import KNG, LaplaceMean, kng_mcmc
from pri_rfed.privacy.events import Event, NonPrivate, Pure
from pri_rfed.problems.base import Problem
from pri_rfed.problems.frechet import FrechetMean
from pri_rfed.randomness import AgentStreams, Role
from pri_rfed.training.base import Trainer
from pri_rfed.training.local import Fields

Sampler = Literal["exact", "mcmc"]

LEAST_ACCEPTANCE = 1e-6
"""A sampler that may accept fewer of its proposals than this is refused beforehand, by public figures."""


@dataclass(frozen=True, kw_only=True)
class _PerturbedMean(Trainer):
    """What the mechanisms share. The base point plays no part in them."""

    epsilon: float

    def __post_init__(self) -> None:
        fields = Fields(self.name)
        self._check_fields(fields)
        fields.done()

    def _check_fields(self, fields: Fields) -> None:
        fields.positive("epsilon", self.epsilon)

    @abstractmethod
    def _perturbed(self, problem: FrechetMean, records: Array, rng: np.random.Generator) -> Array:
        """The upload [*point_shape] of one agent with the records [n, *point_shape]."""

    @abstractmethod
    def _check_mechanism(self, problem: FrechetMean, records: int) -> None:
        """Raise ValueError where there is no such mechanism for so many records."""

    def check(self, problem: Problem, records: int) -> list[str]:
        # Of a problem derived from it, records need not lie in the ball that the sensitivity is for.
        if type(problem) is not FrechetMean:
            return [f"name = {self.name!r} perturbs a Fréchet mean; the problem {problem.name} is another one"]
        if problem.center is None or problem.radius is None:
            return [f"name = {self.name!r} needs a public ball that holds all records: the problem's center and radius"]
        try:
            self._check_mechanism(problem, records)
        except ValueError as error:
            return [f"epsilon = {self.epsilon} cannot be had with {records} records; {error}"]
        return []

    def event(self, problem: Problem, records: int) -> Event:
        return Pure(self.epsilon)

    def train(self, problem: Problem, w: Array, records: Records, streams: AgentStreams) -> Array:
        assert isinstance(problem, FrechetMean)
        agents = zip(records.values, records.counts, streams.generators(Role.NOISE), strict=True)
        return np.stack([self._perturbed(problem, values[:n], rng) for values, n, rng in agents])

    def gradient_calls(self, records: int) -> int:
        """One pass over the records. What the solver and the sampler need beyond that depends on the records."""
        return records


def _ball(problem: FrechetMean) -> tuple[Array, float]:
    assert problem.center is not None and problem.radius is not None
    return problem.center, problem.radius


@dataclass(frozen=True, kw_only=True)
class RiemannianLaplaceMean(_PerturbedMean):
    """The agent's Fréchet mean, perturbed by the Riemannian Laplace law (dp-over-manifolds.txt, section 3). For the
    problem FrechetMean with its public ball.

    epsilon: what an agent spends in every round it takes part in. tolerance: how far the computed mean may lie from the
    exact one, as a share of the public radius; it is part of the sensitivity.

    Guarantee: an upload is epsilon-differentially private with delta = 0; it is drawn exactly
    (`mechanisms.LaplaceMean`).
    """

    name = "riemannian-laplace"

    tolerance: float = 1e-8

    def _check_fields(self, fields: Fields) -> None:
        super()._check_fields(fields)
        fields.positive("tolerance", self.tolerance)

    def _mechanism(self, problem: FrechetMean, records: int) -> LaplaceMean:
        return LaplaceMean(problem.manifold, *_ball(problem), records, self.epsilon, self.tolerance)

    def _check_mechanism(self, problem: FrechetMean, records: int) -> None:
        self._mechanism(problem, records)

    def _perturbed(self, problem: FrechetMean, records: Array, rng: np.random.Generator) -> Array:
        return self._mechanism(problem, len(records)).sample(records, rng)[0]


@dataclass(frozen=True, kw_only=True)
class KNGMean(_PerturbedMean):
    """A draw of the K-norm gradient mechanism for the agent's Fréchet mean (`mechanisms.KNG`). For the problem
    FrechetMean with its public ball.

    epsilon: what an agent spends in every round it takes part in. sampler: "exact", or "mcmc", a Metropolis-Hastings
    chain of burn_in steps as a comparison, with proposals of standard deviation step times the law's scale; the exact
    one ignores both.

    Guarantee: with the exact sampler an upload is epsilon-differentially private with delta = 0. With "mcmc" there is
    no guarantee at all, and its event says so.
    """

    name = "kng"

    sampler: Sampler = "exact"
    burn_in: int = 5000
    step: float = 0.5

    def _check_fields(self, fields: Fields) -> None:
        super()._check_fields(fields)
        fields.one_of("sampler", self.sampler, get_args(Sampler))
        fields.count("burn_in", self.burn_in)
        fields.positive("step", self.step)

    def event(self, problem: Problem, records: int) -> Event:
        if self.sampler == "mcmc":
            return NonPrivate(f"{self.name} drawn by a Markov chain")
        return super().event(problem, records)

    def _mechanism(self, problem: FrechetMean, records: int) -> KNG:
        return KNG(problem.manifold, *_ball(problem), records, self.epsilon)

    def _check_mechanism(self, problem: FrechetMean, records: int) -> None:
        kng = self._mechanism(problem, records)
        if self.sampler == "exact" and not (share := kng.acceptance()) >= LEAST_ACCEPTANCE:
            raise ValueError(
                f"the sampler may accept only {share:.1e} of its proposals for radius = {problem.radius:.6g} in "
                f"dimension {problem.manifold.dim}, fewer than {LEAST_ACCEPTANCE:.0e}; a smaller radius helps, more "
                "records may, and riemannian-laplace has no such limit"
            )

    def _perturbed(self, problem: FrechetMean, records: Array, rng: np.random.Generator) -> Array:
        kng = self._mechanism(problem, len(records))
        if self.sampler == "mcmc":
            return kng_mcmc(kng, records, rng, burn_in=self.burn_in, step=self.step)
        return kng.sample(records, rng)[0]
