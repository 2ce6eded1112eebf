"""A step of DP-RSGD.

60 agents with batches of one record: the Fréchet mean of SPD matrices of 11 x 11 with the exponential map, the leading
eigenvector on the sphere of 784 entries with the retraction.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.peers.clock import side_by_side
from benchmarks.table import Row
from pri_rfed.data.agents import Records
from pri_rfed.manifolds import SPDAffineInvariant
from pri_rfed.problems import FrechetMean, PrincipalEigenvector, Problem
from pri_rfed.randomness import AgentStreams
from pri_rfed.training.dp_rsgd import DPRSGD

PLACE = 20
AGENTS, RECORDS = 60, 100
WANTED = {
    ("SPD", "pymanopt"): 5.0,
    ("SPD", "geomstats"): 8.0,
    ("sphere", "pymanopt"): 2.5,
    ("sphere", "geomstats"): 4.0,
}


def versions() -> dict[str, str]:
    return peers.versions("geometry")


def rows(quick: bool) -> Iterator[Row]:
    steps = 20 if quick else 200
    for kind, m in (("SPD", 11), ("sphere", 784)):
        label = f"a step, {AGENTS} agents: {'SPD 11 x 11' if kind == 'SPD' else 'sphere 784'}"
        train, normals = training(kind, m, steps)
        ours, floor = (seconds / steps for seconds in side_by_side(train, normals, repeats=2 if quick else 7))
        for library in ("pymanopt", "geomstats"):
            arguments = {"library": library, "problem": kind, "m": m, "agents": AGENTS, "records": RECORDS}
            theirs = peers.run("geometry", "descent.py", arguments | {"steps": 1 + steps // 20})
            yield Row(label, ours, f"a loop over {library}", theirs, WANTED[kind, library])
        if kind == "sphere":
            yield Row(label, ours, "its normals alone", floor, 1 / 2)


def training(kind: str, m: int, steps: int) -> tuple[partial[Any], partial[Any]]:
    """The steps, and the drawing of their normals as the steps draw them."""
    rng = np.random.default_rng(0)
    problem: Problem
    if kind == "SPD":
        problem = FrechetMean(SPDAffineInvariant(m))
        values = problem.manifold.random_point(rng, (AGENTS, RECORDS))
        start = np.eye(m)
    else:
        problem = PrincipalEigenvector(m)
        values = problem.manifold.random_point(rng, (AGENTS, RECORDS))
        start = np.full(m, m**-0.5)
    trainer = DPRSGD(
        steps=steps, batch=1, step_size=1e-3, clip=1.0, noise=0.1, move="exp" if kind == "SPD" else "retract"
    )
    records = Records(values, np.full(AGENTS, RECORDS))

    def train() -> object:
        return trainer.train(problem, start, records, AgentStreams(0, 0, range(AGENTS)))

    def normals() -> object:
        drawn = AgentStreams(0, 0, range(AGENTS)).normals(problem.manifold.normals_shape, steps)
        return [None for _ in drawn]

    return partial(train), partial(normals)
