"""Calibration: it ends on the safe side, close to the target, and searching backwards undoes accounting."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pri_rfed.manifolds import Euclidean, Sphere
from pri_rfed.privacy import calibration
from pri_rfed.privacy import loss_distribution as ld
from pri_rfed.privacy.accountants import ACCOUNTANTS, best_epsilon
from pri_rfed.privacy.calibration import (
    calibrate,
    calibrate_noise,
    largest_count,
    optimise_alpha,
    optimise_share,
    published_comparison,
    published_sigma,
)
from pri_rfed.privacy.dominance import dominates, hardest
from pri_rfed.privacy.events import (
    Approximate,
    Composed,
    Gaussian,
    NonPrivate,
    NoRelease,
    Participation,
    PoissonSampled,
    Pure,
    Repeated,
    SampledWithoutReplacement,
    Unit,
    compose,
    repeat,
)
from pri_rfed.problems import FrechetMean, PrincipalEigenvector
from pri_rfed.training import DPRSGD, DPRSVRG, RGD

RDP = ACCOUNTANTS["rdp"]


def plan(batch=10, records=1000, steps=100, sampled=10, pool=100, rounds=500):
    def event_of(sigma):
        step = Gaussian(2 / batch, sigma)
        if batch < records:
            step = SampledWithoutReplacement(step, batch, records)
        return repeat(Participation(repeat(step, steps), sampled, pool), rounds)

    return event_of


PLANS = [
    plan(),
    plan(batch=1000),
    plan(batch=1, steps=5, sampled=1),
    plan(batch=1, steps=5, sampled=100),
    plan(batch=5, records=10, steps=1, sampled=1, pool=3, rounds=4),
    plan(batch=10, steps=10000, rounds=10000),
]


def assert_just_below(epsilon, target):
    assert target * (1 - 1.1 * calibration.TOLERANCE) <= epsilon <= target


@pytest.fixture
def accounted(monkeypatch):
    """All events that calibration has accounted for: its cost, which is counted and not timed."""
    events = []
    original = calibration._epsilon
    monkeypatch.setattr(calibration, "_epsilon", lambda e, d: events.append(e) or original(e, d))
    return events


@pytest.mark.parametrize("target", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("event_of", PLANS)
def test_noise_is_the_least_that_reaches_the_target(event_of, target, accounted):
    sigma = calibrate(event_of, target, 1e-5)
    assert len(accounted) <= 12
    assert_just_below(best_epsilon(event_of(sigma), 1e-5).epsilon, target)
    # Noise a third too small would have been seen.
    assert best_epsilon(event_of(sigma * 2 / 3), 1e-5).epsilon > 1.3 * target


def test_noise_of_one_gaussian_is_the_exact_one():
    # (0.15, 1e-4) holds exactly for sensitivity/sigma = 0.05829.
    assert 1 / calibrate(lambda sigma: Gaussian(1.0, sigma), 0.15, 1e-4) == pytest.approx(0.05829, rel=2e-3)


def test_units_of_the_noise_do_not_matter():
    base = calibrate(plan(), 1.0, 1e-5)
    for unit in (1e-12, 1e12):
        assert calibrate(lambda x, unit=unit: plan()(x / unit), 1.0, 1e-5) == pytest.approx(base * unit, rel=1e-9)


def test_pure_releases_are_calibrated_too():
    noise = calibrate(lambda x: Repeated(Pure(2 / x), 7), 1.0, 1e-6)
    assert_just_below(best_epsilon(Repeated(Pure(2 / noise), 7), 1e-6).epsilon, 1.0)


def test_delta_below_the_grid_falls_back_to_renyi():
    """Where losses cut off the grid weigh more than delta, the other sound accountant still has an answer."""
    event_of = plan(batch=1000, sampled=100)
    sigma = calibrate(event_of, 1.0, 1e-20)
    assert_just_below(best_epsilon(event_of(sigma), 1e-20).epsilon, 1.0)


@pytest.mark.parametrize(
    ("event_of", "epsilon", "delta", "message"),
    [
        (lambda x: NonPrivate("gradient"), 1.0, 1e-5, "not every release"),
        (lambda x: compose([Gaussian(1.0, x), NonPrivate("loss")]), 1.0, 1e-5, "not every release"),
        (lambda x: compose([Gaussian(1.0, x), Gaussian(1.0, 1.0)]), 1.0, 1e-5, "cannot be reached.*stays at 4.3"),
        (lambda x: compose([Gaussian(1.0, x), Approximate(0.1, 1e-4)]), 1.0, 1e-5, "cannot be reached.*infinite"),
        (lambda x: Participation(Gaussian(1.0, x), 1, 1000), 1.0, 1e-2, "smaller delta"),
        (lambda x: Gaussian(1.0, x), 0.0, 1e-5, "epsilon = 0.0"),
        (lambda x: Gaussian(1.0, x), math.inf, 1e-5, "epsilon = inf"),
        (lambda x: Gaussian(1.0, x), 1.0, 1.0, "delta = 1.0"),
        (lambda x: Gaussian(1.0, x), 1.0, 0.0, "delta = 0.0"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(event_of, epsilon, delta, message):
    with pytest.raises(ValueError, match=message):
        calibrate(event_of, epsilon, delta)


# Trainers -------------------------------------------------------------------------------------------------------------

TRAINERS = [
    DPRSGD(noise=1.0, noise_unit="sensitivity", batch="full", steps=5),
    DPRSGD(noise=1.0, batch=10, steps=20, clip=0.3),
    DPRSVRG(noise=1.0, noise_unit="sensitivity", batch=10, inner_steps=20, full_gradient_noise="once-an-epoch"),
    DPRSVRG(noise=1.0, batch=10, inner_steps=5),
]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_worst_agent_just_reaches_the_target(trainer):
    problem, counts = PrincipalEigenvector(5), [700, 100, 350, 350]
    found = calibrate_noise(trainer, problem, counts, sampled=2, pool=4, rounds=30, epsilon=1.0, delta=1e-5)
    assert dataclasses.replace(found, noise=1.0) == trainer
    spent = {
        n: best_epsilon(Repeated(Participation(found.event(problem, n), 2, 4), 30), 1e-5).epsilon for n in counts
    }
    assert_just_below(max(spent.values()), 1.0)
    weaker = dataclasses.replace(found, noise=found.noise * 2 / 3)
    assert best_epsilon(Repeated(Participation(weaker.event(problem, 100), 2, 4), 30), 1e-5).epsilon > 1.3


def test_the_sensitivity_is_that_of_a_replacement():
    """sigma/Delta for Delta = 2C/n: half the sensitivity would ask for half the noise."""
    trainer = DPRSGD(noise=1.0, batch="full", steps=4, clip=0.5)
    problem = FrechetMean(Euclidean(3))
    found = calibrate_noise(trainer, problem, [200], sampled=3, pool=3, rounds=25, epsilon=1.0, delta=1e-5)
    mu_of_one = calibrate(lambda x: Gaussian(1.0, x), 1.0, 1e-5)
    assert found.noise == pytest.approx(mu_of_one * math.sqrt(4 * 25) * 2 * 0.5 / 200, rel=2e-3)


def test_a_hundred_different_counts_cost_no_more_than_one(accounted):
    problem = PrincipalEigenvector(5)
    calibrate_noise(TRAINERS[1], problem, range(100, 200), 10, 100, 50, 1.0, 1e-5)
    assert len(accounted) < 10


def test_a_trainer_without_a_mechanism_is_refused():
    with pytest.raises(ValueError, match=r"rgd.*no noise"):
        calibrate_noise(RGD(), PrincipalEigenvector(5), [100], 1, 1, 1, 1.0, 1e-5)


def test_without_agents_there_is_nothing_to_calibrate():
    with pytest.raises(ValueError, match="counts"):
        calibrate_noise(TRAINERS[0], PrincipalEigenvector(5), [], 1, 1, 1, 1.0, 1e-5)


# Counts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.2, 1.0, 5.0])
@pytest.mark.parametrize(
    ("event_of", "most"),
    [
        (lambda n: plan(rounds=n)(0.6), 10**6),
        (lambda n: plan(steps=n)(0.6), 10**6),
        (lambda n: plan(sampled=n)(0.6), 100),
        (lambda n: Repeated(Gaussian(0.02, 1.0), n), 10**6),
    ],
)
def test_the_largest_count_fits_and_the_next_does_not(event_of, most, target):
    n = largest_count(event_of, target, 1e-5, most)
    assert 0 <= n <= most
    if n:
        assert best_epsilon(event_of(n), 1e-5).epsilon <= target
    if n < most:
        assert best_epsilon(event_of(n + 1), 1e-5).epsilon > target


def test_the_largest_count_agrees_with_counting():
    event = SampledWithoutReplacement(Gaussian(2.0, 1.0), 1, 20)
    for target in (0.1, 1.0, 3.0):
        counted = 0
        while best_epsilon(repeat(event, counted + 1), 1e-5).epsilon <= target:
            counted += 1
        assert largest_count(lambda n: repeat(event, n), target, 1e-5) == counted


def test_counting_undoes_calibrating():
    sigma = calibrate(plan(rounds=500), 1.0, 1e-5)
    assert 500 <= largest_count(lambda n: plan(rounds=n)(sigma), 1.0, 1e-5) <= 502


def test_a_release_without_a_mechanism_never_fits():
    assert largest_count(lambda n: repeat(NonPrivate("mean"), n), 10.0, 1e-5) == 0
    assert largest_count(lambda n: NoRelease(), 1.0, 1e-5, 50) == 50


# The split of variance ------------------------------------------------------------------------------------------------


def test_alpha_is_near_the_published_optimum_in_its_setting():
    """(sqrt(14) - 1)/13 minimises 2/alpha + 28/(1 - alpha); autodp's bound, with 4 in place of 3.5, has 1/5."""
    n, clip, sigma = 10_000, 1.0, 20.0

    def event_of(alpha):
        full = Gaussian(2 * clip / n, math.sqrt(alpha) * sigma)
        step = SampledWithoutReplacement(Gaussian(4 * clip, math.sqrt(1 - alpha) * sigma), 1, n)
        return Repeated(Composed((full, step)), 100_000)

    published = (math.sqrt(14) - 1) / 13
    best = optimise_share(lambda alpha: [event_of(alpha)], 1e-5, "rdp")
    assert best == pytest.approx(published, abs=0.02)
    at_best = RDP.epsilon(event_of(best), 1e-5)
    assert at_best <= RDP.epsilon(event_of(published), 1e-5) <= 1.01 * at_best
    assert at_best < 0.95 * RDP.epsilon(event_of(0.5), 1e-5)


@pytest.mark.parametrize("variant", ["every-step", "once-an-epoch"])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_alpha_beats_the_others(variant, accountant):
    trainer = DPRSVRG(
        noise=0.2, batch=10, inner_steps=50, clip_full=1.0, clip_step=0.5, full_gradient_noise=variant, alpha=0.5
    )
    problem = FrechetMean(Euclidean(2))

    def epsilon(alpha):
        event = dataclasses.replace(trainer, alpha=alpha).event(problem, 500)
        return ACCOUNTANTS[accountant].epsilon(Repeated(Participation(event, 2, 10), 20), 1e-5)

    found = optimise_alpha(trainer, problem, [500, 900], 2, 10, 20, 1e-5, accountant)
    assert dataclasses.replace(found, alpha=0.5) == trainer
    best = epsilon(found.alpha)
    for factor in (0.5, 0.8, 1.25, 2.0):
        odds = found.alpha / (1 - found.alpha) * factor
        assert best <= epsilon(odds / (1 + odds)) * (1 + 1e-3)


def test_alpha_needs_a_trainer_that_splits():
    with pytest.raises(ValueError, match="alpha"):
        optimise_alpha(TRAINERS[0], PrincipalEigenvector(5), [100], 1, 1, 1, 1e-5)
    with pytest.raises(ValueError, match="accountant = 'x'"):
        optimise_alpha(TRAINERS[3], PrincipalEigenvector(5), [100], 1, 1, 1, 1e-5, "x")
    with pytest.raises(ValueError, match="not every release"):
        optimise_alpha(dataclasses.replace(TRAINERS[3], noise=0.0), PrincipalEigenvector(5), [100], 1, 1, 1, 1e-5)


# The published rule ---------------------------------------------------------------------------------------------------


def rule(batch, records, steps, epsilon, delta):
    problem = PrincipalEigenvector(4)
    trainer = DPRSGD(noise=1.0, batch=batch, steps=steps)

    def event_of(sigma):
        return dataclasses.replace(trainer, noise=sigma).event(problem, records)

    return published_comparison(event_of, 1.0, steps, records, epsilon, delta)


def test_the_published_rule_is_no_guarantee():
    full = rule("full", 1000, 50, 0.15, 1e-4)
    assert full.epsilon_claimed == 0.15
    assert full.epsilon_true == pytest.approx(0.272, abs=1e-3)
    assert full.sigma == pytest.approx(math.sqrt(50 * math.log(1e4)) / (1000 * 0.15))
    assert rule(1, 1000, 1, 0.15, 1e-4).epsilon_true > 1000


def test_the_published_rule_scales_as_printed():
    base = published_sigma(1.0, 100, 500, 0.3, 1e-6)
    assert published_sigma(2.0, 100, 500, 0.3, 1e-6) == pytest.approx(2 * base)
    assert published_sigma(1.0, 400, 500, 0.3, 1e-6) == pytest.approx(2 * base)
    assert published_sigma(1.0, 100, 1000, 0.6, 1e-6) == pytest.approx(base / 4)
    assert published_sigma(1.0, 100, 500, 0.3, 1e-6, constant=9) == pytest.approx(3 * base)
    with pytest.raises(ValueError, match="records = 0"):
        published_sigma(1.0, 100, 0, 0.3, 1e-6)


# Dominance ------------------------------------------------------------------------------------------------------------

mus = st.floats(0.1, 2.0)


@st.composite
def pairs(draw):
    """Two events of one form, their parameters drawn apart."""
    records = 60
    batches, times, rates = [draw(st.tuples(st.integers(1, 60), st.integers(1, 60))) for _ in range(3)]
    mu = draw(st.tuples(mus, mus))
    form = draw(st.sampled_from(["step", "local", "round", "composed", "poisson", "pure"]))

    def event(i):
        step = SampledWithoutReplacement(Gaussian(mu[i], 1.0), batches[i], records)
        match form:
            case "step":
                return step
            case "local":
                return repeat(step, times[i])
            case "round":
                return repeat(Participation(step, rates[i], 60), times[i])
            case "composed":
                return compose([Gaussian(mu[i], 2.0), repeat(step, times[i])])
            case "poisson":
                return PoissonSampled(Gaussian(mu[i], 1.0, Unit.ADD_REMOVE_RECORD), batches[i] / records)
        return repeat(Pure(mu[i]), times[i])

    return event(0), event(1)


@settings(max_examples=50, deadline=None)
@given(pairs())
def test_what_dominates_spends_no_less(pair):
    a, b = pair
    for hard, easy in ((a, b), (b, a)):
        if dominates(hard, easy):
            for accountant in (ACCOUNTANTS["pld"], RDP):
                assert accountant.epsilon(easy, 1e-5) <= accountant.epsilon(hard, 1e-5) * (1 + 1e-3) + 1e-9


def test_dominance_is_plain_to_see():
    step = SampledWithoutReplacement(Gaussian(1.0, 1.0), 3, 10)
    assert dominates(step, SampledWithoutReplacement(Gaussian(1.0, 1.0), 3, 11))
    assert dominates(Gaussian(1.0, 1.0), step)
    assert not dominates(step, Gaussian(1.0, 1.0))
    assert dominates(Repeated(step, 2), step)
    assert not dominates(step, Repeated(step, 2))
    assert not dominates(step, Gaussian(1.0, 1.0, Unit.AGENT))
    assert not dominates(Gaussian(1.0, 1.0), Pure(0.001))
    assert dominates(step, NoRelease())
    assert dominates(NonPrivate("x"), step)
    assert not dominates(step, NonPrivate("x"))
    assert not dominates(PoissonSampled(Gaussian(9.0, 1.0, Unit.ADD_REMOVE_RECORD), 0.5), step)
    assert hardest([step, Repeated(step, 3), Gaussian(0.5, 1.0), Repeated(step, 2)]) == [
        Repeated(step, 3),
        Gaussian(0.5, 1.0),
    ]


G, HALF = Gaussian(1.0, 1.0), Gaussian(0.5, 1.0)
ADDED, ADDED_HALF = (dataclasses.replace(g, of=Unit.ADD_REMOVE_RECORD) for g in (G, HALF))


@pytest.mark.parametrize(
    ("hard", "easy"),
    [
        (G, HALF),
        (G, Gaussian(1.0, 2.0)),
        (Pure(1.0), Pure(0.5)),
        (Approximate(1.0, 1e-3), Approximate(1.0, 1e-9)),
        (Approximate(1.0, 1e-3), Approximate(0.5, 1e-3)),
        (Repeated(G, 3), Repeated(G, 2)),
        (Repeated(G, 3), Repeated(HALF, 3)),
        (Participation(G, 2, 5), Participation(G, 1, 5)),
        (Participation(G, 2, 5), Participation(G, 2, 6)),
        (Participation(G, 2, 5), Participation(HALF, 2, 5)),
        (G, Participation(G, 4, 5)),
        (SampledWithoutReplacement(G, 2, 5), SampledWithoutReplacement(G, 1, 5)),
        (SampledWithoutReplacement(G, 2, 5), SampledWithoutReplacement(HALF, 2, 5)),
        (G, SampledWithoutReplacement(G, 4, 5)),
        (PoissonSampled(ADDED, 0.4), PoissonSampled(ADDED, 0.3)),
        (PoissonSampled(ADDED, 0.4), PoissonSampled(ADDED_HALF, 0.4)),
        (ADDED, PoissonSampled(ADDED, 0.9)),
        (Composed((G, Pure(1.0))), Composed((HALF, Pure(1.0)))),
        (Composed((G, Pure(1.0))), Composed((G, Pure(0.5)))),
        (Repeated(Participation(G, 1, 2), 2), Participation(G, 1, 2)),
        (Approximate(1.0, 1e-3), NoRelease()),
        (NonPrivate("x"), Approximate(9.0, 1.0)),
    ],
)
def test_dominance_goes_one_way(hard, easy):
    assert dominates(hard, easy) and not dominates(easy, hard)
    assert dominates(hard, hard) and dominates(easy, easy)
    assert hardest([easy, hard]) == hardest([hard, easy]) == [hard]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # Whoever is protected by one is not by the other.
        *(pair for unit in (Unit.ADD_REMOVE_RECORD, Unit.AGENT) for pair in (
            (Gaussian(9.0, 1.0), Gaussian(1.0, 1.0, unit)),
            (Pure(9.0), Pure(1.0, unit)),
            (Approximate(9.0, 0.1), Approximate(1.0, 1e-9, unit)),
            (Repeated(Gaussian(9.0, 1.0), 5), Repeated(Gaussian(1.0, 1.0, unit), 2)),
            (Participation(Gaussian(9.0, 1.0), 1, 2), Participation(Gaussian(1.0, 1.0, unit), 1, 2)),
            (Composed((Gaussian(9.0, 1.0),) * 2), Composed((Gaussian(1.0, 1.0, unit),) * 2)),
        )),
        # One parameter is larger, another smaller.
        (Approximate(1.0, 1e-9), Approximate(0.5, 1e-3)),
        (Repeated(G, 2), Repeated(HALF, 3)),
        (Participation(G, 1, 5), Participation(HALF, 2, 5)),
        (SampledWithoutReplacement(G, 1, 5), SampledWithoutReplacement(HALF, 2, 5)),
        (PoissonSampled(ADDED, 0.3), PoissonSampled(ADDED_HALF, 0.4)),
        (Composed((G, Pure(0.5))), Composed((HALF, Pure(1.0)))),
        # Sampled in one way, and in the other; and repeated inside the sampling, and outside.
        (Participation(G, 2, 5), SampledWithoutReplacement(G, 2, 5)),
        (PoissonSampled(ADDED, 0.4), Participation(ADDED, 2, 5)),
        (Participation(Repeated(G, 2), 2, 5), Participation(G, 3, 5)),
        # What comes to more or less is not told from numbers of parts, nor from kinds.
        (Composed((G, G)), Composed((G, G, G))),
        (Composed((G, Pure(1.0))), Composed((Pure(1.0), G))),
        (Composed((G, HALF)), G),
        (Repeated(G, 2), Composed((G, G))),
        (Pure(9.0), G),
        (Approximate(9.0, 1.0), Pure(1.0)),
        (Approximate(9.0, 1.0), G),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_does_not_dominate(a, b):
    assert not dominates(a, b) and not dominates(b, a)
    assert hardest([a, b]) == [a, b]


# What calibration asks of distributions -------------------------------------------------------------------------------


def test_rare_large_losses_need_no_long_grid():
    """One rare release in many rounds: the support is bounded by what can happen, not by a normal law."""
    step = ld.sampled_without_replacement(ld.gaussian(1.7), 1e-3)
    round_ = ld.participating(ld.repeated(step, 5), 0.01)
    low, high = ld._support(round_, 500)
    assert high - low < 1 << 21


def test_rounds_with_all_losses_far_from_zero_need_no_long_grid():
    """Grid points of a release without noticeable noise, in a round that hardly ever takes place."""
    d = ld.participating(ld.gaussian(1e7), 1e-3)
    assert len(d.probs) <= ld.MOST_POINTS
    assert d.epsilon(1e-5) >= 0.5e14
    assert d.epsilon(2e-3) == 0.0


def test_problem_bounds_are_used():
    """Unit-norm records need no clip: the same noise as clipping at 1, half of that for clipping at 2."""
    problem, free = PrincipalEigenvector(4), FrechetMean(Sphere(4))
    found = [
        calibrate_noise(DPRSGD(noise=1.0, clip=clip), p, [50], 1, 1, 10, 1.0, 1e-5).noise
        for p, clip in ((problem, None), (free, 1.0), (free, 2.0))
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-9)
    assert found[2] == pytest.approx(2 * found[0], rel=1e-9)
