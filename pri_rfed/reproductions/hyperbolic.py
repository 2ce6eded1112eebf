"""Experiments on the mammals of WordNet in hyperbolic space."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from pri_rfed.coordinator import State
from pri_rfed.data.download import DataFolders
from pri_rfed.data.wordnet import Hierarchy, PoincareEmbedding, WordNet, mammals, reconstruction, to_ball
from pri_rfed.experiment.plots import BLACK, GREY, LOOKS
from pri_rfed.manifolds import PoincareBall
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.calibration import published_sigma
from pri_rfed.privacy.planning import Plan, solve
from pri_rfed.problems import FrechetMean, HyperbolicStructuredPrediction, Problem
from pri_rfed.randomness import Role, stream
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.reproductions.excess_risk import ExcessRisk
from pri_rfed.simulation import simulate
from pri_rfed.training import DPRSGD, DPRSVRG, RGD, RSGD, RSVRG, Trainer


def _said_of_embedding(graph: Hierarchy, embedding: PoincareEmbedding) -> str:
    quality = reconstruction(graph, embedding.cached(graph))
    return (
        f"The embedding is our own, of {len(graph.words)} words and {len(graph.pairs)} pairs, by Riemannian SGD in "
        f"{embedding.epochs} epochs (mean rank {quality.mean_rank:.1f}, mean average precision "
        f"{quality.mean_average_precision:.2f}), not the pretrained one. Its points were trained jointly: as records "
        "they are not independent of each other, and what a guarantee for one point protects is that point alone, not "
        "a word's relations in the graph."
    )


@final
@dataclass(frozen=True, kw_only=True)
class SamplingPoincare(ExcessRisk):
    """The Fréchet mean of Poincaré embeddings; see `ExcessRisk`. epochs: of the training of the embedding. radius: of
    the public ball about the centre that the training keeps all points in. away: distance from the centre at which a
    run begins, in a random direction."""

    name = "sampling-poincare"
    title = "Excess risk against gradient calls: Fréchet mean of Poincaré embeddings"
    shows = "Figure 3c"
    statement = (
        "DP-RGD is best, and DP-RSVRG matches it in the first iterations; DP-RSVRG has a smaller excess risk than "
        "DP-RSGD after as many gradient calls, above all for small ε."
    )
    data = ("wordnet",)

    epochs: int = 300
    radius: float = PoincareEmbedding.radius
    away: float = 3.0

    @property
    def sets(self) -> Sequence[str]:
        return ("mammals",)

    @property
    def _embedding(self) -> PoincareEmbedding:
        return PoincareEmbedding(epochs=self.epochs, radius=self.radius)

    def load(self, name: str, folders: DataFolders) -> tuple[Problem, Array]:
        points = self._embedding.cached(mammals(folders))
        return FrechetMean(PoincareBall(2), np.zeros(2), self.radius, outside="move"), points

    def start(self, problem: Problem, seed: int) -> Array:
        centre, direction = np.zeros(2), stream(seed, Role.START).standard_normal(2)
        return problem.manifold.exp(
            centre, problem.manifold.from_coordinates(centre, self.away * direction / np.linalg.norm(direction))
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (*super().remarks(folders), _said_of_embedding(mammals(folders), self._embedding))


# Structured prediction ------------------------------------------------------------------------------------------------

def _rounded(epsilon: float) -> str:
    return f"{epsilon:.2g}" if epsilon < 10 else f"{epsilon:.0f}"


PUBLISHED = "-published"
"""What methods with the published noise have at the end of their names."""
EMBEDDING = "embedding"
"""What the rows with the words themselves have for a method."""
DRAWN = 3
"""How many predictions of a method are shown on the disk."""


@dataclass(frozen=True, kw_only=True)
class _Prediction(Reproduction):
    """Hyperbolic structured prediction of a word from all other mammals of WordNet, in rounds.

    word: what is predicted. agents: so many hold equally many of the other words each. width, ridge: of the kernel.
    epsilon, delta: the budget of the whole run. rounds: how many. clip, step_size: of the private methods, and for
    step_size_public of those that are not. epochs: of the training of the embedding. points: how many rounds are kept.
    """

    data = ("wordnet",)
    METHODS: ClassVar[Mapping[str, str]]
    """What to call the methods."""

    word: str
    agents: int = 1
    width: float = 0.03
    ridge: float = 1e-5
    epsilon: float = 1.0
    delta: float = 1e-3
    rounds: int = 100
    clip: float = 10.0
    step_size: float = 0.01
    step_size_public: float = 0.01
    epochs: int = PoincareEmbedding.epochs
    points: int = 50

    def __post_init__(self) -> None:
        for name in ("agents", "rounds", "points", "clip", "epsilon", "width", "ridge", "step_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta} must lie between 0 and 1")

    @abstractmethod
    def _trainer(self, method: str, records: int, heaviest: float) -> Trainer:
        """The local training with its noise; for methods with a budget any noise. heaviest: the largest |weight|."""

    @property
    def _source(self) -> WordNet:
        return WordNet(word=self.word, groups=self.agents, width=self.width, ridge=self.ridge, epochs=self.epochs)

    def _truth(self, folders: DataFolders) -> Array:
        """The word's own point."""
        return self._source.labels(folders)[mammals(folders).index(self.word)]

    def cells(self) -> Sequence[Cell]:
        runs = [{"method": method, "seed": seed} for method in self.METHODS for seed in range(self.seeds)]
        return [{"method": EMBEDDING, "seed": 0}, *runs]

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        method, seed = cell["method"], cell["seed"]
        if method == EMBEDDING:
            return self._lines(folders)
        records = self._source.load(folders, stream(seed, Role.DATA)).records
        parts = records.reshape(self.agents, -1, records.shape[1])
        problem = HyperbolicStructuredPrediction(records.shape[1])
        trainer = _noised(self, method, parts.shape[1], float(np.abs(records[:, 0]).max()))
        kept: list[tuple[int, Array]] = [(0, problem.start(stream(seed, Role.START)))]
        at = set(np.unique(np.linspace(1, self.rounds, self.points).round().astype(int)).tolist())

        def keep(state: State) -> None:
            if state.round in at:
                kept.append((state.round, state.point))

        result = simulate(
            problem, list(parts), trainer, rounds=self.rounds, delta=self.delta, seed=seed, evaluate_every=0,
            on_round=keep,
        )  # fmt: skip
        spent = result.privacy.epsilon_global
        truth = self._truth(folders)
        rows: list[Row] = []
        for round, point in kept:
            x, y = to_ball(point)
            row = {
                "round": round,
                "distance": float(problem.manifold.dist(point, truth)),
                "cost": float(problem.loss(point, records).mean()),
            }
            rows.append(row | {"x": float(x), "y": float(y), "epsilon": spent if math.isfinite(spent) else None})
        return rows

    def _lines(self, folders: DataFolders) -> Sequence[Row]:
        """The words on the Poincaré disk, each with what it is next a kind of."""
        graph, points = mammals(folders), to_ball(self._source.labels(folders))
        return [
            {
                "word": graph.words[a],
                "x": float(points[a, 0]),
                "y": float(points[a, 1]),
                "above_x": float(points[b, 0]),
                "above_y": float(points[b, 1]),
            }
            for a, b in graph.parents()
        ]

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        *by_round, disk = figure.subplots(1, 3, width_ratios=(1, 1, 1.05))
        looks: dict[str, Any] = dict(zip(self.METHODS, LOOKS, strict=False))
        for method, label in self.METHODS.items():
            if method.endswith(PUBLISHED):
                label += f" (true ε {_rounded(self._spent(rows, method))})"
            for axes, key in zip(by_round, ("distance", "cost"), strict=True):
                rounds, low, median, high = np.transpose(self._curve(rows, method, key))
                axes.plot(rounds, median, label=label, markevery=max(1, len(rounds) // 8), **looks[method])
                axes.fill_between(rounds, low, high, color=looks[method]["color"], alpha=0.12, linewidth=0)
        for axes, what in zip(by_round, ("distance to the word's own point", "cost $F(w_t)$"), strict=True):
            axes.set_xlabel("round $t$" if self.agents > 1 else "step $t$")
            axes.set_ylabel(what)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        self._draw_disk(disk, rows, looks)
        figure.legend(*by_round[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)

    def _draw_disk(self, axes: Any, rows: Sequence[Row], looks: Mapping[str, Any]) -> None:
        """The embedding, lines from every word to what it is next a kind of, and what was predicted."""
        from matplotlib.collections import LineCollection
        from matplotlib.patches import Circle

        lines = [row for row in rows if row["method"] == EMBEDDING]
        ends = [((row["x"], row["y"]), (row["above_x"], row["above_y"])) for row in lines]
        axes.add_collection(LineCollection(ends, colors="#bbbbbb", linewidths=0.3, rasterized=True))
        axes.plot([row["x"] for row in lines], [row["y"] for row in lines], ",", color=GREY, rasterized=True)
        axes.add_patch(Circle((0, 0), 1, fill=False, color=GREY, linewidth=0.8))
        for method in self.METHODS:
            final = [row for row in rows if row["method"] == method and row["round"] == self.rounds][:DRAWN]
            look = looks[method]
            axes.plot([row["x"] for row in final], [row["y"] for row in final], look["marker"], color=look["color"],
                      markersize=5, markeredgecolor="white", markeredgewidth=0.4)  # fmt: skip
        own = next((row["x"], row["y"]) for row in lines if row["word"] == self.word)
        axes.plot(*own, "*", color=BLACK, markersize=11, markeredgecolor="white")
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        axes.annotate(self.word.partition(".")[0], own, xytext=(14 * own[0], 14 * own[1]), textcoords="offset points",
                      fontsize=9, bbox=box, ha="left" if own[0] > 0 else "right", annotation_clip=False)  # fmt: skip
        axes.set_xlim(-1.03, 1.25)
        axes.set_ylim(-1.03, 1.03)
        axes.set_aspect("equal")
        axes.axis("off")

    @property
    def size(self) -> tuple[float, float]:
        return (12.0, 4.4)

    def _final(self, rows: Sequence[Row], method: str) -> float:
        """The median distance at the end."""
        return self._curve(rows, method, "distance")[-1][2]

    def compare(self, rows: Sequence[Row]) -> str:
        first = next(iter(self.METHODS))
        start = self._curve(rows, first, "distance")[0][2]
        said = [f"{label} {self._final(rows, method):.2f}" for method, label in self.METHODS.items()]
        published = [method for method in self.METHODS if method.endswith(PUBLISHED)]
        true = ", ".join(f"{self.METHODS[method]} {_rounded(self._spent(rows, method))}" for method in published)
        best = min(
            (
                method
                for method in self.METHODS
                if self._private(method) and method not in published and self._budget(method) == self.epsilon
            ),
            key=lambda method: self._final(rows, method),
        )
        way = (start - self._final(rows, best)) / (start - self._final(rows, first))
        return (
            f"Median distance to the word's own point at the end, from {start:.2f} at the start: {', '.join(said)}. "
            f"With sound noise for ε = {self.epsilon:g} the best method goes {100 * way:.0f} % of the way that is gone "
            f"without noise. True ε of the run: {true}.{self._more(rows)}"
        )

    def _more(self, rows: Sequence[Row]) -> str:
        return ""

    def _private(self, method: str) -> bool:
        return method.startswith("dp-")

    def _budget(self, method: str) -> float:
        """The epsilon that a private method's noise is for."""
        return self.epsilon

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        source = self._source
        weights = np.abs(source.load(folders, stream(0, Role.DATA)).records[:, 0])
        return (
            "Label DP: features, which come from the graph, are public, and with them the weights α; of a record the "
            "label alone is protected, its point of the hyperboloid.",
            f"The loss is the sum of α dist², so records carry α times the number of records; these weights reach "
            f"{weights.max():.0f} and have a mean of {weights.mean():.1f} in absolute value. Gradients are clipped at "
            f"{self.clip:g}, a constant that was chosen, like the step sizes, by looking at runs: an experiment, not "
            "part of a guarantee.",
            "Runs begin at the middle of the hyperboloid, not at the label of a record, which would be released.",
            _said_of_embedding(mammals(folders), source.embedding),
        )

    def _curve(self, rows: Sequence[Row], method: str, key: str) -> list[tuple[float, float, float, float]]:
        """Rounds, and the quartiles over seeds there."""
        at: dict[int, list[float]] = {}
        for row in rows:
            if row["method"] == method:
                value = row[key]
                at.setdefault(row["round"], []).append(math.inf if value is None else value)
        curve: list[tuple[float, float, float, float]] = []
        for t, values in at.items():
            low, median, high = np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf").tolist()
            curve.append((t, low, median, high))
        return curve

    def _spent(self, rows: Sequence[Row], method: str) -> float:
        return max(row["epsilon"] or math.inf for row in rows if row["method"] == method)


@cache
def _noised(experiment: _Prediction, method: str, records: int, heaviest: float) -> Trainer:
    """The local training of a method, with the noise for the budget where it has one of its own."""
    trainer = experiment._trainer(method, records, heaviest)
    if not experiment._private(method) or method.endswith(PUBLISHED):
        return trainer
    agents, problem = experiment.agents, HyperbolicStructuredPrediction(4)
    plan = Plan(trainer, problem, (records,) * agents, agents, experiment.rounds, experiment.delta)
    return solve(plan, experiment._budget(method), "noise", split=hasattr(trainer, "alpha")).trainer


@final
@dataclass(frozen=True, kw_only=True)
class PriRFedWordNet(_Prediction):
    """"Primate" predicted by agents that hold the other mammals; see `_Prediction`. steps: K of a local training.
    batch: share of an agent's records. local_epsilon, local_delta: what the published noise is said to give one local
    training."""

    name = "prirfed-wordnet"
    title = "Hyperbolic structured prediction: the mammal \"primate\""
    paper = Paper.PRIRFED
    shows = "Figures 5 and 6"
    statement = (
        "PriRFed with DP-RSGD and with DP-RSVRG comes near the word's embedding; DP-RSVRG needs fewer rounds, and soon "
        "leaves the solution again, as RSVRG does."
    )
    METHODS: ClassVar[Mapping[str, str]] = {
        "rsgd": "RSGD",
        "rsvrg": "RSVRG",
        "dp-rsgd": "DP-RSGD",
        "dp-rsvrg": "DP-RSVRG",
        "dp-rsgd-published": "DP-RSGD, published noise",
        "dp-rsvrg-published": "DP-RSVRG, published noise",
    }

    word: str = "primate.n.02"
    agents: int = 9
    steps: int = 5
    batch: float = 0.5
    local_epsilon: float = 0.15
    local_delta: float = 1e-4

    def _trainer(self, method: str, records: int, heaviest: float) -> Trainer:
        size = max(1, round(self.batch * records))
        reduced = "rsvrg" in method
        if not self._private(method):
            if reduced:
                return RSVRG(inner_steps=self.steps, batch=size, step_size=self.step_size_public)
            return RSGD(steps=self.steps, batch=size, step_size=self.step_size_public)
        sigma = 1.0
        if method.endswith(PUBLISHED):
            sigma = published_sigma(self.clip, self.steps, records, self.local_epsilon, self.local_delta)
        if reduced:
            return DPRSVRG(inner_steps=self.steps, batch=size, step_size=self.step_size, clip_full=self.clip,
                           clip_step=self.clip, noise=sigma)  # fmt: skip
        return DPRSGD(steps=self.steps, batch=size, step_size=self.step_size, clip=self.clip, noise=sigma)

    def _more(self, rows: Sequence[Row]) -> str:
        """How soon either method is where DP-RSGD ends."""
        rounds = {}
        for method in ("rsgd", "rsvrg", "dp-rsgd", "dp-rsvrg"):
            curve = self._curve(rows, method, "distance")
            least = min(median for _, _, median, _ in curve)
            rounds[method] = next(t for t, _, median, _ in curve if median <= 1.05 * least)
        return (
            f" Within 5 % of its least distance RSGD is after {rounds['rsgd']:.0f} rounds, RSVRG after "
            f"{rounds['rsvrg']:.0f}; DP-RSGD after {rounds['dp-rsgd']:.0f}, DP-RSVRG after {rounds['dp-rsvrg']:.0f}."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            f"Every one of the {self.agents} agents trains in every round. ({self.local_epsilon:g}, "
            f"{self.local_delta:g}) for a local training is that of Table 1, for the text has lost its numbers; "
            f"{self.rounds} rounds (a proxy has 600).",
            *super().remarks(folders),
        )


@final
@dataclass(frozen=True, kw_only=True)
class OptimizationWordNet(_Prediction):
    """"Horse" predicted from the other mammals in one place; see `_Prediction`. distance: D, the published bound on
    distances, which with the largest weight makes the published clip bound L0. step_size_clipped: of the runs with the
    smaller `clip`. larger_epsilon: of one of them."""

    name = "optimization-wordnet"
    title = "Hyperbolic structured prediction: the mammal \"horse\""
    paper = Paper.DP_OPTIMIZATION
    shows = "Figures 3a and 4"
    statement = (
        "DP-RGD with ε = 0.1 converges in some 1000 steps to near the word's own embedding; its predictions keep the "
        "hierarchy."
    )
    METHODS: ClassVar[Mapping[str, str]] = {
        "rgd": "RGD",
        "dp-rgd": "DP-RGD",
        "dp-rgd-clipped": "DP-RGD, smaller clip bound",
        "dp-rgd-weaker": "DP-RGD, smaller clip bound, larger ε",
        "dp-rgd-published": "DP-RGD, published noise",
        "dp-rgd-code-published": "DP-RGD, noise of the published code",
    }

    word: str = "horse.n.01"
    epsilon: float = 0.1
    rounds: int = 1000
    distance: float = 10.0
    step_size_clipped: float = 0.01
    larger_epsilon: float = 1.0

    def _trainer(self, method: str, records: int, heaviest: float) -> Trainer:
        if method == "rgd":
            return RGD(step_size=self.step_size_public)
        if method in ("dp-rgd-clipped", "dp-rgd-weaker"):
            return DPRSGD(clip=self.clip, noise=1.0, step_size=self.step_size_clipped)
        bound = heaviest * self.distance
        sigma = 1.0
        if method.endswith(PUBLISHED):
            sigma = published_sigma(bound, self.rounds, records, self.epsilon, self.delta)
        if method == "dp-rgd-code-published":
            sigma /= records
        return DPRSGD(clip=bound, noise=sigma, step_size=self.step_size)

    def _budget(self, method: str) -> float:
        return self.larger_epsilon if method == "dp-rgd-weaker" else self.epsilon

    def _more(self, rows: Sequence[Row]) -> str:
        return f" The larger ε is {self.larger_epsilon:g}."

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            f"The text has a kernel of width 0.2. With our features that makes all words alike, and what is then found "
            f"without noise lies farther from the word than the start; so the width is {self.width:g} here, that of "
            f"the other publication. The largest weight times {self.distance:g} is the published clip bound.",
            "The published code takes the sum of gradients where the text has their mean, and adds the noise that is "
            "for a mean: it is smaller than that of the text by the number of records.",
            *super().remarks(folders),
        )
