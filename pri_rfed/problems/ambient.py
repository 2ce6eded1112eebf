"""Problems on the flat space that a manifold's points lie in: what methods work with that ignore the manifold."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.problems.base import Problem
from pri_rfed.problems.clipping import CHUNK_NUMBERS
from pri_rfed.problems.matrix_completion import MatrixCompletion
from pri_rfed.problems.pca import PrincipalEigenvector, PrincipalSubspace
from pri_rfed.problems.rank_one import clipped_sum

AMBIENT_PROBLEMS = (PrincipalEigenvector, PrincipalSubspace, MatrixCompletion)
"""The problems whose losses are defined around the manifold, too. Not those derived from them: another gradient, or
longer records, would make the bounds below false."""


class Ambient(Problem):
    """The loss of `problem`, one of AMBIENT_PROBLEMS, for all matrices w [*point_shape], and its Euclidean gradient:
    -2 z (w^T z)^T for principal components, 2 P(w v - a) v^T for matrix completion.

    on_manifold: whether the loss is only ever looked at on the manifold. For principal components two gradients then
    differ by at most 2 (r = 1) or 2 sqrt(2), unclipped (`gradient_difference_bound`): with D = z z^T - z' z'^T,
    ||D w||_F is at most ||D||_2 ||w||_F for r = 1, and ||D||_F ||w||_2 always. As norms are at most 1, D has one
    eigenvalue in [0, 1], one in [-1, 0], and else 0. So ||D||_2 <= 1 and ||D||_F <= sqrt(2); and ||w||_2 = 1.

    Raises ValueError for other problems.
    """

    name = "ambient"

    def __init__(self, problem: Problem, on_manifold: bool = False):
        if type(problem) not in AMBIENT_PROBLEMS:
            raise ValueError(
                f"the loss of problem {problem.name} is not defined around its manifold, as those of "
                f"{', '.join(known.name for known in AMBIENT_PROBLEMS)} are"
            )
        self.problem = problem
        self.manifold = Euclidean(*problem.manifold.point_shape)
        self.record_shape = problem.record_shape
        if on_manifold and not isinstance(problem, MatrixCompletion):
            self.gradient_difference_bound = 2.0 if isinstance(problem, PrincipalEigenvector) else 2 * math.sqrt(2)

    def loss(self, w: Array, z: Array) -> Array:
        return self.problem.loss(w, z)

    def gradient(self, w: Array, z: Array) -> Array:
        left, right = self._factors(w, np.expand_dims(z, -1 - len(self.record_shape)))
        gradient = left[..., 0, :, None] * right[..., 0, None, :]
        return gradient.reshape(*gradient.shape[:-2], *self.manifold.point_shape)

    def _factors(self, w: Array, z: Array) -> tuple[Array, Array]:
        """The gradients of records [..., k, *record_shape] at w [..., *point_shape] are left right^T, for left
        [..., k, n] and right [..., k, r]."""
        columns = w.reshape(*self.manifold.batch_shape(w), self.record_shape[-1], -1)
        if isinstance(self.problem, MatrixCompletion):
            v, residual = self.problem.fit_all(columns, z)
            return 2.0 * residual, v
        return -2.0 * z, z @ columns

    def prepare_records(self, z: Array) -> Array:
        return self.problem.prepare_records(z)

    @np.errstate(all="ignore")  # what is no number is looked for, and counts as 0
    def clipped_mean(
        self, w: Array, z: Array, clip: float | None, mask: NDArray[np.bool_] | None, size: Array
    ) -> Array:
        """By matrix products: gradients have rank one."""
        total = np.zeros((len(w), self.record_shape[-1], w[0].size // self.record_shape[-1]))
        chunk = max(1, CHUNK_NUMBERS // max(1, len(w) * self.record_shape[-1]))
        for start in range(0, z.shape[1], chunk):
            part = slice(start, start + chunk)
            left, right = self._factors(w, z[:, part])
            total += clipped_sum(left, right, clip, None if mask is None else mask[:, part])
        return (total / np.asarray(size, dtype=float).reshape(-1, 1, 1)).reshape(w.shape)
