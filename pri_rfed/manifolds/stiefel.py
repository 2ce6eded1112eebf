"""Orthonormal frames, and what they share with the subspaces that they span."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.linalg import frobenius, orthonormalise, polar, svd, transpose


class Frames(Manifold):
    """Manifolds whose points are m x r matrices with orthonormal columns, and whose metric is tr(u^T v)."""

    homogeneous = True
    complete = True

    def __init__(self, m: int, r: int):
        if m != int(m) or r != int(r) or not 0 < r < m:
            raise ValueError(f"{type(self).__name__}: m={m!r}, r={r!r} must be integers with 0 < r < m")
        self.m, self.r = int(m), int(r)
        self.point_shape = (self.m, self.r)
        self.normals_shape = self.point_shape

    def inner(self, w: Array, u: Array, v: Array) -> Array:
        _, u, v = np.broadcast_arrays(w, u, v)
        return np.sum(u * v, axis=(-2, -1))

    def retract(self, w: Array, v: Array) -> Array:
        """The orthonormal factor of w + v = Q R with a positive diagonal of R."""
        return orthonormalise(w + v)

    def tangent_from_normals(self, w: Array, a: Array) -> Array:
        """The orthogonal projection of a."""
        return self.project_tangent(w, a)

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        """The orthogonal projection of egrad."""
        return self.project_tangent(w, egrad)

    def project_point(self, y: Array) -> Array:
        """The polar factor: the nearest matrix with orthonormal columns."""
        return polar(y)

    def random_point(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> Array:
        """Uniform: invariant under rotations of R^m."""
        return orthonormalise(rng.standard_normal((*batch, *self.point_shape)))

    def _point_defects(self, x: Array) -> Iterator[tuple[Array, str]]:
        yield frobenius(transpose(x) @ x - np.eye(self.r)) / 1e-9, "has columns that are not orthonormal"

    def _complement_coordinates(self, w: Array, h: Array) -> Array:
        """The isometry from matrices orthogonal to w onto all (m - r) x r matrices: a rotation takes w to the span of
        the first r unit vectors, and the remaining rows are what is left. Needs O(m r^2), and no basis is formed.
        """
        return PrincipalVectors(w, np.eye(self.m, self.r)).rotate(h)[..., self.r :, :]

    def _from_complement_coordinates(self, w: Array, c: Array) -> Array:
        """The inverse of `_complement_coordinates`."""
        h = np.concatenate([np.zeros((*c.shape[:-2], self.r, self.r)), c], axis=-2)
        return PrincipalVectors(w, np.eye(self.m, self.r)).rotate_back(h)


class PrincipalVectors:
    """The direct rotation of R^m: it takes span(w) to span(x) by turning each principal vector of w to that of x, and
    leaves alone what is orthogonal to both.

    With w^T x = U diag(c) V^T the principal vectors are w U and x V. The rotation of h with w^T h = 0 is
    h - (w U + x V) (1 + diag(c))^-1 (x V)^T h, which is smooth while no principal angle is pi/2, and an isometry
    always.
    """

    def __init__(self, w: Array, x: Array):
        u, c, vt = svd(transpose(w) @ x)
        self.alignment = u @ vt
        """The orthogonal q [..., r, r] such that the rotation takes w q to x."""
        self._from, self._to = w @ u, x @ transpose(vt)
        self._weight = 1.0 / (1.0 + c)[..., :, None]

    def rotate(self, h: Array) -> Array:
        """The rotation of a matrix h [..., m, r] orthogonal to w."""
        return h - (self._from + self._to) @ (self._weight * (transpose(self._to) @ h))

    def rotate_back(self, h: Array) -> Array:
        """The inverse rotation of a matrix h [..., m, r] orthogonal to x."""
        return h - (self._from + self._to) @ (self._weight * (transpose(self._from) @ h))
