"""Aggregation: means, refusals, and differential privacy for whole agents."""

from __future__ import annotations

import numpy as np
import pytest
from cases import EVERY_MANIFOLD, near
from scipy import stats

from pri_rfed.aggregation import (
    AGGREGATIONS,
    AgentLevelMean,
    Aggregate,
    Aggregation,
    FrechetMeanAggregation,
    TangentMean,
)
from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.manifolds.spd import SPDAffineInvariant
from pri_rfed.manifolds.sphere import Sphere
from pri_rfed.privacy.events import Gaussian, SampledWithoutReplacement, Unit

every_manifold = pytest.mark.parametrize("manifold", EVERY_MANIFOLD, ids=str)

RULES: list[Aggregation] = [TangentMean(), FrechetMeanAggregation(), AgentLevelMean(clip=1.0, noise_multiplier=1e-9)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def run(
    rule: Aggregation, manifold: Manifold, base: Array, uploads: object, counts: object = None, seed: int = 0
) -> Aggregate:
    n = len(uploads)  # type: ignore[arg-type]
    counts = np.full(n, 10) if counts is None else counts
    return rule.aggregate(
        manifold, base, list(range(n)), uploads, counts, np.random.default_rng(seed)  # type: ignore[arg-type]
    )


@every_manifold
def test_the_tangent_mean_by_the_formula(manifold: Manifold) -> None:
    rng = np.random.default_rng(1)
    base = manifold.random_point(rng)
    uploads = near(manifold, base, rng, (4,), 0.9)
    counts = np.array([1, 2, 3, 4])
    for rule, p in ((TangentMean(), counts / 10), (TangentMean("equal"), np.full(4, 0.25))):
        v = sum(p_i * manifold.log(base, w_i) for p_i, w_i in zip(p, uploads, strict=True))
        out = run(rule, manifold, base, uploads, counts)
        np.testing.assert_allclose(out.point, manifold.exp(base, np.asarray(v)), rtol=1e-12, atol=1e-14)
        assert out.refused == () and manifold.check_point(out.point)


@every_manifold
def test_the_frechet_mean_is_stationary_and_says_so(manifold: Manifold) -> None:
    rng = np.random.default_rng(2)
    base = manifold.random_point(rng)
    uploads = near(manifold, base, rng, (5,), 0.5)
    counts = np.array([1, 2, 3, 4, 10])
    out = run(FrechetMeanAggregation(), manifold, base, uploads, counts)
    assert out.info["converged"] is True and out.info["step_norm"] <= 1e-10
    v = np.tensordot(counts / 20, manifold.log(out.point, uploads), axes=1)
    assert manifold.norm(out.point, v) <= 1e-9
    tangent = run(TangentMean(), manifold, base, uploads, counts).point
    assert manifold.dist(tangent, out.point) < 0.5 * manifold.dist(base, out.point) + 1e-9


def test_an_unfinished_frechet_mean_is_reported() -> None:
    rng = np.random.default_rng(3)
    manifold = Hyperboloid(3)
    base = manifold.random_point(rng)
    uploads = near(manifold, base, rng, (5,), 6.0)
    out = run(FrechetMeanAggregation(max_iterations=1), manifold, base, uploads)
    assert out.info["converged"] is False and out.info["iterations"] == 1 and manifold.check_point(out.point)


@every_rule
def test_uploads_that_cannot_be_used_are_refused_with_the_reason(rule: Aggregation) -> None:
    manifold, base = Sphere(3), np.array([1.0, 0, 0])
    good = np.array([[0.8, 0.6, 0], [0.8, 0, 0.6]])
    uploads = [
        good[0],
        np.array([np.nan, 0, 1]),
        np.array([2.0, 0, 0]),
        np.array([-1.0, 0, 0]),
        np.ones(4),
        good[1],
        np.array(["a", "b", "c"]),
        np.array([np.inf, 0, 0]),
    ]
    out = run(rule, manifold, base, uploads)
    reasons = {refusal.agent: refusal.reason for refusal in out.refused}
    assert list(reasons) == [1, 2, 3, 4, 6, 7]
    assert "NaN or infinite" in reasons[1] and "NaN or infinite" in reasons[7]
    assert "norm 1" in reasons[2]
    assert "injectivity radius 3.14159" in reasons[3]
    assert "shape (4,)" in reasons[4] and "shape (3,)" in reasons[6]
    if isinstance(rule, AgentLevelMean):  # the denominator stays
        expected = manifold.exp(base, manifold.log(base, good).sum(axis=0) / 8)
    else:
        expected = run(rule, manifold, base, good).point
    np.testing.assert_allclose(out.point, expected, atol=1e-7)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("make", [TangentMean, FrechetMeanAggregation], ids=lambda make: make.name)
def test_without_one_agent_the_others_keep_the_weights_of_their_own_records(make: type, lost: int) -> None:
    manifold, base = Sphere(3), np.array([1.0, 0, 0])
    uploads = np.array([[0.8, 0.6, 0], [0.8, 0, 0.6], [0.8, -0.6, 0]])
    counts = np.array([1, 4, 20])
    others = np.array([i for i in range(3) if i != lost])
    partly = uploads.copy()
    partly[lost] = np.nan
    out = run(make(), manifold, base, partly, counts)
    assert [refusal.agent for refusal in out.refused] == [lost]
    logs = manifold.log(base if make is TangentMean else out.point, uploads[others])
    mean = np.tensordot(counts[others] / counts[others].sum(), logs, axes=1)
    if make is TangentMean:
        np.testing.assert_allclose(out.point, manifold.exp(base, mean), rtol=1e-12, atol=1e-14)
    else:
        assert manifold.norm(out.point, mean) < 1e-9
    equally = run(make("equal"), manifold, base, partly, counts).point
    np.testing.assert_allclose(equally, run(make("equal"), manifold, base, uploads[others]).point, atol=1e-9)


def test_an_upload_beyond_the_injectivity_radius_is_refused_even_where_a_logarithm_exists() -> None:
    # On Grassmann manifolds and others the logarithm exists beyond it; it need not be unique there.
    for manifold in EVERY_MANIFOLD:
        rng = np.random.default_rng(4)
        base = manifold.random_point(rng)
        reach = float(manifold.injectivity_radius(base))
        if not np.isfinite(reach):
            continue
        for share in (0.98, 1.02):
            v = manifold.from_coordinates(base, rng.standard_normal(manifold.dim))
            upload = manifold.project_point(manifold.exp(base, share * reach * v / manifold.norm(base, v)))
            out = run(TangentMean(), manifold, base, [upload])
            logged = float(manifold.norm(base, manifold.log(base, upload, strict=False)))
            assert bool(out.refused) == (not logged < reach), str(manifold)
            if share < 1:
                assert out.refused == (), str(manifold)


@every_rule
def test_if_all_are_refused_the_point_stays(rule: Aggregation) -> None:
    base = np.eye(2)
    out = run(rule, SPDAffineInvariant(2), base, np.full((3, 2, 2), np.nan))
    assert [refusal.agent for refusal in out.refused] == [0, 1, 2]
    np.testing.assert_allclose(out.point, base, atol=1e-7)


# Whole agents ---------------------------------------------------------------------------------------------------------


def test_what_a_whole_agent_is_charged() -> None:
    rule = AgentLevelMean(clip=0.5, noise_multiplier=3.0)
    release = Gaussian(2 * 0.5 / 4, 3.0 * 2 * 0.5 / 4, of=Unit.AGENT)
    assert rule.event(4, 20) == SampledWithoutReplacement(release, 4, 20)
    assert rule.event(4, 4) == release
    assert TangentMean().event(4, 20) is None and FrechetMeanAggregation().event(4, 20) is None


def test_one_agent_moves_the_mean_by_the_stated_sensitivity_and_no_more() -> None:
    manifold, base = Euclidean(2), np.zeros(2)
    rule = AgentLevelMean(clip=0.5, noise_multiplier=1.0)
    rng = np.random.default_rng(5)
    worst = 0.0
    for trial in range(50):
        uploads = rng.standard_normal((4, 2)) * 3
        other = uploads.copy()
        other[2] = -uploads[2] if trial % 2 else (np.nan if trial % 4 else rng.standard_normal(2) * 1e9)
        # The same generator: the noise cancels.
        a, b = (run(rule, manifold, base, u, seed=trial, counts=[1, 10, 100, 1000]).point for u in (uploads, other))
        worst = max(worst, float(np.linalg.norm(a - b)))
    event = rule.event(4, 4)
    assert isinstance(event, Gaussian) and worst == pytest.approx(event.sensitivity, rel=1e-9)


@pytest.mark.parametrize("manifold", [Sphere(4), SPDAffineInvariant(2), Hyperboloid(3)], ids=str)
@pytest.mark.parametrize("refused", [False, True])
def test_the_servers_noise_has_its_scale_in_the_riemannian_norm(manifold: Manifold, refused: bool) -> None:
    rng = np.random.default_rng(6)
    base = near(manifold, manifold.random_point(rng), rng, (), 0.9)
    rule = AgentLevelMean(clip=1e-4, noise_multiplier=2.0)
    uploads = np.stack([np.full_like(base, np.nan) if refused else base] * 5)
    points = np.stack([run(rule, manifold, base, uploads, seed=seed).point for seed in range(250)])
    many = np.broadcast_to(base, points.shape)
    values = manifold.coordinates(many, manifold.log(many, points)) / (2.0 * 2e-4 / 5)
    low, high = stats.chi2(values.size).ppf([1e-5, 1 - 1e-5])
    total = (values**2).sum()
    assert low < total < high
    assert total * (2 / 3) ** 2 < low and total * (3 / 2) ** 2 > high  # two thirds or three halves would be noticed


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TangentMean("size"), "weights = 'size'"),  # type: ignore[arg-type]
        (lambda: FrechetMeanAggregation(tolerance=0.0), "tolerance = 0.0"),
        (lambda: FrechetMeanAggregation(max_iterations=0), "max_iterations = 0"),
        (lambda: AgentLevelMean(clip=-1.0, noise_multiplier=1.0), "clip = -1.0"),
        (lambda: AgentLevelMean(clip=1.0, noise_multiplier=0.0), "noise_multiplier = 0.0"),
    ],
)
def test_bad_rules_are_refused(make: type, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_the_registry_holds_every_rule_by_its_name() -> None:
    assert {"tangent-mean", "frechet-mean", "projected-mean", "agent-level-mean"} <= set(AGGREGATIONS)
    assert all(rule.name == name for name, rule in AGGREGATIONS.items())
