"""The sampler of the publication on fast sampling (Algorithms 2 to 10), written with geomstats.

Normals at the reference point, then the manifold's own `parallel_transport`. geomstats has none for the Poincaré ball,
where transport from the centre is a multiplication, nor an isometric vector transport for frames, which is done with
Householder reflections as the publication has it.
"""

from __future__ import annotations

import json
import math
import os
import sys

os.environ["GEOMSTATS_BACKEND"] = "numpy"

import geomstats.backend as gs
import numpy as np
from clock import fastest
from geomstats.geometry.hyperboloid import Hyperboloid
from geomstats.geometry.hypersphere import Hypersphere
from geomstats.geometry.matrices import Matrices
from geomstats.geometry.spd_matrices import (
    SPDAffineMetric,
    SPDBuresWassersteinMetric,
    SPDLogEuclideanMetric,
    SPDMatrices,
)
from scipy import linalg

SPD = {
    "SPD, affine-invariant": (SPDAffineMetric, 1.0),
    "SPD, log-Euclidean": (SPDLogEuclideanMetric, 1.0),
    "SPD, Bures–Wasserstein": (SPDBuresWassersteinMetric, 2.0),
}


def spd(name, m, rng):
    metric, scale = SPD[name]
    space = SPDMatrices(m, equip=False)
    space.equip_with_metric(metric)
    s = rng.standard_normal((m, m)) / math.sqrt(m)
    w = linalg.expm((s + s.T) / 2)
    identity = gs.eye(m)

    def draw(batch=()):
        a = rng.standard_normal((*batch, m, m))
        return space.metric.parallel_transport(scale * Matrices.to_symmetric(a), identity, end_point=w)

    return draw, lambda v: space.metric.squared_norm(v, w), m * (m + 1) // 2


def curved(name, m, rng):
    space = Hypersphere(m - 1) if name == "sphere" else Hyperboloid(m - 1)
    pole = gs.zeros(m)
    pole[0] = 1.0
    w = rng.standard_normal(m) / math.sqrt(m)
    w = w / gs.linalg.norm(w) if name == "sphere" else gs.concatenate([[math.sqrt(1 + w[1:] @ w[1:])], w[1:]])

    def draw(batch=()):
        a = gs.zeros((*batch, m))
        a[..., 1:] = rng.standard_normal((*batch, m - 1))
        return space.metric.parallel_transport(a, pole, end_point=w)

    return draw, lambda v: space.metric.squared_norm(v, w), m - 1


def ball(name, m, rng):
    w = rng.standard_normal(m) / (2 * math.sqrt(m))

    def draw(batch=()):
        return 0.5 * (1 - gs.sum(w**2)) * rng.standard_normal((*batch, m))

    return draw, lambda v: gs.sum(v**2, axis=-1) * 4 / (1 - gs.sum(w**2)) ** 2, m


def frames(name, m, r, rng):
    w = gs.linalg.qr(rng.standard_normal((m, r)))[0]

    def one():
        a = np.zeros((m, r), order="F")
        a[r:] = rng.standard_normal((m - r, r))
        qr, tau, *_ = linalg.lapack.dgeqrf(w)
        if name == "Stiefel":
            b = rng.standard_normal((r, r))
            a[:r] = np.sign(np.diagonal(qr))[:, None] * 0.5 * (b - b.T)
        return linalg.lapack.dormqr("L", "N", qr, tau, a, 64 * r)[0]

    def draw(batch=()):
        return gs.stack([one() for _ in range(batch[0])]) if batch else one()

    return draw, lambda v: gs.sum(v**2, axis=(-2, -1)), (m - r) * r + (r * (r - 1) // 2 if name == "Stiefel" else 0)


def main(arguments):
    measured = []
    for case in arguments["cases"]:
        name, m, r = case["manifold"], case["m"], case["r"]
        rng = np.random.default_rng(0)
        if name in SPD:
            draw, square, dim = spd(name, m, rng)
        elif name == "Poincaré ball":
            draw, square, dim = ball(name, m, rng)
        elif r is None:
            draw, square, dim = curved(name, m, rng)
        else:
            draw, square, dim = frames(name, m, r, rng)
        batch = (arguments["batch"],)
        row = {"one": fastest(draw, arguments["within"]), "spread": float(gs.mean(square(draw((100,)))) / dim)}
        if r is None and m <= arguments["together"].get(name, m):
            row["together"] = fastest(lambda draw=draw, batch=batch: draw(batch), arguments["within"], 3)
        measured.append(row)
    return measured


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
