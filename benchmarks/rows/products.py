"""The leading eigenvector of MNIST against its bare matrix products.

60 agents with 1000 images each, K = 5 steps with all records, T = 10 rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.clock import side_by_side
from benchmarks.table import Row
from pri_rfed.data.download import DataFolders
from pri_rfed.data.sources import read_idx
from pri_rfed.manifolds.base import Array
from pri_rfed.problems import PrincipalEigenvector
from pri_rfed.simulation import simulate
from pri_rfed.training.dp_rsgd import DPRSGD

PLACE = 30
AGENTS, RECORDS, STEPS, ROUNDS = 60, 1000, 5, 10


def rows(quick: bool) -> Iterator[Row]:
    rounds = 1 if quick else ROUNDS
    label = f"PCA of MNIST, {AGENTS} x {RECORDS}, K = {STEPS}, b = n, T = {rounds}"
    folders = DataFolders()
    if not folders.has("mnist"):
        yield Row(label, None, note="Left out: MNIST is not at hand; `pri-rfed data get mnist`, or set PRIRFED_DATA.")
        return
    images = read_idx(folders.find("mnist", "mnist/train-images-idx3-ubyte"))
    records = images.reshape(AGENTS, RECORDS, 784) / (255.0 * 28.0)  # of norm 1 at most
    agents = list(records)
    problem = PrincipalEigenvector(records.shape[-1])
    trainer = DPRSGD(steps=STEPS, batch="full", noise=1e-3, step_size=0.1, move="retract")
    plan: dict[str, Any] = {"rounds": rounds, "evaluate_every": 0, "start": np.full(784, 784**-0.5)}

    began: list[float] = []

    def run() -> object:
        began[:] = [time.perf_counter()]
        return simulate(problem, agents, trainer, on_round=lambda state: began.append(time.perf_counter()), **plan)

    def together() -> Array:
        """Z w and Z^T (Z w) for every agent and step, and no more: the agents as one batch."""
        w = np.full((AGENTS, 784, 1), 784**-0.5)
        for _ in range(rounds * STEPS):
            total = np.swapaxes(records @ w, -1, -2) @ records
        return total

    def apart() -> Array:
        """The same, an agent after the other, whose records then are in the processor's cache."""
        w = np.full(784, 784**-0.5)
        for _ in range(rounds * STEPS):
            total = np.stack([(own @ w) @ own for own in records])
        return total

    ours, *bare = side_by_side(run, together, apart, repeats=2 if quick else 3)
    note = (
        "Bare products: in one batch or an agent after the other, whatever is faster. The whole run checks and stacks "
        "the records once besides."
    )
    yield Row(f"{label}, the whole run", ours, "its bare matrix products", min(bare), 1 / 1.5, note=note)
    if rounds > 1:
        later = float(np.diff(began)[1:].min())
        yield Row(f"{label}, a round after the first", later, "its products", min(bare) / rounds, 1 / 1.5, note=note)
