"""Noise on manifolds: laws of the samplers, with power; sensitivities; what the mechanisms guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from pri_rfed import noise
from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds import (
    MANIFOLDS,
    Euclidean,
    Grassmann,
    Hyperboloid,
    Manifold,
    PoincareBall,
    Product,
    SPDAffineInvariant,
    SPDBuresWasserstein,
    SPDLogEuclidean,
    Sphere,
    Stiefel,
)
from pri_rfed.mechanisms import (
    KNG,
    LaplaceMean,
    frechet_mean_sensitivity,
    kng_mcmc,
    laplace_scale,
    mean_gradient_sensitivity,
)
from pri_rfed.noise import RiemannianLaplace, laplace_distance, tangent_gaussian, volume_growth
from pri_rfed.problems import FrechetMean

Array = NDArray[np.float64]
Cdf = Callable[[Array], Array]

DRAWS = 4000


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def p_value(sample: Array, cdf: Cdf) -> float:
    return float(stats.kstest(sample, cdf).pvalue)


def has_scale(sample: Array, cdf_at: Callable[[float], Cdf], scale: float) -> None:
    """The sample has the law of this scale, and of neither 2/3 nor 3/2 of it."""
    assert p_value(sample, cdf_at(scale)) > 1e-3
    assert p_value(sample, cdf_at(scale * 2 / 3)) < 1e-6
    assert p_value(sample, cdf_at(scale * 3 / 2)) < 1e-6


def grid_cdf(log_density: Callable[[Array], Array], upper: float) -> Cdf:
    """The distribution function of a density on (0, upper), by the midpoint rule."""
    edges = np.linspace(0.0, upper, 400_001)
    values = log_density((edges[1:] + edges[:-1]) / 2)
    mass = np.exp(values - values.max())
    total = np.concatenate([[0.0], np.cumsum(mass)])
    return lambda r: np.interp(r, edges, total / total[-1])


def distance_cdf(manifold: Manifold, scale: float) -> Cdf:
    """The law of the distance of a Riemannian Laplace draw, independent of the code under test."""
    k = manifold.dim - 1
    if isinstance(manifold, (Euclidean, SPDLogEuclidean)) or (k == 0 and not isinstance(manifold, Sphere)):
        return stats.gamma(manifold.dim, scale=scale).cdf
    if isinstance(manifold, Sphere):
        upper = min(np.pi, scale * (manifold.dim + 40 * math.sqrt(manifold.dim) + 40))
        return grid_cdf(lambda r: -r / scale + k * np.log(np.sin(r)), upper)
    assert isinstance(manifold, (Hyperboloid, PoincareBall))
    scale = min(scale, 0.98 / k)  # beyond 1/k there is no such law
    upper = (manifold.dim + 60) / (1 / scale - k)
    return grid_cdf(lambda r: -r / scale + k * (r + np.log(-np.expm1(-2 * r))), upper)


def unit(manifold: Manifold, w: Array, v: Array) -> Array:
    return v / manifold.norm(w, v).reshape(-1, *(1,) * len(manifold.point_shape))


def in_ball(manifold: Manifold, center: Array, directions: Array, radii: Array) -> Array:
    """The points at these distances from the center, in these directions."""
    lengths = radii.reshape(-1, *(1,) * len(manifold.point_shape)) * (1 - 1e-12)
    return manifold.exp(center, unit(manifold, center, directions) * lengths)


def scattered(manifold: Manifold, center: Array, radius: float, n: int, rng: np.random.Generator) -> Array:
    """n records all over the ball, most of them near its edge."""
    return in_ball(manifold, center, tangent_gaussian(manifold, center, 1.0, rng, (n,)), radius * rng.random(n) ** 0.3)


# Tangent Gaussian -----------------------------------------------------------------------------------------------------


def test_tangent_gaussian_is_normals_through_the_manifold() -> None:
    manifold = SPDAffineInvariant(3)
    w = manifold.random_point(generator(), (4,))
    v = tangent_gaussian(manifold, w, 0.3, generator(1), (5, 1))
    a = generator(1).standard_normal((5, 4, *manifold.normals_shape))
    np.testing.assert_allclose(v, manifold.tangent_from_normals(w, 0.3 * a), rtol=1e-12)
    assert tangent_gaussian(manifold, w[0], 1.0, generator()).shape == (3, 3)
    has_scale(
        manifold.norm(w[0], tangent_gaussian(manifold, w[0], 0.3, generator(2), (1000,))),
        lambda sigma: stats.chi(6, scale=sigma).cdf,
        0.3,
    )


# Riemannian Laplace where the distance has a density in closed form ---------------------------------------------------

SPACES = [
    (Euclidean(1), 0.5),
    (Euclidean(3, 4), 1e3),
    (Euclidean(50), 1e-4),
    (Sphere(2), 0.5),
    (Sphere(3), 0.5),
    (Sphere(3), 1e-4),
    (Sphere(51), 0.02),
    (Sphere(501), 1e-3),
    (Sphere(2001), 1e-4),
    (Hyperboloid(1), 0.5),
    (Hyperboloid(2), 0.3),
    (Hyperboloid(2), 0.8),
    (Hyperboloid(50), 0.015),
    (Hyperboloid(500), 1.5e-3),
    (PoincareBall(2), 0.3),
    (PoincareBall(5), 0.1),
    (PoincareBall(50), 1e-4),
    (SPDLogEuclidean(1), 0.5),
    (SPDLogEuclidean(3), 0.2),
    (SPDAffineInvariant(1), 0.5),
]


@pytest.mark.parametrize(("manifold", "scale"), SPACES, ids=str)
def test_laplace_distance_and_direction(manifold: Manifold, scale: float) -> None:
    rng = generator(3)
    law = RiemannianLaplace(manifold, scale)
    center = manifold.random_point(rng)
    draws = DRAWS if manifold.dim < 200 else 1000
    x = law.sample(center, rng, draws)
    assert x.shape == (draws, *manifold.point_shape)
    assert manifold.check_point(x)
    distance = manifold.dist(center, x)
    has_scale(distance, lambda s: distance_cdf(manifold, s), scale)
    c = manifold.coordinates(center, manifold.log(center, x)) / distance[:, None]
    # One coordinate of a uniform unit vector: its square is beta distributed, its sign fair; so for any direction.
    axis = rng.standard_normal(manifold.dim)
    for along in (c[:, 0], c[:, -1], c @ (axis / np.linalg.norm(axis))):
        assert stats.binomtest(int((along > 0).sum()), draws).pvalue > 1e-3
        if manifold.dim > 1:
            square = stats.beta(0.5, (manifold.dim - 1) / 2)
            assert p_value(along**2, square.cdf) > 1e-3
    # Distance and direction are independent.
    assert abs(stats.spearmanr(distance, c[:, 0]).statistic) < 4 / math.sqrt(draws)


@pytest.mark.parametrize("d", [1, 2, 50, 500, 2000])
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e3])
def test_sphere_distance_at_all_scales(d: int, scale: float) -> None:
    manifold = Sphere(d + 1)
    r = laplace_distance(manifold, scale).sample(generator(4), DRAWS)
    assert p_value(r, distance_cdf(manifold, scale)) > 1e-3


@pytest.mark.parametrize(
    ("log_density", "manifold", "scale"),
    [
        (lambda r: -r / mpmath.mpf("0.7") + 4 * mpmath.log(mpmath.sin(r)), Sphere(6), 0.7),
        (lambda r: -r / mpmath.mpf("0.2") + 4 * mpmath.log(mpmath.sinh(r)), Hyperboloid(5), 0.2),
    ],
)
def test_distribution_function(log_density: Callable, manifold: Manifold, scale: float) -> None:
    law = laplace_distance(manifold, scale)
    end = mpmath.pi if isinstance(manifold, Sphere) else 60
    total = mpmath.quad(lambda r: mpmath.exp(log_density(r)), mpmath.linspace(0, end, 40))
    for r in (0.1, 0.5, 1.0, 2.0, 3.0):
        exact = mpmath.quad(lambda r: mpmath.exp(log_density(r)), mpmath.linspace(0, r, 40)) / total
        assert law.cdf(r) == pytest.approx(float(exact), rel=1e-8)
        assert law.log_tail(r) >= float(mpmath.log(1 - exact))


@pytest.mark.parametrize("scale", [0.05, 0.5, 5.0])
def test_distance_cut_off(scale: float) -> None:
    """Also where the mode lies beyond the cut."""
    law = laplace_distance(Sphere(5), scale, 0.4)
    expected = grid_cdf(lambda r: -r / scale + 3 * np.log(np.sin(r)), 0.4)
    assert p_value(law.sample(generator(5), DRAWS), expected) > 1e-3


@pytest.mark.parametrize(
    ("manifold", "scale", "text"),
    [
        (Hyperboloid(3), 0.5, "scale = 0.5 must be below 1/2"),
        (PoincareBall(11), 0.2, "scale = 0.2 must be below 1/10"),
        (SPDAffineInvariant(8), 0.16, "scale = 0.16 must be below 1/6.48074"),
        (SPDAffineInvariant(2), 1.4, "distances beyond 700"),
        (Hyperboloid(2), 0.99, "distances beyond 700"),
        (Sphere(3), 0.0, "scale = 0.0 must be a positive"),
        (Sphere(3), math.nan, "scale = nan must be a positive"),
        (Stiefel(3, 2), 0.1, "no exact sampler; there is one for Euclidean, Sphere"),
        (Product([Sphere(3), Sphere(3)]), 0.1, "no exact sampler"),
    ],
    ids=str,
)
def test_laplace_refuses(manifold: Manifold, scale: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RiemannianLaplace(manifold, scale)


def test_every_manifold_has_a_sampler_or_is_refused_by_name() -> None:
    assert set(noise.LAPLACE_MANIFOLDS) <= set(MANIFOLDS.values())


# Riemannian Laplace on affine-invariant SPD matrices ------------------------------------------------------------------


def spd_plane_cdfs(scale: float) -> tuple[Cdf, Cdf]:
    """m = 2: the laws of ||l|| and of |l_1 - l_2|, l with the density exp(-||l||/scale) sinh(|l_1 - l_2|/2), by summing
    over a grid of s = (l_1 + l_2)/sqrt 2 >= 0 and t = |l_1 - l_2|/sqrt 2."""
    scale = min(scale, 1.38)  # beyond sqrt 2 there is no such law
    end = 60 / (1 / scale - math.sqrt(0.5))
    side = np.linspace(0, end, 1501)
    middle = (side[1:] + side[:-1]) / 2
    s, t = middle[:, None], middle
    r = np.hypot(s, t)
    # sinh(t/sqrt 2) without overflow; the common factor does not matter.
    log_mass = -r / scale + t / math.sqrt(2) + np.log(-np.expm1(-math.sqrt(2) * t))
    mass = np.exp(log_mass - log_mass.max())
    by_r, edges = np.histogram(r, bins=500, weights=mass, range=(0, end * 1.5))
    radial = np.concatenate([[0], np.cumsum(by_r)])
    gap = np.concatenate([[0], np.cumsum(mass.sum(axis=0))])
    return (
        lambda x: np.interp(x, edges, radial / radial[-1]),
        lambda x: np.interp(x, side * math.sqrt(2), gap / gap[-1]),
    )


def logs_and_frames(w: Array, x: Array) -> tuple[Array, Array]:
    """Logarithms of the eigenvalues, ascending, and eigenvectors of w^-½ x w^-½."""
    values, vectors = np.linalg.eigh(w)
    root = vectors / np.sqrt(values) @ vectors.T
    values, vectors = np.linalg.eigh(root @ x @ root)
    return np.log(values), vectors


@pytest.mark.parametrize("rate", [1.12, 1.16, 1.18, 1.5, 3.0, 30.0])
def test_spd_laplace_eigenvalues_in_the_plane(rate: float) -> None:
    """By either of the proposals."""
    law = RiemannianLaplace(SPDAffineInvariant(2), 1 / (rate * math.sqrt(0.5)))
    logs, _ = law._spd(generator(6), DRAWS)
    gap = np.abs(logs[:, 1] - logs[:, 0])
    has_scale(np.hypot(*logs.T), lambda s: spd_plane_cdfs(s)[0], law.scale)
    has_scale(gap, lambda s: spd_plane_cdfs(s)[1], law.scale)
    # The trace is even, and uncorrelated with the gap.
    assert stats.binomtest(int((logs.sum(axis=1) > 0).sum()), DRAWS).pvalue > 1e-3
    assert abs(stats.spearmanr(logs.sum(axis=1), gap).statistic) < 4 / math.sqrt(DRAWS)


@pytest.mark.parametrize("m", [2, 3, 6])
def test_spd_laplace_does_not_depend_on_the_base_point(m: int) -> None:
    """The same eigenvalues of w^-½ x w^-½ at all w, here of condition 1e6, and eigenvectors that are uniform."""
    rng = generator(7)
    manifold = SPDAffineInvariant(m)
    law = RiemannianLaplace(manifold, 0.4 / volume_growth(manifold))
    q = np.linalg.qr(rng.standard_normal((m, m)))[0]
    w = (q * np.geomspace(1e-3, 1e3, m)) @ q.T
    w = (w + w.T) / 2
    x = law.sample(w, rng, DRAWS)
    assert manifold.check_point(x)
    logs, frames = logs_and_frames(w, x)
    centred, _ = law._spd(rng, DRAWS)
    for statistic in (np.ptp, np.sum, np.linalg.norm):
        assert stats.ks_2samp(statistic(logs, axis=1), statistic(centred, axis=1)).pvalue > 1e-3
    np.testing.assert_allclose(manifold.dist(w, x), np.linalg.norm(logs, axis=1), rtol=1e-6)
    for entry in (frames[:, 0, 0], frames[:, -1, 0], frames[:, 0, m // 2]):
        assert p_value(entry**2, stats.beta(0.5, (m - 1) / 2).cdf) > 1e-3
    # A frame that commutes with anything in particular would show as a correlation of eigenvalues and eigenvectors.
    assert abs(stats.spearmanr(np.ptp(logs, axis=1), frames[:, 0, -1] ** 2).statistic) < 4 / math.sqrt(DRAWS)


@pytest.mark.parametrize("rate", [1.3, 2.0, 8.0])
def test_spd_laplace_in_three_dimensions(rate: float) -> None:
    """m = 3: the law of ||l||, its density r^2 e^{-r/scale} times a mean over the sphere of prod sinh(r |t_i - t_j|/2),
    taken over a grid of polar angles around the axis (1, 1, 1)."""
    law = RiemannianLaplace(SPDAffineInvariant(3), 1 / (rate * math.sqrt(2)))
    logs, _ = law._spd(generator(8), DRAWS)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    angle = (np.arange(360) + 0.5) * (2 * np.pi / 360)
    basis = np.array([[1, -1, 0], [1, 1, -2], [1, 1, 1]]) / np.sqrt([[2], [6], [3]])
    sine = np.sqrt(1 - nodes**2)[:, None]
    t = (sine * np.cos(angle))[..., None] * basis[0] + (sine * np.sin(angle))[..., None] * basis[1]
    gaps = [np.abs(t[..., i] - t[..., j]) / 2 for i, j in ((0, 1), (0, 2), (1, 2))]

    def log_density(r: Array, scale: float) -> Array:
        logs = sum(r * g + np.log(-np.expm1(-2 * r * g)) for g in gaps)  # of prod 2 sinh(r g)
        return 2 * np.log(r) - r / scale + np.log(np.sum(weights[:, None] * np.exp(logs - logs.max()))) + logs.max()

    def cdf_at(scale: float) -> Cdf:
        scale = min(scale, 0.97 / math.sqrt(2))
        r = np.linspace(0, 60 / (1 / scale - math.sqrt(2)), 1501)[1:]
        density = np.array([log_density(x, scale) for x in r])
        total = np.concatenate([[0], np.cumsum(np.exp(density - density.max()))])
        return lambda x: np.interp(x, np.concatenate([[0], r]), total / total[-1])

    has_scale(np.linalg.norm(logs, axis=1), cdf_at, law.scale)


@pytest.mark.parametrize(("m", "rate"), [(3, 1.15), (4, 1.3), (5, 1.25), (6, 1.22)])
def test_the_two_proposals_for_spd_agree(m: int, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    manifold = SPDAffineInvariant(m)
    law = RiemannianLaplace(manifold, 1 / (rate * volume_growth(manifold)))
    drawn = []
    for below in (1.0, 2.0):
        monkeypatch.setattr(noise, "TILT_BELOW", below)
        drawn.append(np.sort(law._spd(generator(9), 2000)[0], axis=1))
    for statistic in (
        lambda logs: np.linalg.norm(logs, axis=1),
        lambda logs: logs[:, -1] - logs[:, 0],
        lambda logs: logs[:, 1] - logs[:, 0],
        lambda logs: logs[:, m // 2],
    ):
        assert stats.ks_2samp(statistic(drawn[0]), statistic(drawn[1])).pvalue > 1e-3


@pytest.mark.parametrize("m", [2, 3, 4, 6, 8, 10])
def test_spd_bound_holds_in_all_directions(m: int) -> None:
    rng = generator(10)
    bound, derivative = noise._spd_log_bound(m)
    even = m + 1.0 - 2 * np.arange(1, m + 1)  # the direction of fastest growth
    t = np.concatenate([rng.standard_normal((200, m)), even + 0.1 * rng.standard_normal((200, m)), even[None]])
    t[::3] -= t[::3].mean(axis=1, keepdims=True)
    t /= np.linalg.norm(t, axis=1, keepdims=True)
    i, j = np.triu_indices(m, 1)
    gaps = np.abs(t[:, i] - t[:, j]) / 2
    r = np.geomspace(1e-3, 690, 300)
    logs = np.array([noise._log_sinhc(x * gaps).sum(axis=1).max() for x in r])
    assert np.all(logs <= bound(r) * (1 + 1e-12) + 1e-12)
    # Not by much for short distances, and exactly for the plane.
    assert np.all(logs[r < 1] >= 0.9 * bound(r[r < 1]))
    slopes = (m * (m + 1) / 2 - 1) / r + np.array([derivative(x) for x in r])
    assert np.all(np.diff(slopes) < 0)
    steps = np.diff(bound(r)) / np.diff(r)
    lower, upper = np.array([derivative(x) for x in r[:-1]]), np.array([derivative(x) for x in r[1:]])
    assert np.all((steps >= lower - 1e-9) & (steps <= upper + 1e-9))


@pytest.mark.parametrize("m", [2, 5, 10])
@pytest.mark.parametrize("rate", [1.4, 2.0, 20.0])
def test_spd_laplace_accepts_enough(m: int, rate: float) -> None:
    manifold = SPDAffineInvariant(m)
    law = RiemannianLaplace(manifold, 1 / (rate * volume_growth(manifold)))
    proposed = 0
    sample = law.distance.sample

    def counted(rng: np.random.Generator, size: int) -> Array:
        nonlocal proposed
        proposed += size
        return sample(rng, size)

    law.distance.sample = counted  # type: ignore[method-assign]
    law.sample(np.eye(m), generator(11), 2000)
    assert proposed < 2000 * (8 if rate < 2 else 1.7)


# Sensitivity ----------------------------------------------------------------------------------------------------------


def sqrt_floor_ball(m: int, radius: float) -> tuple[Array, float]:
    """A Bures-Wasserstein ball around the identity: its eigenvalues are at least (1 - radius)^2."""
    return np.eye(m), (1 - radius) ** 2


def neighbours(
    manifold: Manifold, center: Array, radius: float, n: int, kind: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Two data sets in the ball that differ in their first record, which goes from one end of a diameter to the other;
    the rest anywhere (kind 0), or at both ends of another diameter (1), or of the same one (2)."""
    u = tangent_gaussian(manifold, center, 1.0, rng, (n + 1,))
    if kind > 0:
        ends = rng.choice([-1.0, 1.0], n + 1).reshape(-1, *(1,) * len(manifold.point_shape))
        u[2:] = ((u[0] if kind == 2 else tangent_gaussian(manifold, center, 1.0, rng)) * ends)[2:]
    u[1] = -u[0]
    radii = np.full(n + 1, radius) if kind else radius * rng.random(n + 1) ** 0.3
    radii[:2] = radius
    z = in_ball(manifold, center, u, radii)
    return np.concatenate([z[:1], z[2:]]), z[1:]


@pytest.mark.parametrize(
    ("manifold", "radius", "tight"),
    [
        (Euclidean(3), 2.0, 0.99),
        (Sphere(2), 1.5, 0.99),
        (Sphere(3), 0.1, 0.95),
        (Sphere(3), 0.3, 0.8),
        (Sphere(3), 0.5, 0.51),
        (Sphere(3), 0.75, 0.0),
        (Sphere(8), 0.3, 0.8),
        (Hyperboloid(2), 3.0, 0.99),
        (PoincareBall(4), 1.0, 0.99),
        (SPDAffineInvariant(3), 1.5, 0.99),
        (SPDLogEuclidean(2), 1.0, 0.99),
        (SPDBuresWasserstein(1), 0.2, 0.99),
        (SPDBuresWasserstein(2), 0.2, 0.7),
        (Grassmann(4, 2), 0.15, 0.8),
        (Product([Sphere(3), Hyperboloid(2)]), 0.15, 0.8),
    ],
    ids=str,
)
def test_sensitivity_of_the_frechet_mean(manifold: Manifold, radius: float, tight: float) -> None:
    """Data sets sought to move the mean far never move it beyond the bound, and some come near: with `tight` above ½,
    a bound of half the size fails."""
    rng = generator(12)
    center, floor = manifold.random_point(rng), None
    if isinstance(manifold, SPDBuresWasserstein):
        center, floor = sqrt_floor_ball(manifold.m, radius)
    moved = []
    for trial in range(60):
        n = int(rng.integers(1, 7))
        a, b = neighbours(manifold, center, radius, n, trial % 3, rng)
        means = [frechet_mean(manifold, z, start=center, tolerance=1e-10) for z in (a, b)]
        assert means[0].step_norm < 1e-8 and means[1].step_norm < 1e-8
        bound = frechet_mean_sensitivity(manifold, radius, n, eigenvalue_floor=floor)
        moved.append(float(manifold.dist(means[0].point, means[1].point)) / bound)
    assert tight < max(moved) < 1 + 1e-9


@pytest.mark.parametrize(
    ("manifold", "radius", "tight"),
    [
        (Euclidean(3), 2.0, 0.99),
        (Sphere(3), 0.1, 0.95),
        (Sphere(3), 0.5, 0.8),
        (Sphere(3), 0.75, 0.6),
        (Hyperboloid(2), 3.0, 0.95),
        (SPDAffineInvariant(2), 1.5, 0.95),
    ],
    ids=str,
)
def test_sensitivity_of_the_mean_gradient(manifold: Manifold, radius: float, tight: float) -> None:
    """At points of the ball; without positive curvature, also far outside of it."""
    rng = generator(13)
    center = manifold.random_point(rng)
    n, moved = 5, []
    for trial in range(300):
        a, b = neighbours(manifold, center, radius, n, trial % 3, rng)
        far = 1.0 if isinstance(manifold, Sphere) else 5.0
        w = in_ball(manifold, center, tangent_gaussian(manifold, center, 1.0, rng, (1,)), far * radius * rng.random(1))
        if trial % 3 == 2:
            w = a[1:2]
        change = 2 * (manifold.log(w, a).mean(axis=0) - manifold.log(w, b).mean(axis=0))
        moved.append(float(manifold.norm(w[0], change)) / mean_gradient_sensitivity(manifold, radius, n))
    assert tight < max(moved) < 1 + 1e-9


def test_sensitivity_formula() -> None:
    assert frechet_mean_sensitivity(Hyperboloid(3), 1.5, 10) == pytest.approx(0.3)
    assert frechet_mean_sensitivity(Hyperboloid(3), 1.5, 10, 1e-3) == pytest.approx(0.302)
    assert frechet_mean_sensitivity(Sphere(2), 1.5, 10) == pytest.approx(0.3)  # a circle is flat
    assert mean_gradient_sensitivity(SPDAffineInvariant(2), 1.5, 10) == pytest.approx(0.6)
    for radius in (1e-3, 0.1, 0.4, 0.78):
        x = 2 * radius
        h = x / math.tan(x)
        proven = frechet_mean_sensitivity(Sphere(4), radius, 7)
        assert proven == pytest.approx(2 * radius * (x / math.sin(x)) / (7 * h))
        published = 2 * radius * (2 - h) / (7 * h)
        assert 0.7 * published < proven <= published * (1 + 1e-12)
    # Curvature 3/(2 floor) on Bures-Wasserstein matrices.
    x = 0.4 * math.sqrt(1.5 / 0.64)
    expected = 2 * 0.2 * (x / math.sin(x)) / (3 * x / math.tan(x))
    assert frechet_mean_sensitivity(SPDBuresWasserstein(3), 0.2, 3, eigenvalue_floor=0.64) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("manifold", "radius", "n", "more", "text"),
    [
        (Sphere(3), 0.79, 5, {}, r"radius = 0.79 must be below 0.785398"),
        (Sphere(2), 1.6, 5, {}, r"radius = 1.6 must be below 1.5708"),
        (Grassmann(5, 2), 0.6, 5, {}, r"radius = 0.6 must be below"),
        (Stiefel(5, 2), 1.0, 5, {}, r"radius = 1 must be below"),
        (Hyperboloid(2), math.inf, 5, {}, r"radius = inf must be"),
        (Hyperboloid(2), -1.0, 5, {}, r"radius = -1.0 must be"),
        (Hyperboloid(2), 1.0, 0, {}, r"n = 0 must be"),
        (Hyperboloid(2), 1.0, 5, {"solver_tolerance": -1.0}, r"solver_tolerance = -1.0 must be"),
        (Hyperboloid(2), 1.0, 5, {"eigenvalue_floor": 1.0}, r"eigenvalue_floor = 1.0 has a meaning on Bures"),
        (SPDBuresWasserstein(2), 0.2, 5, {}, r"eigenvalue_floor is needed"),
        (SPDBuresWasserstein(2), 0.2, 5, {"eigenvalue_floor": 0.0}, r"eigenvalue_floor = 0.0 must be"),
        (SPDBuresWasserstein(2), 0.4, 5, {"eigenvalue_floor": 0.36}, r"radius = 0.4 must be below 0.3"),
    ],
)
def test_sensitivity_refuses(manifold: Manifold, radius: float, n: int, more: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        frechet_mean_sensitivity(manifold, radius, n, **more)


def test_one_number_is_a_bures_wasserstein_matrix_too() -> None:
    """On these the roots are a half line, which is flat."""
    manifold, middle = SPDBuresWasserstein(1), np.eye(1)
    assert FrechetMean(manifold, middle, 0.3).gradient_difference_bound == pytest.approx(1.2)
    z = (1 + 0.3 * np.linspace(-1, 1, 5)).reshape(5, 1, 1) ** 2
    for mechanism in (LaplaceMean(manifold, middle, 0.3, 5, 8.0), KNG(manifold, middle, 0.3, 5, 8.0)):
        assert manifold.valid_points(mechanism.sample(z, generator(), 100)).all()
    law = LaplaceMean(manifold, middle, 0.3, 5, 8.0)
    assert law.sensitivity == pytest.approx(2 * 0.3 / 5)
    drawn = np.sqrt(law.sample(z, generator(1), DRAWS)[:, 0, 0])
    has_scale(np.abs(drawn - 1), lambda scale: stats.expon(scale=scale).cdf, 2 * law.sensitivity / 8.0)


def test_laplace_scale() -> None:
    assert laplace_scale(Sphere(3), 0.2, 4.0) == pytest.approx(0.05)
    assert laplace_scale(Sphere(3), 0.2, 4.0, cut_off=True) == pytest.approx(0.1)
    assert laplace_scale(SPDBuresWasserstein(3), 0.2, 4.0) == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"epsilon = 0.0 must be"):
        laplace_scale(Sphere(3), 0.2, 0.0)


# Laplace mechanism ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manifold", "radius"),
    [(Euclidean(2), 1.0), (Sphere(3), 0.1), (Sphere(2), 1.0), (Hyperboloid(2), 2.0), (SPDAffineInvariant(2), 1.0)],
    ids=str,
)
def test_laplace_mechanism_keeps_epsilon_and_needs_its_scale(manifold: Manifold, radius: float) -> None:
    """The density's normaliser is the same at all centers, so its logarithm changes by (dist(x, mean') - dist(x,
    mean))/scale between neighbours: never by more than epsilon at any x, and for the worst ones by more than 2/3 of it.
    """
    rng, epsilon, n = generator(14), 1.4, 6
    center = manifold.random_point(rng)
    mechanism = LaplaceMean(manifold, center, radius, n, epsilon)
    worst = 0.0
    for trial in range(60):
        a, b = neighbours(manifold, center, radius, n, trial % 3, rng)
        mean_a, mean_b = mechanism.mean(a), mechanism.mean(b)
        x = np.concatenate([mechanism.law.sample(mean_a, rng, 50), mean_a[None], mean_b[None]])
        change = np.abs(manifold.dist(mean_a, x) - manifold.dist(mean_b, x)) / mechanism.law.scale
        worst = max(worst, float(change.max()))
    assert epsilon * 2 / 3 < worst <= epsilon * (1 + 1e-12)


def test_laplace_mechanism_draws_its_law() -> None:
    manifold, rng = Hyperboloid(3), generator(15)
    center = manifold.random_point(rng)
    records = scattered(manifold, center, 1.0, 40, rng)
    mechanism = LaplaceMean(manifold, center, 1.0, 40, 0.5)
    assert mechanism.law.scale == pytest.approx(2 / (40 * 0.5), rel=1e-5)
    mean = frechet_mean(manifold, records, start=center).point
    drawn = mechanism.sample(records, rng, DRAWS)
    has_scale(manifold.dist(mean, drawn), lambda s: distance_cdf(manifold, s), mechanism.law.scale)


def test_laplace_mechanism_counts_the_tolerance_and_keeps_it() -> None:
    manifold, rng = Sphere(4), generator(16)
    center = manifold.random_point(rng)
    records = scattered(manifold, center, 0.3, 10, rng)
    rough = LaplaceMean(manifold, center, 0.3, 10, 1.0, tolerance=0.01)
    fine = LaplaceMean(manifold, center, 0.3, 10, 1.0)
    assert rough.sensitivity == pytest.approx(frechet_mean_sensitivity(manifold, 0.3, 10) + 2 * 0.01 * 0.3)
    exact = frechet_mean(manifold, records, start=center).point
    assert manifold.dist(exact, fine.mean(records)) < 1e-8 * 0.3
    edge = np.repeat(in_ball(manifold, center, manifold.log(center, records[:1]), np.array([0.3])), 10, axis=0)
    assert manifold.dist(edge[0], fine.mean(edge)) < 1e-8 * 0.3
    with pytest.raises(RuntimeError, match="nothing was released"):
        LaplaceMean(manifold, center, 0.3, 10, 1.0, tolerance=1e-20).mean(records)


# K-norm gradient mechanism --------------------------------------------------------------------------------------------


class Polar:
    """The density of a K-norm gradient mechanism in dimension 2, by polar coordinates around the center of its ball."""

    def __init__(self, kng: KNG, records: Array, upper: float, rings: int = 600, rays: int = 180):
        self.kng, self.rings, self.rays = kng, rings, rays
        manifold = kng.manifold
        r = (np.arange(rings) + 0.5) * (upper / rings)
        angle = (np.arange(rays) + 0.5) * (2 * np.pi / rays)
        c = r[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        v = manifold.from_coordinates(kng.center, c.reshape(-1, 2))
        self.points = manifold.exp(kng.center, v)
        volume = np.sinh(r) if isinstance(manifold, Hyperboloid) else np.sin(r)
        # Not by the code under test.
        logs = manifold.log(self.points[:, None], records)
        self.log_density = (-2 * manifold.norm(self.points, logs.mean(axis=1)) / kng.scale).reshape(rings, rays)
        self.log_volume = np.log(volume * (upper / rings) * (2 * np.pi / rays))[:, None]
        self.upper = upper

    @property
    def log_normaliser(self) -> float:
        return float(np.log(np.exp(self.log_density + self.log_volume).sum()))

    def cdfs(self, scale: float) -> tuple[Cdf, Cdf]:
        """Laws of distance and angle, were the scale so many times the mechanism's."""
        mass = np.exp(self.log_density / scale + self.log_volume)
        radial = np.concatenate([[0], np.cumsum(mass.sum(axis=1))]) / mass.sum()
        angular = np.concatenate([[0], np.cumsum(mass.sum(axis=0))]) / mass.sum()
        r, angle = np.linspace(0, self.upper, self.rings + 1), np.linspace(0, 2 * np.pi, self.rays + 1)
        return lambda x: np.interp(x, r, radial), lambda x: np.interp(x, angle, angular)


PLANES = [
    # One record far from two: the proposals of the sampler are round, the density is not.
    (Hyperboloid(2), 2.0, 8.0, 7.0),
    (Hyperboloid(2), 0.5, 2.0, 12.0),
    (Sphere(3), 0.3, 6.0, 0.3),
    (Sphere(3), 0.6, 30.0, 0.6),
]


@pytest.mark.parametrize(("manifold", "radius", "epsilon", "upper"), PLANES, ids=str)
def test_kng_draws_its_density(manifold: Manifold, radius: float, epsilon: float, upper: float) -> None:
    rng = generator(17)
    center = manifold.random_point(rng)
    angles = np.array([0.3, 0.8, 3.0])
    c = radius * 0.99 * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    records = manifold.exp(center, manifold.from_coordinates(center, c))
    kng = KNG(manifold, center, radius, 3, epsilon)
    grid = Polar(kng, records, upper)
    v = manifold.coordinates(center, manifold.log(center, kng.sample(records, rng, DRAWS)))
    distance, angle = np.linalg.norm(v, axis=1), np.arctan2(v[:, 1], v[:, 0]) % (2 * np.pi)
    assert p_value(distance, grid.cdfs(1)[0]) > 1e-3
    assert p_value(angle, grid.cdfs(1)[1]) > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert min(p_value(distance, grid.cdfs(wrong)[0]), p_value(angle, grid.cdfs(wrong)[1])) < 1e-6


@pytest.mark.parametrize("manifold", [Euclidean(1), Euclidean(4), SPDLogEuclidean(2), SPDAffineInvariant(1)], ids=str)
def test_kng_in_flat_space_is_laplace(manifold: Manifold) -> None:
    """||grad F(w)|| = 2 dist(w, mean) there."""
    rng = generator(18)
    center = manifold.random_point(rng)
    records = scattered(manifold, center, 1.0, 8, rng)
    kng = KNG(manifold, center, 1.0, 8, 2.0)
    assert kng.scale == pytest.approx(8 / (8 * 2.0))
    mean = frechet_mean(manifold, records, start=center).point
    distance = manifold.dist(mean, kng.sample(records, rng, DRAWS))
    has_scale(distance, lambda s: stats.gamma(manifold.dim, scale=s / 2).cdf, kng.scale)


def test_kng_on_the_circle_stays_in_the_ball() -> None:
    manifold, rng = Sphere(2), generator(19)
    center = manifold.random_point(rng)
    at = np.array([1.4, 1.0, 1.2, 0.9])
    records = manifold.exp(center, manifold.from_coordinates(center, at[:, None]))
    kng = KNG(manifold, center, 1.5, 4, 1.0)
    drawn = manifold.coordinates(center, manifold.log(center, kng.sample(records, rng, DRAWS)))[:, 0]
    shifted = at.mean() + 1.5  # both ends count from the lower end of the arc
    has_scale(drawn + 1.5, lambda s: grid_cdf(lambda r: -2 * np.abs(r - shifted) / s, 3.0), kng.scale)
    outside = manifold.exp(center, manifold.from_coordinates(center, np.array([[1.51], [-1.6], [3.0]])))
    assert np.all(np.isneginf(kng.log_density(records, outside)))


@pytest.mark.parametrize(
    ("manifold", "radius", "epsilon", "upper"),
    [
        (Hyperboloid(2), 1.0, 4.0, 12.0),
        (Hyperboloid(2), 2.5, 12.0, 9.0),
        (Sphere(3), 0.2, 4.0, 0.2),
        (Sphere(3), 0.6, 9.0, 0.6),
    ],
    ids=str,
)
def test_kng_keeps_epsilon_and_needs_its_scale(manifold: Manifold, radius: float, epsilon: float, upper: float) -> None:
    """Between neighbours the density, normaliser and all, never changes by more than epsilon; its exponent alone by
    nearly the half of epsilon that is meant for it, so that a smaller scale would show."""
    rng, n = generator(20), 3
    center = manifold.random_point(rng)
    kng = KNG(manifold, center, radius, n, epsilon)
    exponent = []
    for trial in range(12):
        pair = [
            Polar(kng, records, upper, rings=200, rays=60)
            for records in neighbours(manifold, center, radius, n, trial % 3, rng)
        ]
        change = np.abs(pair[0].log_density - pair[1].log_density).max()
        exponent.append(change)
        whole = np.abs(
            pair[0].log_density - pair[0].log_normaliser - pair[1].log_density + pair[1].log_normaliser
        ).max()
        assert whole <= epsilon
        assert abs(pair[0].log_normaliser - pair[1].log_normaliser) <= epsilon / 2
    assert 0.75 * epsilon / 2 < max(exponent) <= epsilon / 2 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("manifold", "radius", "n", "epsilon"),
    [
        (Hyperboloid(2), 2.0, 20, 2.0),
        (PoincareBall(6), 1.0, 50, 2.0),
        (SPDAffineInvariant(3), 1.0, 50, 2.0),
        (Sphere(4), 0.4, 30, 1.0),
    ],
    ids=str,
)
def test_kng_accepts_as_many_as_it_says_and_never_more_than_all(
    manifold: Manifold, radius: float, n: int, epsilon: float
) -> None:
    rng = generator(21)
    center = manifold.random_point(rng)
    kng = KNG(manifold, center, radius, n, epsilon)
    for kind in range(3):
        records = neighbours(manifold, center, radius, n, kind, rng)[0]
        mean = kng.mean(records)
        law = kng.proposal(radius + float(manifold.dist(center, mean)) if isinstance(manifold, Sphere) else math.inf)
        w, r = law.sample_with_distance(mean, rng, 1000)
        log_probability = kng.log_density(records, w) + r / law.scale
        assert log_probability.max() <= 1e-6
        assert np.exp(log_probability).mean() > 0.9 * kng.acceptance()


def test_kng_refuses_what_does_not_exist() -> None:
    center = np.eye(8)
    with pytest.raises(ValueError, match=r"KNG: n = 10 records and scale = 0.8 .* must be below 1/6.48"):
        KNG(SPDAffineInvariant(8), center, 1.0, 10, 1.0).sample(np.stack([center] * 10), generator())
    with pytest.raises(ValueError, match="radius = 1 must be below 1, where singular matrices are"):
        KNG(SPDBuresWasserstein(3), np.eye(3), 1.0, 10, 1.0)
    with pytest.raises(ValueError, match=r"radius = 0.8 must be below"):
        KNG(Sphere(3), np.eye(3)[0], 0.8, 10, 1.0)
    product = Product([Hyperboloid(2), Euclidean(2)])
    with pytest.raises(ValueError, match="no exact sampler"):
        KNG(product, product.random_point(generator()), 0.8, 10, 1.0).proposal()


def test_kng_chain_comes_near_its_density() -> None:
    manifold, rng = Euclidean(2), generator(22)
    records = scattered(manifold, np.zeros(2), 1.0, 5, rng)
    kng = KNG(manifold, np.zeros(2), 1.0, 5, 2.0)
    drawn = np.stack([kng_mcmc(kng, records, rng, burn_in=60, step=1.0) for _ in range(400)])
    distance = manifold.dist(records.mean(axis=0), drawn)
    assert p_value(distance, stats.gamma(2, scale=kng.scale / 2).cdf) > 1e-3
    circle = Sphere(2)
    kng = KNG(circle, np.array([1.0, 0.0]), 0.2, 2, 0.1)
    end = kng_mcmc(kng, np.array([[1.0, 0.0]] * 2), rng, burn_in=50)
    assert circle.dist(np.array([1.0, 0.0]), end) <= 0.2


def test_draws_are_those_of_the_generator() -> None:
    manifold = SPDAffineInvariant(3)
    records = scattered(manifold, np.eye(3), 1.0, 30, generator(23))
    for mechanism in (LaplaceMean(manifold, np.eye(3), 1.0, 30, 1.0), KNG(manifold, np.eye(3), 1.0, 30, 1.0)):
        one, same, other = (mechanism.sample(records, generator(seed), 3) for seed in (24, 24, 25))
        np.testing.assert_array_equal(one, same)
        assert not np.allclose(one, other)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (7, 1), (7, 3)])
def test_many_tangent_gaussians_are_drawn_by_pieces_to_the_same_numbers(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifold = SPDAffineInvariant(2)
    w = manifold.random_point(np.random.default_rng(1), shape)
    batch = (7, 3)
    drawn = []
    for numbers in (1 << 17, 30, 1):
        monkeypatch.setattr("pri_rfed.noise._DRAWN_NUMBERS", numbers)
        drawn.append(tangent_gaussian(manifold, w, 0.3, np.random.default_rng(2), batch))
    assert drawn[0].shape == (7, 3, 2, 2)
    np.testing.assert_allclose(drawn[1], drawn[0], rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(drawn[2], drawn[0], rtol=1e-13, atol=1e-15)
