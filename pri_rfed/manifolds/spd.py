"""Symmetric positive definite matrices with three metrics.

All three are handled through an isometry from T_w to the symmetric matrices with the Frobenius inner product,
`_whiten`, and its inverse `_colour`. Both start from the Cholesky factor L of w: w^-1 is never formed, and L has the
square root of the condition number of w.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import final

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.linalg import (
    cholesky,
    eigh,
    exp_symmetric,
    frobenius,
    function_of,
    inverse_factor,
    lower_factor,
    quiet,
    relative,
    remembering,
    rotation_of,
    solve_lower,
    svd_graded,
    sym,
    transpose,
    whiten,
)


class _SPD(Manifold):
    """What does not depend on the metric, given the isometry `_whiten`."""

    def __init__(self, m: int):
        if m != int(m) or m < 1:
            raise ValueError(f"{type(self).__name__}: m={m!r} must be a positive integer (the matrices are m x m)")
        self.m = int(m)
        self.point_shape = (self.m, self.m)
        self.dim = self.m * (self.m + 1) // 2
        self.normals_shape = (self.dim,)
        self._upper = np.triu_indices(self.m)
        self._position = np.empty(self.point_shape, dtype=np.intp)
        self._position[self._upper] = self._position.T[self._upper] = np.arange(self.dim)
        self._scale = np.where(self._upper[0] == self._upper[1], 1.0, np.sqrt(2.0))

    @abstractmethod
    def _whiten(self, w: Array, v: Array) -> Array:
        """A linear isometry from T_w onto the symmetric matrices with the Frobenius inner product."""

    @abstractmethod
    def _colour(self, w: Array, h: Array) -> Array:
        """The inverse of `_whiten`."""

    def inner(self, w: Array, u: Array, v: Array) -> Array:
        a = self._whiten(w, u)
        b = a if v is u else self._whiten(w, v)
        return np.sum(a * b, axis=(-2, -1))

    def coordinates(self, w: Array, v: Array) -> Array:
        return self._coordinates_of(self._whiten(w, v))

    def _coordinates_of(self, h: Array) -> Array:
        """The coordinates [..., dim] of a symmetric matrix."""
        return h[..., *self._upper] * self._scale

    def from_coordinates(self, w: Array, c: Array) -> Array:
        return self._colour(w, np.take(c / self._scale, self._position, axis=-1))

    def tangent_from_normals(self, w: Array, a: Array) -> Array:
        # The symmetric matrix with coordinates a has the law of Sym(A) = (A + A^T)/2, A with m^2 normals.
        return self.from_coordinates(w, a)

    def project_tangent(self, w: Array, y: Array) -> Array:
        return sym(np.broadcast_arrays(w, y)[1])

    def project_point(self, y: Array) -> Array:
        """The symmetric part of y; where that is not positive definite, eigenvalues below 1e-12 of the largest absolute
        one are raised to it.
        """
        y = sym(y)
        values, vectors = eigh(y)
        scale = np.abs(values).max(axis=-1, keepdims=True)
        floor = 1e-12 * np.where(scale > 0, scale, 1.0)
        raised = (vectors * np.maximum(values, floor)[..., None, :]) @ transpose(vectors)
        return np.where(self.valid_points(y)[..., None, None], y, sym(raised))

    def random_point(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> Array:
        """exp(S), S symmetric Gaussian of variance 1/m: a law that is invariant under rotations and inversion."""
        values, vectors = eigh(sym(rng.standard_normal((*batch, *self.point_shape))) / np.sqrt(self.m))
        return _gram(vectors * np.exp(0.5 * values)[..., None, :])

    def _point_defects(self, x: Array) -> Iterator[tuple[Array, str]]:
        asymmetry = np.abs(x - transpose(x)).max(axis=(-2, -1))
        yield relative(asymmetry, np.abs(x).max(axis=(-2, -1)), 1e-12), "is not symmetric"
        diagonal = np.diagonal(x, axis1=-2, axis2=-1)
        yield np.where(diagonal.min(axis=-1) > 0, 0.0, np.inf), "is not positive definite: its diagonal is not positive"
        # Unit diagonal first: whether a Cholesky factorisation succeeds does not depend on the scaling of the rows.
        root = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        smallest = eigh(sym(x / root[..., :, None] / root[..., None, :]))[0][..., 0]
        violation = np.where(smallest > 0, self.m * np.finfo(float).eps / np.where(smallest > 0, smallest, 1.0), np.inf)
        yield violation, "is not numerically positive definite"

    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        asymmetry = np.abs(v - transpose(v)).max(axis=(-2, -1))
        yield relative(asymmetry, np.abs(v).max(axis=(-2, -1)), 1e-10), "is not symmetric"


@final
class SPDAffineInvariant(_SPD):
    """Symmetric positive definite m x m matrices with the affine-invariant metric <u, v>_w = tr(w^-1 u w^-1 v).

    A complete symmetric space of nonpositive curvature; distances do not change under w -> g w g^T. exp, log and the
    transport are closed forms (Pennec, Fillard & Ayache 2006; Bhatia, Positive Definite Matrices, chapter 6).

    Accuracy: log and dist use the eigenvalues of L_w^-1 (x - w) L_w^-T, so that they are accurate relative to their own
    size however near the points are; where an eigenvalue of w^-1 x is 1e4 times smaller than another one, or than 1,
    they use the singular values of L_w^-1 L_x, whose squares those eigenvalues are. Rounding the entries of w already
    moves the results by eps cond(w), relatively, and no more than a small multiple of that is lost. Where the bad
    condition of w, x and w^-1 x comes from a scaling of the axes (diagonal or graded matrices), nothing is lost up to
    1e12.
    """

    name = "spd-affine-invariant"
    transport = "parallel"
    homogeneous = True
    complete = True

    def __init__(self, m: int):
        super().__init__(m)
        self.curvature_bounds = (-0.5, 0.0) if self.m > 1 else (0.0, 0.0)

    @quiet
    def _whiten(self, w: Array, v: Array) -> Array:
        return whiten(inverse_factor(w), v)

    @quiet
    def _colour(self, w: Array, h: Array) -> Array:
        lower = lower_factor(w)
        return sym(lower @ h @ transpose(lower))

    @quiet
    def _whitened_log(self, w: Array, x: Array) -> Array:
        """The symmetric matrix log(L^-1 x L^-T), L L^T = w: the log as `_whiten` would have it."""
        h = function_of(whiten(inverse_factor(w), x - w), _log1p_of_comparable)
        far = np.isnan(h[..., 0, 0])
        if far.any():
            lower, ends = (np.broadcast_to(y, h.shape)[far] for y in (lower_factor(w), x))
            u, s, _ = svd_graded(solve_lower(lower, cholesky(ends)))
            h[far] = (u * (2.0 * np.log(s))[..., None, :]) @ transpose(u)
        return h

    def dist(self, w: Array, x: Array) -> Array:
        return frobenius(self._whitened_log(w, x))

    def injectivity_radius(self, w: Array) -> Array:
        """Infinite: a Hadamard manifold."""
        return np.full(self.batch_shape(w), np.inf)

    @quiet
    def exp(self, w: Array, v: Array) -> Array:
        return _gram(lower_factor(w) @ exp_symmetric(0.5 * whiten(inverse_factor(w), v)))

    @quiet
    def retract(self, w: Array, v: Array) -> Array:
        """w + v + v w^-1 v / 2: agrees with `exp` to second order, is positive definite for every v, and needs no
        eigenvalues. Written as (F F^T + w)/2, F = L + v L^-T.
        """
        return 0.5 * (_gram(lower_factor(w) + transpose(inverse_factor(w) @ v)) + w)

    def _log(self, w: Array, x: Array) -> Array:
        return self._colour(w, self._whitened_log(w, x))

    def log_coordinates(self, w: Array, x: Array) -> Array:
        return self._coordinates_of(self._whitened_log(w, x))

    @quiet
    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        """E v E^T with E = (x w^-1)^½. With L L^T = w, K K^T = x and L^-1 K = U S V^T, E = K V U^T L^-1."""
        end = cholesky(x)
        f = end @ transpose(rotation_of(solve_lower(lower_factor(w), end)))
        return sym(f @ whiten(inverse_factor(w), v) @ transpose(f))

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        """w sym(egrad) w."""
        return sym(w @ sym(egrad) @ w)


@final
class SPDLogEuclidean(_SPD):
    """Symmetric positive definite m x m matrices with the log-Euclidean metric, pulled back from the Frobenius inner
    product by the matrix logarithm: dist(w, x) = |log w - log x|_F (Arsigny, Fillard, Pennec & Ayache 2007).

    Flat, complete, homogeneous; parallel transport does not depend on the path.

    Accuracy: as with the affine-invariant metric. The difference of two logarithms comes from x - w by divided
    differences, accurate relative to its own size. Where eigenvalues differ by a factor of more than 1e4, log w =
    2 P log(S) P^T comes from L = P S V^T, whose condition is the square root of that of w, and its differential is
    applied to L^-1 v L^-T.
    """

    name = "spd-log-euclidean"
    transport = "parallel"
    homogeneous = True
    complete = True
    curvature_bounds = (0.0, 0.0)

    @quiet
    def _whiten(self, w: Array, v: Array) -> Array:
        """The differential of log at w, P (f(log l_i, log l_j) ∘ P^T v P) P^T with divided differences f of log."""
        spectrum = _spectrum(w)
        result = self._divided_differences(spectrum, spectrum, v)
        if (far := np.isnan(result[..., 0, 0])).any():
            w, v = (np.broadcast_to(y, result.shape)[far] for y in (w, v))
            _, p, logs, vt = _factors(w)
            result[far] = self._log_difference(p, logs, vt, p, logs, vt, whiten(inverse_factor(w), v))
        return result

    @quiet
    def _colour(self, w: Array, h: Array) -> Array:
        """The differential of exp at log w; it is self-adjoint."""
        p, logs = _spectrum(w)
        kernel = np.exp(logs[..., :, None] + logs[..., None, :]) * _growth(logs[..., :, None] - logs[..., None, :])
        return sym(p @ (kernel * (transpose(p) @ h @ p)) @ transpose(p))

    @staticmethod
    def _divided_differences(w: _Spectrum, x: _Spectrum, d: Array) -> Array:
        """P (k ∘ P^T d Q) Q^T for w = P e^{2 s} P^T and x = Q e^{2 t} Q^T, k_ij = (2 t_j - 2 s_i) / (e^{2 t_j} -
        e^{2 s_i}): log x - log w if d = x - w, whose entries in these bases k divides and multiplies; the differential
        of log at w if x = w. NaN where eigenvalues differ by a factor of more than 1e4: rounding of d, too, is divided.
        """
        (p, s), (q, t) = w, x
        kernel = np.exp(-(s[..., :, None] + t[..., None, :])) / _growth(t[..., None, :] - s[..., :, None])
        result = sym(p @ (kernel * (transpose(p) @ d @ q)) @ transpose(q))
        spread = np.maximum(s[..., -1], t[..., -1]) - np.minimum(s[..., 0], t[..., 0])
        if not (comparable := 2.0 * spread <= np.log(1e4)).all():
            result[~comparable] = np.nan
        return result

    @staticmethod
    def _log_difference(p: Array, s: Array, vt: Array, q: Array, t: Array, ut: Array, d: Array) -> Array:
        """The same for eigenvalues of any size, from w = L L^T, L = P e^s V^T, x = K K^T, K = Q e^t U^T and
        d = L^-1 (x - w) K^-T: P^T (x - w) Q = e^s V^T d U e^t.
        """
        return sym(p @ ((vt @ d @ transpose(ut)) / _growth(t[..., None, :] - s[..., :, None])) @ transpose(q))

    @quiet
    def _difference(self, w: Array, x: Array) -> Array:
        """log x - log w."""
        result = self._divided_differences(_spectrum(w), _spectrum_of(x), x - w)
        if (far := np.isnan(result[..., 0, 0])).any():
            result[far] = self._difference_of_factors(*(np.broadcast_to(y, result.shape)[far] for y in (w, x)))
        return result

    def _difference_of_factors(self, w: Array, x: Array) -> Array:
        lower, p, s, vt = _factors(w)
        end, q, t, ut = _factors(x)
        d = transpose(solve_lower(end, transpose(solve_lower(lower, x - w))))
        near = (frobenius(d) < 1.0)[..., None, None]
        far = 2.0 * ((q * t[..., None, :]) @ transpose(q) - (p * s[..., None, :]) @ transpose(p))
        return np.where(near, self._log_difference(p, s, vt, q, t, ut, np.where(near, d, 0.0)), far)

    def dist(self, w: Array, x: Array) -> Array:
        return frobenius(self._difference(w, x))

    def injectivity_radius(self, w: Array) -> Array:
        """Infinite: isometric to a Euclidean space."""
        return np.full(self.batch_shape(w), np.inf)

    @quiet
    def exp(self, w: Array, v: Array) -> Array:
        p, logs = _spectrum(w)
        values, vectors = eigh(2.0 * (p * logs[..., None, :]) @ transpose(p) + self._whiten(w, v))
        return _gram(vectors * np.exp(0.5 * values)[..., None, :])

    def _log(self, w: Array, x: Array) -> Array:
        return self._colour(w, self._difference(w, x))

    def log_coordinates(self, w: Array, x: Array) -> Array:
        return self._coordinates_of(self._difference(w, x))

    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        return self._colour(x, self._whiten(w, v))

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        """The differential of exp at log w, applied twice."""
        return self._colour(w, self._colour(w, sym(egrad)))


@final
class SPDBuresWasserstein(_SPD):
    """Symmetric positive definite m x m matrices with the Bures-Wasserstein metric <u, v>_w = ½ tr(L_w[u] v), where
    L = L_w[u] solves w L + L w = u: the 2-Wasserstein distance between centred Gaussians, dist(w, x)^2 =
    tr w + tr x - 2 tr (w^½ x w^½)^½ (Bhatia, Jain & Lim 2019; Takatsu 2011).

    Not complete: exp(w, v) = (I + L) w (I + L) is the geodesic, and injective, where I + L is positive definite.
    Beyond, it stays a smooth map into the positive semidefinite matrices, so a noisy step never has to be redrawn.
    Since ||v||_w^2 = tr(L w L) >= l_min(w) |L|^2, that region holds the ball of radius sqrt(l_min(w)), and no larger
    one: L = -u u^T with the last eigenvector u leads to a singular matrix just there. So this is the injectivity
    radius. Any two points are joined by exactly one shortest geodesic, so log always exists.

    The curvature is nonnegative and unbounded near singular matrices: see `curvature_bound_on`.

    Accuracy: as with the affine-invariant metric, and dist is accurate to rounding for all far points. log and dist
    come from the orthogonal matrix that best aligns the Cholesky factors of x and w, so no inverse and no square root
    of a matrix is taken. For neighbours the result is refined once, which makes it accurate relative to their
    distance.
    """

    name = "spd-bures-wasserstein"
    transport = "another isometry: G_x^-½ G_w^½ with the metric's operators G, smooth and equivariant under rotations"
    homogeneous = False
    complete = False

    def __init__(self, m: int):
        super().__init__(m)
        self.curvature_bounds = (0.0, np.inf) if self.m > 1 else (0.0, 0.0)

    def curvature_bound_on(self, eigenvalue_floor: float) -> float:
        """An upper bound of the sectional curvature where no eigenvalue is below `eigenvalue_floor`: 3 / (sum of the
        two smallest eigenvalues). That region is geodesically convex.

        Raises ValueError where the floor is not positive.
        """
        if not eigenvalue_floor > 0:
            raise ValueError(f"{self}: eigenvalue_floor={eigenvalue_floor!r} must be positive")
        return 1.5 / eigenvalue_floor if self.m > 1 else 0.0

    @staticmethod
    @quiet
    def _in_eigenbasis(w: Array, v: Array, power: float) -> Array:
        """P ((l_i + l_j)^power ∘ P^T v P) P^T for w = P diag(l) P^T."""
        p, logs = _spectrum(w)
        values = np.exp(2.0 * logs)
        kernel = (values[..., :, None] + values[..., None, :]) ** power
        return sym(p @ (kernel * (transpose(p) @ v @ p)) @ transpose(p))

    def _whiten(self, w: Array, v: Array) -> Array:
        return self._in_eigenbasis(w, v, -0.5) / np.sqrt(2.0)

    def _colour(self, w: Array, h: Array) -> Array:
        return self._in_eigenbasis(w, h, 0.5) * np.sqrt(2.0)

    @quiet
    def _alignment(self, w: Array, x: Array) -> tuple[Array, Array]:
        """A with A A^T = w, and N - A for the N with N N^T = x that is nearest to A."""
        a, b = cholesky(w), cholesky(x)
        return a, b @ transpose(rotation_of(transpose(a) @ b)) - a

    def _log_and_dist(self, w: Array, x: Array) -> tuple[Array, Array]:
        a, z = self._alignment(w, x)
        v = z @ transpose(a)
        v = v + transpose(v)
        # v = (x - w) - L w L holds exactly. Used once as an iteration it divides the rounding error of v by 1/(2 |L|).
        step = self._in_eigenbasis(w, v, -1.0)
        near = frobenius(step) < 0.25
        v = np.where(near[..., None, None], x - w - sym(step @ w @ step), v)
        return v, np.where(near, self.norm(w, v), frobenius(z))

    def dist(self, w: Array, x: Array) -> Array:
        return self._log_and_dist(w, x)[1]

    @quiet
    def injectivity_radius(self, w: Array) -> Array:
        """sqrt(l_min(w)), exact."""
        return np.exp(_spectrum(w)[1][..., 0])

    @quiet
    def exp(self, w: Array, v: Array) -> Array:
        lower = cholesky(w)
        return _gram(lower + self._in_eigenbasis(w, v, -1.0) @ lower)

    def _log(self, w: Array, x: Array) -> Array:
        return self._log_and_dist(w, x)[0]

    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        return self._colour(x, self._whiten(w, v))

    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        """2 (w G + G w), G = sym(egrad): the solution of ½ L_w[grad] = G."""
        product = w @ sym(egrad)
        return 2.0 * (product + transpose(product))


def _log1p_of_comparable(values: Array) -> Array:
    """log(1 + values) for ascending values [..., m]; NaN where 1 + the first is 1e4 times smaller than 1, or than 1 +
    the last if that is larger: rounding has changed all of them by eps times the larger of these."""
    logs = np.log1p(values)
    comparable = logs[..., 0] >= np.maximum(logs[..., -1], 0.0) - np.log(1e4)
    if not comparable.all():
        logs[~comparable] = np.nan
    return logs


def _gram(f: Array) -> Array:
    return f @ transpose(f)


def _factors(w: Array) -> tuple[Array, Array, Array, Array]:
    """L, P, s, V^T with w = L L^T and L = P e^s V^T, s descending: P holds the eigenvectors, e^{2 s} the eigenvalues.
    """
    lower = cholesky(w)
    p, values, vt = svd_graded(lower)
    return lower, p, np.log(values), vt


_Spectrum = tuple[Array, Array]
"""P and s with w = P e^{2 s} P^T, s ascending."""


def _spectrum_of(w: Array) -> _Spectrum:
    """The eigenvalues come from w itself where they differ by a factor of no more than 1e4, so that rounding leaves
    twelve digits of the smallest, and from the Cholesky factor elsewhere."""
    values, p = eigh(w)
    logs = 0.5 * np.log(values)
    far = ~(values[..., -1] <= 1e4 * values[..., 0])
    if far.any():
        _, vectors, s, _ = _factors(w[far])
        p[far], logs[far] = vectors[..., ::-1], s[..., ::-1]
    return p, logs


_remembered_spectrum = remembering(_spectrum_of)


def _spectrum(w: Array) -> _Spectrum:
    """The same, remembered, so not to be written to."""
    p, logs = _remembered_spectrum(w.reshape(-1, *w.shape[-2:]))
    return p.reshape(w.shape), logs.reshape(w.shape[:-1])


def _growth(h: Array) -> Array:
    """sinh(h) / h, 1 at 0."""
    return np.where(h == 0, 1.0, np.sinh(h) / np.where(h == 0, 1.0, h))
