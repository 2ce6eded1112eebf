"""A round of a tiny federation.

10 agents with 50 SPD matrices of 2 x 2 each, K = 5 steps with all records: what a sweep over many runs pays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.peers.clock import side_by_side
from benchmarks.table import Row, limited
from pri_rfed.manifolds import SPDAffineInvariant
from pri_rfed.problems import FrechetMean
from pri_rfed.simulation import simulate
from pri_rfed.training.dp_rsgd import DPRSGD

PLACE = 40
AGENTS, RECORDS, SIZE, STEPS, ROUNDS = 10, 50, 2, 5, 100


def versions() -> dict[str, str]:
    return peers.versions("flower")


def rows(quick: bool) -> Iterator[Row]:
    problem = FrechetMean(SPDAffineInvariant(SIZE))
    rng = np.random.default_rng(0)
    agents = list(problem.manifold.random_point(rng, (AGENTS, RECORDS)))
    trainer = DPRSGD(steps=STEPS, batch="full", clip=1.0, noise=0.1, step_size=0.05)
    plan: dict[str, Any] = {"evaluate_every": 0, "start": np.eye(SIZE)}

    def rounds(count: int) -> object:
        return simulate(problem, agents, trainer, rounds=count, **plan)

    one, many = side_by_side(lambda: rounds(1), lambda: rounds(1 + ROUNDS), repeats=2 if quick else 7)
    each = (many - one) / ROUNDS
    label = f"a round: {AGENTS} agents, n = {RECORDS}, SPD {SIZE} x {SIZE}, b = n, K = {STEPS}"
    yield limited(label, each, 1e-3, note="Without evaluation, which is no part of the method.")
    yield Row("a sweep of 1000 runs of 100 rounds of it, one process", 1000 * many, note="Scaled up from one run.")
    with tempfile.TemporaryDirectory(prefix="pri-rfed-bench-") as folder:
        theirs = peers.run(
            "flower",
            Path(__file__).parents[1] / "flower_simulation" / "run.py",
            {
                "agents": AGENTS, "records": RECORDS, "m": SIZE, "steps": STEPS,
                "rounds": 5 if quick else 30, "out": str(Path(folder) / "times.json"),
            },
        )  # fmt: skip
    yield Row(
        label,
        each,
        "Flower's simulation with Ray",
        theirs["median"],
        50.0,
        note="Flower's figure is the median of rounds after the first, in which Ray's workers start.",
    )
