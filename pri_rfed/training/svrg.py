"""Riemannian stochastic variance reduced gradient descent: the loop, which the private training shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.events import Event, NonPrivate
from pri_rfed.problems.base import Problem
from pri_rfed.problems.clipping import ClippedDifference, ClippedGradient
from pri_rfed.randomness import AgentStreams
from pri_rfed.training.base import Trainer
from pri_rfed.training.local import (
    Batch,
    BatchSize,
    Fields,
    Move,
    batch_size,
    full_batch,
    mover,
    noised,
    replace_rows,
    uniform_batches,
)
from pri_rfed.training.steps import StepSize

Output = Literal["last", "uniform"]


class Noise(NamedTuple):
    """Standard deviations, shaped like tangent vectors; None for no noise. `snapshot` goes on the full gradient at the
    snapshot, once an epoch; `step` on every inner step."""

    snapshot: Array | None
    step: Array | None


@dataclass(frozen=True, kw_only=True)
class RSVRG(Trainer):
    """Riemannian SVRG: an epoch takes the full gradient g at a snapshot w~, then m inner steps w <- Exp_w(-eta v) with
    v = grad f_B(w) - PT_{w~ -> w}(grad f_B(w~) - g) for a batch B of b records. Not private.

    epochs: S. inner_steps: m. batch: b records drawn without replacement, or "full". move: the exponential map or a
    retraction. output: "last", or "uniform", one of the points that all the S m steps started from. restarts: how often
    the whole is run, each time from a uniformly drawn point of the run before it (S counts for each run).
    (dp-rsvrg-fast-sampling.txt, Algorithms 11 and 12, without clipping and noise)
    """

    name = "rsvrg"

    epochs: int = 1
    inner_steps: int = 5
    batch: BatchSize = 1
    step_size: StepSize | float = 0.1
    restarts: int = 1
    output: Output = "last"
    move: Move = "exp"

    def __post_init__(self) -> None:
        fields = Fields(self.name)
        self._check_fields(fields)
        fields.done()
        object.__setattr__(self, "step_size", StepSize.of(self.step_size))

    def _check_fields(self, fields: Fields) -> None:
        fields.count("epochs", self.epochs)
        fields.count("inner_steps", self.inner_steps)
        fields.count("restarts", self.restarts)
        fields.batch("batch", self.batch)
        fields.one_of("output", self.output, get_args(Output))
        fields.one_of("move", self.move, get_args(Move))
        if (self.output == "uniform" or self.restarts > 1) and self.epochs == self.inner_steps == 1:
            fields.wrong.append(
                "output = 'uniform' and restarts > 1 draw from the points that steps started from; "
                "with epochs = inner_steps = 1 that is the start itself"
            )

    def check(self, problem: Problem, records: int) -> list[str]:
        size = batch_size(self.batch, records)
        return [f"batch = {size} exceeds the {records} records of an agent"] if size > records else []

    def event(self, problem: Problem, records: int) -> Event:
        return NonPrivate(self.name)

    @property
    def total_epochs(self) -> int:
        """How many snapshots there are, all restarts together."""
        return self.restarts * self.epochs

    def gradient_calls(self, records: int) -> int:
        return self.total_epochs * (records + 2 * self.inner_steps * batch_size(self.batch, records))

    @np.errstate(all="ignore")  # what leaves the range of numbers becomes NaN, and the server refuses it
    def train(self, problem: Problem, w: Array, records: Records, streams: AgentStreams) -> Array:
        manifold, step_size, move = problem.manifold, StepSize.of(self.step_size), mover(problem.manifold, self.move)
        gradient, noise = self._full_gradient(problem), self._noise(problem, records)
        everything = full_batch(records)
        batches = uniform_batches(records, streams, self.batch, self.total_epochs * self.inner_steps)
        draws = self.total_epochs * ((noise.snapshot is not None) + self.inner_steps * (noise.step is not None))
        normals = streams.normals(manifold.normals_shape, draws)
        x = np.broadcast_to(w, (len(records.counts), *manifold.point_shape))
        k = 0
        for run in range(self.restarts):
            draw = self.output == "uniform" or run < self.restarts - 1
            drawn = streams.indices(self.epochs * self.inner_steps) if draw else None
            output, first = x, k
            for _ in range(self.epochs):
                snapshot = x
                g = self._share(gradient.mean(snapshot, *everything), records)
                g = noised(manifold, snapshot, g, noise.snapshot, normals)
                for _ in range(self.inner_steps):
                    if drawn is not None:
                        output = replace_rows(drawn == k - first, x, output)
                    batch = next(batches)
                    v = noised(manifold, x, self._reduced(problem, x, snapshot, g, batch), noise.step, normals)
                    x = move(x, -step_size(k, streams.round) * v)
                    k += 1
            x = x if drawn is None else output
        return x

    def _full_gradient(self, problem: Problem) -> ClippedGradient:
        return ClippedGradient(problem, None)

    def _share(self, g: Array, records: Records) -> Array:
        """The full gradient that the epoch works with, given every agent's own, [A, *point_shape]."""
        return g

    def _noise(self, problem: Problem, records: Records) -> Noise:
        return Noise(None, None)

    def _reduced(self, problem: Problem, x: Array, snapshot: Array, g: Array, batch: Batch) -> Array:
        """The variance reduced gradient at x, without noise."""
        return reduced_apart(ClippedGradient(problem, None), x, snapshot, g, batch)


def reduced_apart(gradient: ClippedGradient, x: Array, snapshot: Array, g: Array, batch: Batch) -> Array:
    """mean grad f(x) - PT(mean grad f(snapshot) - g): the two gradients of a record clipped one by one."""
    carried = gradient.problem.manifold.parallel_transport(snapshot, x, g - gradient.mean(snapshot, *batch))
    return gradient.mean(x, *batch) + carried


def reduced_together(difference: ClippedDifference, x: Array, snapshot: Array, g: Array, batch: Batch) -> Array:
    """mean (grad f(x) - PT grad f(snapshot)) + PT g: the difference of a record's two gradients clipped as one."""
    carried = difference.problem.manifold.parallel_transport(snapshot, x, g)
    return difference.mean(x, snapshot, *batch) + carried


@dataclass(frozen=True, kw_only=True)
class RFedSVRG(RSVRG):
    """The federated SVRG of Li and Ma (Federated learning on Riemannian manifolds, 2023): RSVRG from the round's base
    point w_t, only that g is the gradient at w_t of the mean loss over the records of *all* agents of the round; so the
    training does not drift towards the agent's own optimum. Not private, and possible in a simulation only: agents see
    each other's gradients.

    inner_steps: local steps. batch: "full" for the method as published.
    """

    name = "rfedsvrg"
    exchanges_gradients = True

    batch: BatchSize = "full"
    epochs: int = field(default=1, init=False)
    restarts: int = field(default=1, init=False)

    def _share(self, g: Array, records: Records) -> Array:
        mean = np.tensordot(records.counts / records.counts.sum(), g, axes=1)
        return np.broadcast_to(mean, g.shape)
