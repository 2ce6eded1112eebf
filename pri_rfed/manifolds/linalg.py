"""Batched linear algebra that the manifolds of matrices share.

Matrices are [..., m, n]. A batch entry that holds NaN, or that has no Cholesky factor, comes out as NaN and leaves the
others alone, where NumPy would raise for the whole batch.

Symmetric 2 x 2 matrices have closed forms, worked out entry by entry for the whole batch: LAPACK takes matrices one at
a time, at a price per call that is many times that of the arithmetic.

Numbers too large for floating point, and quotients by zero, become infinite or NaN: the checks of points find them. Who
calls these functions keeps NumPy from warning of it (`quiet`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array

T = TypeVar("T")

quiet = np.errstate(over="ignore", invalid="ignore", divide="ignore")


def remembering(f: Callable[[Array], T]) -> Callable[[Array], T]:
    """f, which remembers its last result: the operations of a step, all at the same points, then share it. Points are
    compared by content. The result is not to be written to.
    """
    last: list[tuple[tuple[int, ...], bytes, T]] = []

    @functools.wraps(f)
    def remembered(w: Array) -> T:
        content = w.tobytes()
        for shape, known, result in last:
            if shape == w.shape and known == content:
                return result
        result = f(w)
        if w.size <= _REMEMBERED_NUMBERS:
            last[:] = [(w.shape, content, result)]
        return result

    return remembered


_REMEMBERED_NUMBERS = 1 << 20


def transpose(a: Array) -> Array:
    """a^T, shape [..., n, m]."""
    return np.swapaxes(a, -1, -2)


def sym(a: Array) -> Array:
    """The symmetric part (a + a^T)/2, shape [..., m, m]."""
    return 0.5 * (a + transpose(a))


def skew(a: Array) -> Array:
    """The skew-symmetric part (a - a^T)/2, shape [..., m, m]."""
    return 0.5 * (a - transpose(a))


def frobenius(a: Array) -> Array:
    """The Frobenius norm, shape [...]."""
    return np.sqrt(np.sum(np.square(a), axis=(-2, -1)))


def relative(size: Array, scale: Array, tolerance: float) -> Array:
    """size / (tolerance * scale), where a scale of zero counts as one."""
    return size / (tolerance * np.where(scale > 0, scale, 1.0))


def _finite(a: Array) -> tuple[Array, Array]:
    """The matrices with those that are not finite set to zero, and 1 or NaN [..., 1] for good or bad ones."""
    good = np.asarray(np.isfinite(a).all(axis=(-2, -1), keepdims=True))
    return (a if good.all() else np.where(good, a, 0.0)), np.where(good[..., 0], 1.0, np.nan)


def svd(a: Array) -> tuple[Array, Array, Array]:
    """Thin singular value decomposition U [..., m, k], s [..., k], V^T [..., k, n] with k = min(m, n)."""
    a, mark = _finite(a)
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    return u, s * mark, vt


def svd_graded(a: Array) -> tuple[Array, Array, Array]:
    """The same for square matrices whose rows and columns may be of very different sizes.

    Both are sorted by size first: bidiagonalisation then works from large to small, and small singular values keep
    their relative accuracy (Barlow & Slapničar 2000).
    """
    shape, m = a.shape, a.shape[-1]
    a = a.reshape(-1, m, m)
    squares = np.square(a)
    rows, columns = np.argsort(-squares.sum(axis=-1), axis=-1), np.argsort(-squares.sum(axis=-2), axis=-1)
    entry = np.arange(len(a))[:, None]
    u, s, vt = svd(a[entry[..., None], rows[:, :, None], columns[:, None, :]])
    u_back, v_back = np.empty(a.shape), np.empty(a.shape)
    u_back[entry, rows], v_back[entry, columns] = u, transpose(vt)
    return u_back.reshape(shape), s.reshape(shape[:-1]), transpose(v_back).reshape(shape)


def eigh(a: Array) -> tuple[Array, Array]:
    """Eigenvalues [..., m], ascending, and orthonormal eigenvectors [..., m, m] of symmetric matrices."""
    if a.shape[-1] == 2:
        return _eigh_2(a)
    a, mark = _finite(a)
    values, vectors = np.linalg.eigh(a)
    return values * mark, vectors


def _eigh_2(a: Array) -> tuple[Array, Array]:
    """The eigenvector of the larger eigenvalue lies at half the angle of (a_11 - a_22, 2 a_12)."""
    first, last, off = a[..., 0, 0], a[..., 1, 1], a[..., 1, 0]
    mean, half = 0.5 * (first + last), 0.5 * (first - last)
    radius, angle = np.hypot(half, off), 0.5 * np.arctan2(off, half)
    values, vectors = np.empty(a.shape[:-1]), np.empty(a.shape)
    np.subtract(mean, radius, out=values[..., 0])
    np.add(mean, radius, out=values[..., 1])
    vectors[..., 0, 1] = vectors[..., 1, 0] = np.cos(angle)
    vectors[..., 1, 1] = sine = np.sin(angle)
    np.negative(sine, out=vectors[..., 0, 0])
    return values, vectors


def function_of(a: Array, f: Callable[[Array], Array]) -> Array:
    """P diag(f(l)) P^T for symmetric a = P diag(l) P^T, shape [..., m, m]; f takes the eigenvalues [..., m], ascending,
    to as many numbers."""
    if a.shape[-1] == 2:
        return _function_of_2(a, f)
    values, vectors = eigh(a)
    return (vectors * f(values)[..., None, :]) @ transpose(vectors)


def _function_of_2(a: Array, f: Callable[[Array], Array]) -> Array:
    """The mean of f(l_1) and f(l_2) on the diagonal, plus their difference times what a has beside its trace."""
    first, last, off = a[..., 0, 0], a[..., 1, 1], a[..., 1, 0]
    mean, half = 0.5 * (first + last), 0.5 * (first - last)
    radius = np.hypot(half, off)
    values = np.empty(a.shape[:-1])
    np.subtract(mean, radius, out=values[..., 0])
    np.add(mean, radius, out=values[..., 1])
    values = f(values)
    mean = 0.5 * (values[..., 1] + values[..., 0])
    slope = 0.5 * (values[..., 1] - values[..., 0]) / np.where(radius == 0, 1.0, radius)
    half = slope * half
    result = np.empty(a.shape)
    np.add(mean, half, out=result[..., 0, 0])
    np.subtract(mean, half, out=result[..., 1, 1])
    result[..., 1, 0] = result[..., 0, 1] = slope * off
    return result


def exp_symmetric(a: Array) -> Array:
    """The exponential of symmetric matrices, shape [..., m, m]; of short ones by its power series, which is faster."""
    if a.shape[-1] == 2:
        return function_of(a, np.exp)
    short = np.vecdot(_flat(a), _flat(a)) <= _SERIES_REACH**2
    if short.all():
        return _exp_series(a)
    if not short.any():
        return function_of(a, np.exp)
    result = np.empty(a.shape)
    result[short], result[~short] = _exp_series(a[short]), function_of(a[~short], np.exp)
    return result


_SERIES_REACH = 0.25
"""Where the terms of the exponential series from the twelfth on are below 2e-16 together."""
_SERIES = (1.0 / np.array([math.factorial(k) for k in range(12)])).reshape(3, 4)


def _exp_series(a: Array) -> Array:
    """The first twelve terms, as a polynomial in a^4 whose coefficients are polynomials in 1, a, a^2, a^3: five
    products (Paterson & Stockmeyer 1973)."""
    powers = np.empty((*a.shape[:-2], 4, *a.shape[-2:]))
    powers[..., 0, :, :] = np.eye(a.shape[-1])
    powers[..., 1, :, :] = a
    powers[..., 2, :, :] = square = a @ a
    powers[..., 3, :, :] = square @ a
    low, middle, high = np.moveaxis((_SERIES @ _flat(powers)).reshape(*a.shape[:-2], 3, *a.shape[-2:]), -3, 0)
    fourth = square @ square
    return (high @ fourth + middle) @ fourth + low


def _flat(a: Array) -> Array:
    """The entries of each matrix in one row, [..., m n]."""
    return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1])


def cholesky(w: Array) -> Array:
    """The lower triangular L with L L^T = w, shape [..., m, m]; NaN where w is not numerically positive definite."""
    if w.shape[-1] == 2:
        return _cholesky_2(w)
    try:
        lower = np.asarray(np.linalg.cholesky(w), dtype=float)
        finite = np.isfinite(lower)
        return lower if finite.all() else np.where(finite.all(axis=(-2, -1), keepdims=True), lower, np.nan)
    except np.linalg.LinAlgError:
        if np.ndim(w) == 2:
            return np.full_like(w, np.nan)
        return np.stack([cholesky(entry) for entry in w])


def _cholesky_2(w: Array) -> Array:
    lower = np.zeros(w.shape)
    first = np.sqrt(w[..., 0, 0])
    off = w[..., 1, 0] / first
    last = np.sqrt(w[..., 1, 1] - off * off)
    lower[..., 0, 0], lower[..., 1, 0], lower[..., 1, 1] = first, off, last
    good = (first > 0) & (last > 0) & np.isfinite(last)
    if not good.all():
        lower[~good] = np.nan
    return lower


def solve(a: Array, b: Array) -> Array:
    """a^-1 b, shape [..., m, n]; NaN where a is singular."""
    try:
        return np.asarray(np.linalg.solve(a, b))
    except np.linalg.LinAlgError:
        if np.ndim(a) == np.ndim(b) == 2:
            return np.full_like(b, np.nan)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(y, batch + y.shape[-2:]) for y in (a, b))
        return np.stack([solve(*entry) for entry in zip(a, b, strict=True)])


def solve_lower(lower: Array, b: Array) -> Array:
    """L^-1 b for lower triangular L by forward substitution, shape [..., m, n].

    Substitution is accurate componentwise, so a bad scaling of the rows of L costs no digits; an LU solver would lose
    them.
    """
    diagonal = np.diagonal(lower, axis1=-2, axis2=-1)[..., None]
    lower, x = lower / diagonal, b / diagonal
    for i in range(1, lower.shape[-1]):
        x[..., i : i + 1, :] -= lower[..., i : i + 1, :i] @ x[..., :i, :]
    return x


def lower_factor(w: Array) -> Array:
    """As `cholesky`; remembered, so not to be written to."""
    return _factor(w.reshape(-1, *w.shape[-2:])).lower.reshape(w.shape)


def inverse_factor(w: Array) -> Array:
    """L^-1 for the Cholesky factor L of w, by substitution; NaN where there is none. Not to be written to."""
    return _factor(w.reshape(-1, *w.shape[-2:])).inverse.reshape(w.shape)


class _Factor:
    """The Cholesky factor of w [n, m, m], and its inverse as soon as it is asked for."""

    def __init__(self, w: Array):
        self.lower = cholesky(w)

    @functools.cached_property
    def inverse(self) -> Array:
        m = self.lower.shape[-1]
        return _inverse_2(self.lower) if m == 2 else solve_lower(self.lower, np.eye(m))


_factor = remembering(_Factor)


def _inverse_2(lower: Array) -> Array:
    inverse = np.zeros(lower.shape)
    inverse[..., 0, 0] = first = 1.0 / lower[..., 0, 0]
    inverse[..., 1, 1] = last = 1.0 / lower[..., 1, 1]
    inverse[..., 1, 0] = -lower[..., 1, 0] * first * last
    return inverse


def whiten(inverse: Array, v: Array) -> Array:
    """L^-1 v L^-T for lower triangular L^-1 and symmetric v; symmetric, shape [..., m, m]."""
    if v.shape[-1] == 2:
        return _whiten_2(inverse, v)
    return sym(inverse @ v @ transpose(inverse))


def _whiten_2(inverse: Array, v: Array) -> Array:
    first, off, last = inverse[..., 0, 0], inverse[..., 1, 0], inverse[..., 1, 1]
    across, side = first * v[..., 0, 0], first * v[..., 1, 0]
    result = np.empty((*across.shape, 2, 2))
    np.multiply(first, across, out=result[..., 0, 0])
    result[..., 1, 0] = result[..., 0, 1] = off * across + last * side
    result[..., 1, 1] = off * off * v[..., 0, 0] + 2.0 * off * last * v[..., 1, 0] + last * last * v[..., 1, 1]
    return result


def rotation_of(a: Array) -> Array:
    """The orthogonal factor U V^T of square matrices a = U S V^T of positive determinant, whose rows and columns may be
    of very different sizes."""
    if a.shape[-1] == 2:
        along, across = a[..., 0, 0] + a[..., 1, 1], a[..., 1, 0] - a[..., 0, 1]
        size = np.hypot(along, across)
        result = np.empty(a.shape)
        result[..., 0, 0] = result[..., 1, 1] = along / size
        result[..., 1, 0] = sine = across / size
        np.negative(sine, out=result[..., 0, 1])
        return result
    u, _, vt = svd_graded(a)
    return u @ vt


def polar(y: Array) -> Array:
    """The matrix with orthonormal columns nearest to y [..., m, n], m >= n: U V^T of its singular value
    decomposition.
    """
    u, s, vt = svd(y)
    return u @ vt + 0.0 * s[..., None, :]


def orthonormalise(y: Array) -> Array:
    """Q of y = Q R with a positive diagonal of R, shape [..., m, n]: unique, and continuous in y."""
    q, r = np.linalg.qr(y)
    return q * np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)[..., None, :]


def eigh_skew(k: Array) -> tuple[Array, NDArray[np.complex128]]:
    """theta [..., m] and unitary U [..., m, m] with k = U diag(i theta) U^H for skew-symmetric real k."""
    k, mark = _finite(k)
    theta, u = np.linalg.eigh(-1j * k)
    return theta * mark, u
