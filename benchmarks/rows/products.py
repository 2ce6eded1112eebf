"""The leading eigenvector of MNIST against its bare matrix products.

60 agents with 1000 images each, K = 5 steps with all records, T = 10 rounds. With `precision = "float32"` agents hold
records in half the memory; everything is computed in double precision all the same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.clock import side_by_side
from benchmarks.table import Row
from pri_rfed.data.agents import AgentArrays, Precision
from pri_rfed.data.download import DataFolders
from pri_rfed.data.sources import read_idx
from pri_rfed.manifolds.base import Array
from pri_rfed.problems import PrincipalEigenvector
from pri_rfed.simulation import simulate
from pri_rfed.training.dp_rsgd import DPRSGD

PLACE = 30
AGENTS, RECORDS, STEPS, ROUNDS = 60, 1000, 5, 10
CONFIG = Path(__file__).parents[2] / "configs" / "mnist_pca.toml"
MEASURED = """
import sys
from benchmarks.federation import largest
from pri_rfed.cli import app
app(sys.argv[1:], standalone_mode=False)
print(largest())
"""
"""Runs a command of pri-rfed; the last line that it prints is the most memory that it had."""


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

    def run(precision: Precision) -> tuple[Callable[[], object], list[float]]:
        """What runs it, and the least time of a round after the first."""
        least = [float("inf")]

        def call() -> object:
            ends: list[float] = []
            held = AgentArrays(agents, precision=precision)
            result = simulate(problem, held, trainer, on_round=lambda state: ends.append(time.perf_counter()), **plan)
            least[0] = min([least[0], *np.diff(ends).tolist()])
            return result

        return call, least

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

    repeats = 2 if quick else 3
    double, later = run("float64")
    ours, *bare = side_by_side(double, together, apart, repeats=repeats)
    note = (
        "Bare products: in one batch or an agent after the other, whatever is faster. The whole run checks and stacks "
        "the records once besides."
    )
    yield Row(f"{label}, the whole run", ours, "its bare matrix products", min(bare), 1 / 1.5, note=note)
    if rounds > 1:
        yield Row(f"{label}, a round after the first", later[0], "its products", min(bare) / rounds, 1 / 1.5, note=note)
    held = "float64 records"
    (double, later), (single, later_single) = run("float64"), run("float32")
    whole, whole_single = side_by_side(double, single, repeats=repeats)
    yield Row(f"{label}, float32 records, the whole run", whole_single, held, whole)
    if rounds > 1:
        yield Row(f"{label}, float32 records, a round after the first", later_single[0], held, later[0])
    command = "pri-rfed run configs/mnist_pca.toml"
    yield Row(f"the most memory of `{command}`, float32 records", peak("float32", rounds), held,
              peak("float64", rounds), unit="B")  # fmt: skip


def peak(precision: Precision, rounds: int) -> float:
    """The most memory, in bytes, that a process with the interpreter and all has when it runs CONFIG."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--out", f"{folder}/run", "--set", f"data.precision={precision}", "--set", f"run.rounds={rounds}"]
        command = [sys.executable, "-c", MEASURED, "run", str(CONFIG), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CONFIG.parents[1])
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[3:])} failed: {done.stderr}")
    return float(done.stdout.splitlines()[-1])
