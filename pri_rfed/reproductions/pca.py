"""Experiments on principal components: federated, against what ignores the sphere, and by gradient calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, final

import numpy as np
from matplotlib.figure import Figure

from pri_rfed.data.agents import Records
from pri_rfed.data.base import Source
from pri_rfed.data.download import DataFolders
from pri_rfed.data.sources import MNIST, Ijcnn1, Satimage, SyntheticPCA, unit_rows
from pri_rfed.experiment.plots import LOOKS
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.calibration import calibrate_noise, published_sigma
from pri_rfed.problems import PrincipalEigenvector, Problem
from pri_rfed.randomness import AgentStreams, Role, stream
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.reproductions.excess_risk import ExcessRisk
from pri_rfed.reproductions.federated_comparison import METHODS, FederatedComparison, Federation
from pri_rfed.training import DPRSGD, DPFedAvg, DPProjectedSGD, InputPerturbation, Trainer

# PriRFed by DP-RSGD against DP-RSVRG ----------------------------------------------------------------------------------

@dataclass(frozen=True, kw_only=True)
class _FederatedPCA(FederatedComparison):
    """PriRFed for the leading eigenvector, from a random start; see `FederatedComparison`.

    methods: of METHODS. agents: numbers N of agents, each of whom has per_agent records. sampled: share of the agents
    in a round. clip_ambient: of the gradients of DP-FedAvg; the others need no clipping.
    """

    varied = "agents"
    in_words = "N = {}"
    diagnostics = ("excess_risk", "gradient_norm")

    methods: tuple[str, ...] = tuple(METHODS)
    epsilons: tuple[float, ...] = (0.3, 1.0, 3.0)
    agents: tuple[int, ...] = (100,)
    per_agent: int = 500
    sampled: float = 1.0
    rounds: int = 50
    step_size: float = 0.1
    clip_ambient: float = 1.0

    def __post_init__(self) -> None:
        if unknown := [method for method in self.methods if method not in METHODS]:
            raise ValueError(f"methods = {self.methods}: {unknown[0]!r} is none of {', '.join(METHODS)}")

    @property
    def _values(self) -> tuple[int, ...]:
        return self.agents

    def _federation(self, value: int) -> Federation:
        return Federation(value, self.per_agent, max(1, round(self.sampled * value)))

    @property
    def _methods(self) -> tuple[str, ...]:
        return self.methods

    def cells(self) -> Sequence[Cell]:
        return [
            {"agents": agents, "noise": noise, "budget": budget, "method": method, "seed": seed}
            for agents in self.agents
            for seed in range(self.seeds)  # outside of what shares its data
            for noise, budget, method in self._runs()
        ]

    def _trainer(self, method: str, local: dict[str, Any]) -> Trainer:
        if method == "rsgd":
            return DPRSGD(steps=self.local_steps, **local | {"noise": 0.0})
        if method == "dp-fedavg":
            return DPFedAvg(steps=self.local_steps, clip=self.clip_ambient, **local)
        return super()._trainer(method, local)


_ONCE = (
    "Records have norm 1 at most, which bounds their gradients by 1 on the sphere, unclipped. DP-RSVRG with its full "
    "gradient released once an epoch clips differences of gradients as one; that is ours."
)


@final
@dataclass(frozen=True, kw_only=True)
class PriRFedSyntheticPCA(_FederatedPCA):
    """Synthetic vectors of `dimension` entries with the eigengap `gap`, over privacy levels; see `_FederatedPCA`."""

    name = "prirfed-synthetic-pca"
    title = "PriRFed for the leading eigenvector of synthetic data, over privacy levels"
    shows = "Figure 1"
    statement = "The larger ε, the smaller the cost and the gradient that PriRFed comes to, with either local training."

    dimension: int = 50
    gap: float = 1e-3

    @property
    def _problem(self) -> PrincipalEigenvector:
        return PrincipalEigenvector(self.dimension)

    def _records(self, federation: Federation, seed: int, folders: DataFolders) -> Array:
        records = federation.agents * federation.per_agent
        source = SyntheticPCA(records=records, dimension=self.dimension, gap=self.gap, scale="unit")
        return source.load(folders, stream(seed, Role.DATA)).records

    def compare(self, rows: Sequence[Row]) -> str:
        ends = {epsilon: self._ends(rows, self.agents[0], epsilon) for epsilon in self.epsilons}
        falling = [
            METHODS[method]
            for method in ends[self.epsilons[0]]
            if all(ends[b][method] < ends[a][method] for a, b in zip(self.epsilons, self.epsilons[1:], strict=False))
        ]
        said = "; ".join(
            f"at ε = {epsilon:g} " + ", ".join(f"{METHODS[method]} {risk:.2g}" for method, risk in risks.items())
            for epsilon, risks in ends.items()
        )
        which = " and ".join(falling) if falling else "no method"
        return (
            f"The risk falls with every step of ε for {which}. Excess risk at the end, {said}. "
            f"With sound noise {self._said_of_variance_reduction(rows)}. {self._said_of_published_noise(rows)}"
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            f"The numbers of this experiment are lost from the text that we have. Here: {self.agents[0]} agents with "
            f"{self.per_agent} records each, {self.sampled:.0%} of them in a round, {self.local_steps} local steps of "
            f"{self.step_size:g} on {self.share:.0%} of the records; the budgets are those of the whole run.",
            f"Each record is scaled to norm 1. Five eigenvalues lie next to the first, by the eigengap {self.gap:g}: "
            "once the risk is as small as that, directions that are left differ by little.",
            f"DP-FedAvg averages in the space around the sphere, with gradients clipped at {self.clip_ambient:g}.",
            _ONCE,
        )


def _check_pooled(pooled: int) -> None:
    if pooled < 1 or 28 % pooled:
        raise ValueError(f"pooled = {pooled}: must divide 28")


@cache
def _images(given: Any, pooled: int, subset: Literal["train", "test"] = "train", digits: tuple[int, ...] = ()) -> Array:
    """MNIST's images, averaged over squares of so many pixels, norm 1."""
    images = MNIST(subset=subset, digits=digits).load(DataFolders(given), stream(0, Role.DATA)).records
    side = 28 // pooled
    squares = images.reshape(-1, side, pooled, side, pooled)
    return unit_rows(squares.mean(axis=(2, 4)).reshape(-1, side * side))


@final
@dataclass(frozen=True, kw_only=True)
class PriRFedMNISTPCA(_FederatedPCA):
    """MNIST's training images, averaged over squares of `pooled` x `pooled` pixels, over numbers of agents; see
    `_FederatedPCA`."""

    name = "prirfed-mnist-pca"
    title = "PriRFed for the leading eigenvector of MNIST, over numbers of agents"
    shows = "Figure 2"
    statement = (
        "DP-RSVRG converges in fewer rounds than DP-RSGD, and the more agents there are, the smaller is the cost that "
        "the run comes to."
    )
    data = ("mnist",)

    pooled: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pooled(self.pooled)

    @property
    def _problem(self) -> PrincipalEigenvector:
        return PrincipalEigenvector((28 // self.pooled) ** 2)

    def _records(self, federation: Federation, seed: int, folders: DataFolders) -> Array:
        images, (agents, per_agent, _) = _images(folders.given, self.pooled), federation
        if (needed := agents * per_agent) > len(images):
            raise ValueError(f"agents = {agents} with per_agent = {per_agent}: MNIST has {len(images)} images")
        return images[stream(seed, Role.DATA).permutation(len(images))[:needed]]

    def compare(self, rows: Sequence[Row]) -> str:
        said = []
        for epsilon in self.epsilons:
            by_agents = [self._ends(rows, agents, epsilon) for agents in self.agents]
            risks = "; ".join(
                f"{METHODS[method]} " + ", ".join(f"{ends[method]:.2g}" for ends in by_agents)
                for method in by_agents[0]
            )
            said.append(f"at ε = {epsilon:g} {risks}")
        numbers = ", ".join(map(str, self.agents))
        return (
            f"Excess risk at the end with N = {numbers} agents, {' and '.join(said)}. "
            f"{self._rounds_to(rows, self.epsilons[-1])} "
            f"With sound noise {self._said_of_variance_reduction(rows)}. {self._said_of_published_noise(rows)}"
        )

    def _rounds_to(self, rows: Sequence[Row], epsilon: float) -> str:
        """How soon the methods come near to what DP-RSGD comes to, with most agents."""
        agents = self.agents[-1]
        choice = {"agents": agents, "noise": "sound", "budget": epsilon}
        target = 1.1 * self._end(rows, method="dp-rsgd", **choice)
        said = []
        for method in ("dp-rsgd", "dp-rsvrg", "dp-rsvrg-once"):
            curve = self._curve(rows, method=method, **choice)
            first = next((round for round, risk in curve.items() if risk <= target), None)
            said.append(f"{METHODS[method]} {'never' if first is None else f'after {first} rounds'}")
        return f"With {agents} agents the risk that DP-RSGD ends with (up to 10 %) is reached by {', '.join(said)}."

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            "The numbers of this experiment are lost from the text that we have; 60 agents with 1000 images, 5 local "
            "steps, batches of half the records are those of a later publication of its authors, which has 500 rounds. "
            f"Here {self.rounds} rounds do, for the eigengap is large; {self.sampled:.0%} of the agents train in each.",
            f"Every image is averaged over squares of {self.pooled} x {self.pooled} pixels, to save time, centred by "
            f"the public constant 0.1307 and scaled to norm 1. The step of {self.step_size:g} comes from that norm: it "
            "makes the loss 2-smooth, so that steps below 1/2 are stable.",
            _ONCE,
        )


# DP-RGD against what ignores the sphere, over epsilon -----------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class OptimizationPCA(Reproduction):
    """The leading eigenvector of one agent's records by DP-RGD, projected gradient descent and input perturbation.

    epsilons, delta: of one run. step_sizes, projected_step_sizes: what is tried for the two descents; the one with the
    least median risk is shown, for each method and epsilon.
    """

    name = "optimization-pca"
    title = "Leading eigenvector over ε: DP-RGD, projected gradient descent, input perturbation"
    paper = Paper.DP_OPTIMIZATION
    shows = "Figures 2b and 2c"
    statement = (
        "DP-RGD has a smaller excess risk than projected gradient descent and input perturbation, at all levels of "
        "privacy and for both data sets."
    )
    data = ("ijcnn1", "satimage")

    epsilons: tuple[float, ...] = (0.01, 0.1, 0.7)
    delta: float = 1e-3
    step_sizes: tuple[float, ...] = (0.9,)
    projected_step_sizes: tuple[float, ...] = (10.0,)
    seeds: int = 20

    METHODS: ClassVar[dict[str, str]] = {
        "dp-rgd": "DP-RGD",
        "dp-projected": "projected gradient descent",
        "input": "input perturbation",
        "dp-rgd-published": "DP-RGD, published noise",
        "input-published": "input perturbation, published noise",
    }
    SETS: ClassVar[dict[str, type[Source]]] = {"ijcnn1": Ijcnn1, "satimage": Satimage}

    def cells(self) -> Sequence[Cell]:
        tried = {
            "dp-rgd": self.step_sizes,
            "dp-rgd-published": self.step_sizes,
            "dp-projected": self.projected_step_sizes,
        }
        return [
            {"set": name, "epsilon": epsilon, "method": method, "step_size": step_size}
            for name in self.SETS
            for epsilon in self.epsilons
            for method in self.METHODS
            for step_size in tried.get(method, (None,))
        ]

    def steps(self, records: int, features: int, epsilon: float) -> int:
        """T = log(n^2 epsilon^2/((d + 1) L0^2 log(1/delta))), at least 1, for gradients of norm L0 = 1 at most."""
        return max(1, round(math.log(records**2 * epsilon**2 / (features * math.log(1 / self.delta)))))

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        """One row for each seed, which draws the start and the noise."""
        name, epsilon = cell["set"], cell["epsilon"]
        records, best = _table(name, folders)
        n, problem = len(records), PrincipalEigenvector(records.shape[1])
        trainer = self._trainer(cell["method"], cell["step_size"], problem, n, epsilon)
        true = best_epsilon(trainer.event(problem, n), self.delta).epsilon
        rows = []
        for seed in range(self.seeds):
            start = problem.start(stream(seed, Role.START))
            held = Records(records[None], np.array([n]))
            point = trainer.train(problem, start, held, AgentStreams(seed, 0, [0]))[0]
            risk = max(float(problem.loss(point, records).mean()) - best, 1e-16)
            steps = getattr(trainer, "steps", 1)
            rows.append({"seed": seed, "excess_risk": risk, "true_epsilon": true, "steps": steps})
        return rows

    def _trainer(
        self, method: str, step_size: float | None, problem: Problem, n: int, epsilon: float
    ) -> DPRSGD | InputPerturbation:
        steps = self.steps(n, problem.record_shape[0], epsilon)
        if method == "dp-rgd-published":
            assert step_size is not None
            return DPRSGD(steps=steps, step_size=step_size, noise=published_sigma(1.0, steps, n, epsilon, self.delta))
        if method == "input-published":
            return InputPerturbation(noise=2 / n * math.sqrt(2 * math.log(1.25 / self.delta)) / epsilon)
        trainer: DPRSGD | InputPerturbation = InputPerturbation(noise=1.0)
        if step_size is not None:
            kind = DPRSGD if method == "dp-rgd" else DPProjectedSGD
            trainer = kind(steps=steps, step_size=step_size, noise=1.0)
        return calibrate_noise(trainer, problem, [n], 1, 1, 1, epsilon, self.delta)

    def _risks(self, rows: Sequence[Row], name: str, method: str) -> list[tuple[float, Array]]:
        """For every epsilon the quartiles of the excess risk over the seeds, with the best of the step sizes."""
        found = []
        for epsilon in self.epsilons:
            tried: dict[float | None, list[float]] = {}
            for row in rows:
                if (row["set"], row["epsilon"], row["method"]) == (name, epsilon, method):
                    tried.setdefault(row["step_size"], []).append(row["excess_risk"])
            found.append((epsilon, np.quantile(min(tried.values(), key=np.median), [0.25, 0.5, 0.75])))
        return found

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        for axes, name in zip(figure.subplots(1, len(self.SETS), squeeze=False)[0], self.SETS, strict=True):
            for look, (method, label) in zip(LOOKS, self.METHODS.items(), strict=False):
                epsilons, quartiles = zip(*self._risks(rows, name, method), strict=True)
                low, middle, high = np.transpose(quartiles)
                axes.loglog(epsilons, middle, label=label, **look)
                axes.fill_between(epsilons, low, high, color=look["color"], alpha=0.12, linewidth=0)
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("ε, as calibrated or as published")
            axes.set_ylabel("excess risk")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)

    @property
    def size(self) -> tuple[float, float]:
        return (7.6, 3.8)

    def compare(self, rows: Sequence[Row]) -> str:
        said = []
        for name in self.SETS:
            median = {
                method: [float(quartiles[1]) for _, quartiles in self._risks(rows, name, method)]
                for method in self.METHODS
            }
            wins = {
                other: sum(a < b for a, b in zip(median["dp-rgd"], median[other], strict=True))
                for other in ("dp-projected", "input")
            }
            risks = ", ".join(f"{self.METHODS[m]} {median[m][-1]:.2g}" for m in ("dp-rgd", "dp-projected", "input"))
            said.append(
                f"{name}: DP-RGD is better than projected gradient descent at {wins['dp-projected']} and than input "
                f"perturbation at {wins['input']} of {len(self.epsilons)} levels; at ε = {self.epsilons[-1]:g} the "
                f"median risks are {risks}"
            )
        rgd, covariance = (
            f"{min(ratios):.2g} to {max(ratios):.2g}"
            for method in ("dp-rgd-published", "input-published")
            if (ratios := [row["true_epsilon"] / row["epsilon"] for row in rows if row["method"] == method])
        )
        return (
            f"With sound noise, {'; '.join(said)}. The published noise of DP-RGD has a true ε of {rgd} "
            f"times the one claimed, that of input perturbation {covariance} times."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        sizes = {name: _table(name, folders)[0].shape for name in self.SETS}
        steps = "; ".join(
            f"{name} {', '.join(str(self.steps(records, features, epsilon)) for epsilon in self.epsilons)}"
            for name, (records, features) in sizes.items()
        )
        return (
            "Every record is scaled to norm 1, which needs no figure of the data set. (Published: z-scores divided by "
            "the spectral norm, both of them computed from the data, which leaks.)",
            f"Steps T by the published formula with L0 = 1, at least 1: {steps}. Gradients are not clipped: on the "
            "sphere, replacing a record moves their mean by 2/n, in the ambient space as well.",
            "Step sizes are the best of those tried on the data, for each method and ε, as published; that tuning is "
            "not charged for.",
            "The noise of input perturbation is isotropic among symmetric matrices, for a sensitivity of sqrt(2)/n; "
            "the published formula takes 2/n, and a rule for ε below 1 that is loose there.",
        )


@cache
def _table(name: str, folders: DataFolders) -> tuple[Array, float]:
    """The records of a data set, and the least mean loss."""
    data = OptimizationPCA.SETS[name]().load(folders, stream(0, Role.DATA)).records
    problem = PrincipalEigenvector(data.shape[1])
    data = problem.prepare_records(data)
    return data, float(problem.loss(problem.optimum(data), data).mean())


# Excess risk against gradient calls -----------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class SamplingSphere(ExcessRisk):
    """The leading eigenvector of MNIST's images of a 0, and of a 1, averaged over squares of `pooled` x `pooled`
    pixels; see `ExcessRisk`."""

    name = "sampling-sphere"
    title = "Excess risk against gradient calls: leading eigenvector of MNIST digits"
    shows = "Figure 3b"
    statement = (
        "DP-RSVRG outperforms DP-RGD and DP-RSGD by gradient calls, and comes to a good excess risk, for both sets of "
        "images."
    )
    data = ("mnist",)

    digits: tuple[int, ...] = (0, 1)
    pooled: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pooled(self.pooled)
        if not self.digits or not set(self.digits) <= set(range(10)):
            raise ValueError(f"digits = {self.digits}: must be numbers from 0 to 9")

    @property
    def sets(self) -> Sequence[str]:
        return [f"digit {digit}" for digit in self.digits]

    def load(self, name: str, folders: DataFolders) -> tuple[Problem, Array]:
        digit = int(name.removeprefix("digit "))
        train = _images(folders.given, self.pooled, "train", (digit,))
        records = np.concatenate([train, _images(folders.given, self.pooled, "test", (digit,))])
        return PrincipalEigenvector(records.shape[1]), records

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        counts = " and ".join(str(len(self.load(name, folders)[1])) for name in self.sets)
        return (
            *super().remarks(folders),
            f"Data: {counts} images, of the training and the test set together, each averaged over squares of "
            f"{self.pooled} x {self.pooled} pixels to save time (published: 784 pixels), centred by the public "
            "constant 0.1307 and scaled to norm 1.",
        )
