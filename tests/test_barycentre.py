"""The Bures-Wasserstein barycentre: its optimum, its laws, how one record moves it, and audits of its mechanisms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, linalg, stats

from pri_rfed import noise
from pri_rfed.data.agents import AgentArrays, Records
from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds import SPDBuresWasserstein
from pri_rfed.mechanisms import KNG, LaplaceMean, floor_of_ball
from pri_rfed.noise import RiemannianLaplace, tangent_gaussian
from pri_rfed.privacy.audit import audit, canary
from pri_rfed.privacy.events import Pure
from pri_rfed.privacy.evidence import Claim, evidence
from pri_rfed.problems import FrechetMean, Problem
from pri_rfed.randomness import AgentStreams
from pri_rfed.simulation import Budget, simulate
from pri_rfed.training import DPRSGD, KNGMean, RiemannianLaplaceMean

Array = NDArray[np.float64]

PLANE = SPDBuresWasserstein(2)
BALL = FrechetMean(PLANE, np.eye(2), 0.3)


def scattered(n: int, seed: int, radius: float = 0.3, manifold: SPDBuresWasserstein = PLANE) -> Array:
    """Points all over the ball about the identity, most of them near its edge."""
    rng, center = np.random.default_rng(seed), np.eye(manifold.m)
    v = tangent_gaussian(manifold, center, 1.0, rng, (n,))
    length = radius * rng.random(n) ** 0.2 / manifold.norm(center, v)
    return manifold.exp(center, length[:, None, None] * v)


def sqrtm(x: Array) -> Array:
    return np.real(linalg.sqrtm(x))


# The problem ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 4])
def test_the_optimum_is_the_fixed_point_that_barycentres_are_known_by(m: int) -> None:
    """w = mean of (w^½ z w^½)^½ (Agueh and Carlier, 2011), and its loss is by the closed form of the distance."""
    manifold = SPDBuresWasserstein(m)
    problem = FrechetMean(manifold)
    z = manifold.random_point(np.random.default_rng(m), (12,))
    w = problem.optimum(z)
    assert w is not None
    root = sqrtm(w)
    couplings = [sqrtm(root @ x @ root) for x in z]
    np.testing.assert_allclose(np.mean(couplings, axis=0), w, rtol=1e-10, atol=1e-12)
    losses = [np.trace(w) + np.trace(x) - 2 * np.trace(c) for x, c in zip(z, couplings, strict=True)]
    np.testing.assert_allclose(problem.loss(w, z), losses, rtol=1e-9, atol=1e-12)


def test_the_gradient_is_the_published_one() -> None:
    """2 (2 W - (W X)^½ - (X W)^½): twice what is printed, where the gradient of a squared distance has the norm of the
    distance."""
    w, z = scattered(2, 3)
    expected = 2 * (2 * w - sqrtm(w @ z) - sqrtm(z @ w))
    np.testing.assert_allclose(FrechetMean(PLANE).gradient(w, z), expected, atol=1e-12)
    assert PLANE.norm(w, expected) == pytest.approx(2 * PLANE.dist(w, z))


@pytest.mark.parametrize(("m", "radius"), [(2, 0.3), (3, 0.33), (5, 0.1)])
def test_a_public_ball_has_an_eigenvalue_floor(m: int, radius: float) -> None:
    manifold = SPDBuresWasserstein(m)
    rng = np.random.default_rng(5)
    center = np.diag(rng.uniform(1, 3, m))
    center[0, 0] = 1
    floor = floor_of_ball(manifold, center, radius)
    assert floor is not None and floor == pytest.approx((1 - radius) ** 2)
    v = tangent_gaussian(manifold, center, 1.0, rng, (4000,))
    edge = manifold.exp(center, v * (radius / manifold.norm(center, v))[:, None, None])
    assert np.linalg.eigvalsh(edge).min() >= floor * (1 - 1e-12)
    # Straight towards the singular matrices it is reached.
    down = -np.diag(np.eye(m)[0])
    nearest = manifold.exp(center, down * radius / manifold.norm(center, down))
    assert np.linalg.eigvalsh(nearest).min() == pytest.approx(floor, rel=1e-9)
    with pytest.raises(ValueError, match=r"radius = 1 must be below 1, where singular matrices are"):
        floor_of_ball(manifold, center, 1.0)


def test_the_bound_of_gradients_is_that_of_the_curvature_in_the_whole_ball() -> None:
    """kappa = 3/(l_r + l_{r-1}) over the domain, here 3/(2 * 0.49), and not of a record."""
    x = 0.6 * math.sqrt(1.5 / 0.49)
    bound = BALL.gradient_difference_bound
    assert bound is not None and bound == pytest.approx(4 * 0.3 * x / math.sin(x))
    assert FrechetMean(PLANE, np.eye(2), 0.34).gradient_difference_bound is None
    larger = FrechetMean(PLANE, 4 * np.eye(2), 0.6).gradient_difference_bound
    assert larger == pytest.approx(2 * bound), "distances double where matrices become four times as large"


def test_gradients_stay_bounded_when_steps_leave_the_domain() -> None:
    """exp past the injectivity radius meets singular matrices and comes back; nothing is redrawn or refused."""
    bound, z = BALL.gradient_difference_bound, scattered(40, 6)
    assert bound is not None
    w = PLANE.exp(np.eye(2), tangent_gaussian(PLANE, np.eye(2), 2.0, np.random.default_rng(7), (400,)))
    singular = PLANE.exp(np.eye(2), np.array([[-2.0, 0.0], [0.0, 0.5]]))
    assert np.linalg.eigvalsh(w).min() >= 0
    for at in (*w, singular):
        with np.errstate(all="ignore"):
            g = BALL.gradient(at, z)
            assert np.isfinite(g).all()
            far = PLANE.norm(at, g[:, None] - g[None])
        assert not far.max() > bound * (1 + 1e-9)


def test_a_federation_finds_the_barycentre_privately() -> None:
    agents = [scattered(200, seed) for seed in range(4)]
    start = np.diag([1.4, 0.8])
    trainer = DPRSGD(steps=5, noise=1.0, step_size=0.1)
    result = simulate(BALL, agents, trainer, rounds=5, budget=Budget(4.0), start=start, evaluate_every=5, seed=1)
    last = result.history[-1]
    assert result.privacy.epsilon_global <= 4
    assert last["distance"] < 0.25 * PLANE.dist(start, frechet_mean(PLANE, np.concatenate(agents)).point)


# The Laplace law ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_factor_of_volumes(m: int) -> None:
    """Against the differential of exp by finite differences, in orthonormal coordinates; and never above 1."""
    manifold, rng = SPDBuresWasserstein(m), np.random.default_rng(m)
    c = manifold.random_point(rng)
    basis = manifold.from_coordinates(np.broadcast_to(c, (manifold.dim, m, m)), np.eye(manifold.dim))
    reach = float(manifold.injectivity_radius(c))
    u = tangent_gaussian(manifold, c, 1.0, rng, (6,))
    v = 0.7 * reach * u / manifold.norm(c, u)[:, None, None]
    expected = []
    for one in v:
        change = (manifold.exp(c, one + 1e-5 * basis) - manifold.exp(c, one - 1e-5 * basis)) / 2e-5
        x = np.broadcast_to(manifold.exp(c, one), change.shape)
        expected.append(np.linalg.slogdet(manifold.coordinates(x, change))[1])
    np.testing.assert_allclose(noise._wasserstein_log_density(c, v), expected, atol=1e-8)
    far = noise._wasserstein_log_density(c, tangent_gaussian(manifold, c, 2 * reach, rng, (20_000,)))
    assert far.max() <= 1e-12
    # -inf exactly where the geodesic has left: there its end is not where the logarithm leads back from.
    w = tangent_gaussian(manifold, c, reach, rng, (500,))
    back = manifold.log(c, manifold.exp(c, w), strict=False)
    stays = np.abs(back - w).max(axis=(1, 2)) < 1e-6
    assert 0 < stays.sum() < 500
    np.testing.assert_array_equal(np.isfinite(noise._wasserstein_log_density(c, w)), stays)


@pytest.mark.parametrize("scale", [0.15, 0.6])
def test_laplace_draws_have_the_law_of_eigenvalues(scale: float) -> None:
    """Around the identity, 2 x 2: the density of the eigenvalues is |a - b| prod_{i<=j} (l_i + l_j)^{-1/2} e^{-r/scale}
    with r^2 = (a^½ - 1)^2 + (b^½ - 1)^2. In the roots s = a^½, t = b^½ it is 4 s t |s^2 - t^2| / sqrt(4 s^2 t^2
    (s^2 + t^2)) e^{-r/scale} = 2 |s^2 - t^2| / sqrt(s^2 + t^2) e^{-r/scale}."""
    rng = np.random.default_rng(8)

    def cdf_at(scale: float) -> Callable[[Array], Array]:
        """The distribution function of r, by quadrature over the quadrant s, t > 0."""
        radii = np.linspace(0, scale * 25, 1000)
        angles = np.linspace(0, 2 * np.pi, 800, endpoint=False)
        r, phi = np.meshgrid(radii, angles, indexing="ij")
        s, t = 1 + r * np.cos(phi), 1 + r * np.sin(phi)
        with np.errstate(all="ignore"):
            density = np.where((s > 0) & (t > 0), np.abs(s**2 - t**2) / np.sqrt(s**2 + t**2), 0.0)
        ring = density.mean(axis=1) * radii * np.exp(-radii / scale)
        total = integrate.cumulative_simpson(ring, x=radii, initial=0)
        return lambda x: np.interp(x, radii, total / total[-1])

    w, r = RiemannianLaplace(PLANE, scale).sample_with_distance(np.eye(2), rng, 6000)
    assert PLANE.check_point(w)
    np.testing.assert_allclose(PLANE.dist(np.eye(2), w), r, rtol=1e-9, atol=1e-12)
    p = [stats.kstest(r, cdf_at(k * scale)).pvalue for k in (1.0, 2 / 3, 3 / 2)]
    assert p[0] > 1e-3 and p[1] < 1e-6 and p[2] < 1e-6, p
    if scale > 0.5:  # and it is not the law in flat space
        assert stats.kstest(r, stats.gamma(3, scale=scale).cdf).pvalue < 1e-6
    # The eigenvectors are uniform.
    angle = np.arctan2(2 * w[:, 0, 1], w[:, 0, 0] - w[:, 1, 1]) / (2 * np.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > 1e-3


# Mechanisms -----------------------------------------------------------------------------------------------------------


def test_no_record_moves_the_barycentre_farther_than_said() -> None:
    mechanism = LaplaceMean(PLANE, np.eye(2), 0.3, 6, 1.0)
    ends = [PLANE.exp(np.eye(2), s * 0.3 * e / PLANE.norm(np.eye(2), e)) for s in (1, -1) for e in (
        np.diag([1.0, 0]), np.diag([0, 1.0]), np.array([[0, 1.0], [1, 0]]), np.eye(2), np.diag([1.0, -1]),
    )]  # fmt: skip
    farthest = 0.0
    for others in ([ends[0]] * 5, [ends[5]] * 5, [ends[0], ends[5]] * 2 + [np.eye(2)], list(scattered(5, 9))):
        means = [frechet_mean(PLANE, np.stack([one, *others])).point for one in ends]
        farthest = max(farthest, *(float(PLANE.dist(a, b)) for a, b in itertools.combinations(means, 2)))
    assert 0.45 * mechanism.sensitivity < farthest <= mechanism.sensitivity * (1 + 1e-9)
    # Twice the sensitivity over epsilon: the law's normaliser is not the same around all matrices.
    assert mechanism.law.scale == pytest.approx(2 * mechanism.sensitivity)


@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_kng_accepts_as_many_as_it_says_and_stays_in_the_ball(epsilon: float) -> None:
    kng, rng = KNG(PLANE, np.eye(2), 0.3, 40, epsilon), np.random.default_rng(10)
    records = scattered(40, 11)
    mean = kng.mean(records)
    law = kng.proposal(0.3 + float(PLANE.dist(np.eye(2), mean)))
    w, r = law.sample_with_distance(mean, rng, 800)
    log_probability = kng.log_density(records, w) + r / law.scale
    assert log_probability.max() <= 1e-6
    assert np.exp(log_probability).mean() > 0.9 * kng.acceptance() > 0.01
    drawn = kng.sample(records, rng, 50)
    assert PLANE.dist(np.eye(2), drawn).max() <= 0.3 * (1 + 1e-12)


@pytest.mark.parametrize("trainer", [RiemannianLaplaceMean(epsilon=1.0), KNGMean(epsilon=1.0)], ids=lambda t: t.name)
def test_output_perturbation_runs_on_agents(trainer: RiemannianLaplaceMean | KNGMean) -> None:
    data = AgentArrays([scattered(n, n) for n in (150, 80)])
    assert all(trainer.check(BALL, int(n)) == [] for n in data.counts)
    uploads = trainer.train(BALL, np.eye(2), data.records(np.arange(2)), AgentStreams(0, 0, [0, 1]))
    assert PLANE.check_point(uploads)


def neighbours(n: int) -> tuple[Array, Array]:
    """All records at one end of a diameter of the ball, and one of them at the other end."""
    along = np.diag([1.0, 0.0])
    along *= 0.3 * (1 - 1e-12) / PLANE.norm(np.eye(2), along)
    ends = [PLANE.exp(np.eye(2), side * along) for side in (1, -1)]
    return np.stack([ends[0]] * n), np.stack([ends[1], *[ends[0]] * (n - 1)])


@pytest.mark.parametrize("kind", [LaplaceMean, KNG], ids=lambda kind: kind.__name__)
def test_mechanisms_keep_epsilon_and_need_their_scale(kind: type[LaplaceMean] | type[KNG]) -> None:
    """The most telling statistic of draws about two neighbours: which of their means is nearer, and by how much."""
    one, other = neighbours(30)
    means = [frechet_mean(PLANE, data).point for data in (one, other)]

    def shown(shrink: float) -> float:
        samples = []
        for seed, data in enumerate((one, other)):
            mechanism = kind(PLANE, np.eye(2), 0.3, 30, 2.0)
            if isinstance(mechanism, LaplaceMean):
                mechanism.law = RiemannianLaplace(PLANE, mechanism.law.scale * shrink)
            else:
                mechanism.scale *= shrink
            x = mechanism.sample(data, np.random.default_rng(seed), 3000)
            samples.append((PLANE.dist(x, means[1]) - PLANE.dist(x, means[0]))[:, None])
        return evidence(samples[0], samples[1], Claim(Pure(2.0)), 1e-5, 0.99).lower_bound

    assert shown(1.0) <= 2.0
    assert shown(1 / 12) > 2.0


AUDITED = DPRSGD(steps=4, noise=2.0, noise_unit="sensitivity", step_size=1e-3)


def test_an_audit_does_not_refute_what_is_claimed() -> None:
    found = audit(canary(AUDITED, BALL, 5), repetitions=2500, delta=1e-5, confidence=0.99, seed=2).evidence
    assert not found.refuted and found.ratio >= 0.3, found


def test_an_audit_refutes_too_little_noise() -> None:
    """A quarter of what is claimed: what a radius for a diameter, twice over, would do."""

    class Weak(DPRSGD):
        def _sigma(self, problem: Problem, records: Records) -> Array | None:
            sigma = super()._sigma(problem, records)
            return None if sigma is None else sigma / 4

    attack = replace(canary(AUDITED, BALL, 5), trainer=Weak(**vars(AUDITED)))
    assert audit(attack, repetitions=1500, delta=1e-5, confidence=0.99, seed=3).evidence.refuted
