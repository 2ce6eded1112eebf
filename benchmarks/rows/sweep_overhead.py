"""What a sweep takes beside its simulations.

200 points of the quickstart, 8 budgets with 25 seeds each, by 2 processes: against `simulate` alone of every second
one, which is what 2 cores can do at best. A point is also loaded, accounted for, sent and written.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.table import Row
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import load, read_toml
from pri_rfed.experiment.run import carry_out, claims, epsilons, evaluation_of, figures
from pri_rfed.experiment.sweep import Sweep, SweepFolder, parse
from pri_rfed.experiment.sweep_run import compute, run_sweep

PLACE = 90
JOBS = 2
CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.toml"
BUDGETS = [0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6]


def rows(quick: bool) -> Iterator[Row]:
    tables: dict[str, Any] = read_toml(CONFIG) | {
        "sweep": {"seeds": 2 if quick else 25, "grid": {"privacy.epsilon": BUDGETS}}
    }
    sweep, folders = parse(tables, Path(), "overhead"), DataFolders()
    with tempfile.TemporaryDirectory(prefix="pri-rfed-bench-") as path:
        folder = SweepFolder.prepare(sweep, Path(path) / "sweep")
        began = time.perf_counter()
        run_sweep(folder, folders, jobs=JOBS)
        whole = time.perf_counter() - began
        began = time.perf_counter()
        run_sweep(SweepFolder.open(folder.path), folders, jobs=JOBS)  # nothing is left but the table and the pictures
        finish = time.perf_counter() - began
        began = time.perf_counter()
        run_sweep(SweepFolder.prepare(sweep, Path(path) / "again"), folders, jobs=JOBS)  # the processes are there now
        warm = time.perf_counter() - began - finish
    simulated, looped = _one_by_one(sweep, folders)
    name = f"{len(sweep.points)} points of the quickstart, {JOBS} processes"
    yield Row(
        f"{name} that run already", warm, f"the simulations alone, / {JOBS}", simulated, 1 / 1.1,
        note=f"Table and pictures take {finish:.2g} s, whatever the sweep's size; to start the processes, "
        f"and to find the noise of {len(BUDGETS)} budgets in each of them, takes {whole - finish - warm:.2g} s.",
    )  # fmt: skip
    yield Row(f"{name}, from their start to the last picture", whole, f"a loop over single runs, / {JOBS}", looped)


def _one_by_one(sweep: Sweep, folders: DataFolders) -> tuple[float, float]:
    """Seconds of every second point, one after another: its simulation alone, and all of it by itself."""
    compute(sweep.points[0], folders)  # what is imported late
    began, simulated = time.perf_counter(), 0.0
    for point in sweep.points[::JOBS]:
        experiment = load(point.tables, folders)
        evaluation = evaluation_of(experiment)
        before = time.perf_counter()
        result = carry_out(experiment, evaluation)
        simulated += time.perf_counter() - before
        figures(experiment, result, evaluation, epsilons(result.privacy, claims(result.privacy)))
    return simulated, time.perf_counter() - began
