"""Flat space of arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import final

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold


@final
class Euclidean(Manifold):
    """Arrays [*shape] with the entrywise inner product. `random_point` is standard normal."""

    name = "euclidean"
    transport = "parallel"
    homogeneous = True
    complete = True
    curvature_bounds = (0.0, 0.0)

    def __init__(self, *shape: int):
        if not shape or any(n != int(n) or n < 1 for n in shape):
            raise ValueError(f"Euclidean: shape must be one or more positive integers, not {shape}")
        self.point_shape = tuple(int(n) for n in shape)
        self.normals_shape = self.point_shape
        self.dim = math.prod(self.point_shape)

    def _flat(self, v: Array) -> Array:
        return v if len(self.point_shape) == 1 else v.reshape(*self.batch_shape(v), self.dim)

    def inner(self, w: Array, u: Array, v: Array) -> Array:
        return np.vecdot(self._flat(u), self._flat(v))

    @np.errstate(all="ignore")
    def dist(self, w: Array, x: Array) -> Array:
        return self.norm(w, x - w)

    def injectivity_radius(self, w: Array) -> Array:
        return np.full(self.batch_shape(w), np.inf)

    def exp(self, w: Array, v: Array) -> Array:
        return w + v

    @np.errstate(all="ignore")
    def _log(self, w: Array, x: Array) -> Array:
        return x - w

    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        return np.broadcast_to(v, np.broadcast_shapes(w.shape, x.shape, v.shape)).copy()

    def coordinates(self, w: Array, v: Array) -> Array:
        return self._flat(self.project_tangent(w, v))

    def from_coordinates(self, w: Array, c: Array) -> Array:
        return self.project_tangent(w, c.reshape(*c.shape[:-1], *self.point_shape))

    def tangent_from_normals(self, w: Array, a: Array) -> Array:
        return self.project_tangent(w, a)

    def project_tangent(self, w: Array, y: Array) -> Array:
        return np.broadcast_to(y, np.broadcast_shapes(w.shape, y.shape)).copy()

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        return self.project_tangent(w, egrad)

    def project_point(self, y: Array) -> Array:
        return y.copy()

    def random_point(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> Array:
        return rng.standard_normal((*batch, *self.point_shape))

    def _point_defects(self, x: Array) -> Iterator[tuple[Array, str]]:
        yield from ()

    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        yield from ()
