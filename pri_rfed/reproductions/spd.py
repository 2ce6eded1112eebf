"""Experiments on SPD matrices: Fréchet means of synthetic matrices and of covariance descriptors of images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, final

import numpy as np
from matplotlib.figure import Figure

from pri_rfed.data.agents import AgentArrays
from pri_rfed.data.base import DataSet
from pri_rfed.data.download import DataFolders
from pri_rfed.data.images import Histology, PathMNIST, tissue
from pri_rfed.data.sources import SyntheticSPD
from pri_rfed.experiment.plots import GREY, LOOKS
from pri_rfed.manifolds import SPDAffineInvariant, SPDBuresWasserstein
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.calibration import calibrate_noise, published_sigma
from pri_rfed.problems import FrechetMean
from pri_rfed.randomness import AgentStreams, Role, stream
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.reproductions.excess_risk import ExcessRisk
from pri_rfed.reproductions.federated_comparison import METHODS, PUBLISHED, FederatedComparison, Federation
from pri_rfed.reproductions.over_manifolds import log_sizes
from pri_rfed.training import DPRSGD, KNGMean, RiemannianLaplaceMean, Trainer

# DP-RGD against output perturbation ---------------------------------------------------------------------------------

START = "start"


@dataclass(frozen=True, kw_only=True)
class _MeanBySampleSize(Reproduction):
    """One agent's Fréchet mean by DP-RGD, by the Riemannian Laplace mechanism and by the K-norm gradient mechanism,
    for several sample sizes. All begin at, or know, the public ball about the identity.

    epsilon, delta: of every release; the last two have delta = 0. radius: of the public ball. records: sample sizes n.
    step_size: of the published plan, n steps. short_steps, short_step_size: of another plan with as many steps at any
    sample size.
    """

    paper = Paper.DP_OPTIMIZATION

    epsilon: float = 0.1
    delta: float = 1e-3
    radius: float = 1.0
    records: tuple[int, ...] = (20, 50, 100, 200, 300)
    step_size: float = 0.01
    short_steps: int = 10
    short_step_size: float = 0.1
    seeds: int = 20

    METHODS: ClassVar[dict[str, str]] = {
        "dp-rgd": "DP-RGD, $n$ steps",
        "dp-rgd-published": "DP-RGD, published noise",
        "dp-rgd-short": "DP-RGD, few steps",
        "laplace": "Laplace, δ = 0",
        "kng": "KNG, δ = 0",
    }

    @property
    @abstractmethod
    def _problem(self) -> FrechetMean: ...

    @abstractmethod
    def _data(self, records: int, rng: np.random.Generator) -> Array:
        """Records [records, *point_shape] in the public ball."""

    @property
    def _published_bound(self) -> float:
        """What the published rule takes for the norm of a gradient."""
        return self.radius

    def cells(self) -> Sequence[Cell]:
        return [{"records": n, "method": method} for n in self.records for method in (*self.METHODS, START)]

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        """One row for each seed, whose data set is the same for all methods. The trainings of all seeds are computed
        together, as agents of one round with a stream of random numbers each."""
        n, problem = cell["records"], self._problem
        data = np.stack([self._data(n, stream(seed, Role.DATA, n)) for seed in range(self.seeds)])
        at = problem.start(stream(0, Role.START))
        epsilon: float | None = 0.0
        if cell["method"] == START:
            points = np.broadcast_to(at, (self.seeds, *at.shape))
        else:
            trainer = self._trainer(cell["method"], n)
            if wrong := trainer.check(problem, n):
                none = {"excess_risk": None, "excess_risk_moved": None, "epsilon": None, "why": wrong[0]}
                return [{"seed": seed, **none} for seed in range(self.seeds)]
            epsilon = best_epsilon(trainer.event(problem, n), self.delta).epsilon
            records = AgentArrays(list(data)).records(np.arange(self.seeds))
            points = trainer.train(problem, at, records, AgentStreams(0, n, range(self.seeds)))
        rows: list[Row] = []
        for seed, (point, own) in enumerate(zip(points, data, strict=True)):
            best = problem.optimum(own)
            assert best is not None
            least = problem.loss(best, own).mean()
            with np.errstate(all="ignore"):
                risk, moved = (float(problem.loss(x, own).mean() - least) for x in (point, self._moved_in(point)))
            known = risk if np.isfinite(risk) else None
            rows.append(
                {"seed": seed, "excess_risk": known, "excess_risk_moved": moved, "epsilon": epsilon, "why": ""}
            )
        return rows

    def _moved_in(self, point: Array) -> Array:
        """A released point, moved into the public ball if it lies outside; its center, if it is no point at all."""
        problem = self._problem
        ball = FrechetMean(problem.manifold, problem.center, problem.radius, outside="move")
        try:
            return ball.prepare_records(point[None])[0]
        except ValueError:
            return ball.start(stream(0, Role.START))

    def _trainer(self, method: str, n: int) -> Trainer:
        if method == "laplace":
            return RiemannianLaplaceMean(epsilon=self.epsilon)
        if method == "kng":
            return KNGMean(epsilon=self.epsilon)
        if method == "dp-rgd-published":
            sigma = published_sigma(self._published_bound, n, n, self.epsilon, self.delta)
            return DPRSGD(steps=n, noise=sigma, step_size=self.step_size)
        if method == "dp-rgd-short":
            trainer = DPRSGD(steps=self.short_steps, noise=1.0, step_size=self.short_step_size)
        else:
            trainer = DPRSGD(steps=n, noise=1.0, step_size=self.step_size)
        return calibrate_noise(trainer, self._problem, [n], 1, 1, 1, self.epsilon, self.delta)

    def _risk(
        self, rows: Sequence[Row], method: str, n: int, key: str = "excess_risk"
    ) -> tuple[float, float, float] | None:
        """Median and quartiles over the seeds; None where the mechanism does not exist."""
        found = [row for row in rows if row["method"] == method and row["records"] == n]
        if all(row["why"] for row in found):
            return None
        risks = [np.inf if row[key] is None else row[key] for row in found]
        quartiles = np.quantile(risks, [0.5, 0.25, 0.75], method="inverted_cdf")
        return float(quartiles[0]), float(quartiles[1]), float(quartiles[2])

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        axes: Any = figure.subplots()
        axes.set_yscale("log")
        for look, (method, label) in zip(LOOKS, self.METHODS.items(), strict=False):
            found = [(n, risk) for n in self.records if (risk := self._risk(rows, method, n)) is not None]
            if method == "dp-rgd-published":
                label += f" (true ε up to {self._true_epsilon(rows):.2g})"
            axes.plot([n for n, _ in found], [risk[0] for _, risk in found], label=label, **look)
            low, high = [risk[1] for _, risk in found], [risk[2] for _, risk in found]
            axes.fill_between([n for n, _ in found], low, high, color=look["color"], alpha=0.12, linewidth=0)
        start = [risk[0] for n in self.records if (risk := self._risk(rows, START, n)) is not None]
        axes.plot(self.records, start, color=GREY, linewidth=1, label="the public start, ε = 0")
        log_sizes(axes, self.records)
        axes.set_xlabel("records $n$")
        axes.set_ylabel("excess risk $F(w) - F(w^*)$")
        figure.legend(loc="outside right upper", fontsize=8)

    @property
    def size(self) -> tuple[float, float]:
        return (7.6, 3.8)

    def _true_epsilon(self, rows: Sequence[Row]) -> float:
        return max(float(row["epsilon"]) for row in rows if row["method"] == "dp-rgd-published" and row["epsilon"])

    def compare(self, rows: Sequence[Row]) -> str:
        def listed(n: int, key: str = "excess_risk") -> str:
            names = {"dp-rgd": "DP-RGD", "dp-rgd-short": f"with {self.short_steps} steps", "laplace": "Laplace"}
            said = []
            for method, name in {**names, "kng": "KNG", START: "the start itself"}.items():
                risk = self._risk(rows, method, n, key)
                said.append(f"{name} {risk[0]:.2g}" if risk is not None else f"{name} cannot be drawn")
            return ", ".join(said)

        def better(n: int) -> bool:
            own, *others = (self._risk(rows, method, n) for method in ("dp-rgd", "laplace", "kng"))
            return own is not None and all(other is None or own[0] < other[0] for other in others)

        winning = [n for n in self.records if better(n)]
        where = f"for n = {', '.join(map(str, winning))}" if winning else "nowhere"
        first, last = self.records[0], self.records[-1]
        return (
            f"With sound noise, DP-RGD as published is better than both others {where}. Median excess risk at "
            f"n = {first}: {listed(first)}; at n = {last}: {listed(last)}. Moved into the public ball afterwards, "
            f"which costs no privacy: at n = {first}: {listed(first, 'excess_risk_moved')}. The published noise has a "
            f"true ε of up to {self._true_epsilon(rows):.2g}, not {self.epsilon:g}."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            f"Medians and quartiles of {self.seeds} data sets: the laws of the other mechanisms can have heavy tails "
            f"where n is small. DP-RGD has the advantage of δ = {self.delta:g}; the other two are ε-differentially "
            "private with δ = 0, and drawn exactly, not by a chain.",
            f"n steps of {self.step_size:g} end where little of the way from the public start, the identity, is gone "
            "while n is small: what then looks like utility is that of the start, which costs no privacy at all.",
            "Gradients are not clipped: in the public ball two of them differ by a known distance at most.",
        )


@final
@dataclass(frozen=True, kw_only=True)
class OptimizationSPDMean(_MeanBySampleSize):
    """2 x 2 Wishart matrices within a radius of the identity, affine-invariant; see `_MeanBySampleSize`."""

    name = "optimization-spd-mean"
    title = "Fréchet mean of SPD matrices against sample size: DP-RGD, Laplace, KNG"
    shows = "Figure 1a"
    statement = (
        "DP-RGD has a smaller excess risk than the Laplace mechanism and KNG, above all for small samples, and "
        "competes with them for large ones."
    )

    @property
    def _problem(self) -> FrechetMean:
        return FrechetMean(SPDAffineInvariant(2), np.eye(2), self.radius)

    def _data(self, records: int, rng: np.random.Generator) -> Array:
        return SyntheticSPD(records=records, size=2, radius=self.radius).load(DataFolders(), rng).records


@final
@dataclass(frozen=True, kw_only=True)
class OptimizationBuresWasserstein(_MeanBySampleSize):
    """Barycentres of 2 x 2 Wishart matrices within a Bures-Wasserstein radius of the identity; see
    `_MeanBySampleSize`."""

    name = "optimization-bures-wasserstein"
    title = "Bures-Wasserstein barycentre against sample size: DP-RGD, Laplace, KNG"
    shows = "Figure 2a"
    statement = (
        "DP-RGD has a smaller excess risk than the Laplace mechanism and KNG for small samples, and competes with them "
        "for large ones; KNG is better than Laplace."
    )

    radius: float = 0.3

    @property
    def _problem(self) -> FrechetMean:
        return FrechetMean(SPDBuresWasserstein(2), np.eye(2), self.radius)

    def _data(self, records: int, rng: np.random.Generator) -> Array:
        manifold, found = SPDBuresWasserstein(2), list[Array]()
        while sum(map(len, found)) < records:
            factors = rng.standard_normal((20_000, 2, 2)) / np.sqrt(2)
            matrices = factors @ np.swapaxes(factors, 1, 2)
            roots = np.linalg.svd(factors, compute_uv=False)  # of the eigenvalues: distances are those from (1, 1)
            matrices = matrices[np.linalg.norm(roots - 1, axis=1) <= self.radius * (1 - 1e-9)]
            found.append(matrices[manifold.valid_points(matrices)])
        return np.concatenate(found)[:records]

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        floor = (1 - self.radius) ** 2
        return (
            *super().remarks(folders),
            "The Laplace law and KNG are those of the Bures-Wasserstein metric, drawn exactly; the published code has "
            "the affine-invariant Laplace law. KNG is confined to the public ball, which helps it.",
            "The curvature is bounded over the whole ball, whose matrices have no eigenvalue below "
            f"{floor:.2g}: kappa = {1.5 / floor:.3g}, and not that of a sample.",
        )


# PriRFed by DP-RSGD against DP-RSVRG --------------------------------------------------------------------------------

@dataclass(frozen=True, kw_only=True)
class _FederatedMean(FederatedComparison):
    """PriRFed for the Fréchet mean of SPD matrices; see `FederatedComparison`. Runs begin at a public point that is not
    the middle of the ball, so that there is a way to go.

    agents: how many. sampled: agents in a round. clip: of gradients; 0 for none, where the public ball bounds their
    difference.
    """

    varied = "per_agent"
    in_words = "{} records an agent"

    agents: int = 40
    sampled: int = 10
    clip: float = 0.0

    def _federation(self, value: int) -> Federation:
        return Federation(self.agents, value, self.sampled)

    @property
    def _clip(self) -> float | None:
        return self.clip or None

    def cells(self) -> Sequence[Cell]:
        return [
            {"per_agent": n, "method": method, "noise": noise, "budget": budget, "seed": seed}
            for n in self._values
            for noise, budget, method in self._runs()
            for seed in range(self.seeds)
        ]

    def compare(self, rows: Sequence[Row]) -> str:
        n, epsilon = self._values[0], self.epsilons[0]
        at = ", ".join(f"{METHODS[method]} {risk:.2g}" for method, risk in self._ends(rows, n, epsilon).items())
        calls = [
            max(row["gradient_calls"] for row in rows if row["method"] == method and row["per_agent"] == n)
            for method in PUBLISHED
        ]
        return (
            f"With sound noise, {self._said_of_variance_reduction(rows)}; it takes {calls[1] / calls[0]:.1f} times the "
            "gradients for as many rounds. Excess risk over the last quarter of the rounds, for "
            f"{n} records an agent and ε = {epsilon:g}: {at}. {self._said_of_published_noise(rows)}"
        )


@final
@dataclass(frozen=True, kw_only=True)
class PriRFedSPDSynthetic(_FederatedMean):
    """Wishart matrices within a radius of the identity; agents with as many records as per_agent says. See
    `_FederatedMean`."""

    name = "prirfed-spd-synthetic"
    title = "PriRFed for the Fréchet mean of synthetic SPD matrices"
    shows = "Figure 3"
    statement = (
        "DP-RSVRG consistently outperforms DP-RSGD; with few records an agent, and so with much noise, DP-RSGD is "
        "notably slower."
    )

    size_of_matrix: int = 2
    radius: float = 1.0
    per_agent: tuple[int, ...] = (50, 200)

    @property
    def _values(self) -> tuple[int, ...]:
        return self.per_agent

    @property
    def _problem(self) -> FrechetMean:
        return FrechetMean(SPDAffineInvariant(self.size_of_matrix), np.eye(self.size_of_matrix), self.radius)

    def _start(self, seed: int) -> Array:
        """At the edge of the ball, in the direction of the multiples of the identity."""
        return np.exp(self.radius / np.sqrt(self.size_of_matrix)) * np.eye(self.size_of_matrix)

    def _records(self, federation: Federation, seed: int, folders: DataFolders) -> Array:
        records = federation.agents * federation.per_agent
        source = SyntheticSPD(records=records, size=self.size_of_matrix, radius=self.radius)
        return source.load(folders, stream(seed, Role.DATA)).records

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            "The numbers of this experiment are lost from the text that we have: the plan is that of its experiment on "
            f"images ({self.local_steps} local steps of {self.step_size:g}, batches of half the records), with "
            f"{self.agents} agents of whom {self.sampled} train in a round. Runs begin at the edge of the public ball.",
            _VARIANT,
        )


_VARIANT = (
    "DP-RSVRG with its full gradient released once an epoch clips differences of gradients as one; that is ours. As "
    "published, it releases the full gradient anew in each inner step, and clips two gradients apart."
)


@cache
def _descriptors(given: Any, number: Literal[9, 11], records: int, stride: int) -> tuple[Array, str]:
    """Covariance descriptors [records, number, number] of images of colon tissue, in random order."""
    folders = DataFolders(given)
    options: dict[str, Any] = {} if folders.has("pathmnist") else {"stride": stride}
    data = tissue(folders, features=number, records=records, **options).load(folders, stream(0, Role.DATA))
    return data.records, data.description


def _middle(number: int) -> Array:
    """A public guess of a descriptor: 1/12, the variance of a uniform place, for x and y, and 1/1000 for the rest."""
    return np.diag([1 / 12, 1 / 12] + [1e-3] * (number - 2))


@final
@dataclass(frozen=True, kw_only=True)
class PriRFedSPDImages(_FederatedMean):
    """Covariance descriptors of images: PathMNIST's where they are at hand, else those of a stand-in's patches, stride
    pixels apart. agents, records: N agents with so many records each. See `_FederatedMean`."""

    name = "prirfed-spd-images"
    title = "PriRFed for the Fréchet mean of covariance descriptors of images"
    shows = "Figure 4"
    statement = "DP-RSVRG consistently outperforms DP-RSGD, as on synthetic matrices."
    data = ("ihc",)

    agents: int = 20
    records: int = 180
    stride: int = 8

    @property
    def _values(self) -> tuple[int, ...]:
        return (self.records,)

    @property
    def _problem(self) -> FrechetMean:
        return FrechetMean(SPDAffineInvariant(9))

    def _start(self, seed: int) -> Array:
        return _middle(9)

    def _records(self, federation: Federation, seed: int, folders: DataFolders) -> Array:
        records, _ = _descriptors(folders.given, 9, federation.agents * federation.per_agent, self.stride)
        return stream(seed, Role.DATA, 1).permutation(records)

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        _, description = _descriptors(folders.given, 9, self.agents * self.records, self.stride)
        stands_in = "" if folders.has("pathmnist") else (
            " They stand in for PathMNIST, which is taken if it is at hand (pathmnist/pathmnist.npz); where patches "
            "overlap, one pixel is part of several records, and what is protected is one patch."
        )
        return (
            f"Data: {description}, {self.agents} agents with {self.records} each (published: 50 with 400, by the "
            f"closest plan known, which has 300 rounds; here {self.rounds}).{stands_in}",
            f"Gradients are clipped at {self.clip:g}, so that runs settle near the mean, not on it; that constant was "
            "chosen with the stand-in in view, which would cost budget outside of an experiment. The start is a public "
            "guess: 1/12 for the variances of the place, which are known, 1/1000 for the others.",
            _VARIANT,
        )


# Excess risk against gradient calls ---------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class SamplingSPD(ExcessRisk):
    """The Fréchet mean of 11 x 11 covariance descriptors of images; see `ExcessRisk`.

    images: how many in a data set. classes: PathMNIST's classes, a data set each; where a stand-in takes their place,
    as many parts of it. stride: how many pixels the stand-in's patches are apart. radius: of the public ball about the
    public guess of a descriptor that runs begin at; what lies outside is moved in.
    """

    name = "sampling-spd"
    title = "Excess risk against gradient calls: Fréchet mean of covariance descriptors"
    shows = "Figure 3a"
    statement = (
        "Private RSVRG has the better excess risk overall: on the first data set consistently, on the second one "
        "better than RGD and similar to RSGD."
    )
    data = ("ihc",)

    images: int = 5000
    classes: tuple[int, ...] = (0,)
    stride: int = 6
    radius: float = 15.0

    @property
    def sets(self) -> Sequence[str]:
        return [f"data set {label}" for label in self.classes]

    def load(self, name: str, folders: DataFolders) -> tuple[FrechetMean, Array]:
        problem = FrechetMean(SPDAffineInvariant(11), _middle(11), self.radius, outside="move")
        return problem, self._load(name, folders).records

    def _load(self, name: str, folders: DataFolders) -> DataSet:
        at, rng = list(self.sets).index(name), stream(0, Role.DATA)
        if folders.has("pathmnist"):
            return PathMNIST(classes=(self.classes[at],), records=self.images).load(folders, rng)
        everything = Histology(records=self.images * len(self.classes), stride=self.stride).load(folders, rng)
        part = everything.records[at * self.images : (at + 1) * self.images]
        return DataSet(part, everything.description)

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        data = self._load(self.sets[0], folders)
        stands_in = "" if folders.has("pathmnist") else (
            " They stand in for two classes of PathMNIST with 10704 and 10356 images, which are taken if they are at "
            "hand (pathmnist/pathmnist.npz). Patches overlap: one pixel is part of many records."
        )
        return (
            f"Data: {data.description}.{stands_in}",
            f"Descriptors farther than {self.radius:g} from a public guess, which runs begin at, are moved in.",
            *super().remarks(folders),
        )
