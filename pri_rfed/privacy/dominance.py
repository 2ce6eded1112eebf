"""Which events are harder on privacy than others, told from their descriptions alone, without any accounting."""

from __future__ import annotations

from collections.abc import Iterable

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
)

Sampled = SampledWithoutReplacement | PoissonSampled | Participation


def dominates(a: Event, b: Event) -> bool:
    """Whether whatever bound holds for `a` holds for `b`, part by part: no smaller sensitivity/sigma, sampling rate or
    number of repetitions anywhere. A False only says that it is not plain to see.

    Sound, since the privacy profile of every event grows with each of these (for sampling:
    q H(1 + (e^x - 1)/q) = sup_A [q (P(A) - Q(A)) - (e^x - 1) Q(A)] grows with q).
    """
    if a == b or isinstance(b, NoRelease) or isinstance(a, NonPrivate):
        return True
    if isinstance(a, Repeated) or isinstance(b, Repeated):
        (inner_a, times_a), (inner_b, times_b) = _repeated(a), _repeated(b)
        return times_a >= times_b and dominates(inner_a, inner_b)
    for kind in (Participation, SampledWithoutReplacement, PoissonSampled):
        if isinstance(a, kind) or isinstance(b, kind):
            (inner_a, rate_a), (inner_b, rate_b) = _sampled(a, kind), _sampled(b, kind)
            return rate_a >= rate_b and dominates(inner_a, inner_b)
    match a, b:
        case Gaussian(), Gaussian():
            return a.of == b.of and a.mu >= b.mu
        case Pure(), Pure():
            return a.of == b.of and a.epsilon >= b.epsilon
        case Approximate(), Approximate():
            return a.of == b.of and a.epsilon >= b.epsilon and a.delta >= b.delta
        case Composed(), Composed():
            return len(a.events) == len(b.events) and all(map(dominates, a.events, b.events))
    return False


def _repeated(event: Event) -> tuple[Event, int]:
    return (event.event, event.times) if isinstance(event, Repeated) else (event, 1)


def _sampled(event: Event, kind: type[Sampled]) -> tuple[Event, float]:
    return (event.event, event.rate) if isinstance(event, kind) else (event, 1.0)


def hardest(events: Iterable[Event]) -> list[Event]:
    """Those of `events` that none of the others dominates; the largest epsilon of all is the largest of theirs."""
    front: list[Event] = []
    for event in events:
        if not any(dominates(other, event) for other in front):
            front = [other for other in front if not dominates(event, other)]
            front.append(event)
    return front
