"""From a target (epsilon, delta) back to a plan: how much noise, how many rounds, how to split the variance.

Every search ends on the safe side: what it returns was itself accounted for, and its epsilon does not exceed the
target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from scipy import special

from pri_rfed.privacy.accountants import ACCOUNTANTS, UnsupportedEvent, best_epsilon
from pri_rfed.privacy.dominance import hardest
from pri_rfed.privacy.events import (
    Composed,
    Event,
    Gaussian,
    Participation,
    PoissonSampled,
    Pure,
    Repeated,
    SampledWithoutReplacement,
    repeat,
)
from pri_rfed.privacy.gaussian import gaussian_delta

if TYPE_CHECKING:
    from pri_rfed.problems.base import Problem
    from pri_rfed.training.base import Trainer

TOLERANCE = 1e-3
"""How far below the target, relatively, the epsilon of the noise that is found may lie."""
REACH = math.log(1e9)
"""A noise this far (as a logarithm) from a first guess is not looked at."""

T = TypeVar("T", bound="Trainer")


# Noise ----------------------------------------------------------------------------------------------------------------


def calibrate_noise(
    trainer: T,
    problem: Problem,
    counts: Iterable[int],
    sampled: int,
    pool: int,
    rounds: int,
    epsilon: float,
    delta: float,
) -> T:
    """`trainer` with the least noise whose global figure is at most (epsilon, delta) for every agent.

    counts: the numbers of records of the agents. In each of the `rounds` rounds `sampled` of a `pool` of agents train.
    The trainer's noise_unit stays what it is.

    Guarantee: the epsilon of the hardest agent, by the smallest sound accountant, is not above the target, and no more
    than 0.1 % below it where epsilon is a continuous function of the noise.

    Raises ValueError where the trainer has no noise, or no noise reaches the target.
    """
    if not hasattr(trainer, "noise"):
        raise ValueError(f"trainer = {trainer.name!r} has no noise to calibrate")
    events = _runs(trainer, problem, counts, sampled, pool, rounds)
    return with_options(trainer, noise=_least_noise(lambda noise: events(noise=noise), epsilon, delta))


def calibrate(event_of: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The least noise for which `event_of(noise)` is (epsilon, delta)-private; more noise must never spend more.

    Guarantee: as for `calibrate_noise`. Raises ValueError where no noise reaches the target, or all do.
    """
    return _least_noise(lambda noise: [event_of(noise)], epsilon, delta)


def _least_noise(events_of: Callable[[float], Sequence[Event]], epsilon: float, delta: float) -> float:
    """The least noise at which none of `events_of(noise)` spends more than the target."""
    _check_target(epsilon, delta)
    start = events_of(1.0)
    if not all(event.is_private for event in start):
        raise ValueError("not every release has a mechanism, so no noise makes it private")
    guess = _guess(lambda x: max(map(_total_mu, events_of(math.exp(-x)))), epsilon, delta)

    def excess(x: float) -> float:
        """log(epsilon/target) at noise e^x, aiming at the middle of the tolerated interval."""
        return _log(max(_epsilon(event, delta) for event in events_of(math.exp(x)))) - _log(epsilon)

    safe, below = -guess, excess(-guess)
    unsafe, above = safe, below
    while below > 0:
        unsafe, above = safe, below
        safe += min(max(above, 0.02), math.log(10)) if math.isfinite(above) else math.log(10)
        if safe > -guess + REACH:
            raise ValueError(_unreachable(events_of(math.exp(safe)), epsilon, delta))
        below = excess(safe)
    while above <= 0:
        safe, below = unsafe, above
        if below > -TOLERANCE:
            return math.exp(safe)
        unsafe -= min(max(-below, 0.02), math.log(10)) if math.isfinite(below) else math.log(10)
        if unsafe < -guess - REACH:
            raise ValueError(
                f"(epsilon, delta) = ({epsilon:g}, {delta:g}) holds without any noise, because a failure with "
                f"probability delta is allowed and a record is touched less often; use a smaller delta"
            )
        above = excess(unsafe)
    turn = 0
    while below <= -TOLERANCE and safe - unsafe > 1e-9:
        x = _between(unsafe, above + TOLERANCE / 2, safe, below + TOLERANCE / 2, bisect=turn % 4 == 3)
        y = excess(x)
        if y <= 0:
            safe, below = x, y
        else:
            unsafe, above = x, y
        turn += 1
    return math.exp(safe)


def _between(a: float, at_a: float, b: float, at_b: float, bisect: bool) -> float:
    """Where the line through (a, at_a > 0) and (b, at_b < 0) is 0, well inside; the middle where it says nothing."""
    if bisect or not (math.isfinite(at_a) and math.isfinite(at_b)) or at_a - at_b <= 0:
        return (a + b) / 2
    share = at_a / (at_a - at_b)
    return a + min(max(share, 1e-3), 1 - 1e-3) * (b - a)


def _unreachable(events: Sequence[Event], epsilon: float, delta: float) -> str:
    at = max(_epsilon(event, delta) for event in events)
    least = "infinite" if math.isinf(at) else f"{at:.4g}"
    return (
        f"epsilon = {epsilon:g} cannot be reached at delta = {delta:g}: however much noise is added, epsilon stays at "
        f"{least}, because not every release of the plan takes part in the noise, or delta is too small to account for"
    )


# Counts ---------------------------------------------------------------------------------------------------------------


def largest_count(event_of: Callable[[int], Event], epsilon: float, delta: float, most: int = 10**6) -> int:
    """The largest n <= `most` for which `event_of(n)` is (epsilon, delta)-private; 0 where already 1 is not.

    `event_of` must spend more as n grows: rounds, sampled agents, local steps.

    Guarantee: the epsilon of the returned n, by the smallest sound accountant, is not above the target.
    """
    _check_target(epsilon, delta)
    if most < 1:
        raise ValueError(f"most = {most!r} must be a whole number >= 1")

    def excess(n: int) -> float:
        return _log(_epsilon(event_of(n), delta)) - _log(epsilon)

    guess = _guess(lambda x: _total_mu(event_of(round(math.exp(x)))), epsilon, delta, 0.0, math.log(most))
    n = min(max(round(math.exp(guess)), 1), most)
    fits, below, fails, above = 0, -math.inf, most + 1, math.inf
    turn = 0
    while fails - fits > 1:
        y = excess(n)
        if y <= 0:
            fits, below = n, y
        else:
            fails, above = n, y
        turn += 1
        if fits == 0 or fails > most:
            # One side is still open: step out towards it, ever farther.
            factor = 1.1 + 0.4 * turn * turn
            n = math.ceil(fits * factor) + 1 if fits else math.floor(fails / factor)
        else:
            x = _between(math.log(fails), above, math.log(fits), below, bisect=turn % 4 == 3)
            n = math.floor(math.exp(x) + 1e-9)
        n = min(max(n, fits + 1), fails - 1)
    return fits


# The split of DP-RSVRG's variance -------------------------------------------------------------------------------------


def optimise_alpha(
    trainer: T,
    problem: Problem,
    counts: Iterable[int],
    sampled: int,
    pool: int,
    rounds: int,
    delta: float,
    accountant: str = "pld",
) -> T:
    """`trainer` (one that has an `alpha`) with the share alpha of the variance for the full gradient that makes the
    global epsilon at `delta` smallest, at the noise it has, for the hardest agent and the accountant in use.

    (dp-rsvrg-fast-sampling.txt, Claim 5, minimises a bound on moments instead; its answer is (sqrt(14) - 1)/13.)
    """
    if not hasattr(trainer, "alpha"):
        raise ValueError(f"trainer = {trainer.name!r} has no alpha: it splits no variance")
    events = _runs(trainer, problem, counts, sampled, pool, rounds)
    return with_options(trainer, alpha=optimise_share(lambda alpha: events(alpha=alpha), delta, accountant))


def optimise_share(events_of: Callable[[float], Sequence[Event]], delta: float, accountant: str = "pld") -> float:
    """The share in (0, 1) at which the largest epsilon at `delta` among `events_of(share)` is smallest, to about two
    digits."""
    from scipy.optimize import minimize_scalar  # here, because it is slow to import

    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r} must be one of {', '.join(ACCOUNTANTS)}")
    epsilon = ACCOUNTANTS[accountant].epsilon
    if not all(event.is_private for event in events_of(0.5)):
        raise ValueError("not every release has a mechanism, so no split of the variance makes it private")

    def cost(logit: float) -> float:
        worst = max(epsilon(event, delta) for event in events_of(float(special.expit(logit))))
        return math.log(worst) if 0 < worst < math.inf else math.copysign(1e3, worst - 1)

    # First by a bound in closed form, then by the accountant around it.
    first = minimize_scalar(
        lambda logit: max(map(_total_mu, events_of(float(special.expit(logit))))), bounds=(-12, 12), method="bounded"
    ).x
    found = minimize_scalar(cost, bounds=(first - 3, first + 3), method="bounded", options={"xatol": 0.01})
    return float(special.expit(found.x))


# The published rule ---------------------------------------------------------------------------------------------------


def published_sigma(
    lipschitz: float, steps: int, records: int, epsilon: float, delta: float, constant: float = 1.0
) -> float:
    """sigma with sigma^2 = c T log(1/delta) L0^2/(n^2 epsilon^2), said to make T steps (epsilon, delta)-private.

    lipschitz: L0, or the clip bound. steps: T local steps; for DP-RSVRG m S, times the restarts. The constant c is not
    given in the papers; experiments take 1. With it the claim does not hold: see `published_comparison`.
    (dp-riemannian-optimization.txt, section 4 and Theorem 1; dp-rsvrg-fast-sampling.txt, Claim 5.)
    """
    _check_target(epsilon, delta)
    for name, value in {"lipschitz": lipschitz, "steps": steps, "records": records, "constant": constant}.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} = {value!r} must be a positive finite number")
    return math.sqrt(constant * steps * math.log(1 / delta)) * lipschitz / (records * epsilon)


@dataclass(frozen=True)
class PublishedComparison:
    """What the published rule claims of one local training, and what is true of it."""

    sigma: float
    delta: float
    epsilon_claimed: float
    epsilon_true: float


def published_comparison(
    event_of: Callable[[float], Event],
    lipschitz: float,
    steps: int,
    records: int,
    epsilon: float,
    delta: float,
    constant: float = 1.0,
) -> PublishedComparison:
    """The rule's noise for a local training `event_of(sigma)`, and the epsilon that it truly has at `delta`."""
    sigma = published_sigma(lipschitz, steps, records, epsilon, delta, constant)
    return PublishedComparison(sigma, delta, epsilon, best_epsilon(event_of(sigma), delta).epsilon)


# Shared ---------------------------------------------------------------------------------------------------------------


def _runs(
    trainer: T, problem: Problem, counts: Iterable[int], sampled: int, pool: int, rounds: int
) -> Callable[..., list[Event]]:
    """From options of the trainer to what the whole run then is to the agents for whom it is hardest."""
    records = sorted({int(n) for n in counts})
    if not records:
        raise ValueError("counts: the number of records of at least one agent is needed")

    def events(**options: float) -> list[Event]:
        changed = with_options(trainer, **options)
        return [
            repeat(Participation(local, sampled, pool), rounds)
            for local in hardest(changed.event(problem, n) for n in records)
        ]

    return events


def with_options(trainer: T, **options: Any) -> T:
    """`trainer`, a frozen dataclass, with other values of some options."""
    return replace(trainer, **options)  # type: ignore[type-var]


def _check_target(epsilon: float, delta: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon = {epsilon!r} must be a positive finite number")
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta!r} must lie strictly between 0 and 1")


def _epsilon(event: Event, delta: float) -> float:
    """The tightest accountant's figure; the smallest sound one where that says nothing finite. The smallest sound one
    is never above it."""
    try:
        epsilon = ACCOUNTANTS["pld"].epsilon(event, delta)
    except UnsupportedEvent:
        epsilon = math.inf
    return epsilon if math.isfinite(epsilon) else best_epsilon(event, delta).epsilon


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _total_mu(event: Event) -> float:
    """Roughly the mu of the one Gaussian release that spends as much (central limit; Dong, Roth, Su 2022).

    Good enough to start a search from, and no bound.
    """
    return math.sqrt(_square(event))


def _square(event: Event) -> float:
    match event:
        case Gaussian():
            return event.mu**2
        case Pure():
            return event.epsilon**2
        case Repeated():
            return event.times * _square(event.event)
        case Composed():
            return sum(map(_square, event.events))
        case Participation():
            return event.rate * _square(event.event)
        case SampledWithoutReplacement() | PoissonSampled():
            inner = _square(event.event)
            return inner if event.rate == 1 else event.rate**2 * math.expm1(min(inner, 200.0))
    return 0.0


def _guess(
    total_mu: Callable[[float], float], epsilon: float, delta: float, low: float = -50.0, high: float = 50.0
) -> float:
    """Roughly the x at which the rising `total_mu(x)` becomes that of a Gaussian release of (epsilon, delta)."""
    for _ in range(30):
        middle = (low + high) / 2
        mu = total_mu(middle)
        low, high = (low, middle) if mu > 0 and gaussian_delta(mu, epsilon) > delta else (middle, high)
    return (low + high) / 2
