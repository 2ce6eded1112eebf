"""Output perturbation as a local training: what it refuses, what it says it spends, what it uploads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from pri_rfed.data.agents import AgentArrays
from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds import (
    Euclidean,
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
from pri_rfed.mechanisms import frechet_mean_sensitivity
from pri_rfed.noise import tangent_gaussian
from pri_rfed.privacy.accountants import ACCOUNTANTS
from pri_rfed.privacy.events import NonPrivate, Pure, Unit, repeat
from pri_rfed.problems import FrechetMean, PrincipalEigenvector
from pri_rfed.randomness import AgentStreams
from pri_rfed.training import TRAINERS, KNGMean, RiemannianLaplaceMean

Array = NDArray[np.float64]

PLANE = FrechetMean(Hyperboloid(2), np.array([1.0, 0.0, 0.0]), 1.0)


def records_in_ball(problem: FrechetMean, n: int, seed: int = 0) -> Array:
    """n records at the distance 0.9 radius from the center."""
    assert problem.center is not None and problem.radius is not None
    manifold = problem.manifold
    v = tangent_gaussian(manifold, problem.center, 1.0, np.random.default_rng(seed), (n,))
    length = manifold.norm(problem.center, v).reshape(-1, *(1,) * len(manifold.point_shape))
    return manifold.exp(problem.center, 0.9 * problem.radius * v / length)


def origin(manifold: Manifold) -> Array:
    return manifold.random_point(np.random.default_rng(1))


def uploads(
    trainer: RiemannianLaplaceMean | KNGMean, problem: FrechetMean, data: AgentArrays, agents: list[int], seed: int = 5
) -> Array:
    records = data.records(np.array(agents))
    assert problem.center is not None
    return trainer.train(problem, problem.center, records, AgentStreams(seed, 0, agents))


def test_registered() -> None:
    assert TRAINERS["riemannian-laplace"] is RiemannianLaplaceMean
    assert TRAINERS["kng"] is KNGMean


@pytest.mark.parametrize(
    "problem",
    [
        FrechetMean(Euclidean(3), np.zeros(3), 2.0),
        FrechetMean(Sphere(3), origin(Sphere(3)), 0.4),
        PLANE,
        FrechetMean(PoincareBall(3), np.zeros(3), 1.0),
        FrechetMean(SPDAffineInvariant(3), np.eye(3), 1.0),
        FrechetMean(SPDLogEuclidean(3), origin(SPDLogEuclidean(3)), 1.0),
    ],
    ids=lambda problem: problem.manifold.name,
)
@pytest.mark.parametrize(
    "trainer",
    [RiemannianLaplaceMean(epsilon=2.0), KNGMean(epsilon=2.0), KNGMean(epsilon=2.0, sampler="mcmc", burn_in=60)],
    ids=["laplace", "kng", "mcmc"],
)
def test_uploads_are_points_that_depend_on_the_agent_alone(
    problem: FrechetMean, trainer: RiemannianLaplaceMean | KNGMean
) -> None:
    """Agents of unequal size, in any company and order, and whatever the base point."""
    data = AgentArrays([records_in_ball(problem, n, n) for n in (40, 60, 45)])
    assert all(trainer.check(problem, int(n)) == [] for n in data.counts)
    together = uploads(trainer, problem, data, [0, 1, 2])
    assert together.shape == (3, *problem.manifold.point_shape)
    assert problem.manifold.check_point(together)
    alone = uploads(trainer, problem, data, [1])
    np.testing.assert_allclose(alone[0], together[1], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(uploads(trainer, problem, data, [2, 0])[0], together[2], rtol=1e-12, atol=1e-14)
    elsewhere = trainer.train(problem, data[0][0], data.records(np.array([1])), AgentStreams(5, 0, [1]))
    np.testing.assert_array_equal(elsewhere, alone)
    assert not np.allclose(uploads(trainer, problem, data, [1], seed=6), alone)
    assert trainer.gradient_calls(40) == 40


@pytest.mark.parametrize(
    ("trainer", "factor"),
    [(RiemannianLaplaceMean(epsilon=3.0), 1.0), (KNGMean(epsilon=3.0), 2.0)],
    ids=["laplace", "kng"],
)
def test_noise_has_the_scale_that_epsilon_asks_for(trainer: RiemannianLaplaceMean | KNGMean, factor: float) -> None:
    """In flat space both are a Laplace law around the mean, the one with the scale 2 r/(n epsilon), the other with
    twice that."""
    problem = FrechetMean(Euclidean(4), np.zeros(4), 1.0)
    records = records_in_ball(problem, 25)
    data = AgentArrays([records] * 2000)
    distance = np.linalg.norm(uploads(trainer, problem, data, list(range(2000))) - records.mean(axis=0), axis=1)
    scale = factor * 2 * 1.0 / (25 * 3.0)
    assert stats.kstest(distance, stats.gamma(4, scale=scale).cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(distance, stats.gamma(4, scale=wrong * scale).cdf).pvalue < 1e-6


def test_noise_is_around_the_mean_of_curved_records() -> None:
    records = records_in_ball(PLANE, 50)
    mean = frechet_mean(PLANE.manifold, records).point
    data = AgentArrays([records] * 300)
    for trainer, most in ((RiemannianLaplaceMean(epsilon=20.0), 1.0), (KNGMean(epsilon=20.0), 2.0)):
        drawn = uploads(trainer, PLANE, data, list(range(300)))
        scale = frechet_mean_sensitivity(PLANE.manifold, 1.0, 50) / 20.0
        assert 0.5 * 2 * scale < PLANE.manifold.dist(mean, drawn).mean() < 1.2 * most * 2 * scale
        middle = frechet_mean(PLANE.manifold, drawn).point
        assert PLANE.manifold.dist(mean, middle) < 4 * most * 2 * scale / math.sqrt(300)


def test_events() -> None:
    assert RiemannianLaplaceMean(epsilon=0.4).event(PLANE, 30) == Pure(0.4)
    assert KNGMean(epsilon=0.4).event(PLANE, 30) == Pure(0.4)
    assert Pure(0.4).unit is Unit.REPLACE_RECORD
    chain = KNGMean(epsilon=0.4, sampler="mcmc").event(PLANE, 30)
    assert isinstance(chain, NonPrivate) and not chain.is_private
    once = RiemannianLaplaceMean(epsilon=0.4).event(PLANE, 30)
    assert ACCOUNTANTS["pld"].epsilon(once, 1e-9) == pytest.approx(0.4, rel=1e-3)
    assert ACCOUNTANTS["pld"].epsilon(repeat(once, 3), 1e-12) <= 1.2 * (1 + 1e-3)


@pytest.mark.parametrize(
    ("trainer", "problem", "records", "text"),
    [
        (RiemannianLaplaceMean(epsilon=1.0), PrincipalEigenvector(4), 30, "principal-eigenvector is another one"),
        (KNGMean(epsilon=1.0), PrincipalEigenvector(4), 30, "principal-eigenvector is another one"),
        (RiemannianLaplaceMean(epsilon=1.0), FrechetMean(Sphere(3)), 30, "needs a public ball"),
        (KNGMean(epsilon=1.0), FrechetMean(Sphere(3)), 30, "needs a public ball"),
        (
            RiemannianLaplaceMean(epsilon=0.1),
            FrechetMean(SPDAffineInvariant(8), np.eye(8), 1.0),
            100,
            "epsilon = 0.1 cannot be had with 100 records; Laplace: scale = 0.2 must be below 1/6.48074",
        ),
        (
            KNGMean(epsilon=0.2),
            FrechetMean(SPDAffineInvariant(8), np.eye(8), 1.0),
            100,
            "KNG: n = 100 records and scale = 0.4 ask for proposals that do not exist",
        ),
        (
            KNGMean(epsilon=10.0),
            FrechetMean(SPDAffineInvariant(8), np.eye(8), 2.5),
            1000,
            "the sampler may accept only",
        ),
        (
            RiemannianLaplaceMean(epsilon=1.0),
            FrechetMean(Sphere(3), origin(Sphere(3)), 0.9),
            30,
            "radius = 0.9 must be below 0.785398",
        ),
        (
            RiemannianLaplaceMean(epsilon=1.0),
            FrechetMean(SPDBuresWasserstein(3), np.eye(3), 0.4),
            30,
            "radius = 0.4 must be below 0.3",
        ),
        (KNGMean(epsilon=1.0), FrechetMean(SPDBuresWasserstein(3), np.eye(3), 0.4), 30, "must be below 0.3"),
        (
            KNGMean(epsilon=1.0),
            FrechetMean(Stiefel(4, 2), origin(Stiefel(4, 2)), 0.1),
            30,
            "no exact sampler",
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_refused_before_it_runs(
    trainer: RiemannianLaplaceMean | KNGMean, problem: FrechetMean, records: int, text: str
) -> None:
    (line,) = trainer.check(problem, records)
    assert text in line


class _Anywhere(FrechetMean):
    """Records need not lie in the ball."""

    def check_records(self, z: Array) -> None:
        pass


@pytest.mark.parametrize("trainer", [RiemannianLaplaceMean(epsilon=2.0), KNGMean(epsilon=2.0)])
def test_a_derived_problem_is_refused(trainer: RiemannianLaplaceMean | KNGMean) -> None:
    """The sensitivity is that of records in the ball."""
    assert trainer.check(PLANE, 50) == []
    assert trainer.check(_Anywhere(PLANE.manifold, PLANE.center, PLANE.radius), 50)[0].startswith("name = ")


def test_a_chain_runs_where_there_is_no_exact_sampler() -> None:
    manifold = Product([Hyperboloid(2), Sphere(3)])
    problem = FrechetMean(manifold, origin(manifold), 0.3)
    assert KNGMean(epsilon=1.0, sampler="mcmc").check(problem, 30) == []
    assert KNGMean(epsilon=1.0).check(problem, 30) != []


def test_more_records_can_make_a_law_exist() -> None:
    problem = FrechetMean(SPDAffineInvariant(8), np.eye(8), 1.0)
    trainer = RiemannianLaplaceMean(epsilon=1.0)
    assert trainer.check(problem, 12) != []
    assert trainer.check(problem, 40) == []


@pytest.mark.parametrize(
    ("cls", "options", "text"),
    [
        (RiemannianLaplaceMean, {"epsilon": 0.0}, "riemannian-laplace: epsilon = 0.0 must be a positive"),
        (RiemannianLaplaceMean, {"epsilon": math.inf}, "epsilon = inf must be a positive"),
        (RiemannianLaplaceMean, {"epsilon": 1.0, "tolerance": 0.0}, "tolerance = 0.0 must be a positive"),
        (KNGMean, {"epsilon": -1.0, "step": 0.0}, "kng: epsilon = -1.0 must be .*; step = 0.0 must be"),
        (KNGMean, {"epsilon": 1.0, "sampler": "gibbs"}, "sampler = 'gibbs' must be one of 'exact', 'mcmc'"),
        (KNGMean, {"epsilon": 1.0, "burn_in": 0}, "burn_in = 0 must be a whole number"),
    ],
)
def test_fields(cls: type, options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        cls(**options)
