"""What a sweep takes beside its simulations.

The quickstart with 8 budgets, by 2 processes. Processor time is that of all processes together: it hardly depends on
what else the machine does. A point's is the difference between long and short sweeps, over the difference in points.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from benchmarks.table import Row
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import Memory, load, read_toml
from pri_rfed.experiment.run import carry_out, claims, epsilons, evaluation_of, figures
from pri_rfed.experiment.sweep import Point, Sweep, SweepFolder, parse
from pri_rfed.experiment.sweep_run import compute, run_sweep

PLACE = 90
JOBS = 2
CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.toml"
BUDGETS = [0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6]
SEEDS = 25


def rows(quick: bool) -> Iterator[Row]:
    folders = DataFolders()
    seeds = 2 if quick else SEEDS
    short, long = _sweep(seeds), _sweep(3 * seeds)
    compute(short.points[0], folders)  # what is imported late
    turns = [
        (*_run(short, folders), _run(long, folders)[1], _simulated(long, folders)) for _ in range(1 if quick else 4)
    ]
    # What else the machine does passes: the least of several, taken in turn.
    seconds, processor, more, alone = (min(figures) for figures in zip(*turns, strict=True))
    each = (more - processor) / (len(long.points) - len(short.points))
    simulated = alone / len(long.points)
    yield Row(
        f"a point of the quickstart in a sweep by {JOBS} processes, processor time", each,
        f"its simulation alone, in {JOBS} processes", simulated, 1 / 1.1,
        note="Beside its simulation a point is loaded, accounted for, sent and written down.",
    )  # fmt: skip
    yield Row(
        "what a sweep takes besides, processor time", processor - each * len(short.points),
        note=f"Whatever the number of points: {JOBS} processes start, the noise of {len(BUDGETS)} budgets is found; "
        "table and pictures are made.",
    )  # fmt: skip
    yield Row(
        f"a sweep of {len(short.points)} points by {JOBS} processes, from start to pictures", seconds,
        f"a loop over single runs, / {JOBS}", _loop(short, folders),
    )  # fmt: skip


def _sweep(seeds: int) -> Sweep:
    tables: dict[str, Any] = read_toml(CONFIG) | {"sweep": {"seeds": seeds, "grid": {"privacy.epsilon": BUDGETS}}}
    return parse(tables, Path(), "overhead")


def _run(sweep: Sweep, folders: DataFolders) -> tuple[float, float]:
    """Seconds, and processor seconds of all processes, of a sweep whose processes start and end."""
    with tempfile.TemporaryDirectory(prefix="pri-rfed-bench-") as path:
        before, began = _processor(), time.perf_counter()
        run_sweep(SweepFolder.prepare(sweep, Path(path) / "sweep"), folders, jobs=JOBS)
        seconds = time.perf_counter() - began
        get_reusable_executor().shutdown(wait=True)
        return seconds, _processor() - before


def _processor() -> float:
    """Processor seconds of this process and of those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _simulated(sweep: Sweep, folders: DataFolders) -> float:
    """Processor seconds of the simulations alone of a sweep, in as many processes."""
    return sum(Parallel(n_jobs=JOBS)(delayed(_simulate)(sweep.points[i::JOBS], folders) for i in range(JOBS)))


def _simulate(points: Sequence[Point], folders: DataFolders) -> float:
    """Processor seconds of the simulations of these points, without all that belongs to them."""
    seconds, memory = 0.0, Memory()
    for point in points:
        experiment = load(point.tables, folders, memory)
        evaluation = evaluation_of(experiment)
        before = time.process_time()
        carry_out(experiment, evaluation)
        seconds += time.process_time() - before
    return seconds


def _loop(sweep: Sweep, folders: DataFolders) -> float:
    """Seconds of every second point as a run by itself, one after another."""
    began = time.perf_counter()
    for point in sweep.points[::JOBS]:
        experiment = load(point.tables, folders)
        evaluation = evaluation_of(experiment)
        result = carry_out(experiment, evaluation)
        figures(experiment, result, evaluation, epsilons(result.privacy, claims(result.privacy)))
    return time.perf_counter() - began
