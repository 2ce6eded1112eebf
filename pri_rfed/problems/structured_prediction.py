"""Hyperbolic structured prediction: a point of hyperbolic space for a query, from those of others with features."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.manifolds.naming import origin
from pri_rfed.problems.base import Problem
from pri_rfed.problems.frechet import FrechetMean

STARTS = 5
"""From how many labels the optimum is looked for."""


def kernel_weights(features: Array, query: Array, width: float, ridge: float) -> Array:
    """alpha(x) = (K + ridge I)^-1 k(x) for features [n, r] and a query x [r], shape [n], with the Gaussian kernel
    exp(-|x - x'|^2/(2 width^2)). They may be negative. (dp-riemannian-optimization.txt, section 5.4)

    Every weight depends on the features of all records: they are public where one of them is to be.
    """
    if not (width > 0 and ridge > 0):
        raise ValueError(f"width = {width!r} and ridge = {ridge!r} must be positive")

    def kernel(squares: Array) -> Array:
        return np.exp(-squares / (2 * width**2))

    between = ((features[:, None] - features) ** 2).sum(axis=-1)
    matrix = kernel(between) + ridge * np.eye(len(features))
    return np.asarray(np.linalg.solve(matrix, kernel(((features - query) ** 2).sum(axis=-1))), dtype=float)


class _Labels(FrechetMean):
    """The squared distances to labels, under the name of the problem that weighs them."""

    name = "hyperbolic-structured-prediction"


class HyperbolicStructuredPrediction(Problem):
    """f(w; (alpha, y)) = alpha dist^2(w, y) on the hyperboloid: what a query's own point is near, from the labels y of
    records and from weights that say how alike their features are to those of the query (`kernel_weights`).
    (dp-riemannian-optimization.txt, section 5.4, where the gradient lacks its factor 2)

    Records [d + 2]: the weight, which may be negative, then the d + 1 coordinates of the label. n: d + 2. With weights
    alpha_j times the number of records n_i, the mean loss of an agent is sum_j alpha_j dist^2(w, y_j).

    weight_bound: a public bound of |alpha|; a record with more is refused. radius: of the public ball about e_1 that
    holds all labels; one outside of it is refused, or moved in along the geodesic. None: no bound.

    Guarantee: label DP. The weights come from the features of all records, which are public, and so are the weights;
    neighbours differ in the label of one record, whose weight stays. Two gradients then differ by at most
    4 radius weight_bound at any point, because the logarithm does not expand (`FrechetMean`), and by 2C if clipped.
    """

    name = "hyperbolic-structured-prediction"
    protects = (
        "label DP: of a record its label alone is protected, a point of the hyperboloid; the features, and the weight "
        "that comes from them, are public"
    )

    def __init__(
        self,
        n: int,
        weight_bound: float | None = None,
        radius: float | None = None,
        outside: Literal["refuse", "move"] = "refuse",
    ):
        if n != int(n) or n < 3:
            raise ValueError(f"{self.name}: n = {n!r} must be at least 3, a weight and two coordinates")
        if weight_bound is not None and not 0 < weight_bound < np.inf:
            raise ValueError(f"{self.name}: weight_bound = {weight_bound!r} must be a positive finite number")
        hyperboloid = Hyperboloid(int(n) - 2)
        self.manifold: Manifold = hyperboloid
        self.record_shape = (int(n),)
        self.weight_bound = weight_bound
        self.radius = radius
        self._labels = _Labels(hyperboloid, None if radius is None else origin(hyperboloid), radius, outside)
        apart = self._labels.gradient_difference_bound
        if weight_bound is not None and apart is not None:
            self.gradient_difference_bound = weight_bound * apart

    def loss(self, w: Array, z: Array) -> Array:
        return z[..., 0] * self._labels.loss(w, z[..., 1:])

    def gradient(self, w: Array, z: Array) -> Array:
        return z[..., :1] * self._labels.gradient(w, z[..., 1:])

    def check_records(self, z: Array) -> None:
        super().check_records(z)
        heavy = np.abs(z[..., 0]) > (np.inf if self.weight_bound is None else self.weight_bound)
        if heavy.any():
            at = tuple(map(int, np.argwhere(heavy)[0]))
            raise ValueError(
                f"{self.name}: record {at} has the weight {z[at][0]:.6g}, beyond weight_bound = {self.weight_bound:g}"
            )
        self._labels.check_records(z[..., 1:])

    def prepare_records(self, z: Array) -> Array:
        """The records, labels outside of the public ball moved in where that is wanted."""
        z = super().prepare_records(z)
        labels = self._labels.prepare_records(z[..., 1:])
        return z if np.array_equal(labels, z[..., 1:]) else np.concatenate([z[..., :1], labels], axis=-1)

    def start(self, rng: np.random.Generator) -> Array:
        """e_1, the middle of the hyperboloid."""
        return origin(self.manifold)

    def optimum(self, z: Array) -> Array | None:
        """The best of the stationary points that are found from the labels with the largest weights. None where none is
        found, and where the weights do not have a positive sum: then the loss has no lower bound."""
        weights, labels = z[:, 0], z[:, 1:]
        if not weights.sum() > 0:
            return None
        starts = labels[np.argsort(-weights)[:STARTS]]
        found = [frechet_mean(self.manifold, labels, weights, start=start) for start in starts]
        points = [result.point for result in found if result.converged or result.step_norm < 1e-8]
        return min(points, key=lambda w: float(self.loss(w, z).mean()), default=None)
