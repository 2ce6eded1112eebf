"""Hyperbolic space, Lorentz model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.vectors import gyration, norm

TOLERANCE = 1e-9


def _lorentz(u: Array, v: Array) -> Array:
    """<u, v>_L = -u_1 v_1 + u_2 v_2 + …"""
    return np.vecdot(u[..., 1:], v[..., 1:]) - u[..., 0] * v[..., 0]


@final
class Hyperboloid(Manifold):
    """Vectors [d + 1] with <x, x>_L = -1 and x_1 > 0, <u, v>_L = -u_1 v_1 + u_2 v_2 + … + u_{d+1} v_{d+1}.

    Curvature -1, no cut locus. `random_point` is exp at e_1 of a tangent Gaussian of standard deviation 1/sqrt(d), so
    at a distance of about 1 from e_1.

    A point at distance r from e_1 has entries of size e^r / 2, so the Lorentz product as it is written loses e^{2r}
    units in the last place. Everything here therefore goes through quantities that do not cancel: coordinates in the
    frame carried from e_1, and the point as seen from the base point (`_seen_from`).
    """

    name = "hyperboloid"
    transport = "parallel"
    homogeneous = True
    complete = True
    curvature_bounds = (-1.0, -1.0)

    def __init__(self, d: int):
        if d != int(d) or d < 1:
            raise ValueError(f"Hyperboloid: d must be a positive integer, not {d}")
        self.dim = int(d)
        self.point_shape = (self.dim + 1,)
        self.normals_shape = (self.dim,)

    def __repr__(self) -> str:
        return f"Hyperboloid({self.dim})"

    def inner(self, w: Array, u: Array, v: Array) -> Array:
        a = self.coordinates(w, u)
        return np.vecdot(a, a if v is u else self.coordinates(w, v))

    @np.errstate(all="ignore")
    def dist(self, w: Array, x: Array) -> Array:
        return np.arcsinh(norm(self._seen_from(w, x)))

    def injectivity_radius(self, w: Array) -> Array:
        return np.full(self.batch_shape(w), np.inf)

    def exp(self, w: Array, v: Array) -> Array:
        t = self.norm(w, v)[..., None]
        sinhc = np.divide(np.sinh(t), t, out=np.ones_like(t), where=t != 0)
        return self._from_space(np.cosh(t) * w[..., 1:] + sinhc * v[..., 1:])

    def retract(self, w: Array, v: Array) -> Array:
        return self._from_space(w[..., 1:] + v[..., 1:])

    @np.errstate(all="ignore")
    def _log(self, w: Array, x: Array) -> Array:
        y = self._seen_from(w, x)
        sinh = norm(y)[..., None]
        return self.from_coordinates(w, np.where(sinh == 0, 1, np.arcsinh(sinh) / sinh) * y)

    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        # In the frames carried from e_1 it is the gyration of the Poincaré ball, the stereographic projection of this.
        ball_x, ball_w = (y[..., 1:] / (1 + y[..., :1]) for y in (x, w))
        return self.from_coordinates(x, gyration(ball_x, ball_w, self.coordinates(w, v)))

    # An orthonormal basis of T_w: e_2, …, e_{d+1} carried in parallel from e_1.

    def coordinates(self, w: Array, v: Array) -> Array:
        return v[..., 1:] - v[..., :1] / (1 + w[..., :1]) * w[..., 1:]

    def from_coordinates(self, w: Array, c: Array) -> Array:
        k = np.vecdot(w[..., 1:], c)[..., None]
        v = np.empty((*k.shape[:-1], *self.point_shape))
        v[..., :1] = k
        np.multiply(k / (1 + w[..., :1]), w[..., 1:], out=v[..., 1:])
        v[..., 1:] += c
        return v

    def tangent_from_normals(self, w: Array, a: Array) -> Array:
        return self.from_coordinates(w, a)

    def project_tangent(self, w: Array, y: Array) -> Array:
        """The projection that is orthogonal in the Lorentz product, y + <w, y>_L w."""
        return y + _lorentz(w, y)[..., None] * w

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        lorentz_gradient = egrad.copy()
        lorentz_gradient[..., 0] *= -1
        return self.project_tangent(w, lorentz_gradient)

    def project_point(self, y: Array) -> Array:
        """Keeps y_2, …, y_{d+1} and sets y_1 = sqrt(1 + y_2^2 + …)."""
        return self._from_space(y[..., 1:])

    def random_point(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> Array:
        a = rng.standard_normal((*batch, self.dim)) / np.sqrt(self.dim)
        e1 = self._from_space(np.zeros(self.dim))
        return self.exp(e1, self.from_coordinates(e1, a))

    def _point_defects(self, x: Array) -> Iterator[tuple[Array, str]]:
        yield np.where(x[..., 0] > 0, 0, np.inf), "has a first entry that is not positive"
        first = np.sqrt(1 + np.vecdot(x[..., 1:], x[..., 1:]))
        yield np.abs(x[..., 0] - first) / (TOLERANCE * first), "does not have Lorentz square -1"

    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        yield (
            np.abs(_lorentz(w, v)) / (TOLERANCE * norm(w) * (1 + norm(v))),
            "is not Lorentz-orthogonal to the point",
        )

    def _from_space(self, space: Array) -> Array:
        """The point whose entries 2, …, d + 1 are `space`."""
        x = np.empty((*space.shape[:-1], *self.point_shape))
        x[..., 0] = np.sqrt(1 + np.vecdot(space, space))
        x[..., 1:] = space
        return x

    def _seen_from(self, w: Array, x: Array) -> Array:
        """Entries 2, …, d + 1 of x after the Lorentz boost that takes w to e_1; their norm is sinh dist(w, x).

        The boost leaves alone what is orthogonal to w' = (w_2, …); along w' it is x_r w_1 - x_1 r with
        x_r = <x', w'>/r, r = |w'|. For x_r > 0 that cancels, and is replaced by the difference of the squares over the
        sum, which is a function of x - w.
        """
        r = norm(w[..., 1:])[..., None]
        direction = w[..., 1:] / np.where(r > 0, r, np.inf)  # 0 when w = e_1
        d = x[..., 1:] - w[..., 1:]
        d_r = np.vecdot(d, direction)[..., None]
        across = d - d_r * direction
        x_r = d_r + r
        forward = x_r * w[..., :1]
        back = x[..., :1] * r
        squares = d_r * (x_r + r) - np.vecdot(across, across)[..., None] * r**2
        ahead = x_r > 0
        along = np.where(ahead, squares / np.where(ahead, forward + back, 1), forward - back)
        return across + along * direction
