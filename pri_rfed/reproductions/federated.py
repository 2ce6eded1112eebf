"""Federated optimisation on manifolds without privacy, which PriRFed builds on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, final

import numpy as np
from matplotlib.figure import Figure

from pri_rfed.data.agents import AgentArrays
from pri_rfed.data.download import DataFolders
from pri_rfed.data.sources import unit_rows
from pri_rfed.experiment.plots import LOOKS
from pri_rfed.problems import PrincipalEigenvector
from pri_rfed.randomness import Role, stream
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.reproductions.curves import medians
from pri_rfed.simulation import Evaluation, simulate
from pri_rfed.training import RGD, RFedSVRG, Trainer


@final
@dataclass(frozen=True, kw_only=True)
class FederatedRFedSVRG(Reproduction):
    """The leading eigenvector of `records` random vectors of `dimension` entries, whose standard deviations fall evenly
    from 1 to 1/2, but for the first one of `leading`; divided among agents. RFedSVRG against averages of local
    descents.

    agents: numbers of agents. sampled: shares of them in a round. local_steps, step_size: of both methods. evaluations:
    points of a curve.
    """

    name = "federated-rfedsvrg"
    title = "RFedSVRG on the sphere, without privacy"
    paper = Paper.FEDERATED
    shows = "the experiments on the sphere"
    statement = (
        "RFedSVRG, whose local steps are corrected towards the gradient of all, comes nearer to the optimum than "
        "averages of local descents, which drift towards each agent's own."
    )

    dimension: int = 100
    records: int = 10000
    leading: float = 2.0
    agents: tuple[int, ...] = (500, 1000, 2500)
    sampled: tuple[float, ...] = (0.1, 1.0)
    rounds: int = 600
    local_steps: int = 5
    step_size: float = 0.2
    evaluations: int = 30
    seeds: int = 3

    METHODS: ClassVar[dict[str, str]] = {"rfedsvrg": "RFedSVRG", "rfedavg": "averages of local descents"}

    def __post_init__(self) -> None:
        if uneven := [agents for agents in self.agents if not 1 <= agents <= self.records or self.records % agents]:
            raise ValueError(f"agents = {self.agents}: {uneven[0]} must divide the {self.records} records")

    def cells(self) -> Sequence[Cell]:
        return [
            {"agents": agents, "sampled": share, "method": method, "seed": seed}
            for agents in self.agents
            for seed in range(self.seeds)
            for share in self.sampled
            for method in self.METHODS
        ]

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        problem = PrincipalEigenvector(self.dimension)
        agents, evaluation = _federation(self, cell["agents"], cell["seed"])
        trainer: Trainer = RGD(steps=self.local_steps, step_size=self.step_size)
        if cell["method"] == "rfedsvrg":
            trainer = RFedSVRG(inner_steps=self.local_steps, step_size=self.step_size)
        start = problem.start(stream(cell["seed"], Role.START))
        result = simulate(
            problem, agents, trainer, rounds=self.rounds, sampled=max(1, round(cell["sampled"] * cell["agents"])),
            start=start, seed=cell["seed"], evaluate_every=max(1, self.rounds // self.evaluations),
            evaluation=evaluation,
        )  # fmt: skip
        points = [(0, evaluation(start)), *((r["round"], r) for r in result.history if "excess_risk" in r)]
        return [
            {"round": t, "excess_risk": max(r["excess_risk"], 1e-16), "gradient_norm": r["gradient_norm"]}
            for t, r in points
        ]

    def _curve(self, rows: Sequence[Row], agents: int, share: float, method: str) -> dict[int, float]:
        return medians(rows, "round", "excess_risk", agents=agents, sampled=share, method=method)

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        panels = figure.subplots(len(self.sampled), len(self.agents), sharey=True, sharex=True, squeeze=False)
        for row, share in zip(panels, self.sampled, strict=True):
            for axes, agents in zip(row, self.agents, strict=True):
                for look, (method, label) in zip(LOOKS, self.METHODS.items(), strict=False):
                    curve = self._curve(rows, agents, share, method)
                    axes.semilogy(list(curve), list(curve.values()), label=label, markevery=5, **look)
                axes.set_title(f"N = {agents}, {share:.0%} in a round", fontsize=9)
            row[0].set_ylabel("excess risk")
        for axes in panels[-1]:
            axes.set_xlabel("round $t$")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=9)

    @property
    def size(self) -> tuple[float, float]:
        return (2.8 * len(self.agents) + 0.4, 2.4 * len(self.sampled) + 0.8)

    def compare(self, rows: Sequence[Row]) -> str:
        def end(agents: int, share: float, method: str) -> float:
            return float(np.mean(list(self._curve(rows, agents, share, method).values())[-5:]))

        said = []
        for share in self.sampled:
            risks = "; ".join(
                f"N = {agents}: {end(agents, share, 'rfedsvrg'):.2g} against {end(agents, share, 'rfedavg'):.2g}"
                for agents in self.agents
            )
            said.append(f"with {share:.0%} of the agents in a round {risks}")
        return f"Excess risk at the end, RFedSVRG against averages of local descents: {', and '.join(said)}."

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            "Nothing here is private. The publication's vectors are not described in what we have: these are ours, "
            "scaled to norm 1. RFedSVRG's gradient of all is that of the agents of a round: where those are drawn, "
            "that sets a floor to both methods alike, and only with all agents in every round is the drift to be seen.",
        )


@cache
def _federation(experiment: FederatedRFedSVRG, agents: int, seed: int) -> tuple[AgentArrays, Evaluation]:
    rng = stream(seed, Role.DATA)
    spread = np.linspace(1, 0.5, experiment.dimension)
    spread[0] = experiment.leading
    records = unit_rows(rng.standard_normal((experiment.records, experiment.dimension)) * spread)
    held = AgentArrays(list(records.reshape(agents, -1, experiment.dimension)))
    return held, Evaluation(PrincipalEigenvector(experiment.dimension), held)
