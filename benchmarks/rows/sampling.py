"""One draw of the tangent Gaussian, and a thousand.

Every manifold and size of the publication on fast sampling; each row shows the size with the least ratio, and
table.json has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import peers
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
    within = 0.02 if quick else 0.15
    measured = cases(quick)
    theirs = peers.run(
        "geometry",
        "geomstats_transport.py",
        {"cases": measured, "batch": BATCH, "within": within, "together": TOGETHER},
    )
    rng = np.random.default_rng(0)
    for name in dict.fromkeys(case["manifold"] for case in measured):
        kinds: dict[str, list[Row]] = {}

        def add(kind: str, *fields: Any, kinds: dict[str, list[Row]] = kinds, **more: Any) -> None:
            kinds.setdefault(kind, []).append(Row(*fields, **more))

        sizes = [(case, their) for case, their in zip(measured, theirs, strict=True) if case["manifold"] == name]
        large = {case["m"] for case, _ in sizes[len(sizes) // 2 :]}
        for case, their in sizes:
            manifold, label = make(case), shown(case)
            # What it is compared with has the law that it should.
            assert abs(their["spread"] - 1) < 0.25, (case, their)
            w = manifold.random_point(rng)
            one = partial(tangent_gaussian, manifold, w, 1.0, rng)
            batch = partial(tangent_gaussian, manifold, w, 1.0, rng, (BATCH,))
            ours = fastest(one, within)
            add("one", f"one draw: {label}", ours, "transport with geomstats", their["one"], 2.0)
            if case["r"] is None and case["manifold"] in VECTORS:
                normals = partial(rng.standard_normal, (BATCH, manifold.dim))
                many, floor = side_by_side(batch, normals, repeats=3 if quick else 7)
                add("floor", f"{BATCH} draws: {label}", many, "their normals alone", floor, 1 / 1.5)
                alone = partial(rng.standard_normal, manifold.dim)
                add("floor one", f"one draw: {label}", ours, "its normals alone", fastest(alone, within), 1 / 1.5)
            else:
                many = fastest(batch, within, 3)
            add("batch", f"{BATCH} draws: {label}", many, "geomstats, one by one", BATCH * their["one"], 10.0)
            if "together" in their:
                add("at once", f"{BATCH} draws: {label}", many, "geomstats, at once", their["together"], None)
            for other, take, against in slow(manifold, case):
                other_seconds = fastest(partial(take, manifold, w, 1.0, rng), within, 3)
                other_seconds *= CHAIN / CHAIN_MEASURED if other == "mcmc" else 1.0
                add(other, f"one draw: {label}", ours, against, other_seconds, 100.0 if case["m"] in large else None)
        for kind, found in kinds.items():
            promised = [row for row in found if row.wanted is not None] or found
            note = {
                "mcmc": f"MCMC: a chain of {CHAIN} steps, timed over {CHAIN_MEASURED}; it has no exact law.",
                "explicit": f"Explicit bases up to {LARGEST_BASIS // 10**6} MB, Gram–Schmidt up to dimension "
                f"{LARGEST_GRAM_SCHMIDT}: the larger half of the sizes that fit is judged.",
                "at once": "At once: all draws in one call of geomstats. Those too have to draw the normals.",
            }.get(kind, "")
            yield worst(promised, note)


def slow(manifold: Manifold, case: dict[str, Any]) -> Iterator[tuple[str, Callable[..., Any], str]]:
    if basis_bytes(manifold) <= LARGEST_BASIS:
        yield "explicit", explicit_basis, "explicit basis"
    if (case["manifold"] in SPD or case["manifold"] == "Lorentz hyperboloid") and manifold.dim <= LARGEST_GRAM_SCHMIDT:
        yield "gram-schmidt", gram_schmidt, "Gram–Schmidt"
    yield "mcmc", partial(metropolis, steps=CHAIN_MEASURED), "MCMC"
