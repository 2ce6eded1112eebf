"""Manifolds and points that several test files compute with."""

from __future__ import annotations

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.manifolds.grassmann import Grassmann
from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.manifolds.poincare_ball import PoincareBall
from pri_rfed.manifolds.product import Product
from pri_rfed.manifolds.spd import SPDAffineInvariant, SPDBuresWasserstein, SPDLogEuclidean
from pri_rfed.manifolds.sphere import Sphere
from pri_rfed.manifolds.stiefel import Stiefel

EVERY_MANIFOLD: list[Manifold] = [
    Euclidean(3),
    Sphere(4),
    Hyperboloid(3),
    PoincareBall(3),
    SPDAffineInvariant(2),
    SPDLogEuclidean(2),
    SPDBuresWasserstein(2),
    Stiefel(4, 2),
    Grassmann(5, 2),
    Product([Sphere(3), SPDAffineInvariant(2)]),
]


def near(manifold: Manifold, w: Array, rng: np.random.Generator, batch: tuple[int, ...], radius: float) -> Array:
    """Random points within `radius` times half the injectivity radius (at most 1) of w, [*batch, *point_shape]."""
    reach = radius * min(1.0, float(manifold.injectivity_radius(w)) / 2)
    c = rng.standard_normal((*batch, manifold.dim))
    c *= reach * rng.random((*batch, 1)) / np.linalg.norm(c, axis=-1, keepdims=True)
    return manifold.exp(w, manifold.from_coordinates(np.broadcast_to(w, (*batch, *w.shape)), c))


def tangent(m: Manifold, rng: np.random.Generator, w: Array, length: Array | float) -> Array:
    """A tangent vector at each w, of uniform direction and the given length."""
    c = rng.standard_normal((*m.batch_shape(w), m.dim))
    c *= np.asarray(length)[..., None] / np.linalg.norm(c, axis=-1, keepdims=True)
    return m.from_coordinates(w, c)


def close(a: Array, b: Array, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def unit_vectors(rng: np.random.Generator, shape: tuple[int, ...], spread: Array | float = 1.0) -> Array:
    """Gaussian vectors scaled to norm 1, the last axis holding their entries."""
    z = rng.standard_normal(shape) * spread
    return z / np.linalg.norm(z, axis=-1, keepdims=True)
