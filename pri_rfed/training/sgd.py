"""Riemannian stochastic gradient descent: the loop, which the private training shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.events import Event, NonPrivate
from pri_rfed.problems.base import Problem
from pri_rfed.problems.clipping import ClippedGradient
from pri_rfed.randomness import AgentStreams
from pri_rfed.training.base import Trainer
from pri_rfed.training.local import (
    Batch,
    BatchSize,
    Fields,
    Move,
    batch_size,
    mover,
    noised,
    replace_rows,
    towards,
    uniform_batches,
)
from pri_rfed.training.steps import StepSize

Output = Literal["last", "uniform", "geodesic-average", "weighted-geodesic-average"]


@dataclass(frozen=True, kw_only=True)
class RSGD(Trainer):
    """Riemannian stochastic gradient descent: w <- Exp_w(-eta_k v), v the mean gradient of a batch. Not private.

    steps: K. batch: b records drawn without replacement, or "full". move: the exponential map or a retraction.
    output: "last" w_K; "uniform" one of w_0 .. w_{K-1}, drawn without regard to the data; "geodesic-average" of w_1 ..
    w_K, where bar w <- Exp_{bar w}(rho_k Log_{bar w}(w_k)) with rho_k = 1/k, and "weighted-geodesic-average" the same
    with rho_k = 2/(k + 1), which weighs w_k by k, for strongly convex losses.
    (dp-riemannian-optimization.txt, Algorithm 1 and Theorems 2, 3. Theorem 3 prints the index one too high, which would
    give w_1 no weight at all.)
    """

    name = "rsgd"

    steps: int = 1
    batch: BatchSize = "full"
    step_size: StepSize | float = 0.1
    output: Output = "last"
    move: Move = "exp"

    def __post_init__(self) -> None:
        fields = Fields(self.name)
        self._check_fields(fields)
        fields.done()
        object.__setattr__(self, "step_size", StepSize.of(self.step_size))

    def _check_fields(self, fields: Fields) -> None:
        fields.count("steps", self.steps)
        fields.batch("batch", self.batch)
        fields.one_of("output", self.output, get_args(Output))
        fields.one_of("move", self.move, get_args(Move))
        if self.output == "uniform" and self.steps == 1:
            fields.wrong.append("output = 'uniform' draws from w_0 .. w_{K-1}; with steps = 1 that is the start itself")

    def check(self, problem: Problem, records: int) -> list[str]:
        size = batch_size(self.batch, records)
        return [f"batch = {size} exceeds the {records} records of an agent"] if size > records else []

    def event(self, problem: Problem, records: int) -> Event:
        return NonPrivate(self.name)

    def gradient_calls(self, records: int) -> int:
        return self.steps * batch_size(self.batch, records)

    @np.errstate(all="ignore")  # what leaves the range of numbers becomes NaN, and the server refuses it
    def train(self, problem: Problem, w: Array, records: Records, streams: AgentStreams) -> Array:
        manifold, step_size = problem.manifold, StepSize.of(self.step_size)
        move, gradient, sigma = mover(manifold, self.move), self._gradient(problem), self._sigma(problem, records)
        agents = len(records.counts)
        x = np.broadcast_to(w, (agents, *manifold.point_shape))
        output = x
        drawn = streams.indices(self.steps) if self.output == "uniform" else None
        normals = streams.normals(manifold.normals_shape, self.steps)
        for k, batch in enumerate(self._batches(records, streams)):
            if drawn is not None:
                output = replace_rows(drawn == k, x, output)
            v = noised(manifold, x, gradient.mean(x, *batch), sigma, normals)
            x = move(x, -step_size(k, streams.round) * v)
            if self.output == "geodesic-average":
                output = x if k == 0 else towards(manifold, output, x, 1 / (k + 1))
            elif self.output == "weighted-geodesic-average":
                output = x if k == 0 else towards(manifold, output, x, 2 / (k + 2))
        return x if self.output == "last" else output

    def _gradient(self, problem: Problem) -> ClippedGradient:
        return ClippedGradient(problem, None)

    def _sigma(self, problem: Problem, records: Records) -> Array | None:
        """The noise's standard deviations, shaped like tangent vectors; None for no noise."""
        return None

    def _batches(self, records: Records, streams: AgentStreams) -> Iterator[Batch]:
        return uniform_batches(records, streams, self.batch, self.steps)


@dataclass(frozen=True, kw_only=True)
class RGD(RSGD):
    """Riemannian gradient descent: RSGD with all records in every step. Not private."""

    name = "rgd"

    batch: BatchSize = field(default="full", init=False)
