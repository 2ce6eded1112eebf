"""Problems: gradients, bounds, clipping, records and optima."""

from __future__ import annotations

import numpy as np
import pytest
from cases import EVERY_MANIFOLD, near, unit_vectors

from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.manifolds.grassmann import Grassmann
from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.manifolds.poincare_ball import PoincareBall
from pri_rfed.manifolds.spd import SPDAffineInvariant, SPDBuresWasserstein
from pri_rfed.manifolds.sphere import Sphere
from pri_rfed.problems import (
    PROBLEMS,
    FrechetMean,
    HyperbolicStructuredPrediction,
    MatrixCompletion,
    PrincipalEigenvector,
    PrincipalSubspace,
    Problem,
)
from pri_rfed.problems.ambient import Ambient
from pri_rfed.problems.clipping import ClippedDifference, ClippedGradient, clip, clipped_mean

every_manifold = pytest.mark.parametrize("manifold", EVERY_MANIFOLD, ids=str)

COMPONENTS: list[Problem] = [PrincipalEigenvector(6), PrincipalSubspace(6, 2), PrincipalSubspace(6, 3, "stiefel")]
components = pytest.mark.parametrize("problem", COMPONENTS, ids=lambda p: f"{p.name} {p.manifold}")


def check_gradient(problem: Problem, w: Array, z: Array, rng: np.random.Generator) -> None:
    """The derivative along geodesics in every direction is the inner product with the gradient."""
    manifold, h = problem.manifold, 1e-5
    gradient = problem.gradient(w, z)
    assert manifold.check_tangent(np.broadcast_to(w, gradient.shape), gradient)
    for _ in range(4):
        v = manifold.from_coordinates(w, rng.standard_normal(manifold.dim) / 4)
        slope = (problem.loss(manifold.exp(w, h * v), z) - problem.loss(manifold.exp(w, -h * v), z)) / (2 * h)
        np.testing.assert_allclose(manifold.inner(w, gradient, v), slope, rtol=1e-6, atol=1e-8)


@every_manifold
def test_the_gradient_of_the_frechet_mean_is_the_derivative_of_its_loss(manifold: Manifold) -> None:
    rng = np.random.default_rng(1)
    w = manifold.random_point(rng)
    z = near(manifold, w, rng, (6,), 0.8)
    check_gradient(FrechetMean(manifold), w, z, rng)
    check_gradient(FrechetMean(manifold, w, 0.9 * min(2.0, float(manifold.injectivity_radius(w)))), w, z, rng)


@components
def test_the_gradient_of_principal_components_is_the_derivative_of_their_loss(problem: Problem) -> None:
    rng = np.random.default_rng(2)
    check_gradient(problem, problem.manifold.random_point(rng), unit_vectors(rng, (7, 6)), rng)


@components
def test_the_gradient_bound_of_principal_components_holds_and_is_reached(problem: Problem) -> None:
    rng = np.random.default_rng(3)
    w = problem.manifold.random_point(rng, (500,))
    norms = problem.manifold.norm(w, problem.gradient(w, unit_vectors(rng, (500, 6))))
    assert problem.gradient_bound == 1
    assert norms.max() <= 1 + 1e-12
    # A record of norm 1 at 45 degrees from the span of w reaches it.
    w0 = np.eye(6)[:, : int(np.prod(problem.manifold.point_shape)) // 6].reshape(problem.manifold.point_shape)
    z = np.zeros(6)
    z[[0, 5]] = np.sqrt(0.5)
    assert problem.manifold.norm(w0, problem.gradient(w0, z)) == pytest.approx(1, abs=1e-12)


@components
@pytest.mark.parametrize("bound", [None, 1.0, 0.3, 1e-9])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("block", [1 << 20, 30], ids=["one block", "many blocks"])
def test_the_fast_clipped_mean_is_the_plain_one(
    problem: Problem, bound: float | None, masked: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pri_rfed.problems.pca.BLOCK_NUMBERS", block)
    monkeypatch.setattr("pri_rfed.problems.clipping.CHUNK_NUMBERS", block)
    rng = np.random.default_rng(4)
    w = problem.manifold.random_point(rng, (3,))
    z = unit_vectors(rng, (3, 11, 6)) * rng.random((3, 11, 1)) * 1.5
    z[0, 3] = 0
    z[1, 2, 4] = np.nan
    z[1, 5, 0] = np.inf
    mask = rng.random((3, 11)) < 0.6 if masked else None
    size = np.array([11.0, 7.0, 5.0])
    fast, plain = problem.clipped_mean(w, z, bound, mask, size), clipped_mean(problem, w, z, bound, mask, size)
    assert np.isfinite(fast).all()
    np.testing.assert_allclose(fast, plain, rtol=1e-10, atol=1e-14)


class _Half(PrincipalEigenvector):
    gradient_bound = 0.5

    def gradient(self, w: Array, z: Array) -> Array:
        return 0.5 * super().gradient(w, z)


class _HalfCompletion(MatrixCompletion):
    def gradient(self, w: Array, z: Array) -> Array:
        return 0.5 * super().gradient(w, z)


@pytest.mark.parametrize("problem", [_Half(6), _HalfCompletion(6, 2)], ids=["components", "completion"])
def test_a_derived_problem_has_its_own_gradient_in_the_mean(problem: Problem) -> None:
    """Its bound would else be of one gradient, and what is released of another."""
    rng = np.random.default_rng(21)
    w, z = problem.manifold.random_point(rng, (2,)), unit_vectors(rng, (2, 5, *problem.record_shape))
    if isinstance(problem, MatrixCompletion):
        z[..., 1, :] = 1
    mean = problem.clipped_mean(w, z, None, None, np.array([5.0, 5.0]))
    np.testing.assert_allclose(mean, problem.gradient(w[:, None], z).mean(axis=1), rtol=1e-10, atol=1e-14)


def test_a_batch_without_records_adds_up_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisson sampling draws such batches. What lies in unused memory may be an earlier batch's mean, without noise."""
    hyperboloid = Hyperboloid(3)
    problems = [
        *COMPONENTS,
        *(Ambient(problem) for problem in COMPONENTS),
        MatrixCompletion(6, 2),
        FrechetMean(hyperboloid),
        FrechetMean(hyperboloid, np.array([1.0, 0, 0, 0]), 0.5),
        HyperbolicStructuredPrediction(5, 1.0, 0.5),
    ]
    rng = np.random.default_rng(20)
    points = [getattr(problem, "problem", problem).manifold.random_point(rng, (2,)) for problem in problems]

    def unused(shape: tuple[int, ...], dtype: type = float) -> Array:
        return np.full(shape, 7, dtype=dtype)

    monkeypatch.setattr(np, "empty", unused)
    for problem, w in zip(problems, points, strict=True):
        z, mask = np.zeros((2, 0, *problem.record_shape)), np.zeros((2, 0), dtype=bool)
        for bound in (None, 0.5):
            mean = problem.clipped_mean(w, z, bound, mask, np.array([3.0, 4.0]))
            np.testing.assert_array_equal(mean, np.zeros_like(w), str(problem.name))


@every_manifold
@pytest.mark.parametrize("bound", [None, 0.7, 1e-9])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ball", [False, True])
def test_the_clipped_mean_in_coordinates_is_the_plain_one(
    manifold: Manifold, bound: float | None, masked: bool, ball: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pri_rfed.problems.clipping.CHUNK_NUMBERS", 30)
    rng = np.random.default_rng(14)
    center = manifold.random_point(rng)
    radius = 0.45 * min(1.0, float(manifold.injectivity_radius(center)))
    problem = FrechetMean(manifold, center, radius) if ball else FrechetMean(manifold)
    w, z = near(manifold, center, rng, (3,), 0.5), near(manifold, center, rng, (3, 11), 0.8)
    if not ball:  # whose promise is for numbers only
        z[1, 2] = np.nan
        z[2, 5] = np.inf
    mask = rng.random((3, 11)) < 0.6 if masked else None
    size = np.array([11.0, 7.0, 5.0])
    fast, plain = problem.clipped_mean(w, z, bound, mask, size), clipped_mean(problem, w, z, bound, mask, size)
    assert np.isfinite(fast).all()
    np.testing.assert_allclose(fast, plain, rtol=1e-9, atol=1e-12 if bound is None else 1e-12 * bound)


def test_the_fast_clipped_mean_never_exceeds_the_bound_by_rounding() -> None:
    rng = np.random.default_rng(5)
    problem = PrincipalEigenvector(50)
    w = unit_vectors(rng, (2000, 50))
    # Records all but parallel to w: the norm of what is left is lost to rounding when squares are subtracted.
    z = w + unit_vectors(rng, (2000, 50)) * 10.0 ** rng.uniform(-12, -6, (2000, 1))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    one = problem.clipped_mean(w, z[:, None], 1e-10, None, np.ones(2000))
    assert np.linalg.norm(one, axis=1).max() <= 1e-10 * (1 + 1e-6)


@every_manifold
def test_clipping_shortens_to_the_bound_and_no_more(manifold: Manifold) -> None:
    rng = np.random.default_rng(6)
    w = manifold.random_point(rng)
    v = manifold.from_coordinates(np.broadcast_to(w, (40, *w.shape)), rng.standard_normal((40, manifold.dim)))
    norms = manifold.norm(w, v)
    clipped = clip(manifold, w, v, 1.0)
    np.testing.assert_allclose(manifold.norm(w, clipped), np.minimum(norms, 1.0), rtol=1e-12)
    np.testing.assert_array_equal(clipped[norms <= 1], v[norms <= 1])


def test_gradients_that_are_not_numbers_count_as_nothing() -> None:
    v = np.array([[np.nan, 1.0], [np.inf, 0.0], [1e300, 1e300], [3.0, 4.0]])
    np.testing.assert_allclose(clip(Euclidean(2), np.zeros(2), v, 1.0), [[0, 0], [0, 0], [0, 0], [0.6, 0.8]])
    np.testing.assert_array_equal(clip(Euclidean(2), np.zeros(2), v[:2], None), np.zeros((2, 2)))
    # Beyond the cut locus a gradient does not exist.
    problem = FrechetMean(Sphere(3))
    w, z = np.array([[1.0, 0, 0]]), np.array([[[-1.0, 0, 0], [0, 1.0, 0]]])
    np.testing.assert_allclose(
        problem.clipped_mean(w, z, None, None, np.array([2.0])), [[0, -np.pi / 2, 0]], atol=1e-12
    )


def test_how_far_one_record_moves_a_clipped_gradient() -> None:
    hyperbolic = FrechetMean(Hyperboloid(2), np.array([1.0, 0, 0]), 0.5)
    for problem, bound, norm, difference in (
        (PrincipalEigenvector(3), None, 1, 2),
        (PrincipalEigenvector(3), 0.25, 0.25, 0.5),
        (PrincipalEigenvector(3), 7.0, 1, 2),
        (FrechetMean(Hyperboloid(2)), 3.0, 3, 6),
        (FrechetMean(Hyperboloid(2)), None, np.inf, np.inf),
        (hyperbolic, None, np.inf, 2),
        (hyperbolic, 3.0, 3, 2),
        (hyperbolic, 0.25, 0.25, 0.5),
    ):
        gradient = ClippedGradient(problem, bound)
        assert (gradient.norm_bound, gradient.difference_bound) == (norm, difference)
    assert ClippedDifference(PrincipalEigenvector(3), 0.25).difference_bound == 0.5
    assert ClippedDifference(PrincipalEigenvector(3), None).difference_bound == 4
    assert ClippedDifference(hyperbolic, None).difference_bound == 4
    with pytest.raises(ValueError, match=r"clip = 0.* positive"):
        ClippedGradient(hyperbolic, 0.0)


@pytest.mark.parametrize(
    "manifold", [Euclidean(3), Hyperboloid(3), PoincareBall(3), SPDAffineInvariant(3)], ids=str
)
def test_gradients_in_a_public_ball_differ_by_at_most_four_radii(manifold: Manifold) -> None:
    rng = np.random.default_rng(7)
    center, radius = manifold.random_point(rng), 0.7
    problem = FrechetMean(manifold, center, radius)
    assert problem.gradient_difference_bound == 4 * radius
    u = manifold.from_coordinates(center, np.eye(manifold.dim)[0])
    on = np.stack([manifold.exp(center, radius * u), manifold.exp(center, -radius * u)])
    far = manifold.exp(center, 3 * u)
    z = near(manifold, center, rng, (60,), radius)
    problem.check_records(z)
    for w in (center, far, near(manifold, center, rng, (), 1.0)):
        for records in (z, on * 1.0):
            g = problem.gradient(w, records)
            pairs = manifold.norm(w, g[:, None] - g[None])
            assert pairs.max() <= 4 * radius * (1 + 1e-9)
        # It is the gradient itself.
        np.testing.assert_allclose(problem.gradient(w, z), -2 * manifold.log(w, z), rtol=1e-9, atol=1e-9)
    # Opposite ends of the ball, seen from its center, reach the bound.
    g = problem.gradient(center, on)
    assert manifold.norm(center, g[0] - g[1]) == pytest.approx(4 * radius, rel=1e-9)


def test_the_bound_on_differences_holds_where_numbers_end() -> None:
    manifold = SPDAffineInvariant(2)
    problem = FrechetMean(manifold, np.eye(2), 1.0)
    records = np.stack([np.eye(2), np.diag([2.0, 1.0]), np.diag([np.nan, 1.0]), np.full((2, 2), np.inf)])
    for w in (np.diag([1e-300, 1e300]), np.diag([1e-200, 1.0]), np.full((2, 2), np.nan)):
        with np.errstate(all="ignore"):
            g = problem.gradient(w, records)
        assert np.isfinite(g).all()
        if np.isfinite(w).all():
            assert manifold.norm(w, g[:, None] - g[None]).max() <= 4 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("manifold", "share"), [(Sphere(3), 0.95), (Grassmann(5, 2), 0.95), (SPDBuresWasserstein(2), 0.95)], ids=str
)
def test_with_curvature_gradients_are_kept_within_the_bound_and_exact_in_the_ball(
    manifold: Manifold, share: float
) -> None:
    rng = np.random.default_rng(15)
    center = manifold.random_point(rng)
    # The largest radius that has a bound, by bisection.
    inside, beyond = 0.0, 0.49 * float(manifold.injectivity_radius(center))
    for _ in range(50):
        middle = (inside + beyond) / 2
        known = FrechetMean(manifold, center, middle).gradient_difference_bound is not None
        inside, beyond = (middle, beyond) if known else (inside, middle)
    assert inside > 0.2 * float(manifold.injectivity_radius(center))
    radius = share * inside
    problem = FrechetMean(manifold, center, radius)
    bound = problem.gradient_difference_bound
    assert bound is not None and 4 * radius < bound < 4 * radius * np.pi / 2

    def scattered(n: int, reach: float) -> Array:
        c = rng.standard_normal((n, manifold.dim))
        c *= reach * rng.random((n, 1)) ** 0.2 / np.linalg.norm(c, axis=1, keepdims=True)
        return manifold.exp(center, manifold.from_coordinates(np.broadcast_to(center, (n, *center.shape)), c))

    z = scattered(60, radius)
    for w in scattered(40, radius):
        np.testing.assert_allclose(problem.gradient(w, z), -2 * manifold.log(w, z), rtol=1e-9, atol=1e-9)
    everywhere = np.concatenate([scattered(30, radius), scattered(30, 4 * radius), manifold.random_point(rng, (30,))])
    for w in everywhere:
        g = problem.gradient(w, z)
        assert np.isfinite(g).all()
        assert manifold.norm(w, g[:, None] - g[None]).max() <= bound * (1 + 1e-9)


def test_there_is_no_bound_on_differences_where_geodesics_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Euclidean, "complete", False)
    assert FrechetMean(Euclidean(2), np.zeros(2), 1.0).gradient_difference_bound is None


@every_manifold
def test_records_outside_of_the_ball_are_refused_or_moved_in(manifold: Manifold) -> None:
    rng = np.random.default_rng(8)
    center = manifold.random_point(rng)
    radius = 0.3 * min(1.0, float(manifold.injectivity_radius(center)) / 2)
    z = near(manifold, center, rng, (40,), 0.9)
    distance = manifold.dist(center, z)
    inside = distance <= radius
    assert 0 < inside.sum() < 40
    refusing = FrechetMean(manifold, center, radius)
    assert refusing.prepare_records(z[inside]) is z[inside] or np.array_equal(
        refusing.prepare_records(z[inside]), z[inside]
    )
    with pytest.raises(ValueError, match=rf"record \({int(np.argmin(inside))},\) lies at distance .* outside"):
        refusing.prepare_records(z)
    moving = FrechetMean(manifold, center, radius, outside="move")
    moved = moving.prepare_records(z)
    refusing.check_records(moved)
    np.testing.assert_array_equal(moved[inside], z[inside])
    np.testing.assert_allclose(manifold.dist(center, moved[~inside]), radius, rtol=1e-6)
    # On the geodesic to the center: the distances add up.
    np.testing.assert_allclose(
        manifold.dist(center, moved) + manifold.dist(moved, z), distance, rtol=1e-6, atol=1e-7
    )
    assert moving.prepare_records(moved) is moved


def test_a_record_opposite_to_the_center_becomes_the_center() -> None:
    problem = FrechetMean(Sphere(3), np.array([1.0, 0, 0]), 1.0, outside="move")
    np.testing.assert_array_equal(problem.prepare_records(np.array([[-1.0, 0, 0]])), [[1.0, 0, 0]])


def test_bad_balls_are_refused() -> None:
    sphere, center = Sphere(3), np.array([1.0, 0, 0])
    with pytest.raises(ValueError, match="only one of them"):
        FrechetMean(sphere, center)
    with pytest.raises(ValueError, match="center must be one point"):
        FrechetMean(sphere, 2 * center, 1.0)
    with pytest.raises(ValueError, match="center must be one point"):
        FrechetMean(sphere, np.stack([center, center]), 1.0)
    for radius in (0.0, -1.0, np.nan, np.inf, np.pi):
        with pytest.raises(ValueError, match="radius = "):
            FrechetMean(sphere, center, radius)
    with pytest.raises(ValueError, match="outside = 'drop'"):
        FrechetMean(sphere, center, 1.0, outside="drop")  # type: ignore[arg-type]


def test_bad_records_are_refused_by_name() -> None:
    problem = PrincipalEigenvector(3)
    z = np.eye(3)
    with pytest.raises(ValueError, match=r"record \(1,\) has norm 2, above 1"):
        problem.check_records(z * np.array([[1.0], [2.0], [1.0]]))
    with pytest.raises(ValueError, match=r"record \(2,\) holds NaN"):
        problem.check_records(np.where(np.arange(3)[:, None] == 2, np.nan, z))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        problem.check_records(np.eye(4))
    with pytest.raises(ValueError, match="not a point of the manifold"):
        FrechetMean(Sphere(3)).check_records(2 * np.eye(3))
    with pytest.raises(ValueError, match="manifold = 'torus'"):
        PrincipalSubspace(4, 2, "torus")  # type: ignore[arg-type]


def test_norms_rounded_to_just_above_one_are_brought_back() -> None:
    problem = PrincipalEigenvector(4)
    z = unit_vectors(np.random.default_rng(9), (5, 4))
    assert problem.prepare_records(z) is z
    prepared = problem.prepare_records(z * (1 + 5e-10))
    assert np.linalg.norm(prepared, axis=1).max() <= 1 + 1e-15
    with pytest.raises(ValueError, match="above 1"):
        problem.prepare_records(z * (1 + 2e-9))


@components
def test_no_point_beats_the_optimum_of_principal_components(problem: Problem) -> None:
    rng = np.random.default_rng(10)
    z = unit_vectors(rng, (300, 6), np.array([3.0, 2.0, 1.5, 1.0, 0.5, 0.2]))
    best = problem.optimum(z)
    assert best is not None and problem.manifold.check_point(best)
    r = best.size // 6
    eigenvalues = np.linalg.eigvalsh(z.T @ z / 300)[::-1]
    assert problem.loss(best, z).mean() == pytest.approx(-eigenvalues[:r].sum(), rel=1e-12)
    gradient = problem.clipped_mean(best[None], z[None], None, None, np.array([300.0]))
    assert np.abs(gradient).max() < 1e-14
    tried = problem.manifold.random_point(rng, (200, 1))
    assert problem.loss(tried, z[None]).mean(axis=1).min() > problem.loss(best, z).mean()


@components
def test_distance_to_the_optimum_ignores_what_the_loss_ignores(problem: Problem) -> None:
    rng = np.random.default_rng(11)
    w = problem.manifold.random_point(rng)
    same = -w if w.ndim == 1 else w @ np.linalg.qr(rng.standard_normal((w.shape[1],) * 2))[0]
    assert problem.distance(same, w) == pytest.approx(0, abs=1e-7)
    assert problem.distance(problem.manifold.random_point(rng), w) > 0.1


@every_manifold
def test_the_optimum_of_the_frechet_mean_has_no_gradient(manifold: Manifold) -> None:
    rng = np.random.default_rng(12)
    z = near(manifold, manifold.random_point(rng), rng, (30,), 0.7)
    problem = FrechetMean(manifold)
    best = problem.optimum(z)
    assert best is not None and manifold.check_point(best)
    gradient = problem.clipped_mean(best[None], z[None], None, None, np.array([30.0]))
    assert manifold.norm(best, gradient[0]) < 5e-12
    around = near(manifold, best, rng, (50, 1), 0.3)
    assert (problem.loss(around, z).mean(axis=1) >= problem.loss(best, z).mean()).all()


def test_the_frechet_mean_in_closed_form() -> None:
    rng = np.random.default_rng(13)
    z = rng.standard_normal((20, 3))
    p = rng.random(20)
    np.testing.assert_allclose(frechet_mean(Euclidean(3), z, p).point, p @ z / p.sum(), atol=1e-12)
    # Commuting matrices: the geometric mean of the eigenvalues. Far apart, so that unit steps alone would not do.
    eigenvalues = np.exp(rng.uniform(-8, 8, (20, 2)))
    z = eigenvalues[:, None, :] * np.eye(2)
    result = frechet_mean(SPDAffineInvariant(2), z, tolerance=1e-11)
    assert result.converged
    np.testing.assert_allclose(result.point, np.diag(np.exp(np.log(eigenvalues).mean(axis=0))), rtol=1e-9)


def test_the_frechet_mean_of_far_points_converges_and_says_when_it_does_not() -> None:
    rng = np.random.default_rng(14)
    manifold = Hyperboloid(3)
    z = near(manifold, manifold.random_point(rng), rng, (40,), 12.0)
    result = frechet_mean(manifold, z, tolerance=1e-9)
    assert result.converged and result.step_norm <= 1e-9 and result.iterations < 100
    stopped = frechet_mean(manifold, z, tolerance=1e-9, max_iterations=2)
    assert not stopped.converged and stopped.iterations == 2 and manifold.check_point(stopped.point)
    # No point of the sphere sees both of two opposite points.
    opposite = frechet_mean(Sphere(2), np.array([[1.0, 0], [-1.0, 0]]), start=np.array([1.0, 0]))
    assert not opposite.converged


def test_the_frechet_mean_is_found_from_a_start_far_off() -> None:
    manifold = Hyperboloid(3)
    for seed in range(15):
        rng = np.random.default_rng(seed)
        z = near(manifold, manifold.random_point(rng), rng, (8,), 20.0)
        assert frechet_mean(manifold, z, start=z[0], tolerance=1e-9).converged


def test_a_problem_of_ones_own_needs_a_loss_and_a_gradient() -> None:
    class Distance(Problem):
        name = "distance"

        def __init__(self) -> None:
            self.manifold, self.record_shape = Sphere(3), (3,)

        def loss(self, w: Array, z: Array) -> Array:
            return -np.vecdot(w, z)

        def gradient(self, w: Array, z: Array) -> Array:
            return self.manifold.riemannian_gradient(w, -z)

    rng = np.random.default_rng(15)
    problem = Distance()
    check_gradient(problem, problem.manifold.random_point(rng), rng.standard_normal((4, 3)), rng)
    assert problem.optimum(np.eye(3)) is None
    assert problem.manifold.check_point(problem.start(rng))


def test_the_registry_holds_every_problem_by_its_name() -> None:
    assert {"principal-eigenvector", "principal-subspace", "frechet-mean"} <= set(PROBLEMS)
    assert all(problem.name == name for name, problem in PROBLEMS.items())
