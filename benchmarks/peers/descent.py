"""DP-RSGD steps with batches of one record, an agent after another, written with pymanopt or with geomstats.

The same maths as PriRFed's: gradient, clip, tangent Gaussian, exponential map; on SPD matrices for the Fréchet mean, on
the sphere for the leading eigenvector with the retraction by normalisation. The noise is the published sampler's.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["GEOMSTATS_BACKEND"] = "numpy"

import numpy as np
from clock import fastest

CLIP, SIGMA, STEP = 1.0, 0.1, 1e-3


def with_pymanopt(problem, m):
    from pymanopt.manifolds import Sphere, SymmetricPositiveDefinite

    if problem == "sphere":
        sphere = Sphere(m)

        def step(w, z, rng):
            v = sphere.euclidean_to_riemannian_gradient(w, -2 * (z @ w) * z)
            v = v * min(1.0, CLIP / sphere.norm(w, v))
            v = v + sphere.projection(w, SIGMA * rng.standard_normal(m))
            return sphere.retraction(w, -STEP * v)

        return step
    spd = SymmetricPositiveDefinite(m)

    def step(w, z, rng):
        v = -2 * spd.log(w, z)
        v = v * min(1.0, CLIP / spd.norm(w, v))
        values, vectors = np.linalg.eigh(w)
        root = (vectors * np.sqrt(values)) @ vectors.T
        a = rng.standard_normal((m, m))
        return spd.exp(w, -STEP * (v + root @ (SIGMA / 2 * (a + a.T)) @ root))

    return step


def with_geomstats(problem, m):
    import geomstats.backend as gs
    from geomstats.geometry.hypersphere import Hypersphere
    from geomstats.geometry.matrices import Matrices
    from geomstats.geometry.spd_matrices import SPDAffineMetric, SPDMatrices

    if problem == "sphere":
        space = Hypersphere(m - 1)
        pole = gs.zeros(m)
        pole[0] = 1.0

        def step(w, z, rng):
            v = space.to_tangent(-2 * gs.dot(z, w) * z, w)
            v = v * min(1.0, CLIP / space.metric.norm(v, w))
            a = gs.concatenate([[0.0], SIGMA * rng.standard_normal(m - 1)])
            v = v + space.metric.parallel_transport(a, pole, end_point=w)
            return space.projection(w - STEP * v)

        return step
    space = SPDMatrices(m, equip=False)
    space.equip_with_metric(SPDAffineMetric)
    identity = gs.eye(m)

    def step(w, z, rng):
        v = -2 * space.metric.log(z, w)
        v = v * min(1.0, CLIP / space.metric.norm(v, w))
        a = SIGMA * Matrices.to_symmetric(rng.standard_normal((m, m)))
        v = v + space.metric.parallel_transport(a, identity, end_point=w)
        return space.metric.exp(-STEP * v, w)

    return step


def main(arguments):
    problem, m, agents = arguments["problem"], arguments["m"], arguments["agents"]
    rng = np.random.default_rng(0)
    if problem == "sphere":
        records = rng.standard_normal((agents, arguments["records"], m))
        records /= np.linalg.norm(records, axis=-1, keepdims=True)
        start = np.full(m, m**-0.5)
    else:
        a = rng.standard_normal((agents, arguments["records"], m, 2 * m))
        records = a @ np.swapaxes(a, -1, -2) / (2 * m)
        start = np.eye(m)
    step = (with_pymanopt if arguments["library"] == "pymanopt" else with_geomstats)(problem, m)

    def round_of_steps():
        points = [start] * agents
        for _ in range(arguments["steps"]):
            chosen = rng.integers(0, arguments["records"], agents)
            points = [step(w, z[i], rng) for w, z, i in zip(points, records, chosen, strict=True)]
        return points

    assert np.isfinite(round_of_steps()).all()
    return fastest(round_of_steps, 1.0, 3) / arguments["steps"]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
