"""Compute the points of a sweep: in this process, in parallel ones, or on a cluster; and finish its folder."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any

from pri_rfed.data.agents import AgentArrays
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import ConfigError, Experiment, check, load
from pri_rfed.experiment.folder import to_json
from pri_rfed.experiment.memory import Memory
from pri_rfed.experiment.run import carry_out, claims, epsilons, evaluation_of, figures
from pri_rfed.experiment.sweep import CURVES, FACTS, RESULTS, Point, Sweep, SweepFolder
from pri_rfed.experiment.sweep_plots import plot_sweep
from pri_rfed.files import write_atomically
from pri_rfed.simulation import Evaluation, Result

BACKENDS = ("processes", "ray")
POINTS_AT_ONCE = 8
"""How many points each process of a Ray cluster computes between two looks at the results."""

Row = dict[str, Any]
Curves = dict[str, list[Any]]
Computed = tuple[Point, Row, Curves]


@dataclass(frozen=True)
class Progress:
    """Of `points`, `done` are computed, `failed` of them in vain."""

    done: int
    failed: int
    points: int


class Interrupted(Exception):
    """The sweep ended early, for that reason; what was computed is in its folder, and the same command goes on."""


def check_backend(backend: str) -> None:
    """Raises ConfigError where there is no such backend here."""
    if backend not in BACKENDS:
        raise ConfigError([f"--backend {backend}: there is only {', '.join(BACKENDS)}"])
    if backend == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError(["--backend ray: Ray is not installed; pip install 'pri-rfed[cluster]'"])


def refusals(sweep: Sweep) -> dict[str, list[str]]:
    """What is wrong with points, by their keys, as far as that can be told without data.

    Raises ConfigError with everything if no point is right.
    """
    known: dict[str, list[str]] = {}
    wrong = {}
    for point in sweep.points:
        kind = _kind(point)
        if kind not in known:
            known[kind] = check(point.tables)
        if known[kind]:
            wrong[point.key] = known[kind]
    if len(wrong) == len(sweep.points):
        raise ConfigError([line for lines in wrong.values() for line in lines])
    return wrong


def run_sweep(
    folder: SweepFolder,
    folders: DataFolders,
    *,
    jobs: int | None = None,
    backend: str = "processes",
    retry: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Row:
    """Compute all points that the folder does not hold yet, then its table and pictures; returns the summary.

    A point that fails is one row with its error. jobs: processes at the same time; 1: this one; None: one a core.
    backend "ray": on the Ray cluster that the environment names (RAY_ADDRESS), or a local one. retry: compute those
    that failed again.

    Raises Interrupted on Ctrl-C, ConfigError as `refusals` and `check_backend`.
    """
    check_backend(backend)
    began = time.perf_counter()
    sweep = folder.sweep
    done = {key: line for key, line in folder.computed.items() if not (retry and line["row"]["status"] == "failed")}
    todo = [point for point in sweep.points if point.key not in done]
    failed = sum(line["row"]["status"] == "failed" for line in done.values())
    finished = len(sweep.points) - len(todo)
    wrong = refusals(sweep)
    before = folder.summary
    if todo:
        (folder.path / "summary.json").unlink(missing_ok=True)  # the sweep is not finished now
    report(Progress(finished, failed, len(sweep.points)))
    refused: list[Computed] = [
        (point, _failure("; ".join(wrong[point.key])), {}) for point in todo if point.key in wrong
    ]
    computed = _compute([point for point in todo if point.key not in wrong], folders, jobs, backend)
    try:
        for point, row, rounds in itertools.chain(refused, computed):
            folder.append(point, row, rounds)
            finished += 1
            failed += row["status"] == "failed"
            report(Progress(finished, failed, len(sweep.points)))
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None
    except BrokenExecutor as error:  # a process was killed, perhaps for want of memory
        raise Interrupted(f"stopped, since a process died: {error}") from error
    finally:
        folder = SweepFolder(folder.path, sweep)
        folder.write_table()
    seconds = time.perf_counter() - began if todo or before is None else before["seconds"]
    return _finish(folder, seconds)


def _finish(folder: SweepFolder, seconds: float) -> Row:
    """Pictures, and the summary last, for it says that the sweep is finished."""
    rows = folder.table()
    pictures, left_out = plot_sweep(folder)
    summary = {
        "name": folder.sweep.name,
        "varied": list(folder.varied),
        "points": len(rows),
        "done": sum(row["status"] == "done" for row in rows),
        "failed": sum(row["status"] == "failed" for row in rows),
        "seeds": len({row["seed"] for row in rows}),
        "seconds": seconds,
        "pictures": pictures,
        "left_out": left_out,
    }
    write_atomically(folder.path / "summary.json", to_json(summary).encode())
    return summary


# Points ---------------------------------------------------------------------------------------------------------------


def _compute(points: Sequence[Point], folders: DataFolders, jobs: int | None, backend: str) -> Iterator[Computed]:
    """Every point with its row and curves, as they get ready."""
    if not points:
        return
    if backend == "ray":
        yield from _on_ray(points, folders, jobs)
        return
    jobs = min(available_jobs() if jobs is None else jobs, len(points))
    if jobs == 1:
        yield from (compute(point, folders) for point in points)
        return
    from joblib import Parallel

    starts = {"initializer": _serve, "initargs": (os.getpid(),)}
    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", **starts)
    shared = _Shared()
    yield from shared.collect(parallel(shared.tasks(points, folders)))


class _Shared:
    """What one process finds for a point, for those that compute other points that differ in the seed only: noise and
    privacy figures take longer to find than a short run takes."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def tasks(self, points: Sequence[Point], folders: DataFolders) -> Iterator[Any]:
        """Calls for joblib, seed by seed: no two processes find the same, and a seed is mostly for one of them."""
        from joblib import delayed

        before: Counter[str] = Counter()
        turn = []
        for point in points:
            turn.append(before[_kind(point)])
            before[_kind(point)] += 1
        for _, point in sorted(zip(turn, points, strict=True), key=itemgetter(0)):
            yield delayed(_compute_there)(point, folders, self._found.get(_kind(point), {}))

    def collect(self, answers: Iterable[tuple[Computed, dict[str, Any]]]) -> Iterator[Computed]:
        for computed, found in answers:
            self._found.setdefault(_kind(computed[0]), found)
            yield computed


def _kind(point: Point) -> str:
    """All of a point but its seed."""
    return json.dumps(point.values, sort_keys=True)


def _compute_there(point: Point, folders: DataFolders, known: dict[str, Any]) -> tuple[Computed, dict[str, Any]]:
    """A point, in a process that is there for nothing else, and what was found for it that was not known."""
    memory = _memory(folders)
    memory.learn(known)
    computed = compute(point, folders)
    _settle()
    return computed, memory.news()


@cache
def _settle() -> None:
    """joblib looks for garbage every second, which takes a tenth of it where all that was ever imported is looked
    through; after the first point everything is."""
    gc.freeze()


def _serve(parent: int) -> None:
    """What a process that computes points does at its start: Ctrl-C is for the one that collects results, which ends
    the others; and where that one dies, this one ends by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_ray(points: Sequence[Point], folders: DataFolders, jobs: int | None) -> Iterator[Computed]:
    """The same by joblib's backend for Ray, which hands results over part by part."""
    from joblib import Parallel, effective_n_jobs, parallel_config
    from ray.util.joblib import register_ray

    register_ray()
    with parallel_config(backend="ray", n_jobs=-1 if jobs is None else jobs), Parallel() as parallel:
        shared = _Shared()
        tasks = shared.tasks(points, folders)
        part = POINTS_AT_ONCE * effective_n_jobs()
        while some := list(itertools.islice(tasks, part)):
            yield from shared.collect(parallel(some))


@cache
def _memory(folders: DataFolders) -> Memory:
    """What this process knows of points computed before."""
    return Memory()


def compute(point: Point, folders: DataFolders) -> Computed:
    """The point with its row of the table and its curves by round; a failure is a row, too."""
    began = time.perf_counter()
    memory = _memory(folders)
    try:
        experiment = load(point.tables, folders, memory)
        evaluation = _evaluation(experiment, memory)
        result = carry_out(experiment, evaluation)
        found = figures(experiment, result, evaluation, _epsilons(experiment, result, memory))
    except Exception as error:  # of whatever kind: the other points go on
        text = "; ".join(error.errors) if isinstance(error, ConfigError) else str(error)
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        return point, _failure(f"{kind}{text}"), {}
    row = {"status": "done", **{name: found.get(name) for name in (*FACTS, *RESULTS)}}
    row["point_seconds"] = time.perf_counter() - began
    return point, row, _curves(result)


def _failure(error: str) -> Row:
    return {"status": "failed", "error": error}


def _evaluation(experiment: Experiment, memory: Memory) -> Evaluation | None:
    """The run's diagnostics, with the optimum that they compare with."""
    if not isinstance(experiment.agents, AgentArrays) or not experiment.run.evaluate_every:
        return None
    resolved = experiment.resolved
    of = [resolved["problem"], resolved["data"], experiment.run.seed]
    size = experiment.agents.nbytes
    return memory.recall("evaluation", of, lambda: evaluation_of(experiment), lambda _: size)


def _epsilons(experiment: Experiment, result: Result, memory: Memory) -> Row:
    """The privacy figures, computed once for all runs that released the same."""
    most = {n: int(result.participations[result.counts == n].max()) for n in result.local_events}
    released = {n: event.to_dict() for n, event in result.local_events.items()}
    of = [released, result.final.draws, result.delta]
    said = memory.recall("claims", of, lambda: claims(result.privacy))  # of the plan: whoever took part how often
    return memory.recall("epsilons", [of, most], lambda: epsilons(result.privacy, said))


def _curves(result: Result) -> Curves:
    """The rounds that were evaluated, by columns."""
    records: list[Any] = [record for record in result.history if "cost" in record]
    if not records:
        return {}
    return {"round": [r["round"] for r in records]} | {
        name: [r[name] for r in records] for name in CURVES if name in records[0]
    }


def available_jobs() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
