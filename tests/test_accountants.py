"""Accountants against the reference values, independent code, an attack, and the laws they must obey."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
from autodp.mechanism_zoo import GaussianMechanism
from dp_accounting.pld import privacy_loss_distribution as dpa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr

from pri_rfed.privacy import loss_distribution as ld
from pri_rfed.privacy.accountants import (
    ACCOUNTANTS,
    ORDERS,
    UnsupportedEvent,
    best_epsilon,
    rdp_curve,
    theorem_4_2,
)
from pri_rfed.privacy.events import (
    Approximate,
    Composed,
    Gaussian,
    NoRelease,
    Participation,
    PoissonSampled,
    Pure,
    Repeated,
    SampledWithoutReplacement,
    Unit,
    compose,
)
from pri_rfed.privacy.report import AgentGroup, Rounds, epsilon_by_round, global_event, run_privacy

PLD, RDP, CLAIM = ACCOUNTANTS["pld"], ACCOUNTANTS["rdp"], ACCOUNTANTS["theorem-4.2"]


def sampled(mu, batch, records):
    return SampledWithoutReplacement(Gaussian(mu, 1.0), batch, records)


def attack(mu, rate, times, delta):
    """The epsilon that an attack reaches on `times` steps of DP-RSGD: dp-accounting's figure for the pair
    ((1 - q) N(0, 1) + q N(mu, 1), N(0, 1)) by connecting dots, whose error on this grid is far below a thousandth."""
    grid = min(1e-4, rate * mu / 50)
    step = dpa.from_gaussian_mechanism(1 / mu, sampling_prob=rate, value_discretization_interval=grid)
    return step.self_compose(times).get_epsilon_for_delta(delta)


MU_OF_015 = 0.05829
"""sensitivity/sigma of one Gaussian release that is exactly (0.15, 1e-4)-DP."""

REFERENCES = [
    (Repeated(Gaussian(0.1, 1.0), 10), 1e-5, 1.1994),
    (Repeated(sampled(1.0, 1, 100), 100), 1e-5, 0.7680),
    (Repeated(sampled(0.2, 1, 10), 100), 1e-5, 0.7913),
    (Repeated(Participation(Repeated(sampled(1.0, 1, 100), 100), 1, 10), 50), 1e-5, 1.8289),
    (Repeated(Participation(Repeated(sampled(1.0, 1, 100), 100), 1, 50), 200), 1e-5, 1.6939),
    (Repeated(Participation(Gaussian(MU_OF_015, 1.0), 1, 100), 500), 1.5e-3, 0.2719),
    (Repeated(Participation(Gaussian(MU_OF_015, 1.0), 10, 100), 100), 1.1e-2, 0.2277),
]


@pytest.mark.parametrize(("event", "delta", "expected"), REFERENCES)
def test_on_a_coarse_grid_epsilon_is_still_an_upper_bound(event, delta, expected):
    fine = PLD.epsilon(event, delta)
    with ld.computed_at(ld.COARSE):
        assert fine * (1 - 1e-9) <= PLD.epsilon(event, delta) <= fine * 1.001
        assert PLD.epsilon(event, delta) != fine, "what was kept from the fine grid is not taken for the coarse one"
    assert PLD.epsilon(event, delta) == fine, "what was kept from the coarse grid is not taken for the fine one"


@pytest.mark.parametrize(("event", "delta", "reference"), REFERENCES)
def test_reference_values(event, delta, reference):
    assert reference * 0.9995 <= PLD.epsilon(event, delta) <= reference * 1.002


@pytest.mark.parametrize(("event", "delta", "reference"), REFERENCES)
def test_reference_values_have_power(event, delta, reference):
    """Noise a third too small, a halved sensitivity or an uncounted release would be seen."""

    def scaled(e, factor):
        if isinstance(e, Gaussian):
            return Gaussian(e.sensitivity * factor, e.sigma, e.of)
        return dataclasses.replace(e, event=scaled(e.event, factor))

    assert PLD.epsilon(scaled(event, 1.5), delta) > 1.2 * reference
    assert PLD.epsilon(scaled(event, 0.5), delta) < 0.8 * reference
    one_less = Repeated(event.event, event.times - 1)
    assert PLD.epsilon(one_less, delta) < PLD.epsilon(event, delta)


@pytest.mark.parametrize(
    ("mu", "batch", "records", "reference"), [(1.0, 1, 100, 1.4825), (0.2, 1, 10, 3.1819)]
)
def test_rdp_is_autodps_bound(mu, batch, records, reference):
    assert RDP.epsilon(Repeated(sampled(mu, batch, records), 100), 1e-5) == pytest.approx(reference, abs=2e-4)


@pytest.mark.parametrize(
    ("length", "step"), [(1, 1.0), (9000, 0.01), (9000, 1e-4), (5000, 1e-310), (40, 60.0), (40, 900.0)]
)
def test_discounted_sums_are_the_recursion(length, step):
    masses = np.random.default_rng(0).random(length) * np.exp(np.linspace(-300, 0, length))
    with mpmath.workdps(30):
        expected, total = [], mpmath.mpf(0)
        for mass in masses.tolist():
            total = mpmath.mpf(mass) + mpmath.exp(-mpmath.mpf(step)) * total
            expected.append(float(total))
    np.testing.assert_allclose(ld._discounted_sums(masses, step), expected, rtol=1e-12)


@pytest.mark.parametrize("mu", [0.01, 0.7, 30.0])
def test_rdp_of_a_gaussian_release_is_autodps(mu):
    curve = GaussianMechanism(sigma=1 / mu, approxDP_off=True, fdp_off=True).RenyiDP
    np.testing.assert_allclose(rdp_curve(Gaussian(mu, 1.0)), [curve(order) for order in ORDERS], rtol=1e-12)


def test_published_claim_and_what_is_true():
    one = theorem_4_2(0.15, 1e-4, sampled=1, pool=100, rounds=500)
    assert one.advanced == pytest.approx(0.1357, abs=1e-4)
    assert one.sequential == pytest.approx(0.809, abs=1e-3)
    assert one.delta + 1e-3 == pytest.approx(1.5e-3)
    assert theorem_4_2(0.15, 1e-4, sampled=10, pool=100, rounds=100).advanced == pytest.approx(21.5, abs=0.05)
    event = Repeated(Participation(Gaussian(MU_OF_015, 1.0), 1, 100), 500)
    assert CLAIM.epsilon(event, 1.5e-3) < 0.1358 < 2 * PLD.epsilon(event, 1.5e-3)
    assert not CLAIM.sound
    assert "not a guarantee" in CLAIM.caveat
    assert best_epsilon(event, 1.5e-3).accountant == "pld"


# Independent code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.01, 0.5, 4.0, 30.0])
@pytest.mark.parametrize("times", [1, 7, 1000])
def test_gaussian_is_exact(mu, times):
    total = mu * math.sqrt(times)
    event = Repeated(Gaussian(mu, 1.0), times)
    for epsilon in (0.0, 0.3, total, total**2 / 2 + total):
        exact = ndtr(total / 2 - epsilon / total) - np.exp(epsilon + log_ndtr(-total / 2 - epsilon / total))
        if exact > 1e-12:
            assert PLD.delta(event, epsilon) == pytest.approx(exact, rel=1e-3, abs=1e-14)
            assert PLD.delta(event, epsilon) >= exact * (1 - 1e-9)


@pytest.mark.parametrize(
    ("mu", "rate", "times"), [(1.0, 0.01, 1), (1.0, 0.01, 1000), (0.3, 0.2, 50), (3.0, 0.001, 300), (2.0, 0.5, 3)]
)
def test_poisson_agrees_with_dp_accounting(mu, rate, times):
    reference = dpa.from_gaussian_mechanism(1 / mu, sampling_prob=rate, value_discretization_interval=1e-4)
    event = Repeated(PoissonSampled(Gaussian(mu, 1.0, Unit.ADD_REMOVE_RECORD), rate), times)
    for delta in (1e-3, 1e-5, 1e-8):
        theirs = reference.self_compose(times).get_epsilon_for_delta(delta)
        assert PLD.epsilon(event, delta) == pytest.approx(theirs, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.9])
@pytest.mark.parametrize("mu", [0.1, 1.0, 6.0])
def test_sampling_without_replacement_has_the_stated_profile(mu, rate):
    """delta_q(x) = q delta(log(1 + (e^x - 1)/q)), for one step, to the accuracy of the grid and never below."""
    step = PLD
    event = sampled(mu, round(rate * 1000), 1000)
    for epsilon in (0.0, 0.01, 0.1, 0.5, 2.0):
        y = math.log1p(math.expm1(epsilon) / rate)
        exact = rate * (ndtr(mu / 2 - y / mu) - math.exp(y) * ndtr(-mu / 2 - y / mu))
        if exact > 1e-13:
            got = step.delta(event, epsilon)
            assert exact * (1 - 1e-6) <= got <= exact * 1.02 + 1e-13


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mu", "batch", "records", "times"),
    [
        (1.0, 1, 100, 1),
        (1.0, 1, 100, 10),
        (1.0, 1, 100, 100),
        (1.0, 1, 100, 1000),
        (1.0, 1, 100, 10000),
        (0.2, 1, 10, 100),
        (0.2, 1, 10, 2000),
        (4.0, 1, 1000, 100),
        (0.5, 1, 2, 20),
        (2.0, 9, 10, 5),
        (0.05, 1, 20, 5000),
    ],
)
def test_between_the_attack_and_its_multiple(mu, batch, records, times, record_property):
    event = Repeated(sampled(mu, batch, records), times)
    bound = PLD.epsilon(event, 1e-5)
    reached = attack(mu, batch / records, times, 1e-5)
    record_property("bound over attack", bound / reached)
    assert reached * (1 - 1e-4) <= bound <= 1.35 * reached
    assert bound <= RDP.epsilon(event, 1e-5)


# Laws -----------------------------------------------------------------------------------------------------------------

mus = st.floats(0.02, 4.0)
deltas = st.sampled_from([1e-3, 1e-5, 1e-7])
laws = settings(max_examples=25, deadline=None)


@st.composite
def steps(draw):
    """One step of any sampling, or a pure release."""
    kind = draw(st.sampled_from(["gaussian", "sampled", "poisson", "pure", "approximate"]))
    if kind == "pure":
        return Pure(draw(st.floats(0.01, 1.0)))
    if kind == "approximate":
        return Approximate(draw(st.floats(0.01, 1.0)), draw(st.sampled_from([1e-9, 1e-4, 1e-2])))
    mu, records = draw(mus), draw(st.integers(2, 500))
    if kind == "gaussian":
        return Gaussian(mu, 1.0)
    if kind == "poisson":
        return PoissonSampled(Gaussian(mu, 1.0, Unit.ADD_REMOVE_RECORD), draw(st.floats(0.002, 1.0)))
    return sampled(mu, draw(st.integers(1, records)), records)


@laws
@given(steps(), st.integers(2, 12), deltas)
def test_n_fold_composition_is_n_compositions(step, times, delta):
    together = PLD.epsilon(Repeated(step, times), delta)
    apart = PLD.epsilon(Composed((step,) * times), delta)
    assert together == pytest.approx(apart, rel=2e-3, abs=1e-6)
    assert rdp_epsilon(Repeated(step, times), delta) == pytest.approx(rdp_epsilon(Composed((step,) * times), delta))


def rdp_epsilon(event, delta):
    return RDP.epsilon(event, delta) if RDP.supports(event) is None else math.inf


@laws
@given(steps(), st.integers(1, 20), deltas)
def test_composition_nests(step, times, delta):
    nested = Repeated(Repeated(step, times), 3)
    flat = Repeated(step, 3 * times)
    assert PLD.epsilon(nested, delta) == pytest.approx(PLD.epsilon(flat, delta), rel=2e-3, abs=1e-6)


@laws
@given(steps(), deltas)
def test_pld_is_never_above_rdp(step, delta):
    for event in (step, Repeated(step, 30), Repeated(Participation(step, 1, 7), 30)):
        assert PLD.epsilon(event, delta) <= rdp_epsilon(event, delta) * (1 + 1e-3)


SLACK = 1 + 1e-3
"""Two grids may differ by as much; a wrong direction differs by more."""


@laws
@given(mus, st.integers(1, 50), st.integers(1, 50), st.integers(1, 200), deltas)
def test_monotone_in_every_parameter(mu, batch, more, times, delta):
    records = 100
    base = PLD.epsilon(Repeated(sampled(mu, batch, records), times), delta)
    larger_batch = PLD.epsilon(Repeated(sampled(mu, batch + more, records), times), delta)
    more_steps = PLD.epsilon(Repeated(sampled(mu, batch, records), times + more), delta)
    less_noise = PLD.epsilon(Repeated(sampled(mu * 1.5, batch, records), times), delta)
    smaller_delta = PLD.epsilon(Repeated(sampled(mu, batch, records), times), delta / 2)
    more_records = PLD.epsilon(Repeated(sampled(mu, batch, records + more), times), delta)
    assert base <= larger_batch * SLACK + 1e-9
    assert base <= more_steps * SLACK + 1e-9
    assert base <= less_noise * SLACK + 1e-9
    assert base <= smaller_delta
    assert more_records <= base * SLACK + 1e-9


@laws
@example(sampled(1.0, 1, 70), 1, 1, 1, 1e-3)
@given(steps(), st.integers(1, 20), st.integers(0, 20), st.integers(1, 60), deltas)
def test_participation(step, sampled_agents, others, rounds, delta):
    pool = sampled_agents + others
    full = PLD.epsilon(Repeated(step, rounds), delta)
    run = PLD.epsilon(Repeated(Participation(step, sampled_agents, pool), rounds), delta)
    assert run <= full * SLACK + 1e-9
    if others == 0:
        assert run == pytest.approx(full, rel=1e-6, abs=1e-9)
    more = PLD.epsilon(Repeated(Participation(step, sampled_agents, pool), rounds + 5), delta)
    assert run <= more * SLACK + 1e-9
    # Participation is revealed: one round amplifies delta by kappa, and epsilon not at all.
    round_ = Participation(step, sampled_agents, pool)
    epsilon = min(PLD.epsilon(step, delta), 5.0)
    assert PLD.delta(round_, epsilon) == pytest.approx(round_.rate * PLD.delta(step, epsilon), rel=1e-6, abs=1e-13)


def test_sampling_never_harms():
    """A bound on what is sampled must not exceed the bound without sampling (autodp's for Poisson samples can)."""
    added = Gaussian(1.0, 1.0, of=Unit.ADD_REMOVE_RECORD)
    assert (rdp_curve(PoissonSampled(added, 22 / 60)) <= rdp_curve(added)).all()
    assert (rdp_curve(sampled(1.0, 22, 60)) <= rdp_curve(Gaussian(1.0, 1.0))).all()


@laws
@given(mus, st.integers(1, 400), deltas)
def test_full_sampling_is_no_sampling(mu, records, delta):
    plain = Gaussian(mu, 1.0)
    assert PLD.epsilon(sampled(mu, records, records), delta) == PLD.epsilon(plain, delta)
    poisson = Gaussian(mu, 1.0, Unit.ADD_REMOVE_RECORD)
    assert PLD.epsilon(PoissonSampled(poisson, 1.0), delta) == PLD.epsilon(poisson, delta)
    np.testing.assert_allclose(rdp_curve(sampled(mu, records, records)), rdp_curve(plain))


@laws
@given(steps(), st.integers(1, 300))
def test_distributions_are_pessimistic(step, times):
    """All mass is kept, the Q-mass never exceeds one, and a coarser grid never lowers the divergence."""
    from pri_rfed.privacy.accountants import _losses

    for d in _losses(Repeated(step, times)).orders():
        assert d.probs.sum() + d.infinity == pytest.approx(1.0, abs=1e-9)
        assert (d.probs >= 0).all()
        likely = d.losses > -8  # further down, rounding of the transform is multiplied by e^8 and more
        assert (d.probs * np.exp(-d.losses))[likely].sum() <= 1 + 1e-9
        coarse = ld.coarsen(d, 7.3 * d.grid)
        for epsilon in np.linspace(0, d.losses[-1], 9):
            if epsilon >= 0:
                assert coarse.delta(epsilon) >= d.delta(epsilon) - 1e-12


@laws
@given(steps(), st.integers(1, 40), st.sampled_from(["pld", "rdp"]))
def test_epsilon_and_delta_are_inverse(step, times, name):
    accountant = ACCOUNTANTS[name]
    event = Repeated(step, times)
    if accountant.supports(event) is not None:
        return
    for delta in (1e-3, 1e-6):
        epsilon = accountant.epsilon(event, delta)
        if 0 < epsilon < math.inf:
            assert accountant.delta(event, epsilon) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize("order", [1, -1])
def test_failures_add_up(order):
    """Mass at infinity is never lost, whichever operation it passes through."""
    a, b = Approximate(0.1, 1e-3), Approximate(0.2, 2e-3)
    both = 1 - (1 - 1e-3) * (1 - 2e-3)
    for event, failure in [
        (Composed((a, b)[::order]), both),
        (Composed((a, Gaussian(1.0, 1.0), b)[::order]), both),
        (Composed((Approximate(0.0, 1e-3), b)[::order]), both),
        (Repeated(a, 50), 1 - (1 - 1e-3) ** 50),
        (SampledWithoutReplacement(a, 1, 10), 1e-4),
        (Participation(a, 1, 10), 1e-4),
        (Repeated(Participation(SampledWithoutReplacement(a, 1, 10), 1, 10), 7), 1 - (1 - 1e-5) ** 7),
    ]:
        assert PLD.delta(event, 600.0) == pytest.approx(failure, rel=1e-9)
        assert PLD.epsilon(event, failure * 0.999) == math.inf


def test_what_is_cut_off_goes_to_infinity(monkeypatch):
    for tail in (1e-16, 1e-9, 1e-4):
        monkeypatch.setattr(ld, "TAIL", tail)
        normal = ld.gaussian(1.0)
        step = ld.sampled_without_replacement(normal, 0.3)
        for d in (normal, step, ld.composed(step, normal), ld.repeated(step, 20)):
            assert d.infinity >= tail / 4
            assert d.probs.sum() + d.infinity >= 1 - 1e-14


def test_rounding_of_the_transform_is_charged():
    """The case in which 40-digit arithmetic found the most of it: sums over how often the agent took part."""
    mu, times = 0.30593, 371
    event = Repeated(Participation(Gaussian(mu, 1.0), 1, 3), times)
    with mpmath.workdps(40):
        for epsilon in (20.0, 26.0, 29.0):
            exact = mpmath.mpf(0)
            for k in range(1, times + 1):
                m = mpmath.mpf(mu) * mpmath.sqrt(k)
                delta = mpmath.ncdf(m / 2 - epsilon / m) - mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m)
                exact += mpmath.binomial(times, k) * mpmath.mpf(1) / 3**k * (mpmath.mpf(2) / 3) ** (times - k) * delta
            assert PLD.delta(event, epsilon) >= float(exact)
            assert PLD.delta(event, epsilon) <= float(exact) * 1.01 + 1e-12


def test_a_release_of_nothing_does_not_coarsen_the_rest():
    alone = PLD.epsilon(Gaussian(0.1, 1.0), 1e-5)
    for nothing in (Approximate(0.0, 1e-9), SampledWithoutReplacement(Approximate(0.0, 0.0), 1, 3)):
        assert PLD.epsilon(Composed((Gaussian(0.1, 1.0), nothing)), 1e-5) == pytest.approx(alone, rel=1e-3)


def test_one_sided_losses_keep_their_accuracy():
    reference = dpa.from_gaussian_mechanism(1 / 16.9, sampling_prob=0.0235, value_discretization_interval=1e-4)
    event = PoissonSampled(Gaussian(16.9, 1.0, Unit.ADD_REMOVE_RECORD), 0.0235)
    from pri_rfed.privacy.accountants import _losses

    added = _losses(event).orders()[1]
    assert added.epsilon(7.6e-3) == pytest.approx(reference._pmf_add.get_epsilon_for_delta(7.6e-3), rel=1e-2)


def test_parameters_far_from_one():
    assert PLD.epsilon(Gaussian(1e-9, 1.0), 1e-5) < 1e-8
    assert PLD.epsilon(Gaussian(1e3, 1.0), 1e-5) == pytest.approx(1e6 / 2 + 4.2649e3, rel=1e-3)
    assert PLD.epsilon(sampled(1e3, 1, 10), 1e-5) > 1e5
    assert 0 <= PLD.epsilon(Repeated(sampled(1.0, 1, 10**7), 10), 1e-5) < 1e-4
    assert PLD.epsilon(Repeated(sampled(0.1, 1, 10**4), 10**8), 1e-5) == pytest.approx(
        PLD.epsilon(Repeated(Repeated(sampled(0.1, 1, 10**4), 10**4), 10**4), 1e-5), rel=5e-3
    )


def test_cost_grows_with_the_logarithm_of_the_number_of_compositions():
    """The work is counted, not timed: points held by the distributions that are transformed."""
    work = []
    original = ld.fft.rfft
    try:
        ld.fft.rfft = lambda a, n: work.append(n) or original(a, n)
        for times in (10**2, 10**4, 10**6, 10**8):
            work.append(0)
            ld.repeated(ld.sampled_without_replacement(ld.gaussian(0.01), 0.01), times)
    finally:
        ld.fft.rfft = original
    starts = [i for i, n in enumerate(work) if n == 0] + [len(work)]
    points = [sum(work[a:b]) for a, b in itertools.pairwise(starts)]
    assert points[3] < 60 * points[0], "a million times as many compositions"


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(ValueError, match="delta = "):
        PLD.epsilon(Gaussian(1.0, 1.0), delta)


def test_what_an_accountant_cannot_do_is_refused():
    with pytest.raises(UnsupportedEvent, match=r"theorem-4\.2"):
        CLAIM.epsilon(Gaussian(1.0, 1.0), 1e-5)
    with pytest.raises(UnsupportedEvent, match="rdp"):
        RDP.epsilon(Approximate(1.0, 1e-6), 1e-5)
    assert best_epsilon(Approximate(1.0, 1e-6), 1e-5).accountant == "pld"
    assert best_epsilon(NoRelease(), 1e-5).epsilon == 0.0


# Runs -----------------------------------------------------------------------------------------------------------------


def test_run_shows_both_figures_the_worst_over_agents():
    local = {n: Repeated(sampled(1.0, 1, n), 50) for n in (100, 400)}
    groups = [AgentGroup(n, 5, event) for n, event in local.items()]
    run = run_privacy(groups, [Rounds(2, 10, 30)], 1e-5, participations={100: 4, 400: 9})
    assert run.epsilon_global == PLD.epsilon(Repeated(Participation(local[100], 2, 10), 30), 1e-5)
    assert run.epsilon_ledger_max == max(
        PLD.epsilon(Repeated(local[100], 4), 1e-5), PLD.epsilon(Repeated(local[400], 9), 1e-5)
    )
    always = run_privacy(groups, [Rounds(2, 10, 30)], 1e-5)
    assert always.epsilon_ledger_max == PLD.epsilon(Repeated(local[100], 30), 1e-5)
    assert always.to_dict()["unit"] == "replace-record"


def test_an_agent_of_which_nothing_is_said_is_refused():
    groups = [AgentGroup(n, 1, Gaussian(1.0, 1.0)) for n in (100, 200)]
    with pytest.raises(ValueError, match="200 records"):
        run_privacy(groups, [Rounds(1, 2, 5)], 1e-5, participations={100: 3})


def test_many_groups_are_bounded_by_the_hardest_alike():
    groups = [AgentGroup(n, 1, Repeated(sampled(1.0, 1, n), 10)) for n in range(100, 140)]
    rounds = [Rounds(2, 40, 30)]
    run = run_privacy(groups, rounds, 1e-5, participations={n: n % 5 for n in range(100, 140)})
    assert [figure.group for figure in run.groups] == groups
    assert [figure.participations for figure in run.groups] == [n % 5 for n in range(100, 140)]
    for figure in (run.groups[0], run.groups[17], run.groups[39]):
        (own,) = run_privacy([figure.group], rounds, 1e-5, {figure.group.records: figure.participations}).groups
        assert own.epsilon_local <= figure.epsilon_local <= 1.1 * own.epsilon_local
        assert own.epsilon_global <= figure.epsilon_global <= 1.1 * own.epsilon_global
        assert own.epsilon_ledger <= figure.epsilon_ledger
    assert run.epsilon_global == run_privacy(groups[:1], rounds, 1e-5).epsilon_global


def test_pools_that_change_are_accounted_round_by_round():
    local = Gaussian(0.3, 1.0)
    event = global_event(local, [Rounds(2, 10, 5), Rounds(2, 4, 5)])
    assert event == compose([Repeated(Participation(local, 2, 10), 5), Repeated(Participation(local, 2, 4), 5)])
    assert PLD.epsilon(event, 1e-5) > PLD.epsilon(Repeated(Participation(local, 2, 10), 10), 1e-5)


def test_epsilon_by_round_is_exact_where_given_and_ends_with_the_run():
    local = Gaussian(0.3, 1.0)
    spent = epsilon_by_round(local, 1, 5, 40, 1e-5)
    assert spent[0][0] == 1
    assert spent[-1] == (40, best_epsilon(Repeated(Participation(local, 1, 5), 40), 1e-5).epsilon)
    assert [e for _, e in spent] == sorted(e for _, e in spent)


@pytest.mark.parametrize("name", ["pld", "rdp"])
def test_delta_of_what_gives_all_away_is_one(name):
    for event in (Gaussian(1.0, 1e-9), Pure(800.0), Repeated(Gaussian(1.0, 1.0), 10**9)):
        assert ACCOUNTANTS[name].delta(event, 1.0) == pytest.approx(1.0)
