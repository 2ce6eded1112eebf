"""Events: immutable, nested, written and read back exactly; units of privacy never mix."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pri_rfed.privacy.accountants import ACCOUNTANTS
from pri_rfed.privacy.events import (
    Approximate,
    Composed,
    Event,
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
    dumps,
    event_from_dict,
    loads,
    repeat,
)

positive = st.floats(1e-6, 1e6)
counts = st.integers(1, 10**6)


def leaves(unit):
    return st.one_of(
        st.builds(Gaussian, positive, positive, st.just(unit)),
        st.builds(Pure, positive, st.just(unit)),
        st.builds(Approximate, st.floats(0, 50), st.floats(0, 1), st.just(unit)),
        st.just(NoRelease()),
        st.builds(NonPrivate, st.text(max_size=8)),
    )


def nested(unit):
    def extend(inner):
        nests = [
            st.builds(Composed, st.lists(inner, max_size=4).map(tuple)),
            st.builds(Repeated, inner, counts),
            st.tuples(inner, counts, counts).map(lambda t: Participation(t[0], min(t[1:]), max(t[1:]))),
        ]
        if unit is Unit.ADD_REMOVE_RECORD:
            nests.append(st.builds(PoissonSampled, inner, st.floats(1e-6, 1)))
        else:
            nests.append(
                st.tuples(inner, counts, counts).map(lambda t: SampledWithoutReplacement(t[0], min(t[1:]), max(t[1:])))
            )
        return st.one_of(nests)

    return st.recursive(leaves(unit), extend, max_leaves=8)


@given(st.sampled_from(Unit).flatmap(nested))
def test_json_round_trip(event):
    assert loads(dumps(event)) == event


@given(st.sampled_from(Unit).flatmap(nested))
def test_a_part_without_a_mechanism_makes_the_whole_non_private(event):
    spoiled = Composed((event, NonPrivate("the raw point")))
    assert not spoiled.is_private
    for accountant in ACCOUNTANTS.values():
        assert accountant.epsilon(spoiled, 1e-5) == float("inf")
        assert accountant.delta(spoiled, 1.0) == 1.0


def test_events_are_immutable_and_hashable():
    event = Repeated(Gaussian(2.0, 1.0), 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.times = 4
    assert len({event, Repeated(Gaussian(2.0, 1.0), 3)}) == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"version": 99, "event": {"kind": "no-release"}}', "99"),
        ('{"event": {"kind": "no-release"}}', "None"),
        ('{"version": 1, "event": {"kind": "magic"}}', "magic"),
        ('{"version": 1, "event": {"kind": "gaussian", "sensitivity": 1.0}}', "sigma"),
        ('{"version": 1, "event": {"kind": "gaussian", "sensitivity": 1, "sigma": 1, "of": "agent", "x": 1}}', "'x'"),
        ('{"version": 1, "event": {"kind": "repeated", "event": {"kind": "no-release"}, "times": true}}', "True"),
        ('{"version": 1, "event": {"kind": []}}', "unknown event"),
        ('{"version": 1, "event": {"kind": "composed", "events": 5}}', "events = 5 must be a list"),
        ('{"version": 1, "event": {"kind": "pure", "of": "agent", "epsilon": 1' + "0" * 400 + "}}", "too large"),
        ("[1]", "None"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(text, names):
    with pytest.raises(ValueError, match=names):
        loads(text)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Gaussian(0.0, 1.0), "sensitivity = 0.0"),
        (lambda: Gaussian(1.0, 0.0), "sigma = 0.0"),
        (lambda: Gaussian(1.0, float("nan")), "sigma = nan"),
        (lambda: Pure(-1.0), "epsilon = -1.0"),
        (lambda: Approximate(1.0, 1.5), "delta = 1.5"),
        (lambda: SampledWithoutReplacement(Gaussian(1.0, 1.0), 11, 10), "batch = 11"),
        (lambda: SampledWithoutReplacement(Gaussian(1.0, 1.0), 0, 10), "batch = 0"),
        (lambda: PoissonSampled(NoRelease(), 0.0), "rate = 0.0"),
        (lambda: Repeated(NoRelease(), 0), "times = 0"),
        (lambda: Participation(NoRelease(), 3, 2), "sampled = 3"),
    ],
)
def test_impossible_events_are_refused_by_name(make, names):
    with pytest.raises(ValueError, match=names):
        make()


def test_units_never_mix():
    record, agent = Gaussian(1.0, 1.0), Gaussian(1.0, 1.0, Unit.AGENT)
    poisson = Gaussian(1.0, 1.0, Unit.ADD_REMOVE_RECORD)
    for mixed in [(record, agent), (record, poisson), (Repeated(agent, 2), Participation(poisson, 1, 2))]:
        with pytest.raises(ValueError, match="never mix"):
            Composed(mixed)
    with pytest.raises(ValueError, match="add-remove-record"):
        SampledWithoutReplacement(poisson, 1, 2)
    for other in (record, agent):
        with pytest.raises(ValueError, match="add-remove-record"):
            PoissonSampled(other, 0.5)


def test_compose_gathers_runs_and_drops_nothing_else():
    a, b = Gaussian(1.0, 1.0), Pure(0.5)
    assert compose([a, a, NoRelease(), Repeated(a, 3), b]) == Composed((Repeated(a, 5), b))
    assert compose([]) == NoRelease() == repeat(a, 0)
    assert compose([b]) == b == repeat(b, 1)
    assert repeat(a, 7) == Repeated(a, 7)
    assert repeat(Repeated(a, 2), 3) in (Repeated(Repeated(a, 2), 3), Repeated(a, 6))


def test_an_unknown_event_is_refused_not_guessed():
    @dataclasses.dataclass(frozen=True)
    class Strange(Event):
        kind = "strange"

        @property
        def unit(self):
            return None

    for accountant in ACCOUNTANTS.values():
        for event in (Strange(), Repeated(Strange(), 2), Composed((Gaussian(1.0, 1.0), Strange()))):
            with pytest.raises(ValueError, match=accountant.name):
                accountant.epsilon(event, 1e-5)
    with pytest.raises(ValueError, match="strange"):
        event_from_dict(json.loads(json.dumps(Strange().to_dict())))
