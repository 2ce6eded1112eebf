"""Mechanisms that release the Fréchet mean of records in a public ball, and the sensitivities that they rest on.

Draws are exact (`pri_rfed.noise`); `kng_mcmc`, kept as a comparison, is the exception.
"""

from __future__ import annotations

import math

import numpy as np

from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds import Array, Manifold, SPDBuresWasserstein
from pri_rfed.noise import (
    MOST_NUMBERS,
    RiemannianLaplace,
    accepted_of,
    require_exact_sampler,
    require_positive,
    tangent_gaussian,
)

# Sensitivity ----------------------------------------------------------------------------------------------------------


def _shape_of_ball(manifold: Manifold, radius: float, eigenvalue_floor: float | None) -> tuple[float, float]:
    """(h, e) for a ball B_radius: dist^2(., z)/2 is h-strongly convex in it for every z in it, and Log_w expands
    distances between its points by at most e, for every w in it.

    Raises ValueError, naming the argument, where radius is too large for that or the manifold has no such ball.
    """
    require_positive("Fréchet mean", radius=radius)
    if isinstance(manifold, SPDBuresWasserstein):
        if eigenvalue_floor is None:
            raise ValueError(
                f"Fréchet mean: eigenvalue_floor is needed on {manifold}, whose curvature is unbounded near singular "
                "matrices: a public number that no eigenvalue of a record may be below"
            )
        require_positive("Fréchet mean", eigenvalue_floor=eigenvalue_floor)
        kappa, injectivity = manifold.curvature_bound_on(eigenvalue_floor), math.sqrt(eigenvalue_floor)
    elif eigenvalue_floor is not None:
        raise ValueError(
            f"Fréchet mean: eigenvalue_floor = {eigenvalue_floor!r} has a meaning on Bures-Wasserstein matrices only, "
            f"not on {manifold}"
        )
    elif not (manifold.complete and manifold.homogeneous):
        raise ValueError(
            f"Fréchet mean: manifold = {manifold} is not complete and homogeneous; no bound of the sensitivity is known"
        )
    else:
        # A manifold of dimension 1 is flat, whatever bounds it states.
        kappa = max(manifold.curvature_bounds[1], 0.0) if manifold.dim > 1 else 0.0
        somewhere = manifold.random_point(np.random.default_rng(0))
        injectivity = float(manifold.injectivity_radius(somewhere))
    limit = 0.5 * min(injectivity, math.pi / (2 * math.sqrt(kappa)) if kappa > 0 else math.inf)
    if not radius < limit:
        raise ValueError(
            f"Fréchet mean: radius = {radius:.6g} must be below {limit:.6g} on {manifold}, half the smaller of the "
            f"injectivity radius {injectivity:.6g} and pi/(2 sqrt(kappa)) at a curvature of up to kappa = {kappa:.6g}"
        )
    if kappa == 0:
        return 1.0, 1.0
    x = 2 * radius * math.sqrt(kappa)
    return x / math.tan(x), x / math.sin(x)


def floor_of_ball(manifold: Manifold, center: Array, radius: float) -> float | None:
    """On Bures-Wasserstein matrices a lower bound of the eigenvalues of all matrices in the ball B_radius(center),
    (sqrt(l_min(center)) - radius)^2: sqrt(l_min) is the distance to the singular matrices, and no distance changes by
    more than the way gone. It is what `frechet_mean_sensitivity` needs there; None on other manifolds.

    Raises ValueError where the ball reaches singular matrices.
    """
    if not isinstance(manifold, SPDBuresWasserstein):
        return None
    reach = float(manifold.injectivity_radius(center))
    if not radius < reach:
        raise ValueError(f"Fréchet mean: radius = {radius:.6g} must be below {reach:.6g}, where singular matrices are")
    return (reach - radius) ** 2


def _records(n: int) -> None:
    if isinstance(n, bool) or n != int(n) or n < 1:
        raise ValueError(f"Fréchet mean: n = {n!r} must be a whole number >= 1 of records")


def mean_gradient_sensitivity(
    manifold: Manifold, radius: float, n: int, *, eigenvalue_floor: float | None = None
) -> float:
    """How far ||grad F(w) - grad F'(w)||_w can go, F(w) = (1/n) sum_i dist^2(w, z_i) over n records in a public ball
    of this radius and F' the same with one record replaced: 4 radius e/n.

    e = 1 on complete manifolds without positive curvature, at every w. With curvature up to kappa > 0, for w in the
    ball: e = x/sin x, x = 2 radius sqrt(kappa). Proof: grad F - grad F' = (2/n)(Log_w z' - Log_w z). The geodesic from
    z to z' has a length of at most 2 radius and stays in the ball, so within 2 radius of w. There Exp_w shrinks no
    tangent vector by more than the factor sin(x)/x (Rauch; without positive curvature it shrinks none), so Log_w makes
    no curve longer than x/sin(x) times its length. This is less than the published 2 - h, h = x cot x, because
    2 - x cot x - x/sin x = 2 - x cot(x/2) > 0.

    Raises as `frechet_mean_sensitivity` does.
    """
    _records(n)
    return 4 * radius * _shape_of_ball(manifold, radius, eigenvalue_floor)[1] / n


def frechet_mean_sensitivity(
    manifold: Manifold,
    radius: float,
    n: int,
    solver_tolerance: float = 0.0,
    *,
    eigenvalue_floor: float | None = None,
) -> float:
    """How far apart the Fréchet means of two data sets can lie that differ in one of their n records, all of them in
    one public ball of this radius: 2 radius e/(n h) + 2 solver_tolerance.

    solver_tolerance: a bound of the distance between a computed mean and the exact one; it counts for both data sets.
    eigenvalue_floor: on Bures-Wasserstein matrices, which are incomplete, a public lower bound of all the records'
    eigenvalues; the curvature is then at most 3/(2 eigenvalue_floor).

    e as in `mean_gradient_sensitivity`; h = x cot x with x = 2 radius sqrt(kappa) for curvature up to kappa > 0, else
    1. Proof (dp-over-manifolds.txt, Theorem 2, with e in place of 2 - h): both means lie in the ball, where F is
    2h-strongly convex, so the distance of the means is at most ||grad F(mean')||/(2h), and grad F'(mean') = 0.

    Raises ValueError unless radius < ½ min(injectivity radius, pi/(2 sqrt(kappa))) and the manifold is complete and
    homogeneous (or Bures-Wasserstein with its floor): there is no bound then.
    """
    _records(n)
    if not (math.isfinite(solver_tolerance) and solver_tolerance >= 0):
        raise ValueError(f"Fréchet mean: solver_tolerance = {solver_tolerance!r} must be a finite number >= 0")
    h, e = _shape_of_ball(manifold, radius, eigenvalue_floor)
    return 2 * radius * e / (n * h) + 2 * solver_tolerance


def laplace_scale(manifold: Manifold, sensitivity: float, epsilon: float, *, cut_off: bool = False) -> float:
    """The scale of the Laplace law whose draw around a point of this sensitivity is epsilon-differentially private.

    sensitivity/epsilon where the normaliser is the same at all centers: on homogeneous manifolds, with a law that is
    not cut off. Elsewhere it changes by up to e^{sensitivity/scale} as well: 2 sensitivity/epsilon.
    (dp-over-manifolds.txt, Theorem 1)
    """
    require_positive("Laplace", sensitivity=sensitivity, epsilon=epsilon)
    return (1 if manifold.homogeneous and not cut_off else 2) * sensitivity / epsilon


# Mechanisms -----------------------------------------------------------------------------------------------------------


def _half_gradient_norm(manifold: Manifold, records: Array, w: Array) -> Array:
    """||(1/n) sum_i Log_w(z_i)||_w = ||grad F(w)||_w/2, shape [k]; records [n, *point_shape], w [k, *point_shape]."""
    return manifold.norm(w, manifold.log(w[:, None], records, strict=False).mean(axis=1))


def _mean_in_ball(
    manifold: Manifold, records: Array, center: Array, radius: float, tolerance: float
) -> tuple[Array, float]:
    """A point of the ball at or next to the Fréchet mean, and half the norm of the gradient there: over h, that bounds
    its distance to the mean, because F is 2h-strongly convex in the ball. It is below `tolerance` if it can be."""
    mean = frechet_mean(manifold, records, start=center, tolerance=tolerance).point
    distance = float(manifold.dist(center, mean))
    if distance > radius:  # by rounding, where all records lie at the edge
        mean = manifold.exp(center, manifold.log(center, mean) * (radius / distance) * (1 - 1e-15))
    return mean, float(_half_gradient_norm(manifold, records, mean[None])[0])


class LaplaceMean:
    """The Fréchet mean of n records in the public ball B_radius(center), computed to within tolerance * radius and
    perturbed by the Riemannian Laplace law (dp-over-manifolds.txt, section 3).

    Guarantee: a draw is epsilon-differentially private (delta = 0) for replace-one neighbours, n, center and radius
    being public: the scale is `laplace_scale` of `frechet_mean_sensitivity`, the tolerance counted in.

    Raises ValueError where the sensitivity has no bound, the law does not exist or has no exact sampler.
    """

    def __init__(
        self, manifold: Manifold, center: Array, radius: float, n: int, epsilon: float, tolerance: float = 1e-8
    ):
        require_positive("Laplace", epsilon=epsilon, tolerance=tolerance)
        require_exact_sampler(manifold)
        self.manifold, self.center, self.radius, self.tolerance = manifold, center, float(radius), tolerance * radius
        floor = floor_of_ball(manifold, center, radius)
        self.sensitivity = frechet_mean_sensitivity(manifold, radius, n, self.tolerance, eigenvalue_floor=floor)
        self.law = RiemannianLaplace(manifold, laplace_scale(manifold, self.sensitivity, epsilon))
        self.convexity = _shape_of_ball(manifold, radius, floor)[0]

    def mean(self, records: Array) -> Array:
        """The Fréchet mean of records [n, *point_shape]. Raises RuntimeError if it is not found to the tolerance,
        which rounding alone can bring about: nothing may then be released."""
        enough = self.convexity * self.tolerance
        mean, half_gradient = _mean_in_ball(self.manifold, records, self.center, self.radius, enough / 10)
        if not half_gradient <= enough:
            raise RuntimeError(
                f"Laplace: the Fréchet mean was found to within {half_gradient / self.convexity:.3g} only, not "
                f"{self.tolerance:.3g}; nothing was released. A larger tolerance, with more noise, may do"
            )
        return mean

    def sample(self, records: Array, rng: np.random.Generator, size: int = 1) -> Array:
        """Independent draws [size, *point_shape] for records [n, *point_shape] in the ball."""
        return self.law.sample(self.mean(records), rng, size)


class KNG:
    """The K-norm gradient mechanism for the Fréchet mean of n records in the public ball B_radius(center): density
    ∝ exp(-||grad F(w)||_w/scale) by the Riemannian volume, F(w) = (1/n) sum_i dist^2(w, z_i). On manifolds with a
    finite injectivity radius (positive curvature) w is confined to the ball. (dp-riemannian-optimization.txt, Remark 4)

    scale = 2 sensitivity/epsilon, the sensitivity that of grad F (`mean_gradient_sensitivity`): between neighbours the
    density changes by up to e^{sensitivity/scale}, and its normaliser, which depends on the data, by as much again.

    Guarantee: a draw is epsilon-differentially private (delta = 0) for replace-one neighbours. `sample` is exact: F is
    2h-strongly convex (h as in `frechet_mean_sensitivity`), so at distance r from any point y, ||grad F|| >= 2 h r -
    ||grad F(y)||. Proposals come from the Laplace law around y, the computed mean, with scale/(2h) and are accepted
    with probability exp(-(||grad F|| - 2 h r + ||grad F(y)||)/scale); that y is not quite the mean costs a little
    acceptance, and no exactness. It exists where that Laplace law does.

    Raises ValueError where the sensitivity has no bound; `sample` also where there is no exact Laplace sampler.
    """

    def __init__(self, manifold: Manifold, center: Array, radius: float, n: int, epsilon: float):
        require_positive("KNG", epsilon=epsilon)
        floor = floor_of_ball(manifold, center, radius)
        self.manifold, self.center, self.radius, self.n = manifold, center, float(radius), n
        self.scale = 2 * mean_gradient_sensitivity(manifold, radius, n, eigenvalue_floor=floor) / epsilon
        self.convexity = _shape_of_ball(manifold, radius, floor)[0]
        self.confined = math.isfinite(float(manifold.injectivity_radius(center)))

    def log_density(self, records: Array, w: Array) -> Array:
        """-||grad F(w)||_w/scale, shape [k]: the logarithm of the density up to a constant; -inf outside the ball that
        w is confined to."""
        value = -2 * _half_gradient_norm(self.manifold, records, w) / self.scale
        return np.where(self.manifold.dist(self.center, w) <= self.radius, value, -np.inf) if self.confined else value

    def proposal(self, reach: float = math.inf) -> RiemannianLaplace:
        """The law around the mean that `sample` proposes from. Raises ValueError where there is none."""
        try:
            return RiemannianLaplace(self.manifold, self.scale / (2 * self.convexity), reach)
        except ValueError as error:
            raise ValueError(
                f"KNG: n = {self.n} records and scale = {self.scale:.6g} ask for proposals that do not exist; {error}"
            ) from None

    def mean(self, records: Array) -> Array:
        """The computed Fréchet mean of records [n, *point_shape]."""
        return self._mean(records)[0]

    def _mean(self, records: Array) -> tuple[Array, float]:
        return _mean_in_ball(self.manifold, records, self.center, self.radius, 1e-9 * self.radius)

    def sample(self, records: Array, rng: np.random.Generator, size: int = 1) -> Array:
        """Independent exact draws [size, *point_shape] for records [n, *point_shape] in the ball."""
        mean, half_gradient = self._mean(records)
        law = self.proposal(self.radius + float(self.manifold.dist(self.center, mean)) if self.confined else math.inf)

        def propose(number: int) -> tuple[Array, Array]:
            w, r = law.sample_with_distance(mean, rng, number)
            return w, self.log_density(records, w) + (2 * self.convexity * r - 2 * half_gradient) / self.scale

        return accepted_of(propose, rng, size, most=MOST_NUMBERS // records.size)

    def acceptance(self) -> float:
        """How many of its proposals `sample` accepts at the least, from public figures alone.

        The records' mean square distance from their mean is at most radius^2, which it is from the center; so from a
        point r away it is at most (radius + r)^2. With curvature >= -k^2 the Hessian of dist^2/2 is at most
        f(k dist), f(y) = y coth y, which is concave in y^2: that of F is at most 2 f(k (radius + r)). f is convex in
        y, so ||grad F|| <= r (f(k radius) + f(k (radius + r))). Without negative curvature the Hessian is at most 2;
        what falls outside the ball is estimated for a mean at its edge. (On SPD matrices `distance` is a law of larger
        distances than those proposed, which makes the figure smaller.)
        """
        law = self.proposal(2 * self.radius if self.confined else math.inf)
        k = math.sqrt(max(-self.manifold.curvature_bounds[0], 0.0))

        def f(y: float) -> float:
            return y / math.tanh(y) if y > 1e-8 else 1.0

        def accepted(r: float) -> float:
            steepest = 2.0 if self.confined else f(k * self.radius) + f(k * (self.radius + r))
            return math.exp(-(steepest - 2 * self.convexity) * r / self.scale) * self._inside(r)

        return law.distance.mean(accepted)

    def _inside(self, r: float) -> float:
        """The share of directions that lead from a point at the edge of the ball, over a distance r, into the ball."""
        if not self.confined:
            return 1.0
        from scipy.special import betainc

        # At least this with the direction to the center: exact on spheres; elsewhere by Toponogov's comparison.
        flat = isinstance(self.manifold, SPDBuresWasserstein)
        cosine = r / (2 * self.radius) if flat else math.tan(r / 2) / math.tan(self.radius)
        k = self.manifold.dim
        if cosine >= 1:
            return 0.0
        return 0.5 * float(betainc((k - 1) / 2, 0.5, 1 - cosine**2)) if k > 1 else 0.5


def kng_mcmc(kng: KNG, records: Array, rng: np.random.Generator, *, burn_in: int = 5000, step: float = 0.5) -> Array:
    """One draw [*point_shape] of `kng` from a Metropolis-Hastings chain: a comparison, as it is published, and no
    mechanism. After any finite number of steps the law of the chain is only near the one that the guarantee is for, by
    an amount nobody knows, so there is **no guarantee of privacy** (its event is NonPrivate). Use `KNG.sample`.

    The chain starts at the computed mean and proposes Exp_w(v), v a tangent Gaussian of standard deviation step *
    kng.scale, burn_in times; the volume distortion of Exp is the same from both ends, so the proposal is symmetric.
    (dp-riemannian-optimization.txt, section 6.1)
    """
    require_positive("KNG", step=step, burn_in=burn_in)
    w = kng.mean(records)[None]
    value = kng.log_density(records, w)
    for _ in range(burn_in):
        v = tangent_gaussian(kng.manifold, w, step * kng.scale, rng)
        x = kng.manifold.project_point(kng.manifold.exp(w, v))
        proposed = kng.log_density(records, x)
        if proposed[0] - value[0] >= -rng.standard_exponential():
            w, value = x, proposed
    return w[0]
