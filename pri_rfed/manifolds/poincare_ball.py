"""Hyperbolic space, Poincaré ball."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.vectors import gyration, norm

MAX_RADIUS = 1 - 1e-14
"""No point made here is farther from the centre (distance 33), so rounding cannot put it outside the ball."""


def _gap(w: Array) -> Array:
    """1 - |w|^2, shape [..., 1]."""
    return 1 - np.vecdot(w, w)[..., None]


@final
class PoincareBall(Manifold):
    """Vectors [d] with |w| < 1 and the metric l_w^2 <u, v>, l_w = 2 / (1 - |w|^2).

    Curvature -1, no cut locus. `random_point` is exp at the centre of a tangent Gaussian of standard deviation
    1/sqrt(d), so at a distance of about 1 from it.
    """

    name = "poincare-ball"
    transport = "parallel"
    homogeneous = True
    complete = True
    curvature_bounds = (-1.0, -1.0)

    def __init__(self, d: int):
        if d != int(d) or d < 1:
            raise ValueError(f"PoincareBall: d must be a positive integer, not {d}")
        self.dim = int(d)
        self.point_shape = self.normals_shape = (self.dim,)

    def inner(self, w: Array, u: Array, v: Array) -> Array:
        return np.vecdot(u, v) * (2 / _gap(w)[..., 0]) ** 2

    @np.errstate(all="ignore")
    def dist(self, w: Array, x: Array) -> Array:
        return 2 * np.arcsinh(norm(x - w) / np.sqrt(_gap(w) * _gap(x))[..., 0])

    def injectivity_radius(self, w: Array) -> Array:
        return np.full(self.batch_shape(w), np.inf)

    def exp(self, w: Array, v: Array) -> Array:
        # w (+) tau v/|v|, the Möbius sum, as w + (1 - |w|^2) tau g / |g|^2 with g = v/|v| + tau w: nothing cancels.
        gap, length = _gap(w), norm(v)[..., None]
        tau = np.tanh(length / gap)
        g = v / np.where(length > 0, length, 1) + tau * w
        square = np.vecdot(g, g)[..., None]
        return self.project_point(w + gap * tau / np.where(length > 0, square, 1) * g)

    @np.errstate(all="ignore")
    def _log(self, w: Array, x: Array) -> Array:
        # (2 / l_w) artanh(|z|) z / |z| with z = (-w) (+) x written in d = x - w.
        d, gap = x - w, _gap(w)
        square, gaps = np.vecdot(d, d)[..., None], gap * _gap(x)
        sinh = np.sqrt(square / gaps)  # of half the distance
        scale = np.where(sinh == 0, 1, np.arcsinh(sinh) / sinh) * gap / np.sqrt(gaps * (gaps + square))
        return scale * (gap * d - square * w)

    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        return _gap(x) / _gap(w) * gyration(x, w, v)

    # An orthonormal basis of T_w: e_i / l_w, which is the basis e_i / 2 of the centre carried in parallel to w.

    def coordinates(self, w: Array, v: Array) -> Array:
        return v * (2 / _gap(w))

    def from_coordinates(self, w: Array, c: Array) -> Array:
        return c * (_gap(w) / 2)

    def tangent_from_normals(self, w: Array, a: Array) -> Array:
        return self.from_coordinates(w, a)

    def project_tangent(self, w: Array, y: Array) -> Array:
        return np.broadcast_to(y, np.broadcast_shapes(w.shape, y.shape)).copy()

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        return egrad * (_gap(w) / 2) ** 2

    def project_point(self, y: Array) -> Array:
        """Shortened to norm MAX_RADIUS where it is longer."""
        r = norm(y)[..., None]
        return y * np.where(r > MAX_RADIUS, MAX_RADIUS / np.where(r > 0, r, 1), 1)

    def random_point(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> Array:
        a = rng.standard_normal((*batch, self.dim)) / np.sqrt(self.dim)
        centre = np.zeros(self.dim)
        return self.exp(centre, self.from_coordinates(centre, a))

    def _point_defects(self, x: Array) -> Iterator[tuple[Array, str]]:
        yield norm(x) / (1 - 1e-15), "does not lie inside the unit ball"

    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        yield from ()
