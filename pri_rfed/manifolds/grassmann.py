"""Subspaces, represented by orthonormal bases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from pri_rfed.manifolds.base import Array
from pri_rfed.manifolds.linalg import frobenius, relative, svd, transpose
from pri_rfed.manifolds.stiefel import Frames, PrincipalVectors


@final
class Grassmann(Frames):
    """r-dimensional subspaces of R^m, 0 < r < m; a point [..., m, r] is an orthonormal basis of one.

    A tangent vector at the basis w is the horizontal matrix v (w^T v = 0) that moves w; metric tr(u^T v). Two bases w
    and w q of one subspace, q orthogonal, are the same point: `dist` is 0 between them, and v at w is v q at w q.
    `log(w, x)` leads from w to a basis of span(x), not to x itself, so compare points by `dist`;
    `parallel_transport(w, x, v)` is the tangent vector at the basis x that it was given.

    A complete symmetric space. log is unique while all principal angles are below pi/2, which covers the ball of radius
    pi/2, the injectivity radius, and more. The curvature lies in [0, 2] (Wong 1968); it is 1 for r = 1 and r = m - 1
    (projective space; taken so, too, where that is a circle, which has none).

    Accuracy: with the singular values c of w^T x, the log is (x - w w^T x) q f(w^T x q), where q aligns x with w and
    f(c) = arccos(c) / sqrt(1 - c^2) is smooth on [0, 1]: so no digits are lost near zero nor near the cut locus. The
    formulas are those of Edelman, Arias & Smith (1998) and of Bendokat, Zimmermann & Absil (2024), Algorithm 5.3,
    written with f.
    """

    name = "grassmann"
    transport = "parallel"

    def __init__(self, m: int, r: int):
        super().__init__(m, r)
        self.dim = (self.m - self.r) * self.r
        self.curvature_bounds = (1.0, 1.0) if min(self.r, self.m - self.r) == 1 else (0.0, 2.0)

    def _aligned_log(self, w: Array, x: Array) -> tuple[Array, Array, Array]:
        """The logarithm [..., m, r] in the basis w u instead of w; the principal angles' cosines [..., r]; and u."""
        u, c, vt = svd(transpose(w) @ x)
        c = np.minimum(c, 1.0)
        # Orthogonal to w, from x - w: exact differences where the two bases are near each other.
        d = x - w
        for _ in range(2):
            d = d - w @ (transpose(w) @ d)
        return (d @ transpose(vt)) * _arccos_over_sine(c)[..., None, :], c, u

    def dist(self, w: Array, x: Array) -> Array:
        """The Euclidean norm of the principal angles, accurate near 0 and near pi/2, shape [...]."""
        return frobenius(self._aligned_log(w, x)[0])

    def injectivity_radius(self, w: Array) -> Array:
        """pi/2."""
        return np.full(self.batch_shape(w), 0.5 * np.pi)

    def exp(self, w: Array, v: Array) -> Array:
        """w V cos(S) V^T + U sin(S) V^T for v = U S V^T; this basis is the one that moves horizontally from w."""
        u, s, vt = svd(v)
        return (w @ transpose(vt) * np.cos(s)[..., None, :] + u * np.sin(s)[..., None, :]) @ vt

    def _log(self, w: Array, x: Array) -> Array:
        v, c, u = self._aligned_log(w, x)
        unique = c[..., -1:] > 4.0 * np.finfo(float).eps
        return v @ transpose(u) * np.where(unique, 1.0, np.nan)[..., None]

    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        """Along the shortest geodesic; where a principal angle is pi/2, along one of the shortest."""
        principal = PrincipalVectors(w, x)
        return principal.rotate(v) @ principal.alignment

    def coordinates(self, w: Array, v: Array) -> Array:
        c = self._complement_coordinates(w, v)
        return c.reshape(*c.shape[:-2], self.dim)

    def from_coordinates(self, w: Array, c: Array) -> Array:
        return self._from_complement_coordinates(w, c.reshape(*c.shape[:-1], self.m - self.r, self.r))

    def project_tangent(self, w: Array, y: Array) -> Array:
        """y - w w^T y."""
        return y - w @ (transpose(w) @ y)

    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        yield relative(frobenius(transpose(w) @ v), frobenius(v), 1e-9), "is not horizontal: w^T v is not 0"


def _arccos_over_sine(c: Array) -> Array:
    """arccos(c) / sqrt(1 - c^2) on [0, 1], 1 at 1."""
    sine = np.sqrt((1.0 - c) * (1.0 + c))
    return np.where(sine > 0, np.arccos(c) / np.where(sine > 0, sine, 1.0), 1.0)
