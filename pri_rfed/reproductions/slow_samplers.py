"""Other ways to draw a tangent Gaussian, to be compared with `pri_rfed.noise.tangent_gaussian` and used nowhere else.

Each function draws one tangent vector at w with the law N_w(0, sigma^2), but for `metropolis`, whose law is an
approximation. All are linear in the normals they draw, or a chain, so none of them is batched.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import linalg

from pri_rfed.manifolds import (
    Array,
    Grassmann,
    Hyperboloid,
    Manifold,
    PoincareBall,
    SPDAffineInvariant,
    SPDBuresWasserstein,
    SPDLogEuclidean,
    Sphere,
    Stiefel,
)

Sampler = Callable[[Manifold, Array, float, np.random.Generator], Array]

_BLOCK = 1 << 22
"""How many numbers of a basis are made at a time."""


# An explicit basis ----------------------------------------------------------------------------------------------------


def basis_bytes(manifold: Manifold) -> int:
    """What all vectors of a basis of a tangent space take."""
    return 8 * manifold.dim * math.prod(manifold.point_shape)


def explicit_basis(manifold: Manifold, w: Array, sigma: float, rng: np.random.Generator) -> Array:
    """All vectors of an orthonormal basis of T_w, then their combination with d normals (dp-rsvrg-fast-sampling.txt,
    Algorithm 1; section 6.1, baseline 2). The basis is the one that `from_coordinates` uses without forming it."""
    basis = np.empty((manifold.dim, *manifold.point_shape))
    length = max(1, _BLOCK // basis[0].size)
    for i in range(0, manifold.dim, length):
        rows = slice(i, min(i + length, manifold.dim))
        basis[rows] = manifold.from_coordinates(w, np.eye(rows.stop - i, manifold.dim, i))
    return np.tensordot(sigma * rng.standard_normal(manifold.dim), basis, 1)


def euclidean_basis(manifold: Manifold, w: Array) -> Array:
    """A basis of T_w that is orthonormal in the inner product of the arrays' entries, [dim, *point_shape], where the
    metric is another one. Raises ValueError where the metric is that inner product, or a multiple."""
    if isinstance(manifold, (SPDAffineInvariant, SPDLogEuclidean, SPDBuresWasserstein)):
        basis = np.zeros((manifold.dim, *manifold.point_shape))
        rows, columns = np.triu_indices(manifold.m)
        entry = np.where(rows == columns, 1.0, math.sqrt(0.5))
        every = np.arange(manifold.dim)
        basis[every, rows, columns] = basis[every, columns, rows] = entry
        return basis
    if isinstance(manifold, Hyperboloid):
        return linalg.null_space(np.concatenate([-w[:1], w[1:]])[None]).T
    raise ValueError(f"{manifold}: the metric is a multiple of the ambient inner product; no basis needs Gram-Schmidt")


def gram_schmidt(manifold: Manifold, w: Array, sigma: float, rng: np.random.Generator) -> Array:
    """A basis that is orthonormal for the entries, made orthonormal for the metric by d^2/2 inner products, then its
    combination with d normals (section 6.1, baseline 1). Raises ValueError as `euclidean_basis` does."""
    basis = euclidean_basis(manifold, w)
    event = (1,) * len(manifold.point_shape)
    for i in range(manifold.dim):
        basis[i] /= manifold.norm(w, basis[i])
        rest = basis[i + 1 :]
        rest -= manifold.inner(w, rest, np.broadcast_to(basis[i], rest.shape)).reshape(-1, *event) * basis[i]
    return np.tensordot(sigma * rng.standard_normal(manifold.dim), basis, 1)


# A Markov chain -------------------------------------------------------------------------------------------------------


def metropolis(
    manifold: Manifold, w: Array, sigma: float, rng: np.random.Generator, steps: int = 5000
) -> Array:
    """Where a random walk in T_w ends after so many steps from 0, each accepted by the density exp(-||v||_w^2 / (2
    sigma^2)) (Metropolis; as Han et al. 2022 sample for metrics that are not the ambient one).

    **It has no exact law**, however many steps, and so no privacy follows from it: the chain starts at 0, comes to
    spread like the tangent Gaussian in about as many steps as T_w has dimensions times a few, and is never there.
    """
    shape = manifold.point_shape
    proposals = manifold.project_tangent(w, rng.standard_normal((16, *shape)))
    scale = 2.4 * sigma / math.sqrt(float(np.mean(np.square(manifold.norm(w, proposals)))))
    v, energy = np.zeros(shape), 0.0
    for _ in range(steps):
        x = v + scale * manifold.project_tangent(w, rng.standard_normal(shape))
        proposed = float(manifold.inner(w, x, x)) / (2 * sigma**2)
        if energy - proposed >= -rng.standard_exponential():
            v, energy = x, proposed
    return v


# Transport from a reference point -------------------------------------------------------------------------------------


def transported(manifold: Manifold, w: Array, sigma: float, rng: np.random.Generator) -> Array:
    """A tangent Gaussian at a point where that is simple, carried to w by an isometry (dp-rsvrg-fast-sampling.txt,
    Algorithms 2 to 10, with what is wrong in 4, 5, 6 and 8 put right)."""
    a = sigma * rng.standard_normal(manifold.dim)
    match manifold:
        case SPDAffineInvariant() | SPDLogEuclidean() | SPDBuresWasserstein():
            return _from_identity(manifold, w, a)
        case PoincareBall():
            return (1 - w @ w) * (a / 2)
        case Hyperboloid() | Sphere():
            # Parallel transport from e_1; <w, a> is the same in both products, because a_1 = 0.
            sign = 1.0 if isinstance(manifold, Hyperboloid) else -1.0
            along = w.copy()
            along[0] += 1
            return np.concatenate([[0.0], a]) + sign * (w[1:] @ a) / (1 + w[0]) * along
        case Stiefel() | Grassmann():
            return _from_unit_vectors(manifold, w, a)
    raise ValueError(f"{manifold}: the publication has no sampler for it")


def _from_identity(manifold: SPDAffineInvariant | SPDLogEuclidean | SPDBuresWasserstein, w: Array, a: Array) -> Array:
    u = np.zeros((manifold.m, manifold.m))
    rows, columns = np.triu_indices(manifold.m)
    u[rows, columns] = u[columns, rows] = a * np.where(rows == columns, 1.0, math.sqrt(0.5))
    values, p = np.linalg.eigh(w)
    if isinstance(manifold, SPDAffineInvariant):
        root = (p * np.sqrt(values)) @ p.T
        return root @ u @ root
    if isinstance(manifold, SPDLogEuclidean):
        logs = np.log(values)
        gap, d = values[:, None] - values, logs[:, None] - logs
        same = np.abs(d) < 1e-8
        kernel = np.where(same, values, gap / np.where(same, 1.0, d))
    else:
        kernel = 2 * np.sqrt((values[:, None] + values) / 2)
    return p @ (kernel * (p.T @ u @ p)) @ p.T


def _from_unit_vectors(manifold: Stiefel | Grassmann, w: Array, a: Array) -> Array:
    """[w, w_perp] times a tangent vector at [e_1, .., e_r], with w_perp left in the form of Householder reflections."""
    m, r = manifold.point_shape
    u = np.zeros((m, r), order="F")
    inner = manifold.dim - (m - r) * r
    u[r:] = a[inner:].reshape(m - r, r)
    qr, tau, *_ = linalg.lapack.dgeqrf(w)
    if inner:
        rows, columns = np.triu_indices(r, 1)
        u[rows, columns] = a[:inner] * math.sqrt(0.5)
        u[columns, rows] = -u[rows, columns]
        u[:r] *= np.sign(np.diagonal(qr))[:, None]  # w = Q R with R diagonal, of ones and minus ones
    return linalg.lapack.dormqr("L", "N", qr, tau, u, max(1, 64 * r))[0]


SLOW_SAMPLERS: dict[str, Sampler] = {
    "transport": transported,
    "explicit": explicit_basis,
    "gram-schmidt": gram_schmidt,
    "mcmc": metropolis,
}
