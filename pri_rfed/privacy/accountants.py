"""Accountants: from events to (epsilon, delta).

All read the same events. `pld` and `rdp` are sound; `theorem-4.2` reproduces a published claim that is not a guarantee
at record level, and is always shown as such. An event that an accountant does not know is refused, never guessed.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pri_rfed.privacy import loss_distribution as ld
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

Array = NDArray[np.float64]


class UnsupportedEvent(ValueError):
    """The accountant has no sound rule for an event."""


class Accountant(ABC):
    """Turns an event into epsilon at a given delta, and into delta at a given epsilon."""

    name: ClassVar[str]
    sound: ClassVar[bool]
    """Whether its figure is a guarantee."""
    caveat: ClassVar[str] = ""
    """Where it is not sound: why."""

    @abstractmethod
    def supports(self, event: Event) -> str | None:
        """None where the event can be accounted for, otherwise the reason why not."""

    @abstractmethod
    def _epsilon(self, event: Event, delta: float) -> float: ...

    @abstractmethod
    def _delta(self, event: Event, epsilon: float) -> float: ...

    def epsilon(self, event: Event, delta: float) -> float:
        """The smallest epsilon it can show at `delta`; infinite where something was released without a mechanism.

        Raises UnsupportedEvent, and ValueError unless 0 < delta < 1.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta = {delta!r} must lie strictly between 0 and 1")
        if not event.is_private:
            return math.inf
        self._require(event)
        return self._epsilon(event, delta)

    def delta(self, event: Event, epsilon: float) -> float:
        """The smallest delta it can show at `epsilon` >= 0. Raises as `epsilon` does."""
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise ValueError(f"epsilon = {epsilon!r} must be a finite number >= 0")
        if not event.is_private:
            return 1.0
        self._require(event)
        return self._delta(event, epsilon)

    def _require(self, event: Event) -> None:
        reason = self.supports(event)
        if reason is not None:
            raise UnsupportedEvent(f"accountant {self.name}: {reason}")


# Privacy loss distributions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Losses:
    """The losses of a mechanism: `gaussian`, the exact mu of what is Gaussian, apart; then both orders of the pair."""

    mu: float = 0.0
    forward: ld.LossDistribution | None = None
    backward: ld.LossDistribution | None = None
    """None where it equals `forward`."""

    def orders(self) -> tuple[ld.LossDistribution, ...]:
        """The whole as distributions: one where the pair is symmetric, else two."""
        parts = [d for d in (self.forward, self.backward) if d is not None]
        if self.mu == 0:
            return tuple(parts)
        normal = ld.gaussian(self.mu)
        return tuple(ld.composed(normal, d) for d in parts) if parts else (normal,)

    def map(
        self,
        forward: Callable[[ld.LossDistribution], ld.LossDistribution],
        backward: Callable[[ld.LossDistribution], ld.LossDistribution] | None = None,
    ) -> _Losses:
        """Each order through a transform. A symmetric pair stays symmetric unless `backward` is another transform."""
        orders = self.orders()
        if not orders:
            return self
        if len(orders) == 1 and backward is None:
            return _Losses(forward=forward(orders[0]))
        return _Losses(forward=forward(orders[0]), backward=(backward or forward)(orders[-1]))


def _combine(parts: Sequence[_Losses]) -> _Losses:
    """Composition. Gaussians add up exactly: mu is the root of the sum of squares (Dong, Roth, Su 2022)."""
    mu = math.sqrt(sum(part.mu**2 for part in parts))
    rest = [part for part in parts if part.forward is not None]
    if not rest:
        return _Losses(mu)
    forward: ld.LossDistribution | None = None
    backward: ld.LossDistribution | None = None
    symmetric = all(part.backward is None for part in rest)
    for part in rest:
        assert part.forward is not None
        other = part.backward or part.forward
        forward = part.forward if forward is None else ld.composed(forward, part.forward)
        if not symmetric:
            backward = other if backward is None else ld.composed(backward, other)
    return _Losses(mu, forward, backward)


def _losses(event: Event) -> _Losses:
    return _losses_at(event, ld.precision())


@lru_cache(maxsize=64)
def _losses_at(event: Event, precision: ld.Precision) -> _Losses:
    """At the precision in use, which is what distinguishes the entries of the cache."""
    match event:
        case NoRelease():
            return _Losses()
        case Gaussian():
            return _Losses(mu=event.mu)
        case Pure():
            return _Losses(forward=ld.randomized_response(event.epsilon))
        case Approximate():
            return _Losses(forward=ld.randomized_response(event.epsilon, event.delta))
        case Composed():
            return _combine([_losses(part) for part in event.events])
        case Repeated():
            inner = _losses(event.event)
            exact = _Losses(mu=inner.mu * math.sqrt(event.times))
            rest = _Losses(0.0, inner.forward, inner.backward).map(lambda d: ld.repeated(d, event.times))
            return _combine([exact, rest])
        case Participation():
            return _losses(event.event).map(lambda d: ld.participating(d, event.rate))
        case SampledWithoutReplacement():
            if event.batch == event.records:
                return _losses(event.event)
            return _losses(event.event).map(lambda d: ld.sampled_without_replacement(d, event.rate))
        case PoissonSampled():
            if event.rate == 1:
                return _losses(event.event)
            return _losses(event.event).map(
                lambda d: ld.poisson_sampled_remove(d, event.rate), lambda d: ld.poisson_sampled_add(d, event.rate)
            )
    raise UnsupportedEvent(f"accountant pld: unknown event {type(event).__name__}")


class PLDAccountant(Accountant):
    """Numerical composition of privacy loss distributions, pessimistic everywhere: the tightest one here."""

    name = "pld"
    sound = True

    def supports(self, event: Event) -> str | None:
        match event:
            case Composed():
                return next((reason for part in event.events if (reason := self.supports(part))), None)
            case SampledWithoutReplacement():
                inner = self.supports(event.event)
                if inner is None and _losses(event.event).backward is not None:
                    return "sampling without replacement needs a mechanism whose two orders are alike"
                return inner
            case Repeated() | Participation() | PoissonSampled():
                return self.supports(event.event)
            case NoRelease() | Gaussian() | Pure() | Approximate() | NonPrivate():
                return None
        return f"unknown event {type(event).__name__}"

    def _epsilon(self, event: Event, delta: float) -> float:
        return max((d.epsilon(delta) for d in _losses(event).orders()), default=0.0)

    def _delta(self, event: Event, epsilon: float) -> float:
        return max((d.delta(epsilon) for d in _losses(event).orders()), default=0.0)


# Renyi differential privacy -------------------------------------------------------------------------------------------

ORDERS: Array = np.concatenate([np.arange(2, 65), [72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512]]).astype(
    float
)
"""Orders at which the RDP accountant looks: whole numbers, where autodp's bounds for sampling are stated."""

_Curve = Callable[[float], float]


def _autodp_sampled(curve: _Curve, rate: float, poisson: bool) -> _Curve:
    from autodp.autodp_core import Mechanism
    from autodp.transformer_zoo import AmplificationBySampling

    mechanism = Mechanism()
    mechanism.name, mechanism.params = "inner", {}
    mechanism.neighboring = "add_only" if poisson else "replace_one"
    mechanism.RenyiDP = curve
    sampled = _quiet(AmplificationBySampling(PoissonSampling=poisson)(mechanism, rate).RenyiDP)
    # Sampling never harms (divergences are quasi-convex), but autodp's bound for Poisson samples can say that it does.
    return lambda order: min(sampled(order), curve(order))


def _quiet(curve: _Curve) -> _Curve:
    """autodp divides by zero and takes logarithms of it on its way to correct values."""

    def evaluate(order: float) -> float:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(curve(order))

    return evaluate


@lru_cache(maxsize=64)
def _rdp(event: Event) -> _Curve:
    match event:
        case NoRelease():
            return lambda order: 0.0
        case Gaussian():
            # What autodp's GaussianMechanism says, too; but importing autodp takes longer than accounting.
            return lambda order: order * event.mu**2 / 2
        case Pure():
            from autodp.mechanism_zoo import PureDP_Mechanism

            return _quiet(PureDP_Mechanism(eps=event.epsilon).RenyiDP)
        case Composed():
            parts = [_rdp(part) for part in event.events]
            return lambda order: sum(part(order) for part in parts)
        case Repeated():
            inner, times = _rdp(event.event), event.times
            return lambda order: times * inner(order)
        case Participation():
            inner, rate = _rdp(event.event), event.rate
            return inner if rate == 1 else lambda order: _participating_rdp(inner(order), order, rate)
        case SampledWithoutReplacement():
            inner = _rdp(event.event)
            return inner if event.batch == event.records else _autodp_sampled(inner, event.rate, poisson=False)
        case PoissonSampled():
            inner = _rdp(event.event)
            return inner if event.rate == 1 else _autodp_sampled(inner, event.rate, poisson=True)
    raise UnsupportedEvent(f"accountant rdp: unknown event {type(event).__name__}")


def _participating_rdp(local: float, order: float, rate: float) -> float:
    """log(1 - kappa + kappa e^{(a - 1) rho})/(a - 1)."""
    exponent = (order - 1) * local
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)) / (order - 1)


def rdp_curve(event: Event, orders: Array = ORDERS) -> Array:
    """The Renyi divergence bound of `event` at each of `orders`, in nats. Raises UnsupportedEvent."""
    RDPAccountant()._require(event)
    if not event.is_private:
        return np.full(len(orders), math.inf)
    curve = _rdp(event)
    values = np.array([curve(float(order)) for order in orders])
    return np.where(np.isnan(values), math.inf, values)


def rdp_to_epsilon(curve: Array, orders: Array, delta: float) -> Array:
    """Epsilon at `delta` by each order (Balle et al. 2020, Theorem 21); the guarantee is any one of them."""
    with np.errstate(invalid="ignore"):
        epsilon = curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return np.maximum(epsilon, 0.0)


def _is_sampled(event: Event) -> bool:
    """Whether there is Poisson sampling anywhere in the event."""
    return isinstance(event, PoissonSampled) or any(map(_is_sampled, event.parts))


class RDPAccountant(Accountant):
    """Renyi differential privacy on autodp's sampling bounds."""

    name = "rdp"
    sound = True

    def supports(self, event: Event) -> str | None:
        match event:
            case Composed():
                return next((reason for part in event.events if (reason := self.supports(part))), None)
            case PoissonSampled() if _is_sampled(event.event):
                return "autodp's bound for Poisson samples is used for mechanisms that are not samples themselves only"
            case Repeated() | Participation() | SampledWithoutReplacement() | PoissonSampled():
                return self.supports(event.event)
            case Approximate():
                return "a mechanism with delta > 0 of which nothing else is known has no finite Renyi divergence"
            case NoRelease() | Gaussian() | Pure() | NonPrivate():
                return None
        return f"unknown event {type(event).__name__}"

    def _epsilon(self, event: Event, delta: float) -> float:
        return float(rdp_to_epsilon(rdp_curve(event), ORDERS, delta).min())

    def _delta(self, event: Event, epsilon: float) -> float:
        curve = rdp_curve(event)
        log_delta = (ORDERS - 1) * (curve - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
        return math.exp(min(0.0, float(log_delta.min())))


# The published claim --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedClaim:
    """What Theorem 4.2 of papers/prirfed says of a whole run."""

    sequential: float
    """epsilon by sequential composition over rounds; its delta is `delta`."""
    advanced: float
    """epsilon by advanced composition over rounds; its delta is `delta` + delta_hat."""
    delta: float


def theorem_4_2(
    epsilon: float, delta: float, sampled: int, pool: int, rounds: int, delta_hat: float = 1e-3
) -> PublishedClaim:
    """Theorem 4.2 for local trainings that are (epsilon, delta)-DP: not a guarantee, see `Theorem42Accountant`."""
    rate = sampled / pool
    exponent = sampled * epsilon
    per_round = math.log1p(rate * math.expm1(exponent)) if exponent < 700 else exponent + math.log(rate)
    try:
        growth = math.expm1(per_round)
    except OverflowError:
        growth = math.inf
    return PublishedClaim(
        sequential=rounds * per_round,
        advanced=math.sqrt(2 * rounds * math.log(1 / delta_hat)) * per_round + rounds * per_round * growth,
        delta=rounds * rate * sampled * delta,
    )


class Theorem42Accountant(Accountant):
    """Theorem 4.2 of papers/prirfed (sequential and advanced composition, the smaller of the two), for comparison."""

    name = "theorem-4.2"
    sound = False
    caveat = (
        "not a guarantee at record level: sampling amplifies for neighbours that differ in a sampled unit, but another "
        "agent's whole data set is no neighbour of this one's; seeing the output can tell who took part, and the ratio "
        "is e^epsilon again. It also charges all sampled agents to one record, hence is loose for s > 1"
    )

    def supports(self, event: Event) -> str | None:
        return None if self._split(event) else "it speaks only of T equal rounds of sampled agents"

    @staticmethod
    def _split(event: Event) -> tuple[Participation, int] | None:
        inner, rounds = (event.event, event.times) if isinstance(event, Repeated) else (event, 1)
        return (inner, rounds) if isinstance(inner, Participation) else None

    def _epsilon(self, event: Event, delta: float) -> float:
        split = self._split(event)
        assert split is not None
        round_, rounds = split
        local_losses = PLDAccountant()
        best = math.inf
        for share in (0.0, *np.geomspace(1e-3, 0.999, 25)):
            delta_hat = share * delta
            local_delta = (delta - delta_hat) / (rounds * round_.rate * round_.sampled)
            if not 0 < local_delta < 1:
                continue
            local = local_losses.epsilon(round_.event, local_delta)
            claim = theorem_4_2(local, local_delta, round_.sampled, round_.pool, rounds, delta_hat or 1e-3)
            best = min(best, claim.sequential if share == 0 else claim.advanced)
        return best

    def _delta(self, event: Event, epsilon: float) -> float:
        """By bisection on delta: the claim's epsilon falls as delta grows."""
        low, high = 1e-12, 1 - 1e-12
        if self._epsilon(event, high) > epsilon:
            return 1.0
        for _ in range(60):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._epsilon(event, middle) <= epsilon else (middle, high)
        return high


ACCOUNTANTS: dict[str, Accountant] = {
    accountant.name: accountant for accountant in (PLDAccountant(), RDPAccountant(), Theorem42Accountant())
}


@dataclass(frozen=True)
class Figure:
    """An epsilon, and the accountant that showed it."""

    epsilon: float
    accountant: str


def best_epsilon(event: Event, delta: float) -> Figure:
    """The smallest epsilon that a sound accountant shows. Raises UnsupportedEvent where none knows the event."""
    figures: list[Figure] = []
    reasons: list[str] = []
    for accountant in ACCOUNTANTS.values():
        if not accountant.sound:
            continue
        try:
            figures.append(Figure(accountant.epsilon(event, delta), accountant.name))
        except UnsupportedEvent as error:
            reasons.append(str(error))
    if not figures:
        raise UnsupportedEvent("; ".join(reasons))
    return min(figures, key=lambda figure: figure.epsilon)


__all__ = [
    "ACCOUNTANTS",
    "ORDERS",
    "Accountant",
    "Figure",
    "PublishedClaim",
    "UnsupportedEvent",
    "best_epsilon",
    "rdp_curve",
    "rdp_to_epsilon",
    "theorem_4_2",
]
