"""Accounting and calibration.

K = 100 steps in each of T = 500 rounds, sampled at the rate q. Caches are emptied before each time.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import peers
from benchmarks.table import Row, limited
from pri_rfed.privacy.accountants import ACCOUNTANTS, best_epsilon
from pri_rfed.privacy.calibration import calibrate_noise
from pri_rfed.privacy.events import (
    Event,
    Gaussian,
    Participation,
    PoissonSampled,
    SampledWithoutReplacement,
    Unit,
    repeat,
)
from pri_rfed.problems import PrincipalEigenvector
from pri_rfed.training import TRAINERS

PLACE = 60
STEPS, ROUNDS, DELTA = 100, 500, 1e-5
BATCH, RECORDS, MU = 1, 100, 0.5


def versions() -> dict[str, str]:
    return peers.versions("accounting")


def rows(quick: bool) -> Iterator[Row]:
    rounds, repeats = (20, 1) if quick else (ROUNDS, 3)
    times, rate = STEPS * rounds, BATCH / RECORDS
    label = f"{STEPS} steps, {rounds} rounds"
    step = Gaussian(MU, 1.0)
    local = repeat(SampledWithoutReplacement(step, BATCH, RECORDS), STEPS)
    federated: Event = repeat(Participation(local, 10, 100), rounds)
    ours, epsilon = cold(lambda: best_epsilon(federated, DELTA).epsilon, repeats)
    yield Row(f"{label}, 10 of 100 agents a round, by the tightest accountant (ε = {epsilon:.4g})", ours)
    trainer = TRAINERS["dp-rsgd"](steps=STEPS, batch=BATCH, clip=1.0, noise=1.0, noise_unit="sensitivity")  # type: ignore[call-arg]
    problem = PrincipalEigenvector(10)
    seconds, noise = cold(
        lambda: calibrate_noise(trainer, problem, [RECORDS], 10, 100, rounds, 1.0, DELTA).noise,  # type: ignore[attr-defined]
        repeats,
    )
    yield limited(f"calibration of that plan to ε = 1 (noise {noise:.4g} x sensitivity)", seconds, 3.0)
    poisson = PoissonSampled(Gaussian(MU, 1.0, of=Unit.ADD_REMOVE_RECORD), rate)
    case = {"rate": rate, "mu": MU, "times": times, "delta": DELTA}
    (theirs, renyi) = peers.run(
        "accounting",
        "accounting.py",
        {"cases": [case | {"library": "dp-accounting"}, case | {"library": "autodp"}], "repeats": repeats},
    )
    note = (
        "dp-accounting: Poisson samples, add-or-remove, at its own grid; autodp: samples without replacement, by Rényi "
        "divergences. Neither can express the sampling of agents over it."
    )
    ours, epsilon = cold(lambda: ACCOUNTANTS["pld"].epsilon(repeat(poisson, times), DELTA), repeats)
    # Twice its time will do.
    yield Row(
        f"{label}: Poisson samples (ε = {epsilon:.4g}; theirs {theirs['epsilon']:.4g})",
        ours, "dp-accounting", theirs["seconds"], 1 / 2, note=note,
    )  # fmt: skip
    whole = repeat(SampledWithoutReplacement(step, BATCH, RECORDS), times)
    for name, against in (("rdp", "autodp"), ("pld", "autodp (looser)")):
        ours, epsilon = cold(lambda name=name: ACCOUNTANTS[name].epsilon(whole, DELTA), repeats)  # type: ignore[misc]
        yield Row(
            f"{label}: samples without replacement, by {name} (ε = {epsilon:.4g}; theirs {renyi['epsilon']:.4g})",
            ours, against, renyi["seconds"], None, note=note,
        )  # fmt: skip


def cold(call: Callable[[], float], repeats: int) -> tuple[float, float]:
    """The least time with empty caches, and the value."""
    best, value = float("inf"), 0.0
    for _ in range(repeats):
        empty_caches()
        began = time.perf_counter()
        value = call()
        best = min(best, time.perf_counter() - began)
    return best, value


def empty_caches() -> None:
    """Of all that the project remembers about privacy."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pri_rfed."):
            for member in list(vars(module).values()):
                if hasattr(member, "cache_clear") and getattr(member, "__module__", "").startswith("pri_rfed"):
                    member.cache_clear()
    gc.collect()

