"""Low-rank matrix completion: the subspace that the columns of an incomplete matrix lie next to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.grassmann import Grassmann
from pri_rfed.manifolds.linalg import solve
from pri_rfed.problems.base import Problem
from pri_rfed.problems.clipping import CHUNK_NUMBERS
from pri_rfed.problems.rank_one import clipped_sum

LEAST_RIDGE = 1e-9
"""Below this the least squares of a record with fewer entries than the rank would be decided by rounding."""


class MatrixCompletion(Problem):
    """f(U; a) = min_v ||P(U v - a)||^2 + ridge ||v||^2 for a subspace of R^n with the orthonormal basis U [n, r], a
    point of the Grassmann manifold. A record is one column a of the matrix, as a rule one user, of which P keeps the
    entries that were observed. (dp-riemannian-optimization.txt, section 5.5; there ridge is 0)

    Records [2, n]: the values, and below them 1 where one was observed and 0 elsewhere, where the value must be 0.

    ridge: a public constant, which makes the inner least squares well posed: v = (U^T P U + ridge I)^-1 U^T P a, in
    closed form. By the envelope theorem the gradient in the entries of U is 2 P(U v - a) v^T; its projection, with
    p = P(U v - a) + ridge U v, is 2 p v^T, because U^T P(U v - a) = -ridge v.

    v grows without a bound that is of use, as few entries of a column are observed; so gradients must be clipped. It is
    never released: only clipped gradients, averaged, are.
    """

    name = "matrix-completion"
    single_precision = True  # zeros and ones stay, and nothing bounds the values
    record_axes = 2
    """The axes of a record, the last of which tells n to a configuration."""

    def __init__(self, n: int, r: int, ridge: float = 1e-3):
        if not (np.isfinite(ridge) and ridge >= LEAST_RIDGE):
            raise ValueError(f"{self.name}: ridge = {ridge!r} must be a finite number >= {LEAST_RIDGE:g}")
        self.manifold: Manifold = Grassmann(n, r)
        self.record_shape = (2, int(n))
        self.ridge = float(ridge)

    def loss(self, w: Array, z: Array) -> Array:
        v, residual = self.fit(w, z)
        return np.vecdot(residual, residual) + self.ridge * np.vecdot(v, v)

    def gradient(self, w: Array, z: Array) -> Array:
        v, residual = self.fit(w, z)
        return 2.0 * self._horizontal(w, residual, v)[..., :, None] * v[..., None, :]

    def fit(self, w: Array, z: Array) -> tuple[Array, Array]:
        """v [..., r] of the inner least squares, and P(U v - a) [..., n]; `...` broadcasts. w need not be orthonormal.

        Not private: nothing of it may be released.
        """
        if w.ndim == 2:
            return self.fit_all(w, z)
        v, residual = self.fit_all(w, z[..., None, :, :])  # every record has its own point
        return v[..., 0, :], residual[..., 0, :]

    def fit_all(self, w: Array, z: Array) -> tuple[Array, Array]:
        """The same for points [..., n, r] with k records [..., k, 2, n] each: v [..., k, r], P(U v - a) [..., k, n]."""
        values, observed = z[..., 0, :], z[..., 1, :]
        n, r = self.manifold.point_shape
        # The r x r matrices U^T P U of all records are one matrix product.
        squares = observed @ (w[..., :, None] * w[..., None, :]).reshape(*w.shape[:-2], n, r * r)
        matrices = squares.reshape(*squares.shape[:-1], r, r) + self.ridge * np.eye(r)
        v = solve(matrices, (values @ w)[..., None])[..., 0]
        return v, observed * (v @ np.swapaxes(w, -1, -2)) - values

    def _horizontal(self, w: Array, residual: Array, v: Array) -> Array:
        """p = P(U v - a) + ridge U v, orthogonal to the columns of U but for rounding, which is taken away."""
        if w.ndim > 2:
            return (residual[..., None, :] - (residual[..., None, :] @ w) @ np.swapaxes(w, -1, -2))[..., 0, :]
        return residual - (residual @ w) @ w.T

    def check_records(self, z: Array) -> None:
        super().check_records(z)
        values, observed = z[..., 0, :], z[..., 1, :]
        for wrong, what in (
            ((observed != 0) & (observed != 1), "its second row must be 1 where an entry was observed and 0 elsewhere"),
            ((observed == 0) & (values != 0), "an entry that was not observed must be 0"),
        ):
            if wrong.any():
                *at, entry = map(int, np.argwhere(wrong)[0])
                raise ValueError(f"{self.name}: record {tuple(at)}, entry {entry}: {what}")

    @np.errstate(all="ignore")  # what is no number is looked for, and counts as 0
    def clipped_mean(
        self, w: Array, z: Array, clip: float | None, mask: NDArray[np.bool_] | None, size: Array
    ) -> Array:
        """By matrix products: a gradient 2 p v^T has rank one."""
        if type(self).gradient is not MatrixCompletion.gradient:  # a problem derived from this one, with another
            return super().clipped_mean(w, z, clip, mask, size)
        total = np.zeros_like(w)
        chunk = max(1, CHUNK_NUMBERS // max(1, len(w) * w.shape[-2]))
        for start in range(0, z.shape[1], chunk):
            part = slice(start, start + chunk)
            v, residual = self.fit_all(w, z[:, part])
            residual -= (residual @ w) @ np.swapaxes(w, -1, -2)
            total += clipped_sum(2.0 * residual, v, clip, None if mask is None else mask[:, part])
        return total / np.asarray(size, dtype=float).reshape(-1, 1, 1)
