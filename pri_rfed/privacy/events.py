"""What happened to the data, described so that any accountant can interpret it.

Events are immutable and nest freely. They hold sensitivities and standard deviations, never an epsilon: that is what an
accountant computes (`pri_rfed.privacy.accountants`). Every event belongs to one unit of privacy; events of different
units never mix in one figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar

FORMAT_VERSION = 1


class Unit(StrEnum):
    """Who is protected, and which data sets are neighbours."""

    REPLACE_RECORD = "replace-record"
    """One record of one agent is replaced by another; the numbers of records are public."""
    ADD_REMOVE_RECORD = "add-remove-record"
    """One record of one agent is added or removed; batches are Poisson samples and their expected size is public."""
    AGENT = "agent"
    """The whole data set of one agent is replaced."""


def _positive(event: Event, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{type(event).__name__}: {name} = {value!r} must be a positive finite number")


def _counts(event: Event, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{type(event).__name__}: {name} = {value!r} must be a whole number >= 1")


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str]

    @property
    def unit(self) -> Unit | None:
        """The unit of privacy this event speaks of; None where it fits all."""
        raise AssertionError(f"{type(self).__name__} must say its unit of privacy")

    @property
    def parts(self) -> tuple[Event, ...]:
        """The events that it is made of."""
        return ()

    @property
    def is_private(self) -> bool:
        """Whether everything that left was randomised by a mechanism."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `event_from_dict` reads them."""
        out: dict[str, Any] = {"kind": self.kind}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Event):
                value = value.to_dict()
            elif isinstance(value, tuple):
                value = [part.to_dict() for part in value]
            elif isinstance(value, Unit):
                value = str(value)
            out[field.name] = value
        return out


@dataclass(frozen=True)
class Gaussian(Event):
    """One release of a vector of the given L2 `sensitivity` plus Gaussian noise of standard deviation `sigma`.

    The sensitivity is the largest distance, in the norm that the noise is isotropic in, between the vectors of two
    neighbouring data sets: for replace-record neighbours 2C/b for a mean of b vectors clipped at C.
    """

    kind = "gaussian"
    sensitivity: float
    sigma: float
    of: Unit = Unit.REPLACE_RECORD

    def __post_init__(self) -> None:
        _positive(self, sensitivity=self.sensitivity, sigma=self.sigma)

    @property
    def unit(self) -> Unit:
        return self.of

    @property
    def mu(self) -> float:
        """Sensitivity over standard deviation: the one number that decides the privacy of the release."""
        return self.sensitivity / self.sigma


@dataclass(frozen=True)
class Pure(Event):
    """A release that is epsilon-differentially private with delta = 0 (Riemannian Laplace, KNG)."""

    kind = "pure"
    epsilon: float
    of: Unit = Unit.REPLACE_RECORD

    def __post_init__(self) -> None:
        _positive(self, epsilon=self.epsilon)

    @property
    def unit(self) -> Unit:
        return self.of


@dataclass(frozen=True)
class Approximate(Event):
    """A mechanism of which only (epsilon, delta) is known."""

    kind = "approximate"
    epsilon: float
    delta: float
    of: Unit = Unit.REPLACE_RECORD

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"Approximate: epsilon = {self.epsilon!r} must be a finite number >= 0")
        if not 0 <= self.delta <= 1:
            raise ValueError(f"Approximate: delta = {self.delta!r} must lie in [0, 1]")

    @property
    def unit(self) -> Unit:
        return self.of


@dataclass(frozen=True)
class NoRelease(Event):
    """Nothing that depends on the data left."""

    kind = "no-release"

    @property
    def unit(self) -> None:
        return None


@dataclass(frozen=True)
class NonPrivate(Event):
    """A release without a mechanism: epsilon is infinite. `what` names it."""

    kind = "non-private"
    what: str

    @property
    def unit(self) -> None:
        return None

    @property
    def is_private(self) -> bool:
        return False


@dataclass(frozen=True)
class _OfOne(Event):
    """An event made of another one, of the same unit, and private if that is."""

    event: Event

    @property
    def parts(self) -> tuple[Event, ...]:
        return (self.event,)

    @property
    def unit(self) -> Unit | None:
        return self.event.unit

    @property
    def is_private(self) -> bool:
        return self.event.is_private


@dataclass(frozen=True)
class SampledWithoutReplacement(_OfOne):
    """`event` applied to a uniformly drawn `batch` of the `records`, the choice hidden.

    `event` states the sensitivity for a replacement *within the batch*. Only for units whose
    neighbours have equal size.
    """

    kind = "sampled-without-replacement"
    batch: int
    records: int

    def __post_init__(self) -> None:
        _counts(self, batch=self.batch, records=self.records)
        if self.batch > self.records:
            raise ValueError(
                f"SampledWithoutReplacement: batch = {self.batch} must not exceed records = {self.records}"
            )
        if self.event.unit is Unit.ADD_REMOVE_RECORD:
            raise ValueError(
                "SampledWithoutReplacement: event is of unit add-remove-record, whose neighbours differ in size; "
                "use replace-record, or PoissonSampled"
            )

    @property
    def rate(self) -> float:
        return self.batch / self.records


@dataclass(frozen=True)
class PoissonSampled(_OfOne):
    """`event` applied to a sample that holds each record independently with probability `rate`, the choice hidden."""

    kind = "poisson-sampled"
    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"PoissonSampled: rate = {self.rate!r} must lie in (0, 1]")
        if self.event.unit not in (Unit.ADD_REMOVE_RECORD, None):
            raise ValueError(
                f"PoissonSampled: event is of unit {self.event.unit}; Poisson sampling is accounted for "
                "add-remove-record neighbours only"
            )


@dataclass(frozen=True)
class Composed(Event):
    """All `events`, one after the other, on the same data; each may depend on the outputs before it."""

    kind = "composed"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        units = {event.unit for event in self.events} - {None}
        if len(units) > 1:
            raise ValueError(f"Composed: events of different units never mix: {', '.join(sorted(map(str, units)))}")

    @property
    def parts(self) -> tuple[Event, ...]:
        return self.events

    @property
    def unit(self) -> Unit | None:
        return next((event.unit for event in self.events if event.unit is not None), None)

    @property
    def is_private(self) -> bool:
        return all(event.is_private for event in self.events)


@dataclass(frozen=True)
class Repeated(_OfOne):
    """`event` composed with itself `times` times."""

    kind = "repeated"
    times: int

    def __post_init__(self) -> None:
        _counts(self, times=self.times)


@dataclass(frozen=True)
class Participation(_OfOne):
    """A round in which an agent runs `event` if it is among the `sampled` of a `pool` of agents drawn uniformly.

    Who takes part is taken as known to everybody: there is no amplification by hiding it. The record's agent takes part
    with probability sampled/pool, otherwise nothing of it is released.
    """

    kind = "participation"
    sampled: int
    pool: int

    def __post_init__(self) -> None:
        _counts(self, sampled=self.sampled, pool=self.pool)
        if self.sampled > self.pool:
            raise ValueError(f"Participation: sampled = {self.sampled} must not exceed pool = {self.pool}")

    @property
    def rate(self) -> float:
        return self.sampled / self.pool


_KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Gaussian,
        Pure,
        Approximate,
        NoRelease,
        NonPrivate,
        SampledWithoutReplacement,
        PoissonSampled,
        Composed,
        Repeated,
        Participation,
    )
}


def compose(events: Sequence[Event]) -> Event:
    """The composition of `events`, with runs of equal neighbours gathered and releases of nothing left out."""
    gathered: list[Event] = []
    for event in events:
        base, times = (event.event, event.times) if isinstance(event, Repeated) else (event, 1)
        if isinstance(base, NoRelease):
            continue
        if gathered:
            last = gathered[-1]
            last_base, last_times = (last.event, last.times) if isinstance(last, Repeated) else (last, 1)
            if last_base == base:
                gathered[-1] = Repeated(base, last_times + times)
                continue
        gathered.append(Repeated(base, times) if times > 1 else base)
    if not gathered:
        return NoRelease()
    return gathered[0] if len(gathered) == 1 else Composed(tuple(gathered))


def repeat(event: Event, times: int) -> Event:
    """`event` composed `times` times; none for 0."""
    return compose([event] * min(times, 1) if times <= 1 else [Repeated(event, times)])


def event_from_dict(data: Any) -> Event:
    """The inverse of `Event.to_dict`. Raises ValueError, naming the part that is wrong; never guesses."""
    kind = data.get("kind") if isinstance(data, dict) else data
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"unknown event {kind!r}; known are {', '.join(_KINDS)}")
    cls = _KINDS[kind]
    names = {field.name for field in fields(cls)}
    given = set(data) - {"kind"}
    if given != names:
        raise ValueError(f"event {cls.kind!r} needs exactly the keys {sorted(names)}, not {sorted(given)}")
    values: dict[str, Any] = {}
    for name in names:
        value = data[name]
        if name == "event":
            value = event_from_dict(value)
        elif name == "events":
            if not isinstance(value, list):
                raise ValueError(f"event {cls.kind!r}: events = {value!r} must be a list")
            value = tuple(event_from_dict(part) for part in value)
        elif name == "of":
            value = Unit(value)
        elif name == "what":
            value = str(value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"event {cls.kind!r}: {name} = {value!r} must be a number")
        values[name] = value
    try:
        return cls(**values)
    except OverflowError as error:  # a whole number beyond all that a float can be
        raise ValueError(f"event {cls.kind!r}: {error}") from error


def dumps(event: Event) -> str:
    """`event` as a JSON text that carries the format's version."""
    return json.dumps({"version": FORMAT_VERSION, "event": event.to_dict()})


def loads(text: str) -> Event:
    """The inverse of `dumps`. Raises ValueError on another version, or a text that is no event."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("version") != FORMAT_VERSION:
        version = data.get("version") if isinstance(data, dict) else None
        raise ValueError(f"events of format version {version!r} cannot be read; this project reads {FORMAT_VERSION}")
    return event_from_dict(data.get("event"))
