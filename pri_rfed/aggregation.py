"""What the server makes of the agents' uploads: the next point."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.privacy.events import Event, Gaussian, SampledWithoutReplacement, Unit
from pri_rfed.problems.clipping import clip

Weights = Literal["records", "equal"]


@dataclass(frozen=True)
class Refusal:
    """An upload that the server left out, and why."""

    agent: int
    reason: str


@dataclass(frozen=True)
class Aggregate:
    """The next point, whom the round went on without, and what there is to say about the computation."""

    point: Array
    refused: tuple[Refusal, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Accepted:
    """Uploads that lie within the injectivity radius of the base point: their places, points and logarithms."""

    at: NDArray[np.int64]
    points: Array
    logs: Array
    refused: tuple[Refusal, ...]


def screen(manifold: Manifold, base: Array, agents: Sequence[int], uploads: Sequence[Array] | Array) -> _Accepted:
    """Sort out which uploads can be aggregated at `base`.

    Refused, each with the reason: what has the wrong shape, holds NaN or infinity, is off the manifold, or lies no
    nearer to the base point than the injectivity radius (where the logarithm is not unique, or was not found).
    """
    reasons: dict[int, str] = {}
    points = np.empty((len(agents), *manifold.point_shape))
    for i, upload in enumerate(uploads):
        array = np.asarray(upload)
        if array.shape != manifold.point_shape or array.dtype.kind not in "fiu":
            reasons[i] = f"shape {array.shape} of {array.dtype}, not {manifold.point_shape} of floats"
            points[i] = base
        else:
            points[i] = array
    for i in np.flatnonzero(~manifold.valid_points(points)).tolist():
        reasons[i] = manifold.check_point(points[i], explain=True)[1]
    with np.errstate(all="ignore"):
        logs = manifold.log(base, points, strict=False)
        length = manifold.norm(base, logs)
    reach = float(manifold.injectivity_radius(base))
    for i in np.flatnonzero(~(length < reach)).tolist():
        if i not in reasons:
            reasons[i] = _too_far(manifold, base, points[i], reach)
    at = np.array([i for i in range(len(agents)) if i not in reasons], dtype=np.int64)
    refused = tuple(Refusal(int(agents[i]), reasons[i]) for i in sorted(reasons))
    return _Accepted(at, points[at], logs[at], refused)


def _too_far(manifold: Manifold, base: Array, point: Array, reach: float) -> str:
    with np.errstate(all="ignore"):
        distance = float(manifold.dist(base, point))
    if distance >= reach:
        return f"at distance {distance:.6g} from the base point, not within the injectivity radius {reach:.6g}"
    return f"no unique shortest geodesic from the base point was found (injectivity radius {reach:.6g})"


class Aggregation(ABC):
    """How the server combines uploads. Concrete ones are frozen dataclasses: their fields are public."""

    name: ClassVar[str]
    """Its key in `AGGREGATIONS` and in configurations."""
    takes_ambient: ClassVar[bool] = False
    """Whether uploads may lie around the manifold."""

    def aggregate(
        self,
        manifold: Manifold,
        base: Array,
        agents: Sequence[int],
        uploads: Sequence[Array] | Array,
        counts: Sequence[int] | NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Aggregate:
        """The next point from the uploads of `agents`, who hold `counts` records each and started from `base`.

        Uploads that cannot be used are refused, and the round goes on without them; if all are, the point stays.
        rng is drawn from only by what adds noise.
        """
        accepted = screen(Euclidean(*manifold.point_shape) if self.takes_ambient else manifold, base, agents, uploads)
        held = np.asarray(counts, dtype=float)[accepted.at]
        point, info = self._combine(manifold, base, accepted, held, len(agents), rng)
        return Aggregate(point, accepted.refused, info)

    @abstractmethod
    def _combine(
        self, manifold: Manifold, base: Array, accepted: _Accepted, counts: Array, drawn: int, rng: np.random.Generator
    ) -> tuple[Array, dict[str, Any]]:
        """The next point, and what there is to say about it, from the accepted ones of `drawn` uploads, whose agents
        hold `counts` records."""

    def event(self, sampled: int, pool: int) -> Event | None:
        """What one round releases about a whole agent, if the aggregation itself is a mechanism; None where it is
        post-processing of what the agents released."""
        return None


@dataclass(frozen=True)
class _WeightedMean(Aggregation):
    """A mean of the uploads with weights p_i: "records", in proportion to the numbers of records, or "equal"."""

    weights: Weights = "records"

    def __post_init__(self) -> None:
        if self.weights not in ("records", "equal"):
            raise ValueError(f"aggregation: weights = {self.weights!r} must be 'records' or 'equal'")

    def _combine(
        self, manifold: Manifold, base: Array, accepted: _Accepted, counts: Array, drawn: int, rng: np.random.Generator
    ) -> tuple[Array, dict[str, Any]]:
        if len(counts) == 0:
            return base, {}
        p = counts if self.weights == "records" else np.ones(len(counts))
        return self._mean(manifold, base, accepted, p / p.sum())

    @abstractmethod
    def _mean(self, manifold: Manifold, base: Array, accepted: _Accepted, p: Array) -> tuple[Array, dict[str, Any]]:
        """The mean with weights p that sum to 1, and what there is to say about it."""


@dataclass(frozen=True)
class TangentMean(_WeightedMean):
    """Exp_{w_t}( sum_i p_i Log_{w_t}(w_i) ): one Riemannian gradient step towards the Fréchet mean of the uploads.

    weights: "records" for p_i in proportion to the numbers of records, or "equal". (prirfed.txt, equation 3.2)
    """

    name = "tangent-mean"

    def _mean(self, manifold: Manifold, base: Array, accepted: _Accepted, p: Array) -> tuple[Array, dict[str, Any]]:
        return manifold.exp(base, np.tensordot(p, accepted.logs, axes=1)), {}


@dataclass(frozen=True)
class FrechetMeanAggregation(_WeightedMean):
    """The Fréchet mean of the uploads itself, iterated from the base point until its gradient is below `tolerance`.

    info: "converged", "iterations" and "step_norm", the distance left as far as the solver knows. It is reported, not
    raised, when the iteration stops short: then the best point met is taken.
    """

    name = "frechet-mean"

    tolerance: float = 1e-10
    max_iterations: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise ValueError(f"aggregation: tolerance = {self.tolerance!r} must be a positive finite number")
        if self.max_iterations < 1:
            raise ValueError(f"aggregation: max_iterations = {self.max_iterations!r} must be >= 1")

    def _mean(self, manifold: Manifold, base: Array, accepted: _Accepted, p: Array) -> tuple[Array, dict[str, Any]]:
        result = frechet_mean(
            manifold,
            accepted.points,
            p,
            start=base,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        info = {"converged": result.converged, "iterations": result.iterations, "step_norm": result.step_norm}
        return result.point, info


@dataclass(frozen=True)
class ProjectedMean(_WeightedMean):
    """The projection of sum_i p_i w_i onto the manifold: averaging that ignores the manifold, as a comparison. Uploads
    may be any finite arrays.

    weights: "records" for p_i in proportion to the numbers of records, or "equal". info: "projected" is False where
    there is nothing to project to (a mean of 0 on the sphere); the point then stays.
    """

    name = "projected-mean"
    takes_ambient = True

    def _mean(self, manifold: Manifold, base: Array, accepted: _Accepted, p: Array) -> tuple[Array, dict[str, Any]]:
        with np.errstate(all="ignore"):
            point = manifold.project_point(np.tensordot(p, accepted.points, axes=1))
        projected = manifold.check_point(point)
        return (point if projected else base), {"projected": projected}


@dataclass(frozen=True)
class AgentLevelMean(Aggregation):
    """Differential privacy for whole agents, by a server that is trusted with the uploads:
    Exp_{w_t}( (1/s) sum_i clip_C(Log_{w_t}(w_i)) + xi ) with a tangent Gaussian xi ~ N_{w_t}(0, sigma^2).

    clip: C, how far one agent can pull. noise_multiplier: sigma as a multiple of the sensitivity 2C/s.

    Guarantee: replacing all of one agent's data moves the mean by at most 2C/s, because weights are equal and the
    denominator is the public number s of agents drawn, whoever of them is refused (whose part is then 0). Drawing s of
    N agents uniformly amplifies, as long as the server keeps to itself who takes part; so the list of refusals is the
    server's own as well.
    """

    name = "agent-level-mean"

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        for name, value in (("clip", self.clip), ("noise_multiplier", self.noise_multiplier)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"aggregation: {name} = {value!r} must be a positive finite number")

    def sensitivity(self, sampled: int) -> float:
        """How far one of `sampled` agents can move the mean, in the norm at the base point."""
        return 2 * self.clip / sampled

    def event(self, sampled: int, pool: int) -> Event:
        sensitivity = self.sensitivity(sampled)
        release = Gaussian(sensitivity, self.noise_multiplier * sensitivity, of=Unit.AGENT)
        return SampledWithoutReplacement(release, sampled, pool) if sampled < pool else release

    def _combine(
        self, manifold: Manifold, base: Array, accepted: _Accepted, counts: Array, drawn: int, rng: np.random.Generator
    ) -> tuple[Array, dict[str, Any]]:
        mean = clip(manifold, base, accepted.logs, self.clip).sum(axis=0) / drawn
        sigma = self.noise_multiplier * self.sensitivity(drawn)
        xi = manifold.tangent_from_normals(base, sigma * rng.standard_normal(manifold.normals_shape))
        return manifold.exp(base, mean + xi), {}


AGGREGATIONS: dict[str, type[Aggregation]] = {
    aggregation.name: aggregation
    for aggregation in (TangentMean, FrechetMeanAggregation, ProjectedMean, AgentLevelMean)
}
