"""Privacy loss distributions: the exact currency of (epsilon, delta) under composition.

For a pair (P, Q) of output distributions the privacy loss is L = log dP/dQ, and the hockey-stick divergence
H_{e^x}(P || Q) = E_P[(1 - e^{x - L})_+] is the smallest delta at epsilon = x. Here the law of L under P is held on a
grid, plus a mass at infinity. Every step errs on the pessimistic side: a mass between two grid points is split between
them so that its P-mass *and* its Q-mass stay what they are (connect the dots, Doroshenko et al. 2022,
arXiv:2207.04380), which can only enlarge the divergence; whatever is cut off goes to infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

Array = NDArray[np.float64]

RESOLUTION = 1000
"""Grid points to one standard deviation of the loss."""
MOST_POINTS = 1 << 18
"""A grid is made coarser rather than longer than this before composition."""
TAIL = 1e-16
"""Mass that one operation may cut off (and move to infinity)."""
ROUNDING = 4 * float(np.finfo(float).eps)
"""Error of the divergence for each composition that one transform does: about eight times the largest that was seen."""
MOST_AT_ONCE = 1024
"""Compositions done by one transform; more are done in turns, the grid being made coarser in between."""


@dataclass(frozen=True)
class Precision:
    """How fine grids are. Coarse or fine, what is computed on them is an upper bound."""

    resolution: int = RESOLUTION
    most_points: int = MOST_POINTS


FINE = Precision()
COARSE = Precision(100, 1 << 15)
"""About ten times as fast; epsilon is larger by 1e-5 of it or so."""
_precision: ContextVar[Precision] = ContextVar("precision", default=FINE)


def precision() -> Precision:
    """The one in use here."""
    return _precision.get()


@contextmanager
def computed_at(chosen: Precision) -> Iterator[None]:
    """What is accounted for inside is computed at this precision."""
    before = _precision.set(chosen)
    try:
        yield
    finally:
        _precision.reset(before)


@dataclass(frozen=True)
class LossDistribution:
    """The law under P of the privacy loss of a pair (P, Q), pessimistically on a grid.

    probs[i] is the mass at loss (lowest + i) * grid, `infinity` the mass at infinite loss.
    """

    grid: float
    lowest: int
    probs: Array
    infinity: float

    @cached_property
    def losses(self) -> Array:
        return (float(self.lowest) + np.arange(len(self.probs), dtype=float)) * self.grid

    @property
    def is_nothing(self) -> bool:
        """Whether all finite losses are 0, as where nothing was released."""
        return not self.probs[self.losses != 0].any()

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the finite losses."""
        mass = self.probs.sum()
        if mass <= 0:
            return 0.0
        mean = (self.probs @ self.losses) / mass
        return math.sqrt(max(0.0, float(self.probs @ (self.losses - mean) ** 2 / mass)))

    @cached_property
    def _tails(self) -> tuple[Array, Array, Array]:
        """At each grid point x >= 0: x, and the P-mass and e^x times the Q-mass of all that lies at x or above."""
        first = max(0, -self.lowest)
        losses, falling = self.losses[first:], self.probs[first:][::-1]
        return losses, np.cumsum(falling)[::-1], _discounted_sums(falling, self.grid)[::-1]

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at e^epsilon, for epsilon >= 0."""
        losses, above_p, above_q = self._tails
        i = int(np.searchsorted(losses, epsilon, side="right"))
        if i == len(losses):
            return self.infinity
        return min(1.0, self.infinity + max(0.0, float(above_p[i] - math.exp(epsilon - losses[i]) * above_q[i])))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 of divergence <= delta; infinite where the mass at infinity exceeds delta."""
        if self.infinity > delta:
            return math.inf
        losses, above_p, above_q = self._tails
        if len(losses) == 0 or self.delta(0.0) <= delta:
            return 0.0
        # At a grid point the divergence counts what lies strictly above it.
        at_grid = np.append(above_p[1:] - math.exp(-self.grid) * above_q[1:], 0.0) + self.infinity
        i = int(np.argmax(at_grid <= delta))
        # From grid point i - 1, or 0, to i it is infinity + above_p[i] - e^{epsilon - losses[i]} above_q[i].
        epsilon = losses[i] + math.log((above_p[i] + self.infinity - delta) / above_q[i])
        return float(np.clip(epsilon, losses[i - 1] if i else 0.0, losses[i]))


def _discounted_sums(masses: Array, step: float) -> Array:
    """y_i = masses_i + e^{-step} y_{i-1}, all by cumulative sums of positive terms: nothing cancels.

    (scipy.signal.lfilter does the same; importing it takes longer than all else that an accountant needs.)
    """
    width = max(1, min(len(masses), int(min(4096.0, 500 / step))))  # fits the cache; and e^500 is a number, still
    growth = np.exp(step * np.arange(width))
    sums = np.empty_like(masses)
    before = 0.0
    for start in range(0, len(masses), width):
        part = masses[start : start + width]
        within = growth[: len(part)]
        sums[start : start + width] = (np.cumsum(part * within) + before * math.exp(-step)) / within
        before = float(sums[start + len(part) - 1])
    return sums


def discretise(losses: Array, probs: Array, infinity: float) -> LossDistribution:
    """Masses `probs` at finite increasing `losses`, brought pessimistically onto a grid that fits their spread."""
    keep = probs > 0
    losses, probs = losses[keep], probs[keep]
    if len(losses) == 0:
        return LossDistribution(1.0, 0, np.zeros(1), infinity)
    above = np.cumsum(probs[::-1])[::-1]
    cut = int(np.searchsorted(-above, -TAIL * above[0], side="right"))
    cut = max(cut, 1)
    infinity += float(probs[cut:].sum())
    losses, probs = losses[:cut], probs[:cut]
    below = np.cumsum(probs)
    # Mass at very low loss may be moved up: that is pessimistic, too.
    low = int(np.searchsorted(below, TAIL, side="right"))
    low = min(low, len(probs) - 1)
    if low:
        probs = np.concatenate([[below[low]], probs[low + 1 :]])
        losses = losses[low:]
    mean = float(probs @ losses / probs.sum())
    spread = math.sqrt(float(probs @ (losses - mean) ** 2))
    farthest = float(np.abs(losses).max())
    # A grid finer than rounding would only number the points beyond what integers hold.
    use = precision()
    grid = max(spread / use.resolution, float(losses[-1] - losses[0]) / use.most_points, farthest * 1e-12)
    if len(losses) == 1:
        grid = farthest or 1.0
    return onto_grid(losses, probs, infinity, grid)


def onto_grid(losses: Array, probs: Array, infinity: float, grid: float) -> LossDistribution:
    """The same onto a given grid: mass at x between points x_i and x_i + h is split with weight
    (1 - e^{-(x - x_i)})/(1 - e^{-h}) on the upper one, which keeps its Q-mass."""
    position = losses / grid
    index = np.floor(position)
    # A loss that is a grid point up to rounding stays there: no pessimism is owed to rounding.
    nearest = np.rint(position)
    index = np.where(np.abs(position - nearest) < 1e-9, nearest, index)
    upper = np.clip(np.expm1(-np.maximum(losses - index * grid, 0.0)) / math.expm1(-grid), 0.0, 1.0)
    lowest = int(index[0])
    at = index.astype(np.int64) - lowest
    size = int(at[-1]) + 2
    out = np.zeros(size)
    out += np.bincount(at, weights=probs * (1 - upper), minlength=size)
    out += np.bincount(at + 1, weights=probs * upper, minlength=size)
    return LossDistribution(grid, lowest, out, infinity)


def coarsen(d: LossDistribution, grid: float) -> LossDistribution:
    """`d` on another, coarser grid."""
    return d if grid == d.grid else onto_grid(d.losses, d.probs, d.infinity, grid)


def gaussian(mu: float) -> LossDistribution:
    """N(mu, 1) against N(0, 1): the loss is N(mu^2/2, mu^2) under P and N(-mu^2/2, mu^2) under Q."""
    reach = -float(special.ndtri(TAIL / 2))
    resolution = precision().resolution
    points = math.ceil(2 * reach * resolution)
    grid = mu / resolution
    lowest = math.floor((mu * mu / 2 - reach * mu) / grid)
    edges = (lowest + np.arange(points + 2)) * grid
    z = edges / mu - mu / 2
    # Interval masses from whichever tail is the small one, so that none is lost to cancellation.
    p = np.where(z[:-1] > 0, -np.diff(special.ndtr(-z)), np.diff(special.ndtr(z)))
    # Share of the upper edge (1 - e^{x_i - L} averaged over P within the interval) / (1 - e^{-h}).
    shifted = z + mu
    log_q = np.where(
        shifted[:-1] > 0,
        _log_difference(special.log_ndtr(-shifted[:-1]), special.log_ndtr(-shifted[1:])),
        _log_difference(special.log_ndtr(shifted[1:]), special.log_ndtr(shifted[:-1])),
    )
    q_scaled = np.exp(log_q + edges[:-1])
    up = np.clip((p - q_scaled) / -math.expm1(-grid), 0.0, p)
    probs = np.zeros(len(edges))
    probs[:-1] += p - up
    probs[1:] += up
    probs[0] += float(special.ndtr(z[0]))
    return LossDistribution(grid, lowest, probs, float(special.ndtr(-z[-1])))


def _log_difference(a: Array, b: Array) -> Array:
    """log(e^a - e^b) for a >= b."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a > b, a + np.log(-np.expm1(np.minimum(b - a, 0.0))), -np.inf)


def randomized_response(epsilon: float, delta: float = 0.0) -> LossDistribution:
    """What dominates every (epsilon, delta)-DP mechanism: infinite loss with mass delta, else loss +-epsilon."""
    if epsilon == 0:
        return LossDistribution(1.0, 0, np.array([1.0 - delta]), delta)
    up = (1 - delta) * float(special.expit(epsilon))
    down = (1 - delta) * float(special.expit(-epsilon))
    resolution = precision().resolution
    probs = np.zeros(2 * resolution + 1)
    probs[0], probs[-1] = down, up
    return LossDistribution(epsilon / resolution, -resolution, probs, delta)


def sampled_without_replacement(d: LossDistribution, rate: float) -> LossDistribution:
    """A mechanism of symmetric profile `d` on a uniformly drawn share `rate` of the records, replace-one neighbours.

    The profile is delta_q(x) = q delta(log(1 + (e^x - 1)/q)) for x >= 0, mirrored for x < 0 by
    delta(-x) = 1 - e^{-x} + e^{-x} delta(x) (Balle, Barthe, Gaboardi 2018, Theorem 9). As a law: a loss y > 0 of mass p
    becomes log(1 + q(e^y - 1)) with P-mass q p + (1 - q) p e^{-y} and Q-mass p e^{-y}; the negative side mirrors the
    positive one, P and Q exchanged; what remains lies at 0.
    """
    if rate == 1:
        return d
    positive = (d.losses > 0) & (d.probs > 0)
    y, p = d.losses[positive], d.probs[positive]
    q_mass = p * np.exp(-y)
    x = _mixed_loss(y, rate)
    p_mass = rate * p + (1 - rate) * q_mass
    infinity = rate * d.infinity
    zero = max(0.0, 1 - infinity - float(p_mass.sum()) - float(q_mass.sum()))
    return discretise(
        np.concatenate([-x[::-1], [0.0], x]), np.concatenate([q_mass[::-1], [zero], p_mass]), infinity
    )


def poisson_sampled_remove(d: LossDistribution, rate: float) -> LossDistribution:
    """(1 - q) Q + q P against Q, from the law `d` of P against Q: the record is there.

    Source: Zhu, Dong, Wang 2022, Theorem 11.
    """
    if rate == 1:
        return d
    with np.errstate(divide="ignore"):
        q_mass = np.exp(np.minimum(np.log(d.probs) - d.losses, 0.0))
    x = _mixed_loss(d.losses, rate)
    p_mass = rate * d.probs + (1 - rate) * q_mass
    never = max(0.0, 1 - float(q_mass.sum()))  # Q where P has no mass
    return discretise(
        np.concatenate([[math.log1p(-rate)], x]), np.concatenate([[(1 - rate) * never], p_mass]), rate * d.infinity
    )


def poisson_sampled_add(d: LossDistribution, rate: float) -> LossDistribution:
    """Q against (1 - q) Q + q P, from the law `d` of Q against P: the record is not there."""
    if rate == 1:
        return d
    x = -np.logaddexp(math.log1p(-rate), math.log(rate) - d.losses)
    return discretise(
        np.concatenate([x, [-math.log1p(-rate)]]), np.concatenate([d.probs, [d.infinity]]), 0.0
    )


def _mixed_loss(y: Array, rate: float) -> Array:
    """log(1 + q (e^y - 1)), exact near 0 and without overflow."""
    small = np.abs(y) < 1
    return np.where(
        small, np.log1p(rate * np.expm1(np.where(small, y, 0.0))), np.logaddexp(math.log1p(-rate), math.log(rate) + y)
    )


def participating(d: LossDistribution, rate: float) -> LossDistribution:
    """The mixture (1 - rate) x nothing + rate x d, its choice revealed: mass 1 - rate at loss 0."""
    if rate == 1:
        return d
    low, high = min(d.lowest, 0), max(d.lowest + len(d.probs) - 1, 0)
    most = precision().most_points
    if high - low > len(d.probs) + most:  # all losses far away from 0
        return participating(coarsen(d, d.grid * math.ceil(2 * (high - low) / most)), rate)
    probs = np.zeros(high - low + 1)
    start = d.lowest - low
    probs[start : start + len(d.probs)] = rate * d.probs
    probs[-low] += 1 - rate
    return LossDistribution(d.grid, low, probs, rate * d.infinity)


def composed(a: LossDistribution, b: LossDistribution) -> LossDistribution:
    """Both, on the same data."""
    infinity = a.infinity + b.infinity - a.infinity * b.infinity
    for d, other in ((a, b), (b, a)):
        if d.is_nothing:  # it has no say in the grid
            return replace(other, probs=other.probs * d.probs.sum(), infinity=infinity)
    grid = max(a.grid, b.grid)
    a, b = coarsen(a, grid), coarsen(b, grid)
    size = len(a.probs) + len(b.probs) - 1
    n = fft.next_fast_len(size, real=True)
    probs = fft.irfft(fft.rfft(a.probs, n) * fft.rfft(b.probs, n), n)[:size]
    return _fit(LossDistribution(grid, a.lowest + b.lowest, np.maximum(probs, 0.0), infinity + 2 * ROUNDING))


def repeated(d: LossDistribution, times: int) -> LossDistribution:
    """`d` composed with itself: cost grows with the logarithm of `times`."""
    if times == 1:
        return d
    if times > MOST_AT_ONCE:
        blocks, rest = divmod(times, MOST_AT_ONCE)
        whole = repeated(repeated(d, MOST_AT_ONCE), blocks)
        return composed(whole, repeated(d, rest)) if rest else whole
    low, high = _support(d, times)
    size = high - low + 1
    n = fft.next_fast_len(max(size, len(d.probs)), real=True)
    transform = _power(fft.rfft(d.probs, n), times)
    # The transform wraps around, and its rounding grows with the power; both are charged to infinity.
    probs = np.roll(fft.irfft(transform, n), d.lowest * times - low)[:size]
    infinity = -math.expm1(times * math.log1p(-d.infinity)) if d.infinity < 1 else 1.0
    infinity = min(1.0, infinity + 2 * TAIL + times * ROUNDING)
    return _fit(LossDistribution(d.grid, low, np.maximum(probs, 0.0), infinity))


def _fit(d: LossDistribution) -> LossDistribution:
    """`d` without empty ends, on a coarser grid where its spread has outgrown the one it has."""
    above = np.cumsum(d.probs[::-1])[::-1]
    below = np.cumsum(d.probs)
    high = max(int(np.searchsorted(-above, -TAIL, side="left")), 1)
    low = min(int(np.searchsorted(below, TAIL, side="right")), high - 1)
    probs = d.probs[low:high].copy()
    probs[0] += below[low - 1] if low else 0.0
    infinity = min(1.0, d.infinity + (float(above[high]) if high < len(above) else 0.0))
    d = LossDistribution(d.grid, d.lowest + low, probs, infinity)
    resolution = precision().resolution
    return coarsen(d, d.spread / resolution) if d.spread > 2 * resolution * d.grid else d


def _power(z: NDArray[np.complex128], n: int) -> NDArray[np.complex128]:
    """z**n by squaring."""
    out: NDArray[np.complex128] | None = None
    while n:
        if n & 1:
            out = z.copy() if out is None else out * z
        n >>= 1
        if n:
            z = z * z
    assert out is not None
    return out


def _support(d: LossDistribution, times: int) -> tuple[int, int]:
    """Grid indices between which the sum of `times` losses lies but for a mass of TAIL at each end (Chernoff)."""
    lowest, highest = d.lowest * times, (d.lowest + len(d.probs) - 1) * times
    mass = d.probs > 0
    losses, log_probs = d.losses[mass], np.log(d.probs[mass])
    if len(losses) == 0:
        return lowest, highest
    scale = max(d.spread * math.sqrt(times), d.grid)
    budget = math.log(1 / TAIL)
    # From the orders that suit rare large losses to those that suit a normal law.
    reach = float(np.abs(losses).max())
    slowest = min(0.2 / scale, 0.2 * budget / reach) if reach > 0 else 0.2 / scale
    for order in np.geomspace(slowest, 40 / scale, 32):
        for sign in (1.0, -1.0):
            log_mgf = _log_sum_exp(sign * order * losses + log_probs)
            bound = (times * log_mgf + budget) / order
            if not math.isfinite(bound):
                continue
            if sign > 0:
                highest = min(highest, math.ceil(bound / d.grid))
            else:
                lowest = max(lowest, math.floor(-bound / d.grid))
    return lowest, max(highest, lowest)


def _log_sum_exp(x: Array) -> float:
    """log sum e^x of finite numbers (SciPy's, which allows for more, takes four times as long)."""
    top = float(x.max())
    return top + math.log(float(np.exp(x - top).sum()))
