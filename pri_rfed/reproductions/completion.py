"""Low-rank matrix completion of ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple, final

import numpy as np
from matplotlib.figure import Figure

from pri_rfed.coordinator import State
from pri_rfed.data.base import Source
from pri_rfed.data.download import DataFolders
from pri_rfed.data.ratings import REACH, MovieLens, SyntheticRatings
from pri_rfed.experiment.plots import GREY, LOOKS
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.calibration import calibrate_noise, published_sigma, with_options
from pri_rfed.privacy.events import repeat
from pri_rfed.problems import MatrixCompletion
from pri_rfed.randomness import Role, stream
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.reproductions.curves import medians
from pri_rfed.simulation import simulate
from pri_rfed.training import DPRSGD

CONSTANT = "constant"
"""The method that predicts the mean of all ratings."""


class Split(NamedTuple):
    """Columns [n, 2, m] with the entries to learn from, and to predict; and what they are."""

    train: Array
    test: Array
    description: str


@final
@dataclass(frozen=True, kw_only=True)
class OptimizationMatrixCompletion(Reproduction):
    """Ratings of one agent's users completed by a subspace of the given rank, from random starts: DP-RSGD against RSGD,
    as published and by steps on all users.

    users, items, mean_ratings: of made-up ratings, where MovieLens is not at hand. rank, ridge: of the problem.
    held_out: share of the ratings that are predicted. epsilon, delta: of a run; a record is all that a user has rated.
    clip: C, of all gradients, private or not. batch, steps, step_sizes: b, T and, without noise and with it, eta of the
    runs on batches; full_steps, full_step_sizes: of those with all users in every step. evaluations: points of a curve
    of the former.
    """

    name = "optimization-matrix-completion"
    title = "Low-rank matrix completion of ratings: DP-RSGD and RSGD"
    paper = Paper.DP_OPTIMIZATION
    shows = "Figure 3b"
    statement = (
        "DP-RSGD comes to a utility comparable to that of RSGD without privacy, above all on the training entries."
    )

    users: int = 6040
    items: int = 3706
    mean_ratings: float = 165.6
    rank: int = 5
    ridge: float = 1e-3
    held_out: float = 0.2
    epsilon: float = 1.0
    delta: float = 1e-5
    clip: float = 1.0
    batch: int = 10
    steps: int = 1000
    step_sizes: tuple[float, float] = (0.1, 0.015)
    full_steps: int = 20
    full_step_sizes: tuple[float, float] = (5.0, 2.0)
    evaluations: int = 10
    seeds: int = 5

    METHODS: ClassVar[dict[str, str]] = {
        "dp-rsgd": "DP-RSGD",
        "rsgd": "RSGD, clipped",
        "dp-rsgd-published": "DP-RSGD, published noise",
        "dp-rgd": "DP-RGD",
        "rgd": "RGD, clipped",
    }

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out = {self.held_out}: must lie between 0 and 1")

    def cells(self) -> Sequence[Cell]:
        methods = [{"method": method, "seed": seed} for method in self.METHODS for seed in range(self.seeds)]
        return [*methods, {"method": CONSTANT, "seed": 0}]

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        split = _split(self, folders)
        if cell["method"] == CONSTANT:
            mean = split.train[:, 0].sum() / split.train[:, 1].sum()
            errors = [part[:, 1] * (part[:, 0] - mean) for part in (split.train, split.test)]
            train, test = (
                REACH * float(np.sqrt(np.sum(error**2) / part[:, 1].sum()))
                for error, part in zip(errors, (split.train, split.test), strict=True)
            )
            return [{"step": 0, "epsilon": None, "noise": 0.0, "train_rmse": train, "test_rmse": test}]
        problem = MatrixCompletion(split.train.shape[2], self.rank, self.ridge)
        trainer, rounds = _plan(self, cell["method"], len(split.train), problem.record_shape[1])
        start = problem.start(stream(cell["seed"], Role.START))
        points = [start]

        def keep(state: State) -> None:
            points.append(state.point)

        simulate(
            problem, [split.train], trainer, rounds=rounds, delta=self.delta, start=start, seed=cell["seed"],
            evaluate_every=0, on_round=keep,
        )  # fmt: skip
        event = repeat(trainer.event(problem, len(split.train)), rounds)
        epsilon = best_epsilon(event, self.delta).epsilon if event.is_private else None
        every = max(1, rounds // self.evaluations)
        steps = trainer.steps
        return [
            {"step": i * steps, "epsilon": epsilon, "noise": trainer.noise, **self._errors(problem, point, split)}
            for i, point in enumerate(points)
            if i % every == 0 or i == rounds
        ]

    def _errors(self, problem: MatrixCompletion, point: Array, split: Split) -> dict[str, float]:
        """Root mean square errors in stars, of the entries that v was fitted to, and of those held out."""
        squares, counts = np.zeros(2), np.zeros(2)
        for i in range(0, len(split.train), 500):
            part = slice(i, i + 500)
            v, residual = problem.fit(point, split.train[part])
            values, held = split.test[part, 0], split.test[part, 1]
            errors = residual, held * (np.clip(v @ point.T, -1, 1) - values)
            squares += [float(np.sum(error**2)) for error in errors]
            counts += [float(split.train[part, 1].sum()), float(held.sum())]
        train, test = REACH * np.sqrt(squares / counts)
        return {"train_rmse": float(train), "test_rmse": float(test)}

    def _without_noise(self, method: str, records: int) -> tuple[DPRSGD, int]:
        """What a step does, without noise, and how many rounds of how many steps there are."""
        private = method.startswith("dp-")
        if method.endswith("rgd"):
            return DPRSGD(steps=1, clip=self.clip, noise=0, step_size=self.full_step_sizes[private]), self.full_steps
        rounds = max(1, self.evaluations)
        batch = min(self.batch, records)
        local = max(1, self.steps // rounds)
        return DPRSGD(steps=local, batch=batch, clip=self.clip, noise=0, step_size=self.step_sizes[private]), rounds

    # Showing ----------------------------------------------------------------------------------------------------------

    def _curve(self, rows: Sequence[Row], method: str, key: str) -> dict[int, float]:
        return medians(rows, "step", key, method=method)

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        panels = figure.subplots(2, 2, sharey="row", sharex="col", squeeze=False)
        columns = (("dp-rsgd", "rsgd", "dp-rsgd-published"), ("dp-rgd", "rgd"))
        for i, (key, label) in enumerate((("train_rmse", "training entries"), ("test_rmse", "held out"))):
            for axes, methods in zip(panels[i], columns, strict=True):
                for method in methods:
                    curve = self._curve(rows, method, key)
                    look = LOOKS[list(self.METHODS).index(method)]
                    axes.plot(list(curve), list(curve.values()), label=self.METHODS[method], **look)
                axes.axhline(self._constant(rows, key), color=GREY, linewidth=1, label="every rating its mean")
            panels[i, 0].set_ylabel(f"RMSE in stars,\n{label}")
        for axes, title in zip(panels[0], (f"batches of {self.batch}", "all users in every step"), strict=True):
            axes.set_title(title, fontsize=10)
            axes.legend(fontsize=8)
        for axes in panels[1]:
            axes.set_xlabel("steps")

    @property
    def size(self) -> tuple[float, float]:
        return (7.2, 5.2)

    def _constant(self, rows: Sequence[Row], key: str) -> float:
        return next(row[key] for row in rows if row["method"] == CONSTANT)

    def compare(self, rows: Sequence[Row]) -> str:
        end = {
            method: [list(self._curve(rows, method, key).values())[-1] for key in ("train_rmse", "test_rmse")]
            for method in self.METHODS
        }
        epsilon = max(row["epsilon"] for row in rows if row["method"] == "dp-rsgd-published")

        def said(method: str) -> str:
            return f"{self.METHODS[method]} {end[method][0]:.3f} and {end[method][1]:.3f}"

        constant = " and ".join(f"{self._constant(rows, key):.3f}" for key in ("train_rmse", "test_rmse"))
        return (
            f"Root mean square errors in stars, of training entries and of those held out, at the end: {said('rsgd')}, "
            f"{said('dp-rsgd')} at ε = {self.epsilon:g}, {said('dp-rsgd-published')} with the published noise (true ε "
            f"{epsilon:.2g}); with all users in every step {said('rgd')}, {said('dp-rgd')} at the same ε. The mean of "
            f"all ratings has {constant}. Upon that mean, of what is gained without noise for ratings held out there "
            f"remains {self._kept(end, rows, 'dp-rsgd', 'rsgd')} with steps on batches, and "
            f"{self._kept(end, rows, 'dp-rgd', 'rgd')} with steps on all users."
        )

    def _kept(self, end: dict[str, list[float]], rows: Sequence[Row], private: str, plain: str) -> str:
        """The share of the gain upon the mean of all ratings, for those held out, that is left with noise."""
        gains = [self._constant(rows, "test_rmse") - end[method][1] for method in (private, plain)]
        if gains[1] <= 0:
            return "nothing (nor is there anything without noise)"
        return f"{gains[0] / gains[1]:.0%}" if gains[0] > 0 else "nothing"

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        split = _split(self, folders)
        observed = float(np.mean(split.train[:, 1]) + np.mean(split.test[:, 1]))
        stand_in = (
            f"They are made up, from tastes of rank {SyntheticRatings.rank}, and {observed:.1%} of all pairs are rated "
            "(MovieLens 1M: 4.5% of 6040 users and 3706 movies; with so many movies the noise, which goes with the "
            "root of their number, would leave less). MovieLens itself is taken where its ratings.dat is at hand "
            "(movielens/ratings.dat). "
        )
        return (
            f"Data: {split.description}; {self.held_out:.0%} of them are held out. "
            f"{'' if MovieLens.at_hand(folders) else stand_in}A record is all that one user has rated.",
            f"Every user's gradient is clipped at {self.clip:g}, private or not, which all but normalises it. As "
            "published nothing is clipped, and then no noise gives a guarantee; the published formula for σ (with its "
            "c = 10^4) is taken with the clip bound in place of the gradient's bound, and the ε of this run, which its "
            "text does not tell.",
            "A step that noise makes longer than the injectivity radius of the Grassmann manifold, pi/2, is refused by "
            "the server, and the point stays: that is what the published noise comes to here, as its constant is far "
            "more than its own ε asks for.",
            f"Rank {self.rank} and ridge {self.ridge:g} are ours. Step sizes were chosen with runs on made-up ratings "
            "in view: an experiment, not a guarantee. The v of a user is fitted to the training entries after the run, "
            "by whoever holds them; it is never released.",
        )

@cache
def _split(experiment: OptimizationMatrixCompletion, folders: DataFolders) -> Split:
    source: Source = SyntheticRatings(
        users=experiment.users, items=experiment.items, mean_ratings=experiment.mean_ratings
    )
    if MovieLens.at_hand(folders):
        source = MovieLens()
    data = source.load(folders, stream(0, Role.DATA))
    records, rng = data.records, stream(0, Role.DATA, 1)
    held = (records[:, 1] == 1) & (rng.random(records[:, 1].shape) < experiment.held_out)
    test = records * held[:, None]
    return Split(records - test, test, data.description)


@cache
def _plan(experiment: OptimizationMatrixCompletion, method: str, records: int, n: int) -> tuple[DPRSGD, int]:
    """What a round does, with its noise, and the number of rounds."""
    trainer, rounds = experiment._without_noise(method, records)
    problem = MatrixCompletion(n, experiment.rank, experiment.ridge)
    if method == "dp-rsgd-published":
        sigma = published_sigma(
            experiment.clip, trainer.steps * rounds, records, experiment.epsilon, experiment.delta, constant=1e4
        )
        return with_options(trainer, noise=sigma), rounds
    if not method.startswith("dp-"):
        return trainer, rounds
    private = with_options(trainer, noise=1.0)
    return (
        calibrate_noise(private, problem, [records], 1, 1, rounds, experiment.epsilon, experiment.delta),
        rounds,
    )
