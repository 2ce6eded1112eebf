"""PriRFed by DP-RSGD against DP-RSVRG: what is the same for principal components and for Fréchet means."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pri_rfed.aggregation import ProjectedMean, TangentMean
from pri_rfed.data.agents import AgentArrays
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.plots import GREY, LOOKS
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.calibration import calibrate_noise, published_sigma, with_options
from pri_rfed.privacy.report import finite_or_none
from pri_rfed.problems import Problem
from pri_rfed.randomness import Role, stream
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.reproductions.curves import medians
from pri_rfed.simulation import Evaluation, simulate
from pri_rfed.training import DPRSGD, DPRSVRG, Trainer

METHODS = {
    "dp-rsgd": "DP-RSGD",
    "dp-rsvrg": "DP-RSVRG, as published",
    "dp-rsvrg-once": "DP-RSVRG, full gradient released once",
    "dp-fedavg": "DP-FedAvg, projected",
    "rsgd": "RSGD, not private",
}
PUBLISHED = ("dp-rsgd", "dp-rsvrg")
"""The methods that run with the published noise as well."""


class Federation(NamedTuple):
    """So many agents with so many records each, so many of them in a round."""

    agents: int
    per_agent: int
    sampled: int


@dataclass(frozen=True, kw_only=True)
class FederatedComparison(Reproduction):
    """PriRFed by DP-RSGD and DP-RSVRG: with sound noise, over privacy levels, and with the published noise. What else
    is varied, the problem and the records are those of a concrete class.

    epsilons, delta: budgets of the whole run, before it. published: (epsilon, delta) that the published rule is asked
    to give each local training; with its noise, the published methods run once more. local_steps: K. share: of an
    agent's records in a batch. clip_difference: of the difference of two gradients of a record, in the variant of
    DP-RSVRG that clips it as one and releases the full gradient once an epoch; alpha_once: the share of the variance
    that the latter gets there. evaluations: points of a curve.
    """

    paper = Paper.PRIRFED
    varied: ClassVar[str]
    """What is varied besides the noise: an entry of a cell."""
    in_words: ClassVar[str]
    """It in the figure, with {} for a value."""
    diagnostics: ClassVar[tuple[str, ...]] = ("excess_risk",)
    """What is kept of an evaluation."""

    epsilons: tuple[float, ...] = (0.5, 2.0)
    delta: float = 1e-5
    published: tuple[float, float] = (0.15, 1e-4)
    rounds: int = 100
    local_steps: int = 5
    share: float = 0.5
    step_size: float = 0.01
    clip_difference: float = 0.1
    alpha_once: float = 0.9
    evaluations: int = 20
    seeds: int = 3

    # What a concrete class says ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _values(self) -> tuple[int, ...]:
        """Values of what is varied."""

    @abstractmethod
    def _federation(self, value: int) -> Federation: ...

    @property
    @abstractmethod
    def _problem(self) -> Problem: ...

    @abstractmethod
    def _records(self, federation: Federation, seed: int, folders: DataFolders) -> Array:
        """The records of all agents, [agents * per_agent, *record_shape]."""

    @property
    def _clip(self) -> float | None:
        """Of gradients; None where the problem bounds them."""
        return None

    @property
    def _methods(self) -> tuple[str, ...]:
        """Of METHODS."""
        return ("dp-rsgd", "dp-rsvrg", "dp-rsvrg-once")

    def _start(self, seed: int) -> Array:
        """Where a run begins; by default where the problem says."""
        return self._problem.start(stream(seed, Role.START))

    # Measuring --------------------------------------------------------------------------------------------------------

    def _runs(self) -> list[tuple[str, float | None, str]]:
        """Noise, budget and method of every run."""
        private = [method for method in self._methods if method != "rsgd"]
        runs: list[tuple[str, float | None, str]] = [("sound", e, method) for e in self.epsilons for method in private]
        runs += [("published", None, method) for method in private if method in PUBLISHED]
        return runs + [("none", None, method) for method in self._methods if method == "rsgd"]

    def _trainer(self, method: str, local: dict[str, Any]) -> Trainer:
        """What an agent does; local: the options that are the same for all methods."""
        if method == "dp-rsgd":
            return DPRSGD(steps=self.local_steps, clip=self._clip, **local)
        local = local | {"inner_steps": self.local_steps, "clip_full": self._clip}
        if method == "dp-rsvrg":
            return DPRSVRG(clip_step=self._clip, **local)
        return DPRSVRG(
            clip_step=self.clip_difference,
            difference="together",
            full_gradient_noise="once-an-epoch",
            alpha=self.alpha_once,
            **local,
        )

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        value, seed = cell[self.varied], cell["seed"]
        agents, evaluation = _data(self, value, seed, folders)
        trainer = _noised(self, value, cell["method"], cell["noise"], cell["budget"])
        federation, start = self._federation(value), self._start(seed)
        result = simulate(
            self._problem,
            agents,
            trainer,
            rounds=self.rounds,
            sampled=federation.sampled,
            aggregation=ProjectedMean() if trainer.leaves_manifold else TangentMean(),
            delta=self.delta,
            start=start,
            seed=seed,
            evaluate_every=max(1, self.rounds // self.evaluations),
            evaluation=evaluation,
        )
        calls = trainer.gradient_calls(federation.per_agent) * federation.sampled
        points: list[tuple[int, Mapping[str, Any]]] = [(0, evaluation(start))]
        points += [(r["round"], r) for r in result.history if "excess_risk" in r]
        return [
            {
                "round": t,
                "gradient_calls": t * calls,
                **{name: finite_or_none(record[name]) for name in self.diagnostics},
                "epsilon": finite_or_none(result.privacy.epsilon_global),
            }
            for t, record in points
        ]

    # Showing ----------------------------------------------------------------------------------------------------------

    def _curve(self, rows: Sequence[Row], **choice: Any) -> dict[int, float]:
        return medians(rows, "round", "excess_risk", **choice)

    def _end(self, rows: Sequence[Row], **choice: Any) -> float:
        """The mean of a curve over the last quarter of its points."""
        curve = list(self._curve(rows, **choice).values())
        return float(np.mean(curve[-max(1, len(curve) // 4) :]))

    def _ends(self, rows: Sequence[Row], value: int, epsilon: float) -> dict[str, float]:
        """By private method, with sound noise."""
        choice = {self.varied: value, "noise": "sound", "budget": epsilon}
        return {method: self._end(rows, method=method, **choice) for method in self._methods if method != "rsgd"}

    def _true_epsilons(self, rows: Sequence[Row]) -> list[float]:
        """With the published noise, by DP-RSGD and DP-RSVRG."""
        published = [row for row in rows if row["noise"] == "published"]
        return [max(row["epsilon"] for row in published if row["method"] == method) for method in PUBLISHED]

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        levels: list[tuple[str, dict[str, Any]]] = [
            (f"ε = {epsilon:g}", {"noise": "sound", "budget": epsilon}) for epsilon in self.epsilons
        ]
        true = ", ".join(f"{epsilon:.3g}" for epsilon in self._true_epsilons(rows))
        levels.append((f"published noise,\ntrue ε {true}", {"noise": "published"}))
        panels = figure.subplots(len(self._values), len(levels), sharex=True, sharey=True, squeeze=False)
        lines = {}
        for value, line in zip(self._values, panels, strict=True):
            for (_, choice), axes in zip(levels, line, strict=True):
                for look, (method, label) in zip(LOOKS, METHODS.items(), strict=False):
                    which = {"noise": "none"} if method == "rsgd" else choice
                    curve = self._curve(rows, method=method, **{self.varied: value}, **which)
                    if curve:
                        shown = np.maximum(list(curve.values()), 1e-16)
                        own = look | {"color": GREY} if method == "rsgd" else look
                        (lines[label],) = axes.plot(list(curve), shown, markevery=max(1, len(curve) // 6), **own)
                axes.set_yscale("log")
            line[0].set_ylabel(f"excess risk,\n{self.in_words.format(value)}", fontsize=9)
        for axes, (title, _) in zip(panels[0], levels, strict=True):
            axes.set_title(title, fontsize=9)
        for axes in panels[-1]:
            axes.set_xlabel("round $t$")
        figure.legend(list(lines.values()), list(lines), loc="outside upper center", ncols=3, fontsize=8)

    @property
    def size(self) -> tuple[float, float]:
        return (max(6.6, 2.9 * (len(self.epsilons) + 1)), 1.2 + 2.2 * len(self._values))

    def _said_of_variance_reduction(self, rows: Sequence[Row]) -> str:
        plans = [self._ends(rows, value, epsilon) for value in self._values for epsilon in self.epsilons]
        wins = [sum(ends[method] < ends["dp-rsgd"] for ends in plans) for method in ("dp-rsvrg", "dp-rsvrg-once")]
        return (
            f"DP-RSVRG as published ends below DP-RSGD in {wins[0]} of {len(plans)} plans, and with its full gradient "
            f"released once in {wins[1]}"
        )

    def _said_of_published_noise(self, rows: Sequence[Row]) -> str:
        true, (epsilon, delta) = self._true_epsilons(rows), self.published
        return (
            f"The published noise, for local trainings said to be ({epsilon:g}, {delta:g}), gives the run a true ε "
            f"of {true[0]:.3g} with DP-RSGD and {true[1]:.3g} with DP-RSVRG (δ = {self.delta:g})."
        )


@cache
def _noised(experiment: FederatedComparison, value: int, method: str, noise: str, budget: float | None) -> Trainer:
    """What an agent does, with its noise."""
    problem, (agents, per_agent, sampled) = experiment._problem, experiment._federation(value)
    batch = max(1, round(experiment.share * per_agent))
    trainer = experiment._trainer(method, {"batch": batch, "step_size": experiment.step_size, "noise": 1.0})
    if noise == "published":
        # The rule covers the release of one gradient in each of the K steps; DP-RSVRG splits its variance.
        bound = experiment._clip or problem.gradient_bound or (problem.gradient_difference_bound or 0.0) / 2
        sigma = published_sigma(bound, experiment.local_steps, per_agent, *experiment.published)
        return with_options(trainer, noise=sigma)
    if budget is None:
        return trainer
    rounds, delta = experiment.rounds, experiment.delta
    return calibrate_noise(trainer, problem, [per_agent], sampled, agents, rounds, budget, delta)


@cache
def _data(
    experiment: FederatedComparison, value: int, seed: int, folders: DataFolders
) -> tuple[AgentArrays, Evaluation]:
    """What all methods share that run on the same records."""
    problem, federation = experiment._problem, experiment._federation(value)
    records = problem.prepare_records(experiment._records(federation, seed, folders))
    held = records.reshape(federation.agents, federation.per_agent, *problem.record_shape)
    agents = AgentArrays(list(held))
    return agents, Evaluation(problem, agents)
