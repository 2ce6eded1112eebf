"""Principal components: the direction, or the subspace, along which the records vary most."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.grassmann import Grassmann
from pri_rfed.manifolds.sphere import Sphere
from pri_rfed.manifolds.stiefel import Stiefel
from pri_rfed.problems.base import Problem

NORM_SLACK = 1e-9
"""How far above 1 the norm of a record may lie and still be taken for 1 that was rounded."""

EPS, TINY = np.finfo(float).eps, np.finfo(float).tiny

BLOCK_NUMBERS = 1 << 17
"""How many numbers of records are worked on at a time: their second use then finds them in the processor's cache."""

MOMENT_NUMBERS = 1 << 21
"""How many are widened at a time for second moments: a bound on memory."""


class _PrincipalComponents(Problem):
    """f(w; z) = -||w^T z||^2 for a matrix w with r orthonormal columns and records z in R^n with ||z|| <= 1.

    With scores s = w^T z the gradient is -2 (z - w s) s^T, of norm 2 ||z - w s|| ||s|| <= ||z||^2, because
    ||z - w s||^2 + ||s||^2 = ||z||^2. So a record of norm at most 1 has a gradient of norm at most 1, unclipped.
    """

    single_precision = True  # no norm grows
    gradient_bound = 1.0

    @abstractmethod
    def _columns(self, w: Array) -> Array:
        """The point as a matrix with orthonormal columns, [..., n, r]."""

    def loss(self, w: Array, z: Array) -> Array:
        return -np.square(self._scores(w, z)).sum(axis=-1)

    def gradient(self, w: Array, z: Array) -> Array:
        columns, scores = self._columns(w), self._scores(w, z)
        residual = z - np.matmul(columns, scores[..., None])[..., 0]
        gradient = -2.0 * residual[..., :, None] * scores[..., None, :]
        return gradient.reshape(*gradient.shape[:-2], *self.manifold.point_shape)

    def check_records(self, z: Array) -> None:
        super().check_records(z)
        norms = np.sqrt(np.vecdot(z, z))
        if np.any(norms > 1 + NORM_SLACK):
            at = tuple(map(int, np.argwhere(norms > 1 + NORM_SLACK)[0]))
            raise ValueError(
                f"{self.name}: record {at} has norm {norms[at]:.6g}, above 1; scale the records by a public constant, "
                "or each one by its own norm"
            )

    def prepare_records(self, z: Array) -> Array:
        """Records whose norm was rounded to just above 1 are scaled to norm 1; others stay as they are."""
        z = super().prepare_records(z)
        norms = np.sqrt(np.vecdot(z, z))
        return z / np.maximum(norms, 1.0)[..., None] if np.any(norms > 1 + 1e-14 * z.shape[-1]) else z

    @np.errstate(all="ignore")  # what is no number is looked for, and counts as 0
    def clipped_mean(
        self, w: Array, z: Array, clip: float | None, mask: NDArray[np.bool_] | None, size: Array
    ) -> Array:
        """By matrix products: clipping multiplies a record's gradient by a number c, and
        sum_j c_j grad_j = -2 (I - w w^T) Z^T diag(c) Z w, so that no single gradient is ever formed."""
        if type(self).gradient is not _PrincipalComponents.gradient:  # a problem derived from this one, with another
            return super().clipped_mean(w, z, clip, mask, size)
        columns = self._columns(w)
        rows = np.swapaxes(columns, -1, -2)
        total = np.zeros(rows.shape)  # what a batch without records adds up to
        factor = -2.0 / np.asarray(size, dtype=float)[:, None, None]
        for agents, part in _blocks(z.shape):
            block = z[agents, part]
            scores = block @ columns[agents]
            weighted = scores * factor[agents]
            if clip is not None:
                weighted *= _clip_factors(block, scores, clip)[..., None]
            if mask is not None:
                weighted *= mask[agents, part, None]
            weighted = np.swapaxes(weighted, -1, -2)
            if part.start == 0:
                _product(weighted, block, out=total[agents])
            else:
                total[agents] += _product(weighted, block)
        along = total @ columns
        total -= _product(along, rows)
        mean = np.ascontiguousarray(np.swapaxes(total, -1, -2)).reshape(w.shape)
        bad = ~np.isfinite(along).all(axis=(-2, -1))  # no NaN or infinity comes through a product unseen
        if bad.any():  # it has spoilt the sum, not only its own record: those agents go record by record
            mean[bad] = super().clipped_mean(
                w[bad], z[bad], clip, None if mask is None else mask[bad], np.asarray(size)[bad]
            )
        return mean

    def _scores(self, w: Array, z: Array) -> Array:
        """w^T z, shape [..., r]."""
        columns = self._columns(w)
        if columns.ndim == 2:  # one point for all records: one matrix product
            return z @ columns
        return np.matmul(z[..., None, :], columns)[..., 0, :]

    def _leading(self, z: Array, r: int) -> Array:
        """The r leading eigenvectors of Z^T Z, [n, r]; z may be in single precision."""
        moments = np.zeros((z.shape[-1], z.shape[-1]))
        length = max(1, MOMENT_NUMBERS // z.shape[-1])
        for start in range(0, len(z), length):
            block = np.asarray(z[start : start + length], dtype=float)
            moments += block.T @ block
        _, vectors = np.linalg.eigh(moments)
        return vectors[:, : -r - 1 : -1]


class PrincipalEigenvector(_PrincipalComponents):
    """The leading eigenvector of the covariance: f(w; z) = -(w^T z)^2 on the unit sphere of R^n.

    Records are vectors of norm at most 1; then every gradient -2 (w^T z)(z - (w^T z) w) has norm at most 1.
    (dp-riemannian-optimization.txt, section 5.1)
    """

    name = "principal-eigenvector"

    def __init__(self, n: int):
        self.manifold: Manifold = Sphere(n)
        self.record_shape = (n,)

    def _columns(self, w: Array) -> Array:
        return w[..., None]

    def optimum(self, z: Array) -> Array:
        return self._leading(z, 1)[:, 0]

    def distance(self, w: Array, optimum: Array) -> Array:
        """To the nearer of the two minimisers, which differ by their sign."""
        return np.minimum(self.manifold.dist(w, optimum), self.manifold.dist(w, -optimum))


class PrincipalSubspace(_PrincipalComponents):
    """The span of the r leading eigenvectors: f(w; z) = -||w^T z||^2 for w with r orthonormal columns in R^n.

    On the Grassmann manifold a point is the subspace; on the Stiefel manifold it is the basis, among which the loss
    does not distinguish, and the gradient is the same matrix. Records are vectors of norm at most 1; then every
    gradient has norm at most 1.
    """

    name = "principal-subspace"

    def __init__(self, n: int, r: int, manifold: Literal["grassmann", "stiefel"] = "grassmann"):
        kinds: dict[str, type[Grassmann] | type[Stiefel]] = {"grassmann": Grassmann, "stiefel": Stiefel}
        if manifold not in kinds:
            raise ValueError(f"principal-subspace: manifold = {manifold!r} must be 'grassmann' or 'stiefel'")
        self.manifold: Manifold = kinds[manifold](n, r)
        self.record_shape = (n,)
        self._grassmann = Grassmann(n, r)

    def _columns(self, w: Array) -> Array:
        return w

    def optimum(self, z: Array) -> Array:
        return self._leading(z, self.manifold.point_shape[1])

    def distance(self, w: Array, optimum: Array) -> Array:
        """Between the subspaces, whatever their bases."""
        return self._grassmann.dist(w, optimum)


def _clip_factors(z: Array, scores: Array, bound: float) -> Array:
    """min(1, bound/||gradient||) for every record, shape [..., b]; 0 where the norm is NaN or infinite.

    ||z - w s||^2 is taken as ||z||^2 - ||s||^2 plus a bound of what rounding can take away, so that a norm is never
    found too small and the clipped gradient never too long.
    """
    squares = np.vecdot(z, z)
    on = np.vecdot(scores, scores)
    off = np.maximum(squares - on, 0.0) + z.shape[-1] * EPS * squares
    norms = 2.0 * np.sqrt(on * off)
    return np.fmax(np.minimum(1.0, bound / np.maximum(norms, TINY)), 0.0)


def _product(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b, which NumPy is slow at where there is but one number to sum over."""
    return np.multiply(a, b, out=out) if a.shape[-1] == 1 else np.matmul(a, b, out=out)


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Slices over the agents and the records of an array [A, b, n], at most BLOCK_NUMBERS numbers each."""
    agents, records, n = shape
    together = max(1, BLOCK_NUMBERS // max(1, records * n))
    length = max(1, min(records, BLOCK_NUMBERS // n))
    for a in range(0, agents, together):
        for j in range(0, records, length):
            yield slice(a, a + together), slice(j, j + length)
