"""Differentially private Riemannian stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.events import Event, Gaussian, NonPrivate, PoissonSampled, SampledWithoutReplacement, Unit, repeat
from pri_rfed.problems.base import Problem
from pri_rfed.problems.clipping import ClippedGradient
from pri_rfed.randomness import AgentStreams
from pri_rfed.training.local import (
    Batch,
    Fields,
    NoiseUnit,
    batch_size,
    by_count,
    column,
    poisson_batches,
    standard_deviation,
)
from pri_rfed.training.sgd import RSGD

Sampling = Literal["without-replacement", "poisson"]


@dataclass(frozen=True, kw_only=True)
class DPRSGD(RSGD):
    """Differentially private Riemannian stochastic gradient descent (dp-riemannian-optimization.txt, Algorithm 1):
    RSGD whose v is the mean of gradients clipped at C plus a tangent Gaussian N_w(0, sigma^2). DP-RGD: batch "full".

    clip: C, a public constant; None where the problem bounds its own gradients. noise: sigma in the Riemannian norm, or
    with noise_unit "sensitivity" a multiple of the sensitivity of the agent's own v. With noise 0 it is not private.
    sampling: "without-replacement", or "poisson": then every record is in a batch with probability b/n on its own.
    nominal: for Poisson sampling, the public number that stands for n in that rate, and for the denominator of a full
    batch; None takes the agent's number of records for it, which is then announced and the same for both neighbours.

    Guarantee: every step is one Gaussian release. Without replacement, of sensitivity 2C/b for the replacement of a
    record (or less, where the problem says how far two gradients can differ), amplified by sampling b of n. Poisson: of
    sensitivity C/b for the addition or removal of a record, amplified by the rate b/n. All K steps are charged,
    whatever the output; move and output are post-processing.
    """

    name = "dp-rsgd"

    clip: float | None = None
    noise: float
    noise_unit: NoiseUnit = "absolute"
    sampling: Sampling = "without-replacement"
    nominal: int | None = None

    def _check_fields(self, fields: Fields) -> None:
        super()._check_fields(fields)
        fields.positive("clip", self.clip)
        fields.noise("noise", self.noise)
        fields.one_of("noise_unit", self.noise_unit, get_args(NoiseUnit))
        fields.one_of("sampling", self.sampling, get_args(Sampling))
        if self.nominal is not None:
            fields.count("nominal", self.nominal)
            if self.sampling != "poisson":
                fields.wrong.append(f"nominal = {self.nominal} has a meaning for sampling = 'poisson' only")

    def check(self, problem: Problem, records: int) -> list[str]:
        wrong = super().check(problem, self._announced(records))
        if self.noise > 0 and not np.isfinite(self._sensitivity(problem, records)):
            wrong.append(f"clip is needed: nothing else bounds the gradients of {problem.name}")
        if self.sampling == "poisson" and problem.protects:
            wrong.append(
                "sampling = 'poisson' is for records that are added or removed as a whole; of those of "
                f"{problem.name} only a part is protected"
            )
        return wrong

    def event(self, problem: Problem, records: int) -> Event:
        if self.noise == 0:
            return NonPrivate(f"{self.name} without noise")
        announced = self._announced(records)
        size = batch_size(self.batch, announced)
        sensitivity = self._sensitivity(problem, records)
        sigma = standard_deviation(self.noise, self.noise_unit, sensitivity)
        if self.sampling == "poisson":
            step: Event = Gaussian(sensitivity, sigma, of=Unit.ADD_REMOVE_RECORD)
            return repeat(PoissonSampled(step, size / announced) if size < announced else step, self.steps)
        step = Gaussian(sensitivity, sigma)
        return repeat(SampledWithoutReplacement(step, size, announced) if size < announced else step, self.steps)

    def _announced(self, records: int) -> int:
        """The public number of records."""
        return records if self.nominal is None else self.nominal

    def _sensitivity(self, problem: Problem, records: int) -> float:
        """How far one record moves the mean of a batch that holds it."""
        gradient = self._gradient(problem)
        bound = gradient.norm_bound if self.sampling == "poisson" else gradient.difference_bound
        return bound / batch_size(self.batch, self._announced(records))

    def _gradient(self, problem: Problem) -> ClippedGradient:
        return ClippedGradient(problem, self.clip)

    def _sigma(self, problem: Problem, records: Records) -> Array | None:
        if self.noise == 0:
            return None

        def sigma(n: int) -> float:
            return standard_deviation(self.noise, self.noise_unit, self._sensitivity(problem, n))

        return column(by_count(records.counts, sigma), problem.manifold)

    def _batches(self, records: Records, streams: AgentStreams) -> Iterator[Batch]:
        if self.sampling == "without-replacement":
            return super()._batches(records, streams)
        announced = np.array([self._announced(int(n)) for n in records.counts], dtype=float)
        size = announced if self.batch == "full" else np.full(len(announced), float(self.batch))
        return poisson_batches(records, streams, size / announced, size, self.steps)
