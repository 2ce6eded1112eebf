"""Random perturbations on a manifold: the tangent Gaussian and the Riemannian Laplace law.

The samplers are exact in real arithmetic: rejection from a bounding density, no Markov chain. Results are then rounded
to points that float64 can hold, which is coarse near the rim of the Poincaré ball and near singular matrices:
post-processing. How many proposals a draw takes depends on the point it is centred at, or on the data: a timing
channel, which nobody may observe. It is never released, and no function here returns it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from pri_rfed.manifolds import (
    Array,
    Euclidean,
    Hyperboloid,
    Manifold,
    PoincareBall,
    SPDAffineInvariant,
    SPDBuresWasserstein,
    SPDLogEuclidean,
    Sphere,
)

REACH = 700.0
"""No distance beyond this is drawn on a space that grows exponentially: float64 holds numbers up to e^709."""

TILT_BELOW = 1.17
"""Up to this multiple of the smallest rate, Laplace draws of SPD matrices are proposed from a tilted law."""

LAPLACE_MANIFOLDS = (
    Euclidean,
    Sphere,
    Hyperboloid,
    PoincareBall,
    SPDAffineInvariant,
    SPDLogEuclidean,
    SPDBuresWasserstein,
)
"""Where the Riemannian Laplace law is sampled exactly."""


def require_positive(owner: str, **values: float) -> None:
    """Raise ValueError, naming the owner and the argument, unless all are positive finite numbers."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{owner}: {name} = {value!r} must be a positive finite number")


# Tangent Gaussian -----------------------------------------------------------------------------------------------------


def tangent_gaussian(
    manifold: Manifold, w: Array, sigma: float, rng: np.random.Generator, batch: tuple[int, ...] = ()
) -> Array:
    """Tangent vectors at w with i.i.d. N(0, sigma^2) coordinates in any orthonormal basis: density ∝
    exp(-||v||_w^2 / (2 sigma^2)).

    w [..., *point_shape] -> [*batch, *point_shape]; `batch` and the batch axes of w broadcast.
    """
    own_batch = manifold.batch_shape(w)
    shape = np.broadcast_shapes(batch, own_batch) if batch and own_batch else batch or own_batch
    length = max(1, _DRAWN_NUMBERS // max(1, math.prod((*shape[1:], *manifold.point_shape)))) if shape else 1
    if not shape or shape[0] <= length:
        a = rng.standard_normal((*shape, *manifold.normals_shape))
        a *= sigma
        return manifold.tangent_from_normals(w, a)
    own = len(own_batch) == len(shape) and len(w) > 1
    draws = np.empty((*shape, *manifold.point_shape))
    for i in range(0, shape[0], length):
        part = draws[i : i + length]
        a = rng.standard_normal((*part.shape[: len(shape)], *manifold.normals_shape))
        a *= sigma
        part[...] = manifold.tangent_from_normals(w[i : i + length] if own else w, a)
    return draws


_DRAWN_NUMBERS = 1 << 17
"""How many numbers of tangent vectors are worked on at a time: they stay in cache, whatever the batch."""


# Laws of a distance ---------------------------------------------------------------------------------------------------


class LogConcave:
    """The law on (0, upper) with density ∝ exp(log_density), a concave function given with its derivative `slope`.

    `sample` is rejection from the exponential of three lines: the level of the mode and the tangents where the density
    has dropped by a factor e on either side. A concave function lies below its tangents, so the draws are exact,
    wherever exactly these points are; they only decide how many are accepted (seven of eight for a normal density).
    """

    def __init__(self, log_density: Callable[[Array], Array], slope: Callable[[float], float], upper: float = math.inf):
        self.log_density, self.slope, self.upper = log_density, slope, upper

        def at(r: float) -> float:
            with np.errstate(divide="ignore"):
                return float(log_density(np.asarray(r)))

        def far(start: float, inside: Callable[[float], bool]) -> float:
            """A point beyond which `inside` no longer holds, or the upper end."""
            while start < upper and inside(start):
                start *= 2
            return min(start, upper)

        rising = slope(1e-300) > 0
        self.mode = _last(lambda r: slope(r) > 0, 0.0, far(1.0, lambda r: slope(r) > 0)) if rising else 0.0
        self.top = at(self.mode)

        def near(r: float) -> bool:
            return self.top - at(r) < 1

        # The level line holds between `left` and `right`; `up` and `down` are the tangents' slopes beyond.
        self.left, self.up, left_mass = 0.0, 1.0, 0.0
        if self.mode > 0:
            x = self.mode - _last(lambda t: near(self.mode - t), 0.0, self.mode)
            x = max(x, 1e-300)
            self.up = slope(x)
            self.left = min(max(x + (self.top - at(x)) / self.up, 0.0), self.mode)
            left_mass = -math.expm1(-self.up * self.left) / self.up
        self.right, self.down, right_mass = upper, 1.0, 0.0
        if self.mode < upper:
            x = _last(near, self.mode, far(max(1.0, 2 * self.mode), near))
            if slope(x) < 0:
                self.down = -slope(x)
                self.right = min(max(x - (self.top - at(x)) / self.down, self.mode), upper)
                right_mass = -math.expm1(-self.down * (upper - self.right)) / self.down
        masses = np.array([left_mass, self.right - self.left, right_mass])
        self._shares = np.cumsum(masses / masses.sum())

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Independent draws [size]."""
        drawn = np.empty(0)
        while len(drawn) < size:
            number = (size - len(drawn)) * 5 // 4 + 4
            piece = np.searchsorted(self._shares[:2], rng.random(number), side="right")
            # An exponential number modulo a length has the exponential law cut off at that length.
            z = rng.standard_exponential(number)
            below = np.mod(z, self.up * self.left) if self.left > 0 else z
            above = np.mod(z, self.down * (self.upper - self.right)) if self.right < self.upper else z
            between = self.left + (self.right - self.left) * rng.random(number) if self.right < math.inf else z
            r = np.choose(piece, [self.left - below / self.up, between, self.right + above / self.down])
            hull = self.top - np.choose(piece, [below, np.zeros(number), above])
            with np.errstate(divide="ignore"):
                accepted = self.log_density(r) - hull >= -rng.standard_exponential(number)
            drawn = np.concatenate([drawn, r[accepted]])
        return drawn[:size]

    def mean(self, f: Callable[[float], float]) -> float:
        """E f(r), by quadrature."""
        return self._integral(f, 0.0, self.upper) / self._integral(lambda _: 1.0, 0.0, self.upper)

    def cdf(self, r: float) -> float:
        """P(distance <= r), by quadrature."""
        return self._integral(lambda _: 1.0, 0.0, r) / self._integral(lambda _: 1.0, 0.0, self.upper)

    def log_tail(self, r: float) -> float:
        """An upper bound of log P(distance > r)."""
        if r >= self.upper or not r > self.right:
            return -math.inf if r >= self.upper else 0.0
        # Relative to the mode, the tangent at r bounds the mass beyond; between the mode and the other tangent's foot
        # there is at least (1 - 1/e)/down.
        beyond = float(self.log_density(np.asarray(r))) - self.top - math.log(-self.slope(r))
        return min(0.0, beyond + math.log(self.down) - math.log1p(-1 / math.e))

    def _integral(self, f: Callable[[float], float], lower: float, upper: float) -> float:
        if upper <= lower:
            return 0.0
        from scipy.integrate import quad  # here, because it is slow to import and sampling does without

        # Sixty times the width of the hull on either side of the mode hold all but e^-60.
        lower = max(lower, self.left - 60 / self.up)
        upper = min(upper, self.right + 60 / self.down)
        marks = sorted({lower, upper, *(x for x in (self.left, self.mode, self.right) if lower < x < upper)})

        def integrand(r: float) -> float:
            with np.errstate(divide="ignore"):
                return f(r) * math.exp(float(self.log_density(np.asarray(r))) - self.top)

        return sum(
            float(quad(integrand, a, b, limit=200, epsabs=0.0, epsrel=1e-10)[0]) for a, b in itertools.pairwise(marks)
        )


def _last(holds: Callable[[float], bool], lower: float, upper: float) -> float:
    """The last point of [lower, upper] up to which `holds` does, by bisection down to the last digit."""
    if holds(upper):
        return upper
    while lower < (middle := 0.5 * (lower + upper)) < upper:
        lower, upper = (middle, upper) if holds(middle) else (lower, middle)
    return lower


def laplace_distance(manifold: Manifold, scale: float, upper: float = math.inf) -> LogConcave:
    """The law of dist(x, center) for x from the Riemannian Laplace law of this scale, cut off at `upper`: density
    ∝ e^{-r/scale} r^{d-1} in flat space, e^{-r/scale} sin^{d-1} r on the sphere, e^{-r/scale} sinh^{d-1} r in
    hyperbolic space.

    For SPD matrices, affine-invariant or Bures-Wasserstein, where it has no such form, it is a law that is larger: see
    `RiemannianLaplace`.
    Raises ValueError where the law does not exist, or is not known here.
    """
    require_positive("Laplace", scale=scale)
    require_exact_sampler(manifold)
    rate, k = 1.0 / scale, manifold.dim - 1
    growth = volume_growth(manifold)
    if not rate > growth:
        raise ValueError(
            f"Laplace: scale = {scale:.6g} must be below 1/{growth:.6g} = {1 / growth:.6g} on {manifold}: volumes grow "
            "like the exponential of that number times the distance, so the law exists for no larger scale"
        )
    if isinstance(manifold, Sphere):
        upper = min(upper, math.pi)
        return LogConcave(lambda r: -rate * r + _log_power(k, np.sin(r)), lambda r: -rate + k / math.tan(r), upper)
    if isinstance(manifold, SPDAffineInvariant) and manifold.m > 1:
        law = _spd_distance_bound(manifold.m, rate, upper)
    elif growth > 0:
        # log sinh r = r + log(1 - e^{-2r}) - log 2, and the first term goes with the rate.
        law = LogConcave(
            lambda r: -(rate - k) * r + k * np.log(-np.expm1(-2 * r)),
            lambda r: -(rate - k) + 2 * k / math.expm1(min(2 * r, REACH)),
            upper,
        )
    else:
        return LogConcave(lambda r: -rate * r + _log_power(k, r), lambda r: -rate + k / r, upper)
    if law.log_tail(REACH) > math.log(1e-16):
        raise ValueError(
            f"Laplace: scale = {scale:.6g} on {manifold} is so near the bound 1/{growth:.6g} = {1 / growth:.6g} that "
            f"distances beyond {REACH:.6g} would be drawn, which float64 cannot represent; make it smaller"
        )
    return law


def _log_power(k: int, x: Array) -> Array:
    """log(x^k), 0 for k = 0 whatever x is."""
    return k * np.log(x) if k else np.zeros_like(x)


def require_exact_sampler(manifold: Manifold) -> None:
    """Raise ValueError unless the Riemannian Laplace law is sampled exactly there."""
    if not isinstance(manifold, LAPLACE_MANIFOLDS):
        known = ", ".join(kind.__name__ for kind in LAPLACE_MANIFOLDS)
        raise ValueError(f"Laplace: manifold = {manifold} has no exact sampler; there is one for {known}")


def volume_growth(manifold: Manifold) -> float:
    """The g for which the volume of a ball of radius r grows like e^{g r}, up to powers of r: 0, d - 1 in hyperbolic
    space, ½ sqrt(m (m^2 - 1) / 3) for affine-invariant SPD matrices. The Laplace law needs 1/scale > g."""
    if isinstance(manifold, (Hyperboloid, PoincareBall)):
        return float(manifold.dim - 1)
    if isinstance(manifold, SPDAffineInvariant):
        return 0.5 * math.sqrt(manifold.m * (manifold.m**2 - 1) / 3)
    return 0.0


def _log_sinhc(y: Array) -> Array:
    """log(sinh(y)/y) for y >= 0."""
    safe = np.maximum(y, 1e-3)
    return np.where(y < 1e-3, y * y / 6, safe + np.log(-np.expm1(-2 * safe) / (2 * safe)))


def _spd_distance_bound(m: int, rate: float, upper: float) -> LogConcave:
    """The law with density ∝ e^{-rate r} r^{d-1} e^{E(r)}; E as `_spd_log_bound` has it, d = m (m + 1) / 2."""
    k = m * (m + 1) // 2 - 1
    bound, derivative = _spd_log_bound(m)
    return LogConcave(lambda r: -rate * r + _log_power(k, r) + bound(r), lambda r: -rate + k / r + derivative(r), upper)


def _spd_log_bound(m: int) -> tuple[Callable[[Array], Array], Callable[[float], float]]:
    """E(r) >= log prod_{i<j} sinhc(r a_ij), sinhc(y) = sinh(y)/y, for a_ij = |t_i - t_j|/2 and every unit vector t of
    R^m (m >= 2); and its derivative.

    The derivative of log sinhc(r a) by r is (f(r a) - 1)/r with f(y) = y coth y = 1 + sum_k 2 y^2/(y^2 + k^2 pi^2), a
    concave function of y^2. The p = m (m - 1)/2 numbers a_ij^2 add up to (m |t|^2 - (sum t_i)^2)/4 <= m/4, so by Jensen
    the sum of the derivatives is at most p (f(r b) - 1)/r with b^2 = m/(4 p) = 1/(2 (m - 1)): what they are together if
    all a_ij equal b. And since f(y) <= y + 1 it is at most sum a_ij <= g = ½ sqrt(m (m^2 - 1)/3), by Cauchy and Schwarz
    applied to sum_{i<j} (t_i - t_j) = sum_i (m + 1 - 2i) t_i for sorted t. E is the integral of the smaller of the two:
    the first one up to r0, where they cross (for m = 2 they never do), the second one beyond.

    With r^{d-1} it is log-concave: the derivatives (d-1)/r + p (b coth(r b) - 1/r) = (m-1)/r + p b coth(r b) and
    (d-1)/r + g decrease, and agree at r0.
    """
    p, b, growth = m * (m - 1) // 2, 1 / math.sqrt(2 * (m - 1)), 0.5 * math.sqrt(m * (m * m - 1) / 3)

    def jensen(r: float) -> float:
        y = b * r
        return p * b * (y / 3 if y < 1e-4 else 1 / math.tanh(y) - 1 / y)

    crossing = math.inf if m == 2 else _last(lambda r: jensen(r) < growth, 0.0, 1e6)

    def bound(r: Array) -> Array:
        return p * _log_sinhc(b * np.minimum(r, crossing)) + growth * np.maximum(r - crossing, 0.0)

    return bound, lambda r: min(jensen(r), growth)


# Riemannian Laplace ---------------------------------------------------------------------------------------------------


class RiemannianLaplace:
    """The law with density ∝ exp(-dist(x, center)/scale) by the Riemannian volume (dp-over-manifolds.txt,
    Definition 3), drawn without a Markov chain.

    reach: where given, the law is cut off at that distance from its center.

    In flat space, on the sphere and in hyperbolic space a draw is Exp_center(r u), u uniform among the unit tangent
    vectors and r from `laplace_distance`. On affine-invariant SPD matrices the volume in these coordinates is
    r^{d-1} prod_{i<j} sinhc(r |t_i - t_j|/2), t the eigenvalues of u: (r, u) is proposed with the r of
    `laplace_distance`, whose density has the bound e^{E(r)} for the product, and accepted with the quotient of the two.
    About four of five are at the rate 1/scale = 2 g, g the smallest one, and more above; towards g it becomes none.
    So below TILT_BELOW * g the logarithms of the eigenvalues, in falling order, are proposed with the density
    ∝ exp(-|l|/scale + <rho, l>), rho_i = (m + 1 - 2i)/2, |rho| = g, and accepted with prod_{i<j} (1 - e^{l_j - l_i}):
    since 2 sinh((l_i - l_j)/2) = e^{(l_i - l_j)/2} (1 - e^{l_j - l_i}) and sum_{i<j} (l_i - l_j)/2 = <rho, l>, that is
    the law of the eigenvalues. Both are exact everywhere; for m <= 10 one of them accepts more than one in 10^7.

    On Bures-Wasserstein matrices Exp_center is one-to-one from the v with I + L > 0 (v = L c + c L, c the center) onto
    all matrices, and changes volumes by a factor J (`_wasserstein_log_density`), which is at most 1 because the
    curvature is not negative. So v is proposed from the law in flat space and accepted with probability J, or 0 where
    I + L is not positive definite. With a small scale nearly all are.

    Raises ValueError where the law does not exist (`volume_growth`), or the manifold is not in LAPLACE_MANIFOLDS.
    """

    def __init__(self, manifold: Manifold, scale: float, reach: float = math.inf):
        self.manifold, self.scale = manifold, float(scale)
        self.distance = laplace_distance(manifold, scale, reach)

    def sample(self, center: Array, rng: np.random.Generator, size: int = 1) -> Array:
        """Independent draws [size, *point_shape] around the one point `center` [*point_shape]."""
        return self.sample_with_distance(center, rng, size)[0]

    def sample_with_distance(self, center: Array, rng: np.random.Generator, size: int = 1) -> tuple[Array, Array]:
        """Draws, and their distances [size] from the center, which are not to be released."""
        if isinstance(self.manifold, SPDAffineInvariant) and self.manifold.m > 1:
            logs, frames = self._spd(rng, size)
            root = np.linalg.cholesky(center) @ (frames * np.exp(0.5 * logs)[:, None, :])
            return self.manifold.project_point(root @ np.swapaxes(root, -1, -2)), np.sqrt(np.vecdot(logs, logs))
        if isinstance(self.manifold, SPDBuresWasserstein):
            v = self._wasserstein(center, rng, size)
            return self.manifold.project_point(self.manifold.exp(center, v)), self.manifold.norm(center, v)
        v, r = self._flat(center, rng, size)
        return self.manifold.project_point(self.manifold.exp(center, v)), r

    def _flat(self, center: Array, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
        """Tangent vectors with uniform directions, and their lengths from `distance`."""
        r = self.distance.sample(rng, size)
        u = tangent_gaussian(self.manifold, center, 1.0, rng, (size,))
        return (r / self.manifold.norm(center, u)).reshape(size, *(1,) * len(self.manifold.point_shape)) * u, r

    def _wasserstein(self, center: Array, rng: np.random.Generator, size: int) -> Array:
        """Tangent vectors at the center [size, m, m] that Exp takes to draws of the law."""

        def propose(number: int) -> tuple[Array, Array]:
            v = self._flat(center, rng, number)[0]
            return v, _wasserstein_log_density(center, v)

        return accepted_of(propose, rng, size, most=MOST_NUMBERS // center.size)

    def _spd(self, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
        """Logarithms l [size, m] and eigenvectors U [size, m, m] with U diag(e^l) U^T from the law around I."""
        m, growth = self.manifold.point_shape[0], volume_growth(self.manifold)
        i, j = np.triu_indices(m, 1)
        tilted = 1 / self.scale < TILT_BELOW * growth and self.distance.upper == math.inf
        bound = _spd_log_bound(m)[0]

        def tilt(number: int) -> tuple[Array, Array]:
            # exp(-|l|/scale + <rho, l>) is a normal density with mean s rho and variance s, s gamma distributed.
            rho = (m + 1) / 2 - np.arange(1, m + 1)
            s = rng.gamma((m + 1) / 2, 2 / (1 / self.scale**2 - growth**2), (number, 1))
            logs = s * rho + np.sqrt(s) * rng.standard_normal((number, m))
            gaps = np.maximum(logs[:, i] - logs[:, j], 0.0)
            with np.errstate(divide="ignore"):
                return logs, np.log(-np.expm1(-gaps)).sum(axis=1)

        def polar(number: int) -> tuple[Array, Array]:
            r = self.distance.sample(rng, number)
            a = rng.standard_normal((number, m, m))
            values = np.linalg.eigvalsh(0.5 * (a + np.swapaxes(a, -1, -2)))
            logs = r[:, None] / np.sqrt(np.vecdot(values, values))[:, None] * values
            return logs, _log_sinhc(0.5 * np.abs(logs[:, i] - logs[:, j])).sum(axis=1) - bound(r)

        logs = accepted_of(tilt if tilted else polar, rng, size, most=MOST_NUMBERS // m**2)
        # The eigenvectors are uniform whatever the eigenvalues; a sign of a column changes nothing in U diag U^T.
        return logs, np.linalg.qr(rng.standard_normal((size, m, m)))[0]


def _wasserstein_log_density(c: Array, v: Array) -> Array:
    """log J(v) for tangent vectors v [k, m, m] at one Bures-Wasserstein matrix c [m, m]: J is the factor by which Exp_c
    changes volumes at v; -inf where the geodesic has left the manifold before its end.

    For v = L c + c L the end is x = T c T with T = I + L. The Riemannian volume at x is prod_{i<=j} (b_i + b_j)^{-1/2}
    times a constant times that of the entries, b the eigenvalues of x, because so is the root of the determinant of the
    metric ½ L_x; and T -> T c T has the differential dT -> dT (c T) + (T c) dT, a Lyapunov operator, with the
    determinant prod_{i<=j} (m_i + m_j), m the eigenvalues of c T. Hence, with the eigenvalues a of c,
    J = prod_{i<=j} (m_i + m_j) / sqrt((a_i + a_j) (b_i + b_j)).
    """
    a, p = np.linalg.eigh(c)
    rotated = p.T @ v @ p
    t = np.eye(len(a)) + rotated / (a[:, None] + a)
    root = np.sqrt(a)
    m = np.linalg.eigvalsh(root[:, None] * t * root)  # of c^½ T c^½: all positive if and only if those of T are
    x = (t * a) @ np.swapaxes(t, -1, -2)
    b = np.linalg.eigvalsh(0.5 * (x + np.swapaxes(x, -1, -2)))
    i, j = np.triu_indices(len(a))
    inside = m[:, 0] > 0
    with np.errstate(all="ignore"):
        at_m, at_a, at_b = (np.log(s[..., i] + s[..., j]).sum(axis=-1) for s in (m, a, b))
        return np.where(inside, at_m - 0.5 * (at_a + at_b), -np.inf)


MOST_NUMBERS = 1 << 20
"""How many numbers a batch of proposals may hold."""


def accepted_of(propose: Callable[[int], tuple[Array, Array]], rng: np.random.Generator, size: int, most: int) -> Array:
    """The first `size` accepted ones of a sequence of proposals, made in batches of at most `most`.

    propose(number) -> proposals [number, ...] and the logarithms [number] of their probabilities of acceptance.
    """
    kept: list[Array] = []
    missing, tried, number = size, 0, size + 8
    while missing > 0:
        number = max(1, min(number, most))
        proposals, log_probability = propose(number)
        good = proposals[log_probability >= -rng.standard_exponential(number)][:missing]
        kept.append(good)
        missing, tried = missing - len(good), tried + number
        # As many as are likely to do at the rate so far; twice as many as ever if none was accepted.
        number = 8 + int(1.2 * missing * tried / max(size - missing, 0.5))
    return np.concatenate(kept)
