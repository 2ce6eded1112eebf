"""The Fréchet mean: the point whose squared distances to the records are least."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.mechanisms import floor_of_ball, mean_gradient_sensitivity
from pri_rfed.problems.base import Problem
from pri_rfed.problems.clipping import clip, mean_of_clipped


class FrechetMean(Problem):
    """f(w; z) = dist^2(w, z) with the gradient -2 Log_w(z), on any manifold; records are points of the manifold.

    center, radius: a public ball B_r(m0) that holds the records; both or neither. A record outside of it is refused
    (outside="refuse") or moved along the geodesic towards m0 until it lies inside (outside="move"). Neither may be
    estimated from the data.

    Guarantee: with a public ball two gradients differ by at most 4 r e at any w, and no clipping is needed
    (`gradient_difference_bound`). On a complete manifold without positive curvature and without cut points e = 1, for
    the logarithm does not expand, ||Log_w z - Log_w z'|| <= dist(z, z'). With positive curvature e is that of
    `mean_gradient_sensitivity`, which holds for w in the ball only; where the ball is too large for that there is no
    bound. `gradient` enforces it at all w: it returns g0 + clip_{2re}(-2 Log_w(z) - g0), g0 = -2 Log_w(m0), which is
    public. For w in the ball that is the gradient itself, because Log_w lengthens the way from m0 to z, r at most, to
    no more than r e; without positive curvature it is so everywhere, but where numbers end. Without a bound, a gradient
    beyond the cut locus of w does not exist; it is NaN and counts as 0.

    With Bures-Wasserstein matrices the point is the 2-Wasserstein barycentre of centred Gaussians with the records for
    covariances. There a ball of radius r about m0 has all eigenvalues above (sqrt(l_min(m0)) - r)^2, which bounds its
    curvature; it may have r < sqrt(l_min(m0))/3. Steps that leave it, or go beyond the injectivity radius, still end at
    positive semidefinite matrices, and the bound holds there as well.
    """

    name = "frechet-mean"

    def __init__(
        self,
        manifold: Manifold,
        center: Array | None = None,
        radius: float | None = None,
        outside: Literal["refuse", "move"] = "refuse",
    ):
        if (center is None) != (radius is None):
            raise ValueError(f"{self.name}: center and radius make a public ball together; only one of them was given")
        if outside not in ("refuse", "move"):
            raise ValueError(f"{self.name}: outside = {outside!r} must be 'refuse' or 'move'")
        self.manifold = manifold
        self._coordinate_space = Euclidean(manifold.dim)
        self.record_shape = manifold.point_shape
        self.center = None if center is None else np.asarray(center, dtype=float)
        self.radius = None if radius is None else float(radius)
        self.outside = outside
        if self.center is not None and self.radius is not None:
            fine, why = manifold.check_point(self.center, explain=True)
            if not fine or self.center.shape != manifold.point_shape:
                raise ValueError(f"{self.name}: center must be one point of the manifold; {why}")
            reach = float(manifold.injectivity_radius(self.center))
            if not 0 < self.radius < np.inf or self.radius >= reach:
                raise ValueError(
                    f"{self.name}: radius = {radius!r} must be positive, finite and below the injectivity radius "
                    f"{reach:.6g} at the center"
                )
            self.gradient_difference_bound = _difference_bound(manifold, self.center, self.radius)

    def loss(self, w: Array, z: Array) -> Array:
        return self.manifold.dist(w, z) ** 2

    def gradient(self, w: Array, z: Array) -> Array:
        gradient = -2.0 * self.manifold.log(w, z, strict=False)
        if self.gradient_difference_bound is None or self.center is None:
            return gradient
        reference = -2.0 * self.manifold.log(w, self.center, strict=False)
        return _kept_near(self.manifold, w, gradient, reference, self.gradient_difference_bound)

    def clipped_mean(
        self, w: Array, z: Array, clip: float | None, mask: NDArray[np.bool_] | None, size: Array
    ) -> Array:
        """In coordinates by an orthonormal basis of T_w: there the length of a vector costs next to nothing."""
        if type(self).gradient is not FrechetMean.gradient:  # a problem derived from this one, with another gradient
            return super().clipped_mean(w, z, clip, mask, size)
        manifold, space = self.manifold, self._coordinate_space
        base, origin = w[:, None], np.zeros(manifold.dim)

        def gradients(part: Array) -> Array:
            gradient = -2.0 * manifold.log_coordinates(base, part)
            if self.gradient_difference_bound is None or self.center is None:
                return gradient
            reference = -2.0 * manifold.log_coordinates(base, self.center)
            return _kept_near(space, origin, gradient, reference, self.gradient_difference_bound)

        return manifold.from_coordinates(w, mean_of_clipped(space, origin, z, gradients, clip, mask, size))

    def check_records(self, z: Array) -> None:
        super().check_records(z)
        fine, why = self.manifold.check_point(z, explain=True)
        if not fine:
            raise ValueError(f"{self.name}: a record is not a point of the manifold; {why}")
        if self.center is not None and self.radius is not None and self.outside == "refuse":
            distance = self.manifold.dist(self.center, z)
            if not np.all(distance <= self.radius):
                at = tuple(map(int, np.argwhere(~(distance <= self.radius))[0]))
                raise ValueError(
                    f"{self.name}: record {at} lies at distance {distance[at]:.6g} from the center, outside the public "
                    f"ball of radius {self.radius:.6g}; with outside = 'move' it is moved inside"
                )

    def prepare_records(self, z: Array) -> Array:
        """The records, those outside of the public ball moved in along the geodesic to its center. One that the
        geodesic cannot be found for (beyond the cut locus) becomes the center itself."""
        z = super().prepare_records(z)
        if self.center is None or self.radius is None or self.outside == "refuse":
            return z
        v = self.manifold.log(self.center, z, strict=False)
        distance = self.manifold.norm(self.center, v)
        far = ~(distance <= self.radius)
        if not np.any(far):
            return z
        # A little short of the radius, so that rounding leaves no record outside.
        scale = self.radius * (1 - 1e-9) / distance[far]
        pulled = v[far] * scale.reshape(-1, *(1,) * len(self.record_shape))
        moved = z.copy()
        moved[far] = self.manifold.exp(self.center, np.where(np.isfinite(pulled), pulled, 0.0))
        return moved

    def start(self, rng: np.random.Generator) -> Array:
        """The center of the public ball; without one, a random point."""
        return super().start(rng) if self.center is None else self.center

    def optimum(self, z: Array) -> Array | None:
        """A Fréchet mean of the records to about 1e-12 in the norm of its gradient; None where the solver fails."""
        result = frechet_mean(self.manifold, z)
        return result.point if result.converged or result.step_norm < 1e-8 else None


def _difference_bound(manifold: Manifold, center: Array, radius: float) -> float | None:
    """4 r e, or None where no e is known."""
    try:
        return mean_gradient_sensitivity(manifold, radius, 1, eigenvalue_floor=floor_of_ball(manifold, center, radius))
    except ValueError:
        return None


def _kept_near(manifold: Manifold, w: Array, gradient: Array, reference: Array, bound: float) -> Array:
    """The gradient, moved towards a public one until their difference is no longer than bound/2; a public one that is
    no number counts as 0."""
    reference = np.nan_to_num(reference, posinf=0.0, neginf=0.0)
    return reference + clip(manifold, w, gradient - reference, bound / 2)
