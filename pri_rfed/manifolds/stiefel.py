"""Orthonormal frames, and what they share with the subspaces that they span."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.linalg import (
    eigh_skew,
    frobenius,
    orthonormalise,
    polar,
    relative,
    skew,
    solve,
    svd,
    sym,
    transpose,
)


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


@final
class Stiefel(Frames):
    """m x r matrices with orthonormal columns, 0 < r < m, with the metric tr(u^T v) of the ambient space.

    Tangent at w: w^T v skew-symmetric. Complete; the injectivity radius is pi (Zimmermann & Stoye 2024) and the
    curvature lies in [-1/2, 1]; for r = 1 this is the sphere.

    exp is a closed form (Edelman, Arias & Smith 1998, section 2.2.2, in the form of Zimmermann & Hüper 2022). log has
    none: it is found by Newton's method on v -> exp(w, v), with the exact differential and conjugate residuals, in
    the 2r x r matrices that hold everything in the span of w and x. It converges until the tangent part of the
    endpoint's error is below 1e-13 |x - w|. A geodesic shorter than pi is the only shortest one, so the result is
    checked for that; a batch entry where none is found within the limit of iterations, or only a longer one, has no
    log (LogError), as every pair with dist(w, x) >= pi has none, and its dist is NaN.

    Parallel transport has no closed form; `parallel_transport` is another isometry, v -> R v with the orthogonal R of
    R^m that has R w = x and is the identity on what is orthogonal to w and x: with s = w + x and G^-1 = I + x^T w,
    R h = h - s G s^T h for w^T h = 0. It is smooth for dist(w, x) < pi, where x^T w has no eigenvalue -1, and it is
    parallel for r = 1.
    """

    name = "stiefel"
    transport = "another isometry: v -> R v, R orthogonal with R w = x, the identity on what is orthogonal to both"

    def __init__(self, m: int, r: int):
        super().__init__(m, r)
        self.dim = self.m * self.r - self.r * (self.r + 1) // 2
        self.curvature_bounds = (-0.5, 1.0) if self.r > 1 else (1.0, 1.0)
        self._upper = np.triu_indices(self.r, 1)

    def dist(self, w: Array, x: Array) -> Array:
        """The norm of the log; NaN where that was not found."""
        return frobenius(self._log(w, x))

    def injectivity_radius(self, w: Array) -> Array:
        """pi."""
        return np.full(self.batch_shape(w), np.pi)

    def exp(self, w: Array, v: Array) -> Array:
        a = skew(transpose(w) @ v)
        q, b = _qr(v - w @ (transpose(w) @ v))
        moved = _Geodesic(np.concatenate([a, b], axis=-2)).displacement
        return w + (w @ moved[..., : self.r, :] + q @ moved[..., self.r :, :])

    def _log(self, w: Array, x: Array) -> Array:
        d = x - w
        along = transpose(w) @ d
        q, across = _qr(d - w @ along)
        target = np.concatenate([along, across], axis=-2)
        z = _log_from_origin(target.reshape(-1, 2 * self.r, self.r)).reshape(target.shape)
        return w @ z[..., : self.r, :] + q @ z[..., self.r :, :]

    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        along = transpose(w) @ v
        across = v - w @ along
        s = w + x
        # I + x^T w, its symmetric part written s^T s / 2: then I - s G s^T is orthogonal whatever the skew part.
        inverse = 0.5 * transpose(s) @ s + skew(transpose(x) @ w)
        return x @ along + across - s @ solve(inverse, transpose(s) @ across)

    def coordinates(self, w: Array, v: Array) -> Array:
        along = transpose(w) @ v
        across = self._complement_coordinates(w, v - w @ along)
        across = across.reshape(*across.shape[:-2], (self.m - self.r) * self.r)
        return np.concatenate([np.sqrt(2.0) * skew(along)[..., *self._upper], across], axis=-1)

    def from_coordinates(self, w: Array, c: Array) -> Array:
        n = len(self._upper[0])
        along = np.zeros((*c.shape[:-1], self.r, self.r))
        along[..., *self._upper] = c[..., :n] / np.sqrt(2.0)
        across = c[..., n:].reshape(*c.shape[:-1], self.m - self.r, self.r)
        return w @ (along - transpose(along)) + self._from_complement_coordinates(w, across)

    def project_tangent(self, w: Array, y: Array) -> Array:
        """y - w sym(w^T y)."""
        return y - w @ sym(transpose(w) @ y)

    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        yield relative(frobenius(sym(transpose(w) @ v)), frobenius(v), 1e-9), "has a w^T v that is not skew-symmetric"


# In the basis of w and of the span of the rest of x or v, a tangent vector at w is z = [A; B] [..., 2r, r] with A
# skew-symmetric, and exp(z) = exp(K) [I; 0] exp(-A), K = [[2A, -B^T], [B, 0]].


class _Geodesic:
    """The geodesic with velocity z [..., 2r, r] from [I; 0] at time 1.

    Tangent vectors there are carried back by v -> exp(-K) v exp(A), an isometry.
    """

    def __init__(self, z: Array):
        self._z = z
        self._r = z.shape[-1]
        self._k = eigh_skew(_generator(z))
        self._a = eigh_skew(z[..., : self._r, :])
        moved = _function(*self._k, lambda t: np.expm1(1j * t))
        self._turned = _function(*self._a, lambda t: np.expm1(-1j * t))
        self._moved = moved
        first = moved[..., : self._r]
        self.displacement: Array = first + first @ self._turned
        """exp(z) - [I; 0], accurate relative to its own size."""
        self.displacement[..., : self._r, :] += self._turned

    def carry_back(self, y: Array) -> Array:
        """The tangent part at the start of an ambient y [..., 2r, r] at the end."""
        y = y + transpose(self._moved) @ y
        return _tangent_part(y + y @ transpose(self._turned))

    def differential(self, z: Array) -> Array:
        """The differential of exp, carried back: z is the change of the velocity."""
        y = _average(*self._k, _generator(z))[..., : self._r]
        y[..., : self._r, :] -= _average(*self._a, z[..., : self._r, :])
        return y

    def precondition(self, y: Array) -> Array:
        """Roughly the inverse of `differential`: what turns carrying back into parallel transport, exp(P) with a
        linear P, to second order.
        """
        first = self._connection(y)
        return y + first + 0.5 * self._connection(first)

    def _connection(self, y: Array) -> Array:
        a, b = self._z[..., : self._r, :], self._z[..., self._r :, :]
        c, d = y[..., : self._r, :], y[..., self._r :, :]
        return np.concatenate([1.5 * (a @ c - c @ a) - skew(transpose(b) @ d), b @ c - d @ a], axis=-2)


def _arc(chord: Array, r: int) -> Array:
    """A lower bound of the distance of points that are `chord` apart in R^{m x r}: all lie on a sphere of radius
    sqrt(r).
    """
    radius = np.sqrt(r)
    return 2.0 * radius * np.arcsin(np.minimum(chord / (2.0 * radius), 1.0))


def _log_from_origin(target: Array) -> Array:
    """The z [n, 2r, r] shorter than pi with exp(z) = [I; 0] + target; NaN where none is found."""
    z = np.full_like(target, np.nan)
    far = _arc(frobenius(target), target.shape[-1])
    chord = _tangent_part(target)
    # Near the cut locus Newton's method may end at a longer geodesic from one start, at the shortest from the other.
    for start in (_rescaled(chord, far), chord):
        missing = np.isnan(z).any(axis=(-2, -1)) & (far < np.pi)
        z[missing] = _shoot(target[missing], start[missing])
    return z


def _shoot(target: Array, start: Array, steps: int = 40, tolerance: float = 1e-13) -> Array:
    """Newton's method for exp(z) = [I; 0] + target, shape [n, 2r, r]; NaN where it does not converge to a z shorter
    than pi.
    """
    z = start.copy()
    size = frobenius(target)
    found = np.zeros(len(z), dtype=bool)
    active = np.arange(len(z))
    for _ in range(steps):
        geodesic = _Geodesic(z[active])
        miss = target[active] - geodesic.displacement
        error = geodesic.carry_back(miss)
        distance = frobenius(miss)
        # Far away the tangent part alone does not tell a point from its antipode.
        hit = (frobenius(error) <= tolerance * size[active]) & (distance < 0.1)
        found[active[hit]] = True
        if hit.all():
            break
        longer = _rescaled(error, _arc(distance, target.shape[-1]))
        error = np.where((distance > 1e-3)[:, None, None], longer, error)
        step = _conjugate_residuals(geodesic.differential, geodesic.precondition, error)
        step = _tangent_part(_rescaled(step, np.minimum(frobenius(step), 0.5)))
        z[active] += np.where(hit[:, None, None], 0.0, step)
        active = active[~hit]
    z[~(found & (frobenius(z) < np.pi))] = np.nan
    return z


def _conjugate_residuals(
    apply: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    b: Array,
    steps: int = 40,
    tolerance: float = 1e-3,
) -> Array:
    """An approximate solution x of apply(x) = b, batched: generalised conjugate residuals (Eisenstat, Elman & Schultz
    1983), until every residual is below `tolerance` |b| or for as many steps as given.
    """
    x, residual = np.zeros_like(b), b
    directions: list[tuple[Array, Array]] = []
    for _ in range(steps):
        p = precondition(residual)
        q = apply(p)
        whole = frobenius(q)
        for p_old, q_old in directions:
            c = np.sum(q_old * q, axis=(-2, -1), keepdims=True)
            p, q = p - c * p_old, q - c * q_old
        # What orthogonalisation leaves of a direction that holds nothing new is rounding: such an entry is finished.
        left = frobenius(q)
        scale = np.where(left > 1e-8 * whole, 1.0 / np.where(left > 0, left, 1.0), 0.0)[..., None, None]
        p, q = p * scale, q * scale
        directions.append((p, q))
        c = np.sum(q * residual, axis=(-2, -1), keepdims=True)
        x, residual = x + c * p, residual - c * q
        if np.all(frobenius(residual) <= tolerance * frobenius(b)):
            break
    return x


def _qr(y: Array) -> tuple[Array, Array]:
    q, r = np.linalg.qr(y)
    return q, r


def _rescaled(y: Array, length: Array) -> Array:
    """y with the norm `length`, 0 where it is 0."""
    norm = frobenius(y)
    return y * (length / np.where(norm > 0, norm, 1.0))[..., None, None]


def _tangent_part(y: Array) -> Array:
    """The tangent part at [I; 0] of y [..., 2r, r]."""
    r = y.shape[-1]
    return np.concatenate([skew(y[..., :r, :]), y[..., r:, :]], axis=-2)


def _generator(z: Array) -> Array:
    """K = [[2A, -B^T], [B, 0]] of z = [A; B]."""
    r = z.shape[-1]
    k = np.zeros((*z.shape[:-1], 2 * r))
    k[..., :r, :r] = 2.0 * z[..., :r, :]
    k[..., r:, :r] = z[..., r:, :]
    k[..., :r, r:] = -transpose(z[..., r:, :])
    return k


def _function(theta: Array, u: NDArray[np.complex128], f: Callable[[Array], NDArray[np.complex128]]) -> Array:
    """U diag(f(theta)) U^H, which is real for the functions used here."""
    return ((u * f(theta)[..., None, :]) @ np.conj(np.swapaxes(u, -1, -2))).real


def _average(theta: Array, u: NDArray[np.complex128], x: Array) -> Array:
    """The integral of exp(-s K) x exp(s K) over s in [0, 1] for K = U diag(i theta) U^H."""
    delta = theta[..., :, None] - theta[..., None, :]
    weight = np.exp(-0.5j * delta) * np.sinc(delta / (2.0 * np.pi))
    uh = np.conj(np.swapaxes(u, -1, -2))
    return (u @ (weight * (uh @ x @ u)) @ uh).real
