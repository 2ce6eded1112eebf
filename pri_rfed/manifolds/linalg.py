"""Batched linear algebra that the manifolds of matrices share.

Matrices are [..., m, n]. A batch entry that holds NaN, or that has no Cholesky factor, comes out as NaN and leaves the
others alone, where NumPy would raise for the whole batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array

# Numbers too large for floating point become infinite or NaN without a warning: the checks of points find them.
quiet = np.errstate(over="ignore", invalid="ignore")


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


@quiet
def svd_graded(a: Array) -> tuple[Array, Array, Array]:
    """The same for square matrices whose rows and columns may be of very different sizes.

    Both are sorted by size first: bidiagonalisation then works from large to small, and small singular values keep
    their relative accuracy (Barlow & Slapničar 2000).
    """
    rows = np.argsort(-np.sum(np.square(a), axis=-1), axis=-1)[..., :, None]
    a = np.take_along_axis(a, rows, axis=-2)
    columns = np.argsort(-np.sum(np.square(a), axis=-2), axis=-1)[..., None, :]
    u, s, vt = svd(np.take_along_axis(a, columns, axis=-1))
    back = np.argsort(rows, axis=-2), np.argsort(columns, axis=-1)
    return np.take_along_axis(u, back[0], axis=-2), s, np.take_along_axis(vt, back[1], axis=-1)


def eigh(a: Array) -> tuple[Array, Array]:
    """Eigenvalues [..., m], ascending, and orthonormal eigenvectors [..., m, m] of symmetric matrices."""
    a, mark = _finite(a)
    values, vectors = np.linalg.eigh(a)
    return values * mark, vectors


def cholesky(w: Array) -> Array:
    """The lower triangular L with L L^T = w, shape [..., m, m]; NaN where w is not numerically positive definite."""
    try:
        lower = np.linalg.cholesky(w)
        good = np.isfinite(lower).all(axis=(-2, -1), keepdims=True)
        return np.where(good, lower, np.nan)
    except np.linalg.LinAlgError:
        if np.ndim(w) == 2:
            return np.full_like(w, np.nan)
        return np.stack([cholesky(entry) for entry in w])


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


@quiet
def solve_lower(lower: Array, b: Array) -> Array:
    """L^-1 b for lower triangular L by forward substitution, shape [..., m, n].

    Substitution is accurate componentwise, so a bad scaling of the rows of L costs no digits; an LU solver would lose
    them.
    """
    x = np.empty(np.broadcast_shapes(lower.shape[:-2], b.shape[:-2]) + b.shape[-2:])
    for i in range(lower.shape[-1]):
        known = (lower[..., i : i + 1, :i] @ x[..., :i, :])[..., 0, :]
        x[..., i, :] = (b[..., i, :] - known) / lower[..., i, i, None]
    return x


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
