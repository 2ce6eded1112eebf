"""Writes geomstats.json next to this file: what geomstats says about points and tangent vectors of its manifolds.

geomstats 2.8.0 does not import with NumPy 2, so it gets an environment of its own (Python 3.11; anywhere outside the
repository), and only its answers are kept:

    python3.11 -m venv geomstats-env
    geomstats-env/bin/pip install geomstats==2.8.0 "numpy<2"
    geomstats-env/bin/python tests/references/make_geomstats_references.py

Everything is stored in the representation of `pri_rfed.manifolds`, in full double precision (JSON numbers are the
shortest that read back exactly). A case holds points w, x, tangent vectors u, v at w, and geomstats' inner(u, v),
dist(w, x), exp(w, v), log(w, x) and parallel_transport(w, x, u). What geomstats does not have in closed form, or means
otherwise, is left out:

- parallel transport on the Poincaré ball and for the log-Euclidean and Bures-Wasserstein metrics;
- Stiefel: only the canonical metric, which is not tr(u^T v).

Grassmann points are projectors there: P = w w^T, with the tangent vector X = v w^T + w v^T, so that v = X w; the inner
product is tr(X Y), twice tr(u^T v).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import geomstats
import numpy as np
from geomstats.geometry.grassmannian import Grassmannian
from geomstats.geometry.hyperboloid import Hyperboloid
from geomstats.geometry.hypersphere import Hypersphere
from geomstats.geometry.poincare_ball import PoincareBall
from geomstats.geometry.spd_matrices import (
    SPDAffineMetric,
    SPDBuresWassersteinMetric,
    SPDLogEuclideanMetric,
    SPDMatrices,
)

CASES = 4
rng = np.random.default_rng(20240229)


def answers(metric, w, x, u, v, transport):
    """The case, all arrays in geomstats' representation."""
    case = {
        "w": w,
        "x": x,
        "u": u,
        "v": v,
        "inner": metric.inner_product(u, v, w),
        "dist": metric.dist(w, x),
        "exp": metric.exp(v, w),
        "log": metric.log(x, w),
    }
    if transport:
        case["parallel_transport"] = metric.parallel_transport(u, w, end_point=x)
    return case


def vectors(space, point: Callable[[], np.ndarray], tangent: Callable[[np.ndarray], np.ndarray], transport=True):
    for _ in range(CASES):
        w, x = point(), point()
        yield answers(space.metric, w, x, tangent(w), tangent(w), transport)


def sphere(n):
    def point():
        y = rng.standard_normal(n)
        return y / np.linalg.norm(y)

    def tangent(w):
        y = rng.standard_normal(n)
        y -= (w @ y) * w
        return rng.uniform(0.1, 3.0) * y / np.linalg.norm(y)

    return vectors(Hypersphere(n - 1), point, tangent)


def hyperboloid(d):
    def point():
        y = rng.standard_normal(d)
        return np.concatenate([[np.sqrt(1 + y @ y)], y])

    def tangent(w):
        y = rng.standard_normal(d)
        return np.concatenate([[w[1:] @ y / w[0]], y])

    return vectors(Hyperboloid(d), point, tangent)


def poincare_ball(d):
    def point():
        y = rng.standard_normal(d)
        return rng.uniform(0.1, 0.95) * y / np.linalg.norm(y)

    def tangent(w):
        return (1 - w @ w) / 2 * rng.standard_normal(d)

    return vectors(PoincareBall(d), point, tangent, transport=False)


def spd(metric, transport):
    def make(m):
        def point():
            q, _ = np.linalg.qr(rng.standard_normal((m, m)))
            w = q * np.exp(rng.uniform(-1.5, 1.5, m)) @ q.T
            return (w + w.T) / 2

        def tangent(w):
            y = rng.standard_normal((m, m))
            return np.linalg.eigvalsh(w)[0] * (y + y.T) / (4 * m)

        space = SPDMatrices(m, equip=False)
        space.equip_with_metric(metric)
        return vectors(space, point, tangent, transport)

    return make


def grassmann(m, r):
    space = Grassmannian(m, r)

    def basis_of(projector):
        return np.linalg.eigh(projector)[1][:, -r:]

    def embed(w, v):
        return v @ w.T + w @ v.T

    for _ in range(CASES):
        w = np.linalg.qr(rng.standard_normal((m, r)))[0]
        h, u, v = (y - w @ (w.T @ y) for y in rng.standard_normal((3, m, r)))
        v *= rng.uniform(0.1, 1.4) / np.linalg.norm(v)
        h *= 1.3 / np.linalg.norm(h)
        w_there = w @ w.T
        x_there = space.metric.exp(embed(w, h), w_there)
        x = basis_of(x_there)
        case = answers(space.metric, w_there, x @ x.T, embed(w, u), embed(w, v), transport=True)
        yield {
            **case,
            "w": w,
            "x": x,
            "u": u,
            "v": v,
            "inner": case["inner"] / 2,
            "dist": case["dist"] / np.sqrt(2),
            "exp": basis_of(case["exp"]),
            "log": case["log"] @ w,
            "parallel_transport": case["parallel_transport"] @ x,
        }


def main():
    groups = [
        ("sphere", sphere, [(2,), (3,), (10,)]),
        ("hyperboloid", hyperboloid, [(2,), (5,)]),
        ("poincare-ball", poincare_ball, [(2,), (5,)]),
        ("spd-affine-invariant", spd(SPDAffineMetric, transport=True), [(2,), (4,)]),
        ("spd-log-euclidean", spd(SPDLogEuclideanMetric, transport=False), [(2,), (4,)]),
        ("spd-bures-wasserstein", spd(SPDBuresWassersteinMetric, transport=False), [(2,), (4,)]),
        ("grassmann", grassmann, [(3, 1), (5, 2), (5, 3)]),
    ]
    stored = [
        {"manifold": name, "arguments": arguments, **{key: np.asarray(value).tolist() for key, value in case.items()}}
        for name, make, sizes in groups
        for arguments in sizes
        for case in make(*arguments)
    ]
    target = Path(__file__).with_name("geomstats.json")
    lines = ",\n".join(json.dumps(case) for case in stored)
    target.write_text(
        f'{{"geomstats": "{geomstats.__version__}", "numpy": "{np.__version__}", "cases": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main()
