"""Low-rank matrix completion, and problems on the space around a manifold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from test_problems import check_gradient

from pri_rfed.manifolds import Euclidean, Sphere
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.audit import audit, canary
from pri_rfed.problems import FrechetMean, MatrixCompletion, PrincipalEigenvector, PrincipalSubspace, Problem
from pri_rfed.problems.ambient import Ambient
from pri_rfed.problems.clipping import ClippedGradient, clipped_mean
from pri_rfed.simulation import Budget, simulate
from pri_rfed.training import DPRSGD, DPRSVRG


def columns(rng: np.random.Generator, shape: tuple[int, ...], n: int = 9, r: int = 2, density: float = 0.7) -> Array:
    """Noisy columns of a matrix of rank r, of which some entries are observed: records [*shape, 2, n]."""
    values = rng.standard_normal((*shape, r)) @ rng.standard_normal((r, n)) + 0.1 * rng.standard_normal((*shape, n))
    observed = rng.random((*shape, n)) < density
    return np.stack([np.where(observed, values, 0.0), observed], axis=-2)


def by_least_squares(w: Array, z: Array, ridge: float) -> tuple[Array, Array]:
    """v and the residual of one record, by the normal solver of numpy on the rows that were observed."""
    values, observed = z[0], z[1] == 1
    rows = np.concatenate([w[observed], math.sqrt(ridge) * np.eye(w.shape[1])])
    v = np.linalg.lstsq(rows, np.concatenate([values[observed], np.zeros(w.shape[1])]), rcond=None)[0]
    return v, np.where(observed, w @ v - values, 0.0)


@pytest.mark.parametrize("ridge", [1e-9, 1e-3, 10.0])
def test_the_loss_is_that_of_the_inner_least_squares(ridge: float) -> None:
    rng = np.random.default_rng(0)
    problem = MatrixCompletion(9, 3, ridge)
    w = problem.manifold.random_point(rng)
    for z in columns(rng, (20,)):
        v, residual = by_least_squares(w, z, ridge)
        found, left = problem.fit(w, z)
        if z[1].sum() > 4:  # with fewer entries than that numpy's own answer has few digits
            np.testing.assert_allclose(found, v, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(left, residual, rtol=1e-6, atol=1e-8)
        assert problem.loss(w, z) == pytest.approx(residual @ residual + ridge * v @ v, rel=1e-8, abs=1e-9)
        # No other v does better.
        for _ in range(20):
            other = found + 0.1 * rng.standard_normal(3)
            apart = z[1] * (w @ other) - z[0]
            assert apart @ apart + ridge * other @ other >= problem.loss(w, z)


@pytest.mark.parametrize("ridge", [1e-9, 1e-3, 1.0])
def test_the_gradient_is_the_derivative_of_the_loss(ridge: float) -> None:
    rng = np.random.default_rng(1)
    problem = MatrixCompletion(9, 2, ridge)
    check_gradient(problem, problem.manifold.random_point(rng), columns(rng, (7,)), rng)


def test_the_gradient_is_that_of_the_subspace_and_not_of_its_basis() -> None:
    rng = np.random.default_rng(2)
    problem = MatrixCompletion(9, 3, 0.01)
    w, z = problem.manifold.random_point(rng), columns(rng, (5,))
    q = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    np.testing.assert_allclose(problem.loss(w @ q, z), problem.loss(w, z), rtol=1e-10)
    np.testing.assert_allclose(problem.gradient(w @ q, z), problem.gradient(w, z) @ q, rtol=1e-9, atol=1e-11)


def test_points_and_records_broadcast() -> None:
    rng = np.random.default_rng(3)
    problem = MatrixCompletion(9, 2)
    w, z = problem.manifold.random_point(rng, (3,)), columns(rng, (3, 5))
    losses, gradients = problem.loss(w[:, None], z), problem.gradient(w[:, None], z)
    assert losses.shape == (3, 5) and gradients.shape == (3, 5, 9, 2)
    for a in range(3):
        np.testing.assert_allclose(problem.loss(w[a], z[a]), losses[a], rtol=1e-12)
        np.testing.assert_allclose(problem.gradient(w[a], z[a]), gradients[a], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(problem.gradient(w[a], z[a, 1]), gradients[a, 1], rtol=1e-10, atol=1e-12)


def spoiled(rng: np.random.Generator) -> Array:
    z = columns(rng, (3, 11)) * np.array([3.0, 1.0])[:, None]
    z[0, 3] = 0  # nothing observed
    z[0, 4, 1, 1:] = z[0, 4, 0, 1:] = 0  # a single entry
    z[1, 2, 0, 4] = np.nan
    z[1, 5, 0, 0] = np.inf
    return z


AROUND: list[Problem] = [
    MatrixCompletion(9, 2),
    Ambient(MatrixCompletion(9, 2)),
    Ambient(PrincipalEigenvector(9)),
    Ambient(PrincipalSubspace(9, 2)),
]
everyone = pytest.mark.parametrize("problem", AROUND, ids=lambda p: f"{p.name} {p.record_shape} {p.manifold}")


@everyone
@pytest.mark.parametrize("bound", [None, 1.0, 0.3, 1e-9])
@pytest.mark.parametrize("masked", [False, True])
def test_the_fast_clipped_mean_is_the_plain_one(
    problem: Problem, bound: float | None, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    z = spoiled(rng) if len(problem.record_shape) == 2 else spoiled(rng)[..., 0, :]
    w = problem.manifold.random_point(rng, (3,))
    mask = rng.random((3, 11)) < 0.6 if masked else None
    size = np.array([11.0, 7.0, 5.0])
    plain = clipped_mean(problem, w, z, bound, mask, size)
    for numbers in (1 << 20, 30):
        for module in ("matrix_completion", "ambient"):
            monkeypatch.setattr(f"pri_rfed.problems.{module}.CHUNK_NUMBERS", numbers)
        fast = problem.clipped_mean(w, z, bound, mask, size)
        assert np.isfinite(fast).all()
        np.testing.assert_allclose(fast, plain, rtol=1e-9, atol=1e-13)


def test_a_clipped_gradient_never_exceeds_the_bound_however_ill_conditioned() -> None:
    rng = np.random.default_rng(5)
    problem = MatrixCompletion(30, 4, 1e-9)
    w = problem.manifold.random_point(rng, (500,))
    z = columns(rng, (500, 1), 30, density=0.1)
    assert problem.manifold.norm(w, problem.gradient(w, z[:, 0])).max() > 300
    one = problem.clipped_mean(w, z, 0.5, None, np.ones(500))
    assert problem.manifold.norm(w, one).max() <= 0.5 * (1 + 1e-12)
    assert problem.manifold.check_tangent(w, one)


def test_nothing_but_clipping_bounds_its_gradients() -> None:
    problem = MatrixCompletion(9, 2)
    assert not math.isfinite(ClippedGradient(problem, None).difference_bound)
    assert ClippedGradient(problem, 0.5).difference_bound == 1.0
    assert "clip is needed" in DPRSGD(noise=1.0).check(problem, 5)[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda z: z[2, 1].__setitem__(4, 0.5), r"record \(2,\), entry 4: its second row must be 1"),
        (lambda z: (z[3, 1].__setitem__(0, 0), z[3, 0].__setitem__(0, 2)), r"record \(3,\), entry 0: .* must be 0"),
        (lambda z: z[1, 0].__setitem__(0, np.nan), r"record \(1,\) holds NaN"),
    ],
)
def test_bad_records_are_named(change: Any, said: str) -> None:
    z = columns(np.random.default_rng(6), (4,))
    problem = MatrixCompletion(9, 2)
    assert problem.prepare_records(z) is z
    change(z)
    with pytest.raises(ValueError, match=said):
        problem.prepare_records(z)


def test_bad_options_are_refused() -> None:
    for ridge in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="ridge = "):
            MatrixCompletion(9, 2, ridge)
    with pytest.raises(ValueError, match="0 < r < m"):
        MatrixCompletion(9, 9)
    with pytest.raises(ValueError, match=r"records must have shape \(2, 9\)"):
        MatrixCompletion(9, 2).check_records(np.zeros((5, 9)))


def test_a_federation_completes_a_matrix() -> None:
    rng = np.random.default_rng(7)
    problem = MatrixCompletion(15, 2, 1e-6)
    basis = problem.manifold.random_point(rng)
    values = rng.standard_normal((240, 2)) @ basis.T
    observed = rng.random((240, 15)) < 0.6
    z = np.stack([np.where(observed, values, 0.0), observed], axis=1)
    agents = list(z.reshape(8, 30, 2, 15))
    plain = simulate(problem, agents, DPRSGD(steps=5, step_size=0.3, noise=0), rounds=60, evaluate_every=60)
    assert problem.distance(plain.point, basis) < 0.01
    v = problem.fit(plain.point, z)[0]
    np.testing.assert_allclose((v @ plain.point.T)[~observed], values[~observed], atol=0.05)

    def loss(clip: float, epsilon: float) -> float:
        trainer = DPRSGD(steps=2, clip=clip, step_size=0.2, noise=1.0)
        found = simulate(problem, agents, trainer, rounds=15, budget=Budget(epsilon), seed=1, evaluate_every=0)
        assert found.privacy.epsilon_global <= epsilon
        return float(problem.loss(found.point, z).mean())

    assert loss(0.5, 60.0) < loss(0.5, 0.5)


@pytest.mark.parametrize(
    "trainer",
    [
        DPRSGD(steps=3, clip=0.7, noise=2.0, noise_unit="sensitivity", step_size=1e-3),
        DPRSVRG(
            inner_steps=3, noise=3.0, noise_unit="sensitivity", step_size=1e-3, clip_full=1.0, clip_step=0.01,
            alpha=0.2, batch=2,
        ),
    ],
    ids=lambda trainer: trainer.name,
)  # fmt: skip
def test_the_audit_of_a_canary_column(trainer: Any) -> None:
    problem = MatrixCompletion(5, 2)
    found = audit(canary(trainer, problem, 6), repetitions=4000, confidence=0.99, seed=1).evidence
    assert not found.refuted, found
    assert found.ratio >= (0.6 if isinstance(trainer, DPRSGD) else 0.2), found


# Around manifolds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", AROUND[1:], ids=lambda p: f"{p.record_shape} {p.manifold}")
def test_ambient_gradients_are_derivatives_of_the_loss(problem: Problem) -> None:
    rng = np.random.default_rng(8)
    z = columns(rng, (7,))
    z = z if len(problem.record_shape) == 2 else z[:, 0] / 10
    problem.prepare_records(z)
    check_gradient(problem, problem.manifold.random_point(rng), z, rng)


WITHIN: list[Problem] = [PrincipalEigenvector(9), PrincipalSubspace(9, 3, "stiefel"), MatrixCompletion(9, 2)]


@pytest.mark.parametrize("problem", WITHIN, ids=lambda p: p.name)
def test_on_the_manifold_the_loss_is_the_same_and_the_gradient_its_projection(problem: Problem) -> None:
    rng = np.random.default_rng(9)
    w, z = problem.manifold.random_point(rng), columns(rng, (7,))
    z = z if len(problem.record_shape) == 2 else z[:, 0] / 10
    around = Ambient(problem)
    assert isinstance(around.manifold, Euclidean) and around.gradient_difference_bound is None
    np.testing.assert_array_equal(around.loss(w, z), problem.loss(w, z))
    projected = problem.manifold.riemannian_gradient(w, around.gradient(w, z))
    np.testing.assert_allclose(projected, problem.gradient(w, z), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("r", "bound"), [(1, 2.0), (2, 2 * math.sqrt(2)), (4, 2 * math.sqrt(2))])
def test_ambient_gradients_on_the_manifold_differ_by_no_more_than_stated(r: int, bound: float) -> None:
    rng = np.random.default_rng(10)
    problem = PrincipalEigenvector(6) if r == 1 else PrincipalSubspace(6, r)
    around = Ambient(problem, on_manifold=True)
    assert around.gradient_difference_bound == bound

    def apart(w: Array, a: Array, b: Array) -> float:
        return float(np.linalg.norm(around.gradient(w, a) - around.gradient(w, b)))

    frames = problem.manifold.random_point(rng, (300,))
    worst = max(apart(w, *(x / max(1, np.linalg.norm(x)) for x in rng.standard_normal((2, 6)))) for w in frames)
    assert 0.5 * bound < worst <= bound
    # Reached: by a record in the span against none, or two orthogonal ones.
    w = frames[0]
    one, other = (w, 0 * w) if r == 1 else (w[:, 0], w[:, 1])
    assert apart(w, one, other) == pytest.approx(bound, rel=1e-12)


def test_some_losses_end_at_the_manifold() -> None:
    with pytest.raises(ValueError, match="frechet-mean is not defined around"):
        Ambient(FrechetMean(Sphere(3)))
