"""Differentially private Riemannian stochastic variance reduced gradient descent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.events import Event, Gaussian, NonPrivate, SampledWithoutReplacement, compose, repeat
from pri_rfed.problems.base import Problem
from pri_rfed.problems.clipping import ClippedDifference, ClippedGradient
from pri_rfed.training.local import Batch, Fields, NoiseUnit, batch_size, by_count, column, standard_deviation
from pri_rfed.training.svrg import RSVRG, Noise, reduced_apart, reduced_together

Difference = Literal["apart", "together"]
FullGradientNoise = Literal["every-step", "once-an-epoch"]


@dataclass(frozen=True, kw_only=True)
class DPRSVRG(RSVRG):
    """DP-RSVRG (dp-rsvrg-fast-sampling.txt, Algorithms 11 and 12): RSVRG with clipped gradients and tangent Gaussians.

    clip_full: C0 for the records of the full gradient; clip_step: C1 for those of the inner steps; None where the
    problem bounds its own gradients. difference: "apart" clips grad f(w; z) and grad f(w~; z) one by one, as published;
    "together" clips their difference, which is small near the snapshot. full_gradient_noise: "every-step" draws the
    full gradient's noise anew in every inner step, as published, and so releases it m times an epoch; "once-an-epoch"
    releases it once and reuses it.
    noise: with noise_unit "absolute" the sigma whose square is split into sigma_1^2 = alpha sigma^2 for the full
    gradient and sigma_2^2 = (1 - alpha) sigma^2 for the inner step; with "sensitivity" sigma_1 is sqrt(alpha) noise
    times the full gradient's sensitivity, sigma_2 is sqrt(1 - alpha) noise times the inner step's. With noise 0 it is
    not private.

    Guarantee, for the replacement of a record: a full gradient is a Gaussian release of sensitivity 2 C0/n; an inner
    step one of sensitivity 4 C1/b (apart) or 2 C1/b (together), amplified by sampling b of n; less, where the problem
    bounds its gradients more tightly. "every-step" spends both in each of the restarts S m steps, "once-an-epoch" the
    first in each of the restarts S epochs only. Transport is an isometry, and differences are clipped after it.
    """

    name = "dp-rsvrg"

    clip_full: float | None = None
    clip_step: float | None = None
    difference: Difference = "apart"
    full_gradient_noise: FullGradientNoise = "every-step"
    noise: float
    noise_unit: NoiseUnit = "absolute"
    alpha: float = (math.sqrt(14) - 1) / 13

    def _check_fields(self, fields: Fields) -> None:
        super()._check_fields(fields)
        fields.positive("clip_full", self.clip_full)
        fields.positive("clip_step", self.clip_step)
        fields.one_of("difference", self.difference, get_args(Difference))
        fields.one_of("full_gradient_noise", self.full_gradient_noise, get_args(FullGradientNoise))
        fields.noise("noise", self.noise)
        fields.one_of("noise_unit", self.noise_unit, get_args(NoiseUnit))
        if not 0 < self.alpha < 1:
            fields.wrong.append(f"alpha = {self.alpha!r} must lie strictly between 0 and 1")

    def check(self, problem: Problem, records: int) -> list[str]:
        wrong = super().check(problem, records)
        if self.noise > 0 and not all(map(math.isfinite, self._sensitivities(problem, records))):
            wrong.append(f"clip_full and clip_step are needed: nothing else bounds the gradients of {problem.name}")
        return wrong

    def event(self, problem: Problem, records: int) -> Event:
        if self.noise == 0:
            return NonPrivate(f"{self.name} without noise")
        full, step = map(Gaussian, self._sensitivities(problem, records), self._sigmas(problem, records))
        size = batch_size(self.batch, records)
        inner: Event = SampledWithoutReplacement(step, size, records) if size < records else step
        if self.full_gradient_noise == "every-step":
            return repeat(compose([full, inner]), self.total_epochs * self.inner_steps)
        return compose([repeat(full, self.total_epochs), repeat(inner, self.total_epochs * self.inner_steps)])

    def _sensitivities(self, problem: Problem, records: int) -> tuple[float, float]:
        """How far one record moves the full gradient, and a batch's variance reduced part when the batch holds it."""
        if self.difference == "apart":
            step = 2 * ClippedGradient(problem, self.clip_step).difference_bound
        else:
            step = ClippedDifference(problem, self.clip_step).difference_bound
        return self._full_gradient(problem).difference_bound / records, step / batch_size(self.batch, records)

    def _sigmas(self, problem: Problem, records: int) -> tuple[float, float]:
        """sigma_1 and sigma_2."""
        full, step = self._sensitivities(problem, records)
        return (
            math.sqrt(self.alpha) * standard_deviation(self.noise, self.noise_unit, full),
            math.sqrt(1 - self.alpha) * standard_deviation(self.noise, self.noise_unit, step),
        )

    def _full_gradient(self, problem: Problem) -> ClippedGradient:
        return ClippedGradient(problem, self.clip_full)

    def _noise(self, problem: Problem, records: Records) -> Noise:
        if self.noise == 0:
            return Noise(None, None)
        sigmas = by_count(records.counts, lambda n: self._sigmas(problem, n))
        full, step = (column(s, problem.manifold) for s in sigmas.T)
        if self.full_gradient_noise == "once-an-epoch":
            return Noise(full, step)
        # The transported noise of the full gradient and the step's own are independent: one draw for both.
        return Noise(None, np.hypot(full, step))

    def _reduced(self, problem: Problem, x: Array, snapshot: Array, g: Array, batch: Batch) -> Array:
        if self.difference == "apart":
            return reduced_apart(ClippedGradient(problem, self.clip_step), x, snapshot, g, batch)
        return reduced_together(ClippedDifference(problem, self.clip_step), x, snapshot, g, batch)
