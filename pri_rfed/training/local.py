"""What the local trainings share: batches, noise, moves, and the averages they may put out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data.agents import Records
from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.randomness import AgentStreams

BatchSize = int | Literal["full"]
Move = Literal["exp", "retract"]
NoiseUnit = Literal["absolute", "sensitivity"]


class Batch(NamedTuple):
    """One step's records [A, b, *record_shape], which of them count [A, b] (None: all), the public denominators [A]."""

    records: Array
    mask: NDArray[np.bool_] | None
    size: Array


def full_batch(records: Records) -> Batch:
    """All records of every agent."""
    return Batch(records.values, records.mask, records.counts.astype(float))


def uniform_batches(records: Records, streams: AgentStreams, batch: BatchSize, steps: int) -> Iterator[Batch]:
    """For each step a batch of every agent, drawn uniformly without replacement."""
    if batch == "full" or (records.counts == batch).all():
        yield from itertools.repeat(full_batch(records), steps)
        return
    size = np.full(len(records.counts), float(batch))
    for indices in streams.batches(records.counts, batch, steps):
        yield Batch(records.take(indices), None, size)


def poisson_batches(
    records: Records, streams: AgentStreams, rates: Array, size: Array, steps: int
) -> Iterator[Batch]:
    """For each step a batch of every agent that holds each record independently with probability rates[a]. The sum is
    divided by the public size[a], not by how many came."""
    for mask in streams.poisson_masks(records.counts, rates, steps):
        largest = int(mask.sum(axis=1).max())
        indices = np.argsort(~mask, axis=1, kind="stable")[:, :largest]
        yield Batch(records.take(indices), np.take_along_axis(mask, indices, axis=1), size)


def batch_size(batch: BatchSize, records: int) -> int:
    """How many of so many records are in a batch."""
    return records if batch == "full" else batch


def standard_deviation(noise: float, unit: NoiseUnit, sensitivity: float) -> float:
    """The noise's standard deviation in the Riemannian norm."""
    return noise if unit == "absolute" else noise * sensitivity


def by_count(counts: NDArray[np.int64], f: Callable[[int], float | tuple[float, ...]]) -> Array:
    """f(n) for the number of records n of each agent, [A] or [A, k], worked out once for every different number."""
    if (counts == counts[0]).all():
        value = np.array(f(int(counts[0])))
        return np.broadcast_to(value, (len(counts), *value.shape))
    different, places = np.unique(counts, return_inverse=True)
    return np.array([f(n) for n in different.tolist()])[places]


def column(values: Array, manifold: Manifold) -> Array:
    """Numbers [A] shaped so that they multiply tangent vectors [A, *point_shape]."""
    return values.reshape(-1, *(1,) * len(manifold.point_shape))


def noised(manifold: Manifold, at: Array, v: Array, sigma: Array | None, normals: Iterator[Array]) -> Array:
    """v plus a tangent Gaussian at `at` of standard deviations sigma, made of the next normals; v for sigma None."""
    if sigma is None:
        return v
    noise = manifold.tangent_from_normals(at, next(normals))
    noise *= sigma  # in place: in high dimension a step costs what its passes over memory cost
    noise += v
    return noise


def mover(manifold: Manifold, move: Move) -> Callable[[Array, Array], Array]:
    """The map (w, v) -> w' that a step is taken with."""
    return manifold.exp if move == "exp" else manifold.retract


def towards(manifold: Manifold, w: Array, x: Array, share: float) -> Array:
    """The point at `share` of the geodesic from w to x; NaN where there is no unique one."""
    return manifold.exp(w, share * manifold.log(w, x, strict=False))


def replace_rows(at: NDArray[np.bool_], new: Array, old: Array) -> Array:
    """The rows of `new` where `at` [A] holds, of `old` elsewhere."""
    return np.where(at.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


class Fields:
    """Collects what is wrong with a plan's fields, to say it all at once."""

    def __init__(self, owner: str):
        self.owner, self.wrong = owner, list[str]()

    def count(self, name: str, value: object) -> None:
        """A whole number >= 1."""
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            self.wrong.append(f"{name} = {value!r} must be a whole number >= 1")

    def batch(self, name: str, value: object) -> None:
        """A `BatchSize`."""
        if value != "full":
            self.count(name, value)

    def positive(self, name: str, value: float | None) -> None:
        """A positive finite number, or none."""
        if value is not None and not (math.isfinite(value) and value > 0):
            self.wrong.append(f"{name} = {value!r} must be a positive finite number")

    def noise(self, name: str, value: float) -> None:
        """A finite number >= 0."""
        if not (math.isfinite(value) and value >= 0):
            self.wrong.append(f"{name} = {value!r} must be a finite number >= 0")

    def one_of(self, name: str, value: object, choices: tuple[object, ...]) -> None:
        """One of the choices."""
        if value not in choices:
            self.wrong.append(f"{name} = {value!r} must be one of {', '.join(map(repr, choices))}")

    def done(self) -> None:
        """Raise ValueError with everything that is wrong."""
        if self.wrong:
            raise ValueError(f"{self.owner}: " + "; ".join(self.wrong))
