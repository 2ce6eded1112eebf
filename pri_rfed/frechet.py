"""The weighted Fréchet mean of points: the solver that problems, aggregations and mechanisms share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pri_rfed.manifolds.base import Array, Manifold


@dataclass(frozen=True)
class FrechetMeanResult:
    """Where the solver stopped.

    step_norm: ||sum_i p_i Log_w(x_i)||_w there, which is 0 at a mean; where the curvature is not positive, the exact
    mean lies no farther away than this.
    """

    point: Array
    step_norm: float
    iterations: int
    converged: bool


@np.errstate(all="ignore")
def frechet_mean(
    manifold: Manifold,
    points: Array,
    weights: Array | None = None,
    *,
    start: Array | None = None,
    tolerance: float = 1e-12,
    max_iterations: int = 500,
) -> FrechetMeanResult:
    """Minimise sum_i p_i dist^2(w, x_i) over w, by Riemannian gradient descent with Barzilai-Borwein steps.

    points [n, *point_shape]; weights [n], scaled here to sum to 1 (default: equal). The start should have all points
    within its injectivity radius (default: whichever lies nearest to all of the first point and the projection of the
    arithmetic mean). Converged means step_norm <= tolerance; the best point met is returned either way, and nothing
    raises when the logarithm of some point does not exist: such a result is not converged.
    """
    p = np.full(len(points), 1.0 / len(points)) if weights is None else np.asarray(weights, dtype=float)
    p = (p / p.sum()).reshape(-1, *(1,) * len(manifold.point_shape))

    def towards(w: Array) -> tuple[Array, float]:
        v = (p * manifold.log(w, points, strict=False)).sum(axis=0)
        norm = float(manifold.norm(w, v))
        return v, norm if np.isfinite(norm) else np.inf

    if start is None:
        candidates = (points[0], manifold.project_point((p * points).sum(axis=0)))
        start = min(candidates, key=lambda w: _cost(manifold, w, points, p.ravel()))
    w = start
    v, norm = towards(w)
    best, best_norm, best_at = w, norm, 0
    step, iteration = 1.0, 0
    while best_norm > tolerance and np.isfinite(norm) and iteration < max_iterations and iteration - best_at < 50:
        iteration += 1
        x = manifold.project_point(manifold.exp(w, step * v))
        u, u_norm = towards(x)
        if not u_norm < 2 * norm:  # too far: the same direction again, shorter
            step /= 4
            continue
        # The gradient of half the cost is -v, so it changed by PT(v) - u over a move of step * PT(v).
        carried = manifold.parallel_transport(w, x, v)
        change = carried - u
        curved = float(manifold.inner(x, carried, change))
        squared = float(manifold.inner(x, change, change))
        step = step * min(max(curved / squared, 0.1), 10.0) if squared > 0 and curved > 0 else 1.0
        w, v, norm = x, u, u_norm
        if norm < best_norm:
            best, best_norm, best_at = w, norm, iteration
    return FrechetMeanResult(best, best_norm, iteration, best_norm <= tolerance)


def _cost(manifold: Manifold, w: Array, points: Array, p: Array) -> float:
    cost = float(p @ manifold.dist(w, points) ** 2)
    return cost if np.isfinite(cost) else np.inf
