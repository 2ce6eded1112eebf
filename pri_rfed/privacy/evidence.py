"""From samples of a mechanism's outputs on two neighbouring data sets to lower bounds on its epsilon.

A mechanism that is (epsilon, delta)-DP satisfies P(E) <= e^epsilon Q(E) + delta for every event E, whichever of the two
neighbours P and Q belong to. So an event that is frequent under P and rare under Q refutes a small epsilon. Everything
that is chosen (how outputs become one number, the event, the order of the neighbours) is chosen on the first quarter of
the samples, and frequencies are counted on the rest: there is one event for each bound, and so no multiple testing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pri_rfed.privacy.accountants import ACCOUNTANTS, Figure, UnsupportedEvent
from pri_rfed.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated, SampledWithoutReplacement
from pri_rfed.privacy.gaussian import gaussian_epsilon

Array = NDArray[np.float64]

THRESHOLDS = 400
"""How many thresholds are tried in choosing an event."""


SOUND = tuple(name for name, accountant in ACCOUNTANTS.items() if accountant.sound)


@dataclass(frozen=True)
class Claim:
    """What is said of a mechanism: the smallest figure that the named accountants give for `event`."""

    event: Event
    accountants: tuple[str, ...] = SOUND

    def figure(self, delta: float) -> Figure:
        """The smallest epsilon at `delta`, and whose it is. Raises UnsupportedEvent."""
        return Figure(*self._least("epsilon", delta))

    def delta(self, epsilon: float) -> float:
        """The smallest delta at `epsilon`. Raises UnsupportedEvent."""
        return self._least("delta", epsilon)[0]

    def _least(self, of: Literal["epsilon", "delta"], at: float) -> tuple[float, str]:
        figures, reasons = [], []
        for name in self.accountants:
            try:
                figures.append((_figure(name, self.event, of, at), name))
            except UnsupportedEvent as error:
                reasons.append(str(error))
        if not figures:
            raise UnsupportedEvent("; ".join(reasons))
        return min(figures)


@lru_cache(maxsize=1024)
def _figure(accountant: str, event: Event, of: Literal["epsilon", "delta"], at: float) -> float:
    """An accountant's epsilon or delta: audits of one event on many manifolds ask for the same figures again."""
    return ACCOUNTANTS[accountant].epsilon(event, at) if of == "epsilon" else ACCOUNTANTS[accountant].delta(event, at)


@dataclass(frozen=True)
class Witness:
    """A point of the privacy profile: the mechanism's delta at `epsilon` is at least `delta`, where `claimed` is
    claimed."""

    epsilon: float
    delta: float
    claimed: float

    @property
    def refutes(self) -> bool:
        return self.delta > self.claimed


@dataclass(frozen=True)
class Evidence:
    """What the samples show. All of it holds together with probability `confidence` at least.

    clopper_pearson: a lower bound on epsilon at `delta`, without any assumption. gaussian: the same from a lower bound
    on mu, where what is claimed is a composition of Gaussians (otherwise None); it assumes that the mechanism's
    trade-off between errors has the shape of a Gaussian's. witness: the most telling point of the claimed profile,
    without any assumption; it refutes a claim that is wrong at another delta than this one.
    """

    delta: float
    confidence: float
    samples: int
    """On each of the two data sets; a quarter of them choose."""
    claimed: Figure
    clopper_pearson: float
    gaussian: float | None
    witness: Witness

    @property
    def lower_bound(self) -> float:
        """The larger of the bounds on epsilon."""
        return max(self.clopper_pearson, self.gaussian or 0.0)

    @property
    def ratio(self) -> float:
        """The lower bound as a share of what is claimed: near 1, neither can be improved much."""
        return self.lower_bound / self.claimed.epsilon if self.claimed.epsilon > 0 else math.inf

    @property
    def refuted(self) -> bool:
        """Whether the claim is wrong. That a Gaussian claim is exceeded by the Gaussian bound refutes it without the
        bound's assumption, because the claimed mu bounds the errors of every test."""
        return self.lower_bound > self.claimed.epsilon or self.witness.refutes


def evidence(ones: Array, others: Array, claim: Claim, delta: float, confidence: float) -> Evidence:
    """Lower bounds from outputs on two neighbouring data sets, [samples, numbers] each: an output is described by so
    many numbers, any function of it, NaN standing for 0.

    Raises ValueError unless both have equally many samples, at least 100, 0 < delta < 1 and 0 < confidence < 1;
    UnsupportedEvent if the claim's accountants do not know its event.
    """
    if ones.shape != others.shape or ones.ndim != 2:
        raise ValueError(f"samples must be two equal arrays [samples, numbers], not {ones.shape} and {others.shape}")
    check_options(len(ones), delta, confidence)
    claimed = claim.figure(delta)
    if math.isinf(claimed.epsilon):
        raise ValueError("nothing to audit: the claimed epsilon is infinite")
    ones, others = np.nan_to_num(ones), np.nan_to_num(others)
    first = len(ones) // 4
    chosen, checked = [(ones[part], others[part]) for part in (slice(first), slice(first, None))]
    measure = _statistics(*chosen, claim.event)
    chosen_values, checked_values = (np.stack([measure(x) for x in pair]) for pair in (chosen, checked))
    thresholds = np.stack([_thresholds(values) for values in np.moveaxis(chosen_values, 2, 0)])
    train, test = _Counts.of(chosen_values, thresholds), _Counts.of(checked_values, thresholds)

    gaussian = is_gaussian(claim.event)
    bounds = 3 if gaussian else 2
    alpha = (1 - confidence) / bounds / 2  # either of the two frequencies in a bound may fail
    epsilon = float(test.epsilons(delta, alpha)[_best(train.epsilons(delta, alpha))])
    mu = float(test.mus(alpha)[_best(train.mus(alpha))])
    return Evidence(
        delta=delta,
        confidence=confidence,
        samples=len(ones),
        claimed=claimed,
        clopper_pearson=max(0.0, epsilon),
        gaussian=gaussian_epsilon(mu, delta) if gaussian else None,
        witness=_witness(train, test, claim, claimed.epsilon, alpha),
    )


def check_options(samples: int, delta: float, confidence: float) -> None:
    """Raise ValueError with what is wrong about the plan of an audit."""
    wrong = [] if samples >= 100 else [f"repetitions = {samples!r} must be at least 100"]
    for name, value in (("delta", delta), ("confidence", confidence)):
        if not 0 < value < 1:
            wrong.append(f"{name} = {value!r} must lie strictly between 0 and 1")
    if wrong:
        raise ValueError("audit: " + "; ".join(wrong))


def is_gaussian(event: Event) -> bool:
    """Whether `event` is a composition of Gaussian releases, and so itself like one."""
    match event:
        case Gaussian():
            return True
        case Repeated():
            return is_gaussian(event.event)
        case Composed():
            return all(map(is_gaussian, event.events))
    return False


# Frequencies of events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counts:
    """How often each event occurred under P and under Q, [4, statistics, thresholds] of n each: a statistic is above a
    threshold or below it, and either data set may be the one of P."""

    p: NDArray[np.int64]
    q: NDArray[np.int64]
    n: int

    @classmethod
    def of(cls, values: Array, thresholds: Array) -> _Counts:
        """values: [2, n, statistics] for the two data sets; thresholds: [statistics, thresholds]."""
        n = values.shape[1]
        ordered = np.sort(values, axis=1)
        ones, others = (
            np.stack([n - np.searchsorted(column, at) for column, at in zip(side.T, thresholds, strict=True)])
            for side in ordered
        )
        return cls(np.stack([ones, others, n - ones, n - others]), np.stack([others, ones, n - others, n - ones]), n)

    def epsilons(self, delta: float, alpha: float) -> Array:
        """Lower bounds on epsilon: P(E) <= e^epsilon Q(E) + delta. Minus infinity where there is none."""
        p = at_least(self.p, self.n, alpha)
        return np.log(np.maximum(p - delta, 0.0), where=p > delta, out=np.full(p.shape, -np.inf)) - np.log(
            at_most(self.q, self.n, alpha)
        )

    def mus(self, alpha: float) -> Array:
        """Lower bounds on mu: the quantile of P(E) lies at most mu above that of Q(E) (Dong, Roth, Su 2022)."""
        return special.ndtri(at_least(self.p, self.n, alpha)) - special.ndtri(at_most(self.q, self.n, alpha))

    def deltas(self, epsilon: float, alpha: float) -> Array:
        """Lower bounds on the delta at `epsilon`."""
        return at_least(self.p, self.n, alpha) - math.exp(epsilon) * at_most(self.q, self.n, alpha)

    def significance(self, epsilon: float, delta: float) -> Array:
        """By how many standard errors P(E) - e^epsilon Q(E) exceeds delta."""
        p, q = ((count + 0.5) / (self.n + 1) for count in (self.p, self.q))
        spread = p * (1 - p) + math.exp(2 * epsilon) * q * (1 - q)
        return (p - math.exp(epsilon) * q - delta) / np.sqrt(spread / self.n)


def at_least(count: NDArray[np.int64], n: int, alpha: float) -> Array:
    """The Clopper-Pearson bound that a probability exceeds but for a chance of alpha, from `count` hits in n."""
    return np.where(count > 0, special.betaincinv(np.maximum(count, 1), n - count + 1, alpha), 0.0)


def at_most(count: NDArray[np.int64], n: int, alpha: float) -> Array:
    """The one that it stays below but for a chance of alpha."""
    return 1 - at_least(n - count, n, alpha)


def _best(scores: Array) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(int(np.argmax(scores)), scores.shape)))


def _thresholds(values: Array) -> Array:
    """Values [2, n] of a statistic that lie between the samples, densest where few samples lie beyond."""
    pooled = np.sort(values, axis=None)
    rank = np.unique(np.geomspace(1, len(pooled) / 2, THRESHOLDS // 2).astype(int))
    upper, lower = pooled[-rank], pooled[rank - 1]
    at = np.concatenate([upper, lower])
    return np.pad(at, (0, THRESHOLDS - len(at)), mode="edge")


def _witness(train: _Counts, test: _Counts, claim: Claim, claimed: float, alpha: float) -> Witness:
    """The point of the claimed profile that the choosing samples speak against most, judged by the others."""
    points = [(float(e), claim.delta(float(e))) for e in np.linspace(0.0, 1.25, 6) * claimed]
    scores = np.stack([train.significance(epsilon, delta) for epsilon, delta in points])
    at, *event = _best(scores)
    epsilon, delta = points[at]
    return Witness(epsilon, max(0.0, float(test.deltas(epsilon, alpha)[tuple(event)])), delta)


# One number for an output ---------------------------------------------------------------------------------------------


def _statistics(ones: Array, others: Array, event: Event) -> Callable[[Array], Array]:
    """Ways to turn outputs [n, numbers] into one number each, learnt from samples: a map to [n, statistics].

    The first is Fisher's linear discriminant, which is the likelihood ratio of Gaussian releases. Where `event` samples
    the records, the second is the likelihood ratio of steps that hold the differing record at that rate.
    """
    spread = (np.cov(ones, rowvar=False) + np.cov(others, rowvar=False)).reshape(2 * (ones.shape[1],)) / 2
    shift = ones.mean(axis=0) - others.mean(axis=0)
    # A number without noise has no spread; the ridge keeps it usable, with all the weight that it deserves.
    ridge = 1e-12 * np.trace(spread) / len(shift) + np.finfo(float).tiny
    weights = np.linalg.solve(spread + ridge * np.eye(len(shift)), shift)
    sampled = _sampled(event)
    if sampled is None:
        return lambda x: (x @ weights)[:, None]
    rate, mu = sampled
    centre, scale = others.mean(axis=0), np.sqrt(np.diag(spread) + ridge)
    scale = np.minimum(scale, np.sqrt(others.var(axis=0) + ridge))
    signs = np.where(shift < 0, -1.0, 1.0)

    def measure(x: Array) -> Array:
        z = signs * (x - centre) / scale
        ratios = np.logaddexp(math.log1p(-rate), math.log(rate) + mu * z - mu * mu / 2)
        return np.stack([x @ weights, ratios.sum(axis=1)], axis=1)

    return measure


def _sampled(event: Event) -> tuple[float, float] | None:
    """Rate, and mu within the batch, of the first sampled Gaussian in `event`; None if there is none."""
    match event:
        case SampledWithoutReplacement() | PoissonSampled() if isinstance(event.event, Gaussian) and event.rate < 1:
            return event.rate, event.event.mu
        case Repeated():
            return _sampled(event.event)
        case Composed():
            return next((found for part in event.events if (found := _sampled(part))), None)
    return None
