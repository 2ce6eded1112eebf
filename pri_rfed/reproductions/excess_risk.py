"""Excess risk against gradient calls: what Figure 3 of the publication on fast sampling shows for three problems."""

from __future__ import annotations

import math
import statistics
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pri_rfed.coordinator import State, start_point
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.plots import LOOKS
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.planning import Plan, published_rule, solve
from pri_rfed.problems import Problem
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.simulation import simulate
from pri_rfed.training import DPRSGD, DPRSVRG, RSGD, RSVRG, Trainer

METHODS = {
    "rgd": "RGD",
    "rsgd": "RSGD",
    "rsvrg": "RSVRG",
    "rsvrg-once": "RSVRG, full gradient once an epoch",
}
"""What to call the methods; the last one is ours, and there is no need for it without privacy."""


Curve = list[tuple[float, float, float, float]]
"""Gradient calls, and the median, least and largest risk over seeds there."""


@dataclass(frozen=True)
class Tried:
    """What is tried for a method; of all combinations the best one is shown.

    passes: how often the whole data set is gone through: steps of RGD, epochs of RSVRG, and for RSGD that many times
    its size in steps. clips: C, for RSVRG C0 and C1 alike but for the factor `step_clip`; not for private methods
    alone. step_sizes: eta.
    """

    passes: int
    step_sizes: tuple[float, ...]
    clips: tuple[float, ...] = (1.0,)
    step_clip: float = 1.0

    def __post_init__(self) -> None:
        for name in ("passes", "step_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive")
        for name in ("step_sizes", "clips"):
            values = getattr(self, name)
            if not values or not all(0 < value < math.inf for value in values):
                raise ValueError(f"{name} = {values} must be positive numbers, at least one")


class Task(NamedTuple):
    """A problem, its records [n, *record_shape] as it uses them, and the least mean loss."""

    problem: Problem
    records: Array
    least: float


@dataclass(frozen=True, kw_only=True)
class ExcessRisk(Reproduction):
    """(Private) RGD, RSGD and RSVRG on the records of one agent: a concrete class says which problem and records.

    epsilons, delta: budgets of a whole run; each method is run without privacy, too. rgd, rsgd, rsvrg: what is tried.
    batch: of RSGD and of the inner steps of RSVRG. frequency: inner steps of an epoch, as a share of the records.
    points: how many times the risk of RSGD is looked at.
    """

    paper = Paper.FAST_SAMPLING

    epsilons: tuple[float, ...] = (0.1, 0.3, 0.5)
    delta: float = 1e-6
    rgd: Tried = Tried(20, (0.1, 1.0))
    rsgd: Tried = Tried(5, (0.001, 0.01))
    rsvrg: Tried = Tried(5, (0.001, 0.01))
    batch: int = 1
    frequency: float = 0.1
    points: int = 20

    def __post_init__(self) -> None:
        if not self.epsilons or min(self.epsilons) <= 0 or not 0 < self.delta < 1:
            raise ValueError(f"epsilons = {self.epsilons} must be positive; delta = {self.delta} between 0 and 1")
        if self.batch < 1 or self.points < 1 or not 0 < self.frequency < math.inf:
            raise ValueError(
                f"batch = {self.batch}, points = {self.points} must be at least 1; frequency = {self.frequency} "
                "positive"
            )

    # What a concrete class says ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def sets(self) -> Sequence[str]:
        """Names of the data sets, to be read in the figure: one row of panels each."""

    @abstractmethod
    def load(self, name: str, folders: DataFolders) -> tuple[Problem, Array]:
        """The problem and the records [n, *record_shape] of a data set. It is called once a process."""

    def start(self, problem: Problem, seed: int) -> Array:
        """Where a run begins; by default where the problem says."""
        return start_point(problem, seed)

    # Measuring --------------------------------------------------------------------------------------------------------

    def cells(self) -> Sequence[Cell]:
        return [
            {
                "set": name,
                "epsilon": epsilon,
                "method": method,
                "clip": clip,
                "step_size": step_size,
                "seed": seed,
            }
            for name in self.sets
            for epsilon in (*self.epsilons, None)
            for method in self._methods(epsilon)
            for clip in (self._tried(method).clips if epsilon is not None else (None,))
            for step_size in self._tried(method).step_sizes
            for seed in range(self.seeds)
        ]

    def _methods(self, epsilon: float | None) -> list[str]:
        return [method for method in METHODS if epsilon is not None or method != "rsvrg-once"]

    def _tried(self, method: str) -> Tried:
        return {"rgd": self.rgd, "rsgd": self.rsgd}.get(method, self.rsvrg)

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        task = _task(self, cell["set"], folders)
        trainer, rounds = _calibrated(self, cell["set"], cell["method"], cell["epsilon"], cell["clip"], folders)
        trainer = replace(trainer, step_size=cell["step_size"])  # type: ignore[type-var]
        start = self.start(task.problem, cell["seed"])
        points = [start]

        def keep(state: State) -> None:
            points.append(state.point)

        result = simulate(
            task.problem,
            [task.records],
            trainer,
            rounds=rounds,
            delta=self.delta,
            start=start,
            seed=cell["seed"],
            evaluate_every=0,
            on_round=keep,
        )
        calls = trainer.gradient_calls(len(task.records))
        spent = math.inf if cell["epsilon"] is None else result.privacy.epsilon_global
        return [
            {
                "gradient_calls": calls * i,
                "excess_risk": _risk(task, point),
                "noise": getattr(trainer, "noise", None),
                "epsilon_spent": spent if math.isfinite(spent) else None,
            }
            for i, point in enumerate(points)
        ]

    def plan(self, method: str, private: bool, clip: float | None, records: int) -> tuple[Trainer, int]:
        """The training of a round, with noise 1, and the number of rounds."""
        tried = self._tried(method)
        if method == "rgd":
            options = {"steps": 1, "batch": "full"}
            return (DPRSGD(**options, clip=clip, noise=1.0) if private else RSGD(**options)), tried.passes  # type: ignore[arg-type]
        if method == "rsgd":
            steps = math.ceil(tried.passes * records / self.points)
            trainer: Trainer = RSGD(steps=steps, batch=self.batch)
            if private:
                trainer = DPRSGD(steps=steps, batch=self.batch, clip=clip, noise=1.0)
            return trainer, self.points
        inner = max(1, round(self.frequency * records))
        if not private or clip is None:
            return RSVRG(epochs=1, inner_steps=inner, batch=self.batch), tried.passes
        published = method == "rsvrg"
        return (
            DPRSVRG(
                epochs=1,
                inner_steps=inner,
                batch=self.batch,
                clip_full=clip,
                clip_step=clip * tried.step_clip,
                difference="apart" if published else "together",
                full_gradient_noise="every-step" if published else "once-an-epoch",
                noise=1.0,
            ),
            tried.passes,
        )

    # Showing ----------------------------------------------------------------------------------------------------------

    def best(self, rows: Sequence[Row]) -> Iterator[tuple[str, float | None, str, list[Row]]]:
        """For every data set, epsilon and method the rows of the clip and step size whose risk at the end is least."""
        groups: dict[tuple[str, float | None, str], dict[tuple[float | None, float], list[Row]]] = {}
        for row in rows:
            options = groups.setdefault((row["set"], row["epsilon"], row["method"]), {})
            options.setdefault((row["clip"], row["step_size"]), []).append(row)
        for key, options in groups.items():
            yield *key, min(options.values(), key=lambda tried: _end(_curve(tried)))

    def _curves(self, rows: Sequence[Row]) -> dict[tuple[str, float | None, str], Curve]:
        return {(name, epsilon, method): _curve(chosen) for name, epsilon, method, chosen in self.best(rows)}

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        columns = (*self.epsilons, None)
        panels = figure.subplots(len(self.sets), len(columns), squeeze=False, sharex=True, sharey="row")
        lines, curves = {}, self._curves(rows)
        for (name, epsilon, method), curve in curves.items():
            axes = panels[self.sets.index(name), columns.index(epsilon)]
            calls, median, low, high = np.transpose(curve)
            look = LOOKS[list(METHODS).index(method)]
            (lines[METHODS[method]],) = axes.plot(calls, median, **look | {"markersize": 3})
            axes.fill_between(calls, low, high, color=look["color"], alpha=0.2, linewidth=0)
        for i, name in enumerate(self.sets):
            panels[i, 0].set_ylabel(f"{name}\nexcess risk" if len(self.sets) > 1 else "excess risk")
        for j, epsilon in enumerate(columns):
            panels[0, j].set_title("not private" if epsilon is None else f"ε = {epsilon:g}", fontsize=10)
            panels[-1, j].set_xlabel("gradient calls")
            panels[-1, j].ticklabel_format(axis="x", style="sci", scilimits=(0, 3))
        for i, name in enumerate(self.sets):
            # What comes down to rounding without privacy is not followed all the way.
            private = [curve for (of, epsilon, _), curve in curves.items() if of == name and epsilon]
            least = min(median for curve in private for _, median, *_ in curve)
            for axes in panels[i]:
                axes.set_yscale("log")
                axes.set_ylim(bottom=least / 10 if math.isfinite(least) else None)
        figure.legend(list(lines.values()), list(lines), loc="outside upper center", ncols=len(lines), fontsize=8)

    @property
    def size(self) -> tuple[float, float]:
        return (2.5 * (len(self.epsilons) + 1) + 0.6, 0.6 + 2.6 * len(self.sets))

    def compare(self, rows: Sequence[Row]) -> str:
        curves = self._curves(rows)
        said = []
        for name in self.sets:
            parts = []
            for epsilon in self.epsilons:
                ends = [
                    f"{METHODS[method].partition(',')[0]}{' (once an epoch)' if ',' in METHODS[method] else ''} "
                    f"{_end(curves[name, epsilon, method]):.2g}"
                    for method in self._methods(epsilon)
                ]
                parts.append(f"at ε = {epsilon:g} " + ", ".join(ends))
            end = f"Excess risk at the end{f', {name}' if len(self.sets) > 1 else ''}: {'; '.join(parts)}."
            said.append(f"{end} {self._calls_compared(name, curves)}")
        return " ".join(said)

    def _calls_compared(
        self, name: str, curves: dict[tuple[str, float | None, str], Curve]
    ) -> str:
        """How DP-RSVRG does against DP-RSGD by gradient calls."""
        reached = []
        for epsilon in self.epsilons:
            published = curves[name, epsilon, "rsgd"]
            target = _end(published)
            for method in ("rsvrg", "rsvrg-once"):
                there = [calls for calls, risk, *_ in curves[name, epsilon, method] if calls and risk <= target]
                reached += [calls / published[-1][0] for calls in there[:1]]
        tried = 2 * len(self.epsilons)
        if not reached:
            return "Private RSVRG nowhere reaches the risk that private RSGD ends with."
        least, most = f"{100 * min(reached):.0f}", f"{100 * max(reached):.0f}"
        share = least if least == most else f"{least}-{most}"
        return (
            f"Private RSVRG, in either variant, reaches the risk that private RSGD ends with in {len(reached)} of "
            f"{tried} cases, with {share} % of its gradient calls."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        name = self.sets[0]
        task = _task(self, name, folders)
        epsilon, claims = min(self.epsilons), []
        for method in ("rgd", "rsgd", "rsvrg"):
            clip = self._tried(method).clips[0]
            trainer, rounds = self.plan(method, True, clip, len(task.records))
            key = "epochs" if isinstance(trainer, DPRSVRG) else "steps"
            whole = replace(trainer, **{key: getattr(trainer, key) * rounds})  # type: ignore[type-var]
            plan = Plan(whole, task.problem, (len(task.records),), 1, 1, self.delta)
            if (published := published_rule(plan, epsilon)) is not None:
                claims.append(f"{METHODS[method]} {published.epsilon_true:.3g}")
        return (
            f"Noise is calibrated for ({epsilon:g} … {max(self.epsilons):g}, {self.delta:g}) of the whole run, for the "
            "replacement of one record. With the published rule for σ at c = 1 the true ε where "
            f"{epsilon:g} is claimed would be: {', '.join(claims)}.",
            "Clip bounds and step sizes are the best of those tried on the data, for each method and ε, as published "
            "(medians over seeds, in the last quarter of a run): that tuning is not charged for. Bands are the range "
            "over seeds.",
            "RSVRG with a full gradient released once an epoch and differences clipped as one is not in the "
            "publication.",
        )


def _curve(rows: Sequence[Row]) -> Curve:
    """The curve of all seeds' rows; what is no number counts as infinite."""
    at: dict[float, list[float]] = {}
    for row in rows:
        risk = row["excess_risk"]
        at.setdefault(row["gradient_calls"], []).append(math.inf if risk is None or math.isnan(risk) else risk)
    return [(calls, statistics.median(risks), min(risks), max(risks)) for calls, risks in sorted(at.items())]


def _end(curve: Curve) -> float:
    """The median risk at the end: that of the last quarter of the points, for a single one has much of chance."""
    return statistics.median(median for _, median, *_ in curve[-max(1, len(curve) // 4) :])


def _risk(task: Task, point: Array) -> float | None:
    """F(w) - F(w*), not below what rounding is; None where w is lost."""
    risk = float(np.mean(task.problem.loss(point, task.records))) - task.least
    return max(risk, 1e-16) if math.isfinite(risk) else None


@cache
def _task(experiment: ExcessRisk, name: str, folders: DataFolders) -> Task:
    problem, records = experiment.load(name, folders)
    records = problem.prepare_records(records)
    optimum = problem.optimum(records)
    if optimum is None:
        raise ValueError(f"{experiment.name}: no optimum was found for {name}")
    return Task(problem, records, float(np.mean(problem.loss(optimum, records))))


@cache
def _calibrated(
    experiment: ExcessRisk, name: str, method: str, epsilon: float | None, clip: float | None, folders: DataFolders
) -> tuple[Trainer, int]:
    """The training of a round with the noise for the budget, and the number of rounds."""
    task = _task(experiment, name, folders)
    trainer, rounds = experiment.plan(method, epsilon is not None, clip, len(task.records))
    if epsilon is None:
        return trainer, rounds
    plan = Plan(trainer, task.problem, (len(task.records),), 1, rounds, experiment.delta)
    return solve(plan, epsilon, "noise", split=hasattr(trainer, "alpha")).trainer, rounds
