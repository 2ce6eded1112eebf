"""One run of a large federation in a process of its own, for its time and its memory.

    python -m benchmarks.federation '{"agents": 1000000, "sampled": 1000, "records": 20, "dim": 50, "rounds": 100, ...}'

Prints one line of JSON. Memory is the largest that the process ever had, less what it had after its imports.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data.agents import Records
from pri_rfed.problems import PrincipalEigenvector
from pri_rfed.randomness import Role, stream
from pri_rfed.simulation import simulate
from pri_rfed.training.dp_rsgd import DPRSGD


class MadeOnDemand:
    """Agents whose records, random unit vectors, are made when they are asked for: each agent's from a stream of its
    own, or, to leave out the time of making them, a stretch of a table that all share."""

    def __init__(self, agents: int, records: int, entries: int, shared: bool):
        self.counts = np.full(agents, records, dtype=np.int64)
        self._shape = (records, entries)
        self._table = _unit(stream(0, Role.DATA), (2 * records + 1000, entries)) if shared else None

    def records(self, agents: NDArray[np.int64]) -> Records:
        if self._table is None:
            values = np.stack([_unit(stream(0, Role.DATA, agent=int(a)), self._shape) for a in agents])
        else:
            first = agents % (len(self._table) - self._shape[0])
            values = self._table[first[:, None] + np.arange(self._shape[0])]
        return Records(values, self.counts[agents])


def _unit(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    z = rng.standard_normal(shape)
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def run(plan: dict[str, Any]) -> dict[str, float]:
    """Seconds of the whole and of a round (the least of `repeats`), bytes, and the seconds of accounting for it."""
    before = largest()
    began = time.perf_counter()
    entries = plan["dim"] + 1
    agents = MadeOnDemand(plan["agents"], plan["records"], entries, plan["shared"])
    trainer = DPRSGD(steps=plan["steps"], batch=plan.get("batch", "full"), noise=0.1, step_size=0.05, move="retract")
    ends: list[list[float]] = []
    peak = 0
    for repeat in range(plan.get("repeats", 1)):
        ends.append([])
        result = simulate(
            PrincipalEigenvector(entries),
            agents,
            trainer,
            rounds=plan["rounds"],
            sampled=plan["sampled"],
            evaluate_every=0,
            seed=repeat,
            on_round=lambda state: ends[-1].append(time.perf_counter()),
        )
        peak = peak or largest() - before  # of the first run: later ones begin beside its result
    whole = time.perf_counter() - began
    began = time.perf_counter()
    epsilon = result.privacy.epsilon_global
    return {
        "seconds": whole,
        "round": min(float(np.min(np.diff(times))) for times in ends),
        "bytes": float(peak),
        "accounting": time.perf_counter() - began,
        "epsilon": epsilon,
    }


def largest() -> int:
    """The largest memory so far, in bytes. (On Linux ru_maxrss would count that of the process that started this one.)
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_a_process(plan: dict[str, Any]) -> dict[str, float]:
    """Matrix products by one thread: where several threads begin to share a product, growth has a step that says
    nothing of the program."""
    single = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
    command = [sys.executable, "-m", "benchmarks.federation", json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | single)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
