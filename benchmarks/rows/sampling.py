"""One draw of the tangent Gaussian, and a thousand.

Every manifold and size of the publication on fast sampling; each row shows the size with the least ratio, and
table.json has them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.peers import PeerUnavailable
from benchmarks.peers.clock import fastest, side_by_side
from benchmarks.table import Row, worst
from pri_rfed.manifolds import Manifold
from pri_rfed.noise import tangent_gaussian
from pri_rfed.reproductions.sampling import FRAMES, SPD, VECTORS
from pri_rfed.reproductions.slow_samplers import basis_bytes, explicit_basis, gram_schmidt, metropolis

PLACE = 10
SIZES = {"spd": (5, 10, 20, 30, 50), "vectors": (250, 500, 1000, 1500, 2000), "frames": (100, 500, 1000)}
RANKS = (10, 20)
BATCH = 1000
CHAIN, CHAIN_MEASURED = 5000, 100
LARGEST_BASIS, LARGEST_GRAM_SCHMIDT = 400_000_000, 500
SLOW = {"explicit": "explicit basis", "gram-schmidt": "Gram–Schmidt", "mcmc": "MCMC"}
NOTES = {
    "mcmc": f"MCMC: a chain of {CHAIN} steps, timed over {CHAIN_MEASURED}; it has no exact law.",
    "explicit": f"Explicit bases up to {LARGEST_BASIS // 10**6} MB, Gram–Schmidt up to dimension "
    f"{LARGEST_GRAM_SCHMIDT}; the two largest sizes that fit are judged.",
    "floor": "One draw: five calls of NumPy, 0.5 µs each, besides the normals. Projecting by a function that numba "
    "compiled takes 1.2 times the normals at 250 dimensions; that saves 2.5 µs a draw and costs 0.12 s of import, a "
    "compilation of 0.7 s and 208 MB to install (0.68.1), so it is not used.",
    "at once": "At once: all draws in one call. Whatever draws a thousand has to draw the normals first, so where they "
    "are most of the peer's time too, no ratio can be large.",
}
TOGETHER = {"SPD, Bures–Wasserstein": 10, "SPD, log-Euclidean": 30}
"""Up to which m geomstats draws a thousand at once within seconds, where that is not all."""


def versions() -> dict[str, str]:
    return peers.versions("geometry")


def cases(quick: bool) -> list[dict[str, Any]]:
    short = slice(0, 1) if quick else slice(None)
    found: list[dict[str, Any]] = [{"manifold": name, "m": m, "r": None} for name in SPD for m in SIZES["spd"][short]]
    found += [{"manifold": name, "m": m, "r": None} for name in VECTORS for m in SIZES["vectors"][short]]
    found += [
        {"manifold": name, "m": m, "r": r} for name in FRAMES for r in RANKS[short] for m in SIZES["frames"][short]
    ]
    return found


def make(case: dict[str, Any]) -> Manifold:
    name, m, r = case["manifold"], case["m"], case["r"]
    return (SPD | VECTORS)[name](m) if r is None else FRAMES[name](m, r)


def shown(case: dict[str, Any]) -> str:
    m, r = case["m"], case["r"]
    return f"{case['manifold']}, {'m = ' if r is None else ''}{m}{'' if r is None else f' x {r}'}"


def rows(quick: bool) -> Iterator[Row]:
    within = 0.02 if quick else 0.08
    measured = cases(quick)
    missing: PeerUnavailable | None = None
    theirs: list[dict[str, float]] = [{}] * len(measured)
    try:
        asked = {"cases": measured, "batch": BATCH, "within": within, "together": TOGETHER}
        theirs = peers.run("geometry", "geomstats_transport.py", asked)
    except PeerUnavailable as error:
        missing = error  # the rest can be measured all the same
    for name in dict.fromkeys(case["manifold"] for case in measured):
        kinds: dict[str, list[tuple[int, Row]]] = {}
        for case, their in zip(measured, theirs, strict=True):
            if case["manifold"] == name:
                for kind, row in one_size(case, their, within):
                    kinds.setdefault(kind, []).append((case["m"], row))
        for kind, found in kinds.items():
            if kind in SLOW:
                large = sorted({m for m, _ in found})[-2:]
                yield worst([replace(row, wanted=100.0) for m, row in found if m in large], NOTES.get(kind, ""))
            else:
                yield worst([row for _, row in found], NOTES.get(kind, ""))
    if missing is not None:
        raise missing


def one_size(case: dict[str, Any], their: dict[str, float], within: float) -> Iterator[tuple[str, Row]]:
    """All comparisons at one size, by their kind."""
    assert abs(their.get("spread", 1.0) - 1) < 0.25, f"what it is compared with has another law: {case}, {their}"
    manifold, label, rng = make(case), shown(case), np.random.default_rng(0)
    w = manifold.random_point(rng)
    ours = fastest(partial(tangent_gaussian, manifold, w, 1.0, rng), within)
    many = partial(tangent_gaussian, manifold, w, 1.0, rng, (BATCH,))
    normals = partial(rng.standard_normal, (BATCH, manifold.dim))
    together, floor = side_by_side(many, normals, repeats=2 if math.prod(manifold.point_shape) > 5000 else 5)
    own = case["r"] is None and case["manifold"] != "Poincaré ball"
    against = "transport with geomstats" if own else "transport with NumPy (geomstats has none)"
    draw, draws = f"one draw: {label}", f"{BATCH} draws: {label}"
    if "one" in their:
        yield "one", Row(draw, ours, against, their["one"], 2.0)
        yield "batch", Row(draws, together, f"{against}, one by one", BATCH * their["one"], 10.0)
    if "together" in their:
        yield "at once", Row(draws, together, f"{against}, at once", their["together"])
    if case["manifold"] in VECTORS:
        alone = fastest(partial(rng.standard_normal, manifold.dim), within)
        yield "floor", Row(draw, ours, "its normals alone", alone, 1 / 1.5)
        yield "floors", Row(draws, together, "their normals alone", floor, 1 / 1.5)
    for kind, take in slow(manifold, case):
        seconds = fastest(partial(take, manifold, w, 1.0, rng), within, 3)
        yield kind, Row(draw, ours, SLOW[kind], seconds * (CHAIN / CHAIN_MEASURED if kind == "mcmc" else 1.0))


def slow(manifold: Manifold, case: dict[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    if basis_bytes(manifold) <= LARGEST_BASIS:
        yield "explicit", explicit_basis
    if (case["manifold"] in SPD or case["manifold"] == "Lorentz hyperboloid") and manifold.dim <= LARGEST_GRAM_SCHMIDT:
        yield "gram-schmidt", gram_schmidt
    yield "mcmc", partial(metropolis, steps=CHAIN_MEASURED)
