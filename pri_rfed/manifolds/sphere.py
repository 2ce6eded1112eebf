"""The unit sphere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.vectors import norm

TOLERANCE = 1e-9


@final
class Sphere(Manifold):
    """Unit vectors [n] with the inner product of R^n; dimension n - 1, n >= 2. `random_point` is uniform.

    The injectivity radius is exactly pi. The circle, n = 2, has no sectional curvature; its bounds are those of the
    other spheres, because with an upper bound of 0 it would pass for a flat space without a cut locus.
    """

    name = "sphere"
    transport = "parallel"
    homogeneous = True
    complete = True
    curvature_bounds = (1.0, 1.0)

    def __init__(self, n: int):
        if n != int(n) or n < 2:
            raise ValueError(f"Sphere: n must be an integer of at least 2, not {n}")
        self.point_shape = self.normals_shape = (int(n),)
        self.dim = int(n) - 1

    def inner(self, w: Array, u: Array, v: Array) -> Array:
        return np.vecdot(u, v)

    @np.errstate(all="ignore")
    def dist(self, w: Array, x: Array) -> Array:
        # Accurate at all angles, unlike the arccosine (bad near 0 and pi) and the arcsine of half the chord (near pi).
        return 2 * np.arctan2(norm(x - w), norm(x + w))

    def injectivity_radius(self, w: Array) -> Array:
        return np.full(self.batch_shape(w), np.pi)

    def exp(self, w: Array, v: Array) -> Array:
        t = norm(v)[..., None]
        sinc = np.divide(np.sin(t), t, out=np.ones_like(t), where=t != 0)
        x = np.cos(t) * w
        x += sinc * v
        x /= norm(x)[..., None]
        return x

    def retract(self, w: Array, v: Array) -> Array:
        x = w + v
        x /= norm(x)[..., None]
        return x

    @np.errstate(all="ignore")
    def _log(self, w: Array, x: Array) -> Array:
        # Start from the difference to the nearer one of w and -w: it is exact, so nothing cancels at either end.
        same_side = np.vecdot(w, x)[..., None] >= 0
        d = np.where(same_side, x - w, x + w)
        angle = 2 * np.arcsin(np.minimum(norm(d)[..., None] / 2, 1))
        # At -w, rounding included, the direction is arbitrary.
        at_end = np.where(same_side, angle == 0, angle < 16 * np.finfo(float).eps)
        scale = np.where(same_side, angle, np.pi - angle) / np.sin(angle)
        scale = np.where(at_end, np.where(same_side, 1, np.nan), scale)
        return scale * self.project_tangent(w, d)

    @np.errstate(all="ignore")
    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        """NaN where x = -w: no shortest geodesic is unique there."""
        # The reflection that takes w to -x agrees on T_w with transport along the geodesic. Near the antipode s is
        # small, and the rounding of w and x would leave a normal part.
        s = w + x
        return self.project_tangent(x, v - (2 * np.vecdot(s, v) / np.vecdot(s, s))[..., None] * s)

    # An orthonormal basis of T_w: the images of e_2, …, e_n under the reflection that takes e_1 to w or -w, whichever
    # is farther from e_1 (for w_1 >= 0 the parallel transport from e_1).

    def coordinates(self, w: Array, v: Array) -> Array:
        first = w[..., :1]
        return v[..., 1:] - v[..., :1] / (first + np.copysign(1, first)) * w[..., 1:]

    def from_coordinates(self, w: Array, c: Array) -> Array:
        first = w[..., :1]
        sign = np.copysign(1, first)
        k = np.vecdot(w[..., 1:], c)[..., None]
        return np.concatenate([-sign * k, c - k / (1 + np.abs(first)) * w[..., 1:]], axis=-1)

    def tangent_from_normals(self, w: Array, a: Array) -> Array:
        return self.project_tangent(w, a)

    def project_tangent(self, w: Array, y: Array) -> Array:
        normal = np.vecdot(w, y)[..., None] * w
        return np.subtract(y, normal, out=normal)

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        return self.project_tangent(w, egrad)

    def project_point(self, y: Array) -> Array:
        """y / |y|."""
        return y / norm(y)[..., None]

    def random_point(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> Array:
        return self.project_point(rng.standard_normal((*batch, *self.point_shape)))

    def _point_defects(self, x: Array) -> Iterator[tuple[Array, str]]:
        yield np.abs(norm(x) - 1) / TOLERANCE, "does not have norm 1"

    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        yield np.abs(np.vecdot(w, v)) / (TOLERANCE * (1 + norm(v))), "is not orthogonal to the point"
