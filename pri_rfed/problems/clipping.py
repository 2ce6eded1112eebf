"""Clipped means of per-record gradients, and how much one record can change them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array, Manifold

if TYPE_CHECKING:
    from pri_rfed.problems.base import Problem

CHUNK_NUMBERS = 1 << 20
"""How many numbers of per-record gradients are held at a time: they stay in cache, whatever the batch size."""

TINY = np.finfo(float).tiny


@np.errstate(all="ignore")
def clip(manifold: Manifold, w: Array, v: Array, bound: float | None) -> Array:
    """min(1, bound/||v||_w) v, shape [..., *point_shape]; 0 where v holds NaN or infinity. Only that for bound None.

    (The formula printed in dp-rsvrg-fast-sampling.txt, section 5, has the quotient upside down.)
    """
    v, factors = _with_factors(manifold, w, v, bound)
    return v if factors is None else v * factors.reshape(factors.shape + (1,) * len(manifold.point_shape))


def _with_factors(manifold: Manifold, w: Array, v: Array, bound: float | None) -> tuple[Array, Array | None]:
    """v, with 0 for what holds NaN or infinity, and the numbers [...] that it is to be multiplied by (None: all 1)."""
    if not math.isfinite(v.sum()):
        axes = tuple(range(-len(manifold.point_shape), 0))
        v = np.where(np.isfinite(v).all(axis=axes, keepdims=True), v, 0.0)
    if bound is None:
        return v, None
    norm = manifold.norm(w, v)
    factors = np.minimum(1.0, bound / np.maximum(norm, TINY))
    # An infinite norm, of numbers whose squares are too large, has made the factor 0; for NaN it is fmax that does.
    return v, np.fmax(factors, 0.0)


def clipped_mean(
    problem: Problem, w: Array, z: Array, bound: float | None, mask: NDArray[np.bool_] | None, size: Array
) -> Array:
    """`Problem.clipped_mean` by way of every record's gradient, a chunk of records at a time."""
    base = w[:, None]
    return mean_of_clipped(problem.manifold, base, z, lambda part: problem.gradient(base, part), bound, mask, size)


@np.errstate(all="ignore")  # what is no number is looked for, and counts as 0
def mean_of_clipped(
    manifold: Manifold,
    base: Array,
    z: Array,
    vectors: Callable[[Array], Array],
    bound: float | None,
    mask: NDArray[np.bool_] | None,
    size: Array,
) -> Array:
    """(1/size) sum_j clip(vectors(z_j)), tangent at base [A, 1, *point_shape]; else as `Problem.clipped_mean`."""
    agents, records = z.shape[:2]
    numbers = math.prod(manifold.point_shape)
    total = np.zeros((agents, numbers))
    chunk = max(1, CHUNK_NUMBERS // max(1, agents * numbers))
    for start in range(0, records, chunk):
        part = slice(start, start + chunk)
        v, factors = _with_factors(manifold, base, vectors(z[:, part]), bound)
        if mask is not None:
            factors = mask[:, part].astype(float) if factors is None else factors * mask[:, part]
        rows = v.reshape(agents, -1, numbers)
        total += rows.sum(axis=1) if factors is None else (factors[:, None, :] @ rows)[:, 0]
    return (total / np.asarray(size, dtype=float)[:, None]).reshape(agents, *manifold.point_shape)


@dataclass(frozen=True)
class ClippedGradient:
    """The mean of clipped gradients of a problem, together with its sensitivity.

    clip: the bound C, a public constant. None only where the problem's own bounds make clipping unnecessary.
    """

    problem: Problem
    clip: float | None

    def __post_init__(self) -> None:
        if self.clip is not None and not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"clip = {self.clip!r} must be a positive finite number, or none")

    @property
    def norm_bound(self) -> float:
        """What the norm of one record's contribution never exceeds; infinite where nothing bounds it."""
        own = self.problem.gradient_bound
        return min(math.inf if self.clip is None else self.clip, math.inf if own is None else own)

    @property
    def difference_bound(self) -> float:
        """What replacing one record by another can change its contribution by, in norm; infinite if unbounded.

        Clipping is the projection onto a ball, so it never enlarges the difference that the problem itself guarantees.
        """
        own = self.problem.gradient_difference_bound
        return min(2 * self.norm_bound, math.inf if own is None else own)

    def mean(self, w: Array, z: Array, mask: NDArray[np.bool_] | None, size: Array) -> Array:
        """(1/size) sum of clipped gradients; shapes as in `Problem.clipped_mean`."""
        own = self.problem.gradient_bound
        needless = own is not None and self.clip is not None and own <= self.clip
        return self.problem.clipped_mean(w, z, None if needless else self.clip, mask, size)


@dataclass(frozen=True)
class ClippedDifference:
    """The mean over records of grad f(w; z) - PT grad f(w~; z), each difference clipped as one after the transport.

    clip: the bound C, a public constant. None only where the problem's own bounds make clipping unnecessary.
    """

    problem: Problem
    clip: float | None

    @property
    def difference_bound(self) -> float:
        """What replacing one record by another can change its contribution by, in norm; infinite if unbounded."""
        return 2 * min(
            math.inf if self.clip is None else self.clip, ClippedGradient(self.problem, None).difference_bound
        )

    def mean(self, w: Array, snapshot: Array, z: Array, mask: NDArray[np.bool_] | None, size: Array) -> Array:
        """(1/size) sum of clipped differences, tangent at w; snapshot is w~, other shapes as in
        `Problem.clipped_mean`."""
        problem, manifold = self.problem, self.problem.manifold
        here, there = w[:, None], snapshot[:, None]

        def differences(part: Array) -> Array:
            carried = manifold.parallel_transport(there, here, problem.gradient(there, part))
            return problem.gradient(here, part) - carried

        return mean_of_clipped(manifold, here, z, differences, self.clip, mask, size)
