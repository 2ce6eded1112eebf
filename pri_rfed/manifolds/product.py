"""Products of manifolds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold


def _cut(x: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """x [..., total] -> arrays [..., *shape], views where possible."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    return [part.reshape(*x.shape[:-1], *shape) for part, shape in zip(np.split(x, ends, axis=-1), shapes, strict=True)]


@final
class Product(Manifold):
    """The Riemannian product: a point is the factors' points flattened and concatenated, one vector [total].

    Every operation acts factor by factor; squared lengths add up. `split` and `join` go to the factors' own arrays and
    back. The injectivity radius is the factors' smallest, a bound where theirs is one.
    """

    name = "product"

    def __init__(self, factors: Sequence[Manifold]):
        self.factors = tuple(factors)
        if not self.factors or not all(isinstance(factor, Manifold) for factor in self.factors):
            raise ValueError(f"Product: factors must be one or more manifolds, not {factors!r}")
        self._shapes = [factor.point_shape for factor in self.factors]
        self._normals_shapes = [factor.normals_shape for factor in self.factors]
        self.point_shape = (sum(map(math.prod, self._shapes)),)
        self.normals_shape = (sum(map(math.prod, self._normals_shapes)),)
        self.dim = sum(factor.dim for factor in self.factors)
        self.transport = "; ".join(dict.fromkeys(factor.transport for factor in self.factors))
        self.homogeneous = all(factor.homogeneous for factor in self.factors)
        self.complete = all(factor.complete for factor in self.factors)
        # A plane spanned by vectors of two factors is flat.
        bounds = [factor.curvature_bounds for factor in self.factors if factor.dim > 0]
        flat = [0.0] if len(bounds) != 1 else []
        self.curvature_bounds = (min([low for low, _ in bounds] + flat), max([high for _, high in bounds] + flat))

    def __repr__(self) -> str:
        return f"Product([{', '.join(map(repr, self.factors))}])"

    def split(self, x: Array) -> list[Array]:
        """Points or tangent vectors x [..., total] -> one array [..., *factor.point_shape] a factor."""
        return _cut(x, self._shapes)

    def join(self, parts: Sequence[Array]) -> Array:
        """The inverse of `split`; the parts' batch axes broadcast. Raises ValueError unless there is one a factor."""
        if len(parts) != len(self.factors):
            raise ValueError(f"{self}: parts must be {len(self.factors)} arrays, one a factor, not {len(parts)}")
        batches = [factor.batch_shape(part) for factor, part in zip(self.factors, parts, strict=True)]
        batch = np.broadcast_shapes(*batches)
        flat = [
            np.broadcast_to(part.reshape(*own, math.prod(shape)), (*batch, math.prod(shape)))
            for part, own, shape in zip(parts, batches, self._shapes, strict=True)
        ]
        return np.concatenate(flat, axis=-1)

    def _each(self, *arrays: Array) -> Iterator[tuple[Manifold, tuple[Array, ...]]]:
        """Every factor with its part of each of the arrays."""
        return zip(self.factors, zip(*map(self.split, arrays), strict=True), strict=True)

    def inner(self, w: Array, u: Array, v: Array) -> Array:
        return np.asarray(sum(factor.inner(*parts) for factor, parts in self._each(w, u, v)))

    @np.errstate(all="ignore")
    def dist(self, w: Array, x: Array) -> Array:
        return np.sqrt(np.asarray(sum(factor.dist(*parts) ** 2 for factor, parts in self._each(w, x))))

    def injectivity_radius(self, w: Array) -> Array:
        return np.min([factor.injectivity_radius(*parts) for factor, parts in self._each(w)], axis=0)

    def exp(self, w: Array, v: Array) -> Array:
        return self.join([factor.exp(*parts) for factor, parts in self._each(w, v)])

    def retract(self, w: Array, v: Array) -> Array:
        return self.join([factor.retract(*parts) for factor, parts in self._each(w, v)])

    def _log(self, w: Array, x: Array) -> Array:
        return self.join([factor._log(*parts) for factor, parts in self._each(w, x)])

    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        return self.join([factor.parallel_transport(*parts) for factor, parts in self._each(w, x, v)])

    def coordinates(self, w: Array, v: Array) -> Array:
        return np.concatenate([factor.coordinates(*parts) for factor, parts in self._each(w, v)], axis=-1)

    def from_coordinates(self, w: Array, c: Array) -> Array:
        shares = zip(self.factors, self.split(w), _cut(c, [(factor.dim,) for factor in self.factors]), strict=True)
        return self.join([factor.from_coordinates(part, share) for factor, part, share in shares])

    def tangent_from_normals(self, w: Array, a: Array) -> Array:
        shares = zip(self.factors, self.split(w), _cut(a, self._normals_shapes), strict=True)
        return self.join([factor.tangent_from_normals(part, share) for factor, part, share in shares])

    def project_tangent(self, w: Array, y: Array) -> Array:
        return self.join([factor.project_tangent(*parts) for factor, parts in self._each(w, y)])

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        return self.join([factor.riemannian_gradient(*parts) for factor, parts in self._each(w, egrad)])

    def project_point(self, y: Array) -> Array:
        return self.join([factor.project_point(*parts) for factor, parts in self._each(y)])

    def random_point(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> Array:
        """The factors' random points, independent of each other."""
        return self.join([factor.random_point(rng, batch) for factor in self.factors])

    def _point_defects(self, x: Array) -> Iterator[tuple[Array, str]]:
        for i, (factor, parts) in enumerate(self._each(x)):
            for violation, text in factor._point_defects(*parts):
                yield violation, f"factor {i}, {factor}: {text}"

    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        for i, (factor, parts) in enumerate(self._each(w, v)):
            for violation, text in factor._tangent_defects(*parts):
                yield violation, f"factor {i}, {factor}: {text}"
