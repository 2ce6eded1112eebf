"""Input perturbation: each agent releases its second moments with noise, and what follows from them costs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array
from pri_rfed.manifolds.linalg import polar, sym
from pri_rfed.privacy.events import Event, Gaussian, NonPrivate
from pri_rfed.problems.base import Problem
from pri_rfed.problems.pca import PrincipalEigenvector, PrincipalSubspace
from pri_rfed.randomness import AgentStreams, Role
from pri_rfed.training.base import Trainer
from pri_rfed.training.local import Fields, NoiseUnit, standard_deviation


@dataclass(frozen=True, kw_only=True)
class InputPerturbation(Trainer):
    """The r leading eigenvectors of (1/n) sum_j z_j z_j^T + E with a symmetric Gaussian E, for principal components
    (Dwork, Talwar, Thakurta, Zhang, 2014; in dp-riemannian-optimization.txt, section 6.3). Of all bases of their span,
    the upload is the one nearest to the base point.

    noise: sigma, the standard deviation of E in every direction of the space of symmetric matrices with the Frobenius
    norm, i.e. of the diagonal's entries; those off it have sigma/sqrt(2). With noise_unit "sensitivity" a multiple of
    the sensitivity. With noise 0 it is not private.

    Guarantee: one Gaussian release of sensitivity sqrt(2)/n for the replacement of a record. Proof: for z and z' of
    norm at most 1, ||z z^T - z' z'^T||_F^2 = ||z||^4 + ||z'||^4 - 2 (z^T z')^2 <= 2, and orthogonal unit vectors reach
    it. The noise is isotropic in that norm; eigenvectors and basis are post-processing.
    """

    name = "input-perturbation"

    noise: float
    noise_unit: NoiseUnit = "absolute"

    def __post_init__(self) -> None:
        fields = Fields(self.name)
        fields.noise("noise", self.noise)
        fields.one_of("noise_unit", self.noise_unit, get_args(NoiseUnit))
        fields.done()

    def check(self, problem: Problem, records: int) -> list[str]:
        # A problem derived from these may have longer records, for which the sensitivity is larger.
        if type(problem) not in (PrincipalEigenvector, PrincipalSubspace):
            return [f"name = {self.name!r} perturbs second moments; the problem {problem.name} does not rest on them"]
        return []

    def event(self, problem: Problem, records: int) -> Event:
        if self.noise == 0:
            return NonPrivate(f"{self.name} without noise")
        return Gaussian(self.sensitivity(records), self._sigma(records))

    @staticmethod
    def sensitivity(records: int) -> float:
        """How far one record moves the second moments, in the Frobenius norm."""
        return math.sqrt(2) / records

    def _sigma(self, records: int) -> float:
        return standard_deviation(self.noise, self.noise_unit, self.sensitivity(records))

    def moments(self, records: Array, rng: np.random.Generator) -> Array:
        """What is released: the perturbed second moments [n, n] of records [k, n]."""
        k, n = records.shape
        return records.T @ records / k + self._sigma(k) * sym(rng.standard_normal((n, n)))

    def train(self, problem: Problem, w: Array, records: Records, streams: AgentStreams) -> Array:
        columns = w.reshape(problem.record_shape[0], -1)
        uploads = np.empty((len(records.counts), *columns.shape))
        agents = zip(records.values, records.counts, streams.generators(Role.NOISE), strict=True)
        for upload, (values, n, rng) in zip(uploads, agents, strict=True):
            _, vectors = np.linalg.eigh(self.moments(values[:n], rng))
            leading = vectors[:, : -columns.shape[1] - 1 : -1]
            upload[...] = leading @ polar(leading.T @ columns)
        return uploads.reshape(-1, *w.shape)

    def gradient_calls(self, records: int) -> int:
        """One pass over the records."""
        return records
