"""Private training in the flat space around a manifold, to compare with: projected gradient descent, and the local part
of federated averaging."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.events import Event
from pri_rfed.problems.ambient import AMBIENT_PROBLEMS, Ambient
from pri_rfed.problems.base import Problem
from pri_rfed.randomness import AgentStreams
from pri_rfed.training.dp_rsgd import DPRSGD
from pri_rfed.training.local import Move
from pri_rfed.training.sgd import Output
from pri_rfed.training.steps import StepSize


@dataclass(frozen=True, kw_only=True)
class _AmbientSGD(DPRSGD):
    """DP-RSGD of the `Ambient` problem, with its fields and its guarantee."""

    output: Output = field(default="last", init=False)
    move: Move = field(default="exp", init=False)

    def _around(self, problem: Problem) -> Ambient:
        return Ambient(problem)

    def check(self, problem: Problem, records: int) -> list[str]:
        if type(problem) not in AMBIENT_PROBLEMS:
            known = ", ".join(kind.name for kind in AMBIENT_PROBLEMS)
            return [f"name = {self.name!r} needs a loss around the manifold ({known}); {problem.name} has none"]
        return super().check(self._around(problem), records)

    def event(self, problem: Problem, records: int) -> Event:
        return super().event(self._around(problem), records)


@dataclass(frozen=True, kw_only=True)
class DPFedAvg(_AmbientSGD):
    """Differentially private SGD in the ambient space: w <- w - eta_k v, v the mean of Euclidean gradients clipped at C
    plus a Gaussian N(0, sigma^2 I) of all its entries. Uploads lie around the manifold; with the aggregation
    "projected-mean", which averages and then projects them, this is federated averaging that ignores the manifold.

    steps, batch, step_size, clip, noise, noise_unit, sampling, nominal, and the guarantee: as for DPRSGD, with the
    Euclidean norm in place of the Riemannian one.
    """

    name = "dp-fedavg"
    leaves_manifold = True

    def train(self, problem: Problem, w: Array, records: Records, streams: AgentStreams) -> Array:
        return super().train(self._around(problem), w, records, streams)


@dataclass(frozen=True, kw_only=True)
class DPProjectedSGD(_AmbientSGD):
    """Differentially private projected gradient descent: w <- P(w - eta_k v), with v as in DP-FedAvg and P the
    projection onto the manifold (DP-PGD in dp-riemannian-optimization.txt, section 6.3).

    Fields and guarantee: as for DPRSGD, with the Euclidean norm in place of the Riemannian one; P is post-processing.
    The points are always on the manifold, where principal components need no clipping (`Ambient`).
    """

    name = "dp-projected-sgd"

    def _around(self, problem: Problem) -> Ambient:
        return Ambient(problem, on_manifold=True)

    @np.errstate(all="ignore")  # what leaves the range of numbers becomes NaN, and the server refuses it
    def train(self, problem: Problem, w: Array, records: Records, streams: AgentStreams) -> Array:
        around, step_size = self._around(problem), StepSize.of(self.step_size)
        gradient, sigma = self._gradient(around), self._sigma(around, records)
        x = np.broadcast_to(w, (len(records.counts), *around.manifold.point_shape))
        normals = streams.normals(around.manifold.normals_shape, self.steps)
        for k, batch in enumerate(self._batches(records, streams)):
            v = gradient.mean(x, *batch)
            if sigma is not None:
                v = v + sigma * next(normals)
            x = problem.manifold.project_point(x - step_size(k, streams.round) * v)
        return x
