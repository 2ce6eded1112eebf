"""The samplers that the sampling experiments compare with: the laws of those that are exact."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import stats

from pri_rfed.manifolds import (
    Euclidean,
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
from pri_rfed.reproductions.slow_samplers import (
    SLOW_SAMPLERS,
    basis_bytes,
    euclidean_basis,
    gram_schmidt,
    metropolis,
    transported,
)

MANIFOLDS = [
    SPDAffineInvariant(3),
    SPDLogEuclidean(3),
    SPDBuresWasserstein(3),
    PoincareBall(4),
    Hyperboloid(4),
    Sphere(5),
    Stiefel(4, 2),
    Grassmann(5, 2),
]
NEEDS_GRAM_SCHMIDT = (SPDAffineInvariant, SPDLogEuclidean, SPDBuresWasserstein, Hyperboloid)
EXACT = [
    pytest.param(method, manifold, id=f"{method}-{manifold}")
    for method in ("transport", "explicit", "gram-schmidt")
    for manifold in MANIFOLDS
    if method != "gram-schmidt" or isinstance(manifold, NEEDS_GRAM_SCHMIDT)
]
DRAWS, SIGMA = 1500, 0.3


@pytest.mark.parametrize(("method", "manifold"), EXACT)
def test_law(method: str, manifold: Manifold) -> None:
    """Every coordinate in an orthonormal basis is N(0, sigma^2), uncorrelated with the others; and of no other scale.
    """
    rng = np.random.default_rng(3)
    w = manifold.random_point(rng)
    drawn = np.stack([SLOW_SAMPLERS[method](manifold, w, SIGMA, rng) for _ in range(DRAWS)])
    assert manifold.check_tangent(w, drawn)
    lengths = manifold.norm(w, drawn)
    for factor, accepted in ((1, True), (2 / 3, False), (3 / 2, False)):
        p = stats.kstest(lengths, stats.chi(manifold.dim, scale=SIGMA * factor).cdf).pvalue
        assert p > 1e-3 if accepted else p < 1e-9
    c = manifold.coordinates(w, drawn) / SIGMA
    deviation = (c.T @ c / DRAWS - np.eye(manifold.dim)) * np.sqrt(DRAWS / (1 + np.eye(manifold.dim)))
    assert np.abs(deviation).max() < 5
    assert np.abs(c.mean(axis=0)).max() * np.sqrt(DRAWS) < 5
    assert min(stats.kstest(column, "norm").pvalue for column in c.T) > 1e-4


@pytest.mark.parametrize("manifold", [m for m in MANIFOLDS if isinstance(m, NEEDS_GRAM_SCHMIDT)], ids=str)
def test_euclidean_basis(manifold: Manifold) -> None:
    w = manifold.random_point(np.random.default_rng(4))
    basis = euclidean_basis(manifold, w)
    assert manifold.check_tangent(w, basis)
    flat = basis.reshape(manifold.dim, -1)
    np.testing.assert_allclose(flat @ flat.T, np.eye(manifold.dim), atol=1e-12)
    assert basis.nbytes == basis_bytes(manifold)


def test_metropolis_is_near_the_law_and_not_of_another_scale() -> None:
    """In four dimensions a few hundred steps are enough to tell it from 2/3 and 3/2 of the scale."""
    manifold, rng = Hyperboloid(4), np.random.default_rng(5)
    w = manifold.random_point(rng)
    drawn = np.stack([metropolis(manifold, w, SIGMA, rng, steps=120) for _ in range(300)])
    assert manifold.check_tangent(w, drawn)
    p = functools.partial(stats.kstest, manifold.norm(w, drawn))
    assert p(stats.chi(4, scale=SIGMA).cdf).pvalue > 1e-3
    assert p(stats.chi(4, scale=SIGMA * 2 / 3).cdf).pvalue < 1e-6
    assert p(stats.chi(4, scale=SIGMA * 3 / 2).cdf).pvalue < 1e-6
    few = np.stack([metropolis(manifold, w, SIGMA, rng, steps=2) for _ in range(300)])
    assert stats.kstest(manifold.norm(w, few), stats.chi(4, scale=SIGMA).cdf).pvalue < 1e-6, "no law after few steps"


def test_where_a_method_has_no_meaning() -> None:
    rng = np.random.default_rng(6)
    with pytest.raises(ValueError, match="no basis needs Gram-Schmidt"):
        gram_schmidt(Sphere(3), np.array([1.0, 0, 0]), 1.0, rng)
    with pytest.raises(ValueError, match="has no sampler"):
        transported(Euclidean(3), np.zeros(3), 1.0, rng)
