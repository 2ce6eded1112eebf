"""Experiments of "Differential Privacy Over Riemannian Manifolds": sensitivity and utility of the Laplace mechanism."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from matplotlib.figure import Figure

from pri_rfed.data.base import Source
from pri_rfed.data.download import DataFolders
from pri_rfed.data.sources import SyntheticBall, SyntheticSPD
from pri_rfed.experiment.plots import BLACK, BLUE, GREEN, GREY, LOOKS, ORANGE
from pri_rfed.manifolds import Euclidean, Manifold, SPDAffineInvariant, Sphere
from pri_rfed.manifolds.base import Array
from pri_rfed.manifolds.naming import origin
from pri_rfed.mechanisms import LaplaceMean, frechet_mean_sensitivity
from pri_rfed.noise import RiemannianLaplace
from pri_rfed.problems import FrechetMean
from pri_rfed.randomness import Role, stream
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row


@dataclass(frozen=True, kw_only=True)
class _OverManifolds(Reproduction):
    """The Fréchet mean of random records in a ball about the middle of a manifold, released by the Riemannian Laplace
    mechanism, and the arithmetic mean released by the Laplace mechanism of the space around the manifold.

    epsilon: of either release, delta being 0. records: sample sizes n. repetitions: how many data sets of each size,
    every one with a neighbour. radius: of the public ball.
    """

    paper = Paper.OVER_MANIFOLDS

    epsilon: float = 1.0
    records: tuple[int, ...] = (25, 50, 100, 200, 300, 500)
    repetitions: int = 1000
    seeds: int = 1

    def __post_init__(self) -> None:
        if self.repetitions < 1 or not self.records or min(self.records) < 3:
            raise ValueError(f"records = {self.records} of at least 3, repetitions = {self.repetitions} of at least 1")
        for n in self.records:
            self._mechanism(n)  # it raises what is wrong

    @property
    @abstractmethod
    def _manifold(self) -> Manifold: ...

    @property
    @abstractmethod
    def _radius(self) -> float: ...

    @abstractmethod
    def _source(self, records: int) -> Source: ...

    @abstractmethod
    def _ambient_diameter(self) -> float:
        """A bound of the distance of two points of the ball in the space around the manifold."""

    @abstractmethod
    def _ambient(self, x: Array) -> Array:
        """Points as vectors [..., D], isometrically in the norm of the space around the manifold."""

    @abstractmethod
    def _judge(self, means: Array, released: Array, frechet: Array) -> dict[str, float]:
        """More about what the ambient mechanism released [R, D] of arithmetic means [R, D], the Fréchet means being
        `frechet` [R, D]."""

    def _mechanism(self, n: int) -> LaplaceMean:
        return LaplaceMean(self._manifold, origin(self._manifold), self._radius, n, self.epsilon)

    def cells(self) -> Sequence[Cell]:
        return [{"records": n, "seed": seed} for n in self.records for seed in range(self.seeds)]

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        n, manifold = cell["records"], self._manifold
        rng = stream(cell["seed"], Role.DATA, n)
        drawn = self._source(self.repetitions * (n + 1)).load(folders, rng).records
        data = drawn.reshape(self.repetitions, n + 1, *manifold.point_shape)
        means = frechet_means(manifold, data[:, :n])
        moved = manifold.dist(means, frechet_means(manifold, data[:, 1:], means))  # the first record is replaced
        row = {
            "sensitivity_bound": frechet_mean_sensitivity(manifold, self._radius, n),
            "sensitivity_published": self._published_sensitivity(n),
            "sensitivity_constructed": self._constructed(n),
            "sensitivity_mean": float(moved.mean()),
            "sensitivity_largest": float(moved.max()),
        }
        noise = stream(cell["seed"], Role.NOISE, n)
        law = self._mechanism(n).law
        released = np.concatenate([law.sample(mean, noise) for mean in means])
        vectors = self._ambient(means)
        row |= _summary("intrinsic", np.linalg.norm(self._ambient(released) - vectors, axis=1))
        arithmetic = self._ambient(data[:, :n]).mean(axis=1)
        dimension = arithmetic.shape[1]
        flat = RiemannianLaplace(Euclidean(dimension), self._ambient_diameter() / (n * self.epsilon))
        outside = arithmetic + flat.sample(np.zeros(dimension), noise, self.repetitions)
        row |= _summary("ambient", np.linalg.norm(outside - arithmetic, axis=1))
        return [row | self._judge(arithmetic, outside, vectors)]

    def _published_sensitivity(self, n: int) -> float:
        """2r(2 - h)/(n h) (Theorem 2)."""
        kappa = max(self._manifold.curvature_bounds[1], 0.0)
        x = 2 * self._radius * math.sqrt(kappa)
        h = x / math.tan(x) if x > 0 else 1.0
        return 2 * self._radius * (2 - h) / (n * h)

    def _constructed(self, n: int) -> float:
        """How far the mean moves where half the records lie at either end of one diameter of the ball, and the one that
        is replaced jumps from one end of another diameter, at a right angle to the first one, to its other end."""
        manifold, middle = self._manifold, origin(self._manifold)
        along = self._radius * np.stack([np.eye(manifold.dim)[0], np.eye(manifold.dim)[-1]])
        ends = [manifold.exp(middle, manifold.from_coordinates(middle, side * along)) for side in (1, -1)]
        others = np.stack([ends[i % 2][0] for i in range(n - 1)])
        pair = np.stack([np.concatenate([others, end[1:]]) for end in ends])
        one, other = frechet_means(manifold, pair)
        return float(manifold.dist(one, other))

    def _draw_sensitivity(self, axes: Any, rows: Sequence[Row]) -> None:
        n = [row["records"] for row in rows]
        for key, label, color, style in (
            ("sensitivity_published", "published bound", GREY, ":"),
            ("sensitivity_bound", "bound", BLACK, "-"),
            ("sensitivity_constructed", "constructed neighbours", ORANGE, "s"),
            ("sensitivity_largest", "random neighbours, largest", BLUE, "^"),
            ("sensitivity_mean", "random neighbours, mean", BLUE, "o"),
        ):
            axes.plot(n, [row[key] for row in rows], style, color=color, label=label, markersize=4)
        axes.set_yscale("log")
        log_sizes(axes, n)
        axes.set_xlabel("records $n$")
        axes.set_ylabel("how far the mean moves")
        axes.legend(fontsize=8)

    def _draw_utility(self, axes: Any, rows: Sequence[Row], methods: dict[str, str]) -> None:
        n = [row["records"] for row in rows]
        for look, (key, label) in zip(LOOKS, methods.items(), strict=False):
            mean = np.array([row[f"{key}_error"] for row in rows])
            spread = 2 * np.array([row[f"{key}_standard_error"] for row in rows])
            axes.plot(n, mean, label=label, **look)
            axes.fill_between(n, mean - spread, mean + spread, color=look["color"], alpha=0.2, linewidth=0)
        axes.set_yscale("log")
        log_sizes(axes, n)
        axes.set_xlabel("records $n$")
        axes.set_ylabel("distance to the mean that was\nreleased, in the ambient norm")
        axes.legend(fontsize=8)

    @property
    def size(self) -> tuple[float, float]:
        return (9.6, 3.8)

    def _said_of_sensitivity(self, rows: Sequence[Row]) -> str:
        def share(key: str) -> str:
            return _range([row[key] / row["sensitivity_bound"] for row in rows])

        passed = any(
            max(row["sensitivity_largest"], row["sensitivity_constructed"]) > row["sensitivity_bound"] * (1 + 1e-6)
            for row in rows
        )
        return (
            f"{'A pair of neighbours passes' if passed else 'No pair of neighbours passes'} the bound; random ones "
            f"reach {share('sensitivity_largest')} of it at most and {share('sensitivity_mean')} on average, "
            f"constructed ones {share('sensitivity_constructed')}."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            f"{self.repetitions} repetitions for each sample size (published: 1000); bands are two standard errors.",
            "What the ambient mechanism releases is the arithmetic mean: only for that the published sensitivity, the "
            "diameter of a Euclidean ball over n, is one. Each mechanism's distance is to the mean that it perturbs.",
        )


def log_sizes(axes: Any, sizes: Sequence[int]) -> None:
    """A logarithmic axis of sample sizes, with these for ticks as far as there is room."""
    shown, at = [], 0.0
    for size in sorted(set(sizes)):
        if size >= 1.3 * at:
            shown.append(size)
            at = size
    axes.set_xscale("log")
    axes.set_xticks(shown, [str(size) for size in shown])
    axes.set_xticks([], minor=True)


def _range(shares: Sequence[float]) -> str:
    """Shares in per cent, from the smallest to the largest."""
    low, high = 100 * min(shares), 100 * max(shares)
    return f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f}-{high:.0f} %"


def _summary(key: str, distances: Array) -> dict[str, float]:
    return {
        f"{key}_error": float(distances.mean()),
        f"{key}_standard_error": float(distances.std() / math.sqrt(len(distances))),
    }


def frechet_means(manifold: Manifold, records: Array, start: Array | None = None, tolerance: float = 1e-9) -> Array:
    """The Fréchet means [R, *point_shape] of data sets [R, n, *point_shape], by gradient descent with step 1/2: all
    of them together, to that norm of half the gradient. For records in a ball small enough that this converges; raises
    RuntimeError where it does not within 500 iterations."""
    problem, size = FrechetMean(manifold), np.full(len(records), float(records.shape[1]))
    w = np.broadcast_to(origin(manifold), (len(records), *manifold.point_shape)) if start is None else start
    for _ in range(500):
        v = -0.5 * problem.clipped_mean(w, records, None, None, size)
        if (manifold.norm(w, v) <= tolerance).all():
            return w
        w = manifold.project_point(manifold.exp(w, v))
    raise RuntimeError(f"Fréchet mean: not all of {len(records)} data sets converged in 500 iterations")


@final
@dataclass(frozen=True, kw_only=True)
class OverManifoldsSPD(_OverManifolds):
    """2 x 2 Wishart matrices within a radius of the identity, affine-invariant; see `_OverManifolds`."""

    name = "over-manifolds-spd"
    title = "Laplace mechanism on SPD matrices: sensitivity, and utility against the ambient space"
    shows = "Figure 1, first and second panel"
    statement = (
        "The empirical sensitivity lies close under the bound 2r/n. The intrinsic mechanism has the smaller error even "
        "in the Euclidean distance, and about a quarter of the ambient results at n = 20-40 are no SPD matrices."
    )

    radius: float = 1.5

    @property
    def _manifold(self) -> SPDAffineInvariant:
        return SPDAffineInvariant(2)

    @property
    def _radius(self) -> float:
        return self.radius

    def _source(self, records: int) -> Source:
        return SyntheticSPD(records=records, size=2, radius=self.radius)

    def _ambient_diameter(self) -> float:
        """Twice e^r - 1, the radius of the Euclidean ball about the identity (Proposition 1)."""
        return 2 * math.expm1(self.radius)

    def _ambient(self, x: Array) -> Array:
        return np.stack([x[..., 0, 0], x[..., 1, 1], math.sqrt(2) * x[..., 0, 1]], axis=-1)

    def _judge(self, means: Array, released: Array, frechet: Array) -> dict[str, float]:
        def outside_cone(x: Array) -> float:
            a, b, c = x.T
            return float(np.mean((a <= 0) | (b <= 0) | (a * b <= c**2 / 2)))

        noise = released - means
        return {"outside_cone": outside_cone(released), "outside_cone_frechet": outside_cone(frechet + noise)}

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        left, right = figure.subplots(1, 2)
        self._draw_sensitivity(left, rows)
        self._draw_utility(right, rows, {"intrinsic": "intrinsic Laplace", "ambient": "ambient Laplace"})
        share = right.twinx()
        n = [row["records"] for row in rows]
        share.plot(n, [100 * row["outside_cone"] for row in rows], "D:", color=GREEN, markersize=3)
        share.set_ylabel("ambient results that are not SPD (%)", color=GREEN)
        share.set_ylim(0, 100)
        share.grid(False)

    def compare(self, rows: Sequence[Row]) -> str:
        first, last = rows[0], rows[-1]
        fewer = [100 * (1 - row["intrinsic_error"] / row["ambient_error"]) for row in (first, last)]
        small = [row for row in rows if row["records"] <= 40] or rows[:1]
        outside, around = (_range([row[key] for row in small]) for key in ("outside_cone", "outside_cone_frechet"))
        at = f"n = {small[0]['records']}" + (f"-{small[-1]['records']}" if len(small) > 1 else "")
        return (
            f"{self._said_of_sensitivity(rows)} The intrinsic error is {fewer[0]:.0f} % smaller than the ambient one "
            f"at n = {first['records']} and {fewer[1]:.0f} % at n = {last['records']}. At {at}, {outside} of the "
            f"ambient results are not SPD, and with the same noise on the Fréchet mean {around} would not be "
            "(published: about 25 %)."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            *super().remarks(folders),
            "The intrinsic law is drawn exactly, by rejection; the norm of the ambient space is Frobenius'.",
        )


@final
@dataclass(frozen=True, kw_only=True)
class OverManifoldsSphere(_OverManifolds):
    """Points of S^2 about the pole, the polar angle uniform; see `_OverManifolds`. degrees: the ball's radius."""

    name = "over-manifolds-sphere"
    title = "Laplace mechanism on the sphere: sensitivity, and utility against the ambient space"
    shows = "Figure 1, third and fourth panel"
    statement = (
        "The empirical sensitivity lies close under the bound 2r(2-h)/(nh). The intrinsic mechanism adds 12 % (large "
        "n) to 17 % (small n) less noise than the ambient one, whose results are never on the sphere."
    )

    degrees: float = 22.5

    @property
    def _manifold(self) -> Sphere:
        return Sphere(3)

    @property
    def _radius(self) -> float:
        return math.radians(self.degrees)

    def _source(self, records: int) -> Source:
        return SyntheticBall(manifold="sphere", shape=(3,), records=records, radius=self._radius)

    def _ambient_diameter(self) -> float:
        """Twice the chord from the middle to the edge, as published; the ball's diameter is only 2 sin r."""
        return 4 * math.sin(self._radius / 2)

    def _ambient(self, x: Array) -> Array:
        return x

    def _judge(self, means: Array, released: Array, frechet: Array) -> dict[str, float]:
        def onto(x: Array) -> Array:
            return x / np.linalg.norm(x, axis=1, keepdims=True)

        return _summary("projected", np.linalg.norm(onto(released) - onto(means), axis=1))

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        left, right = figure.subplots(1, 2)
        self._draw_sensitivity(left, rows)
        methods = {"intrinsic": "intrinsic Laplace", "ambient": "ambient", "projected": "ambient, projected"}
        self._draw_utility(right, rows, methods)

    def compare(self, rows: Sequence[Row]) -> str:
        def less(key: str) -> tuple[float, str]:
            """The median over n, in per cent."""
            share = float(np.median([100 * (1 - row["intrinsic_error"] / row[f"{key}_error"]) for row in rows]))
            return share, f"{abs(share):.0f} % {'less' if share > 0 else 'more'}"

        (ambient, than_ambient), (_, than_projected) = less("ambient"), less("projected")
        ratio = rows[0]["sensitivity_published"] / rows[0]["sensitivity_bound"]
        return (
            f"{self._said_of_sensitivity(rows)} Drawn exactly, the intrinsic noise is {than_ambient} than the ambient "
            f"one (median over n){', short of the published 12-17 %' if ambient < 12 else ''}; with the published "
            f"bound, {ratio:.2f} times ours, it would be as much larger. It is {than_projected} than what is left of "
            "the ambient noise after a projection onto the sphere, which costs no privacy and which the publication "
            "does not look at."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            *super().remarks(folders),
            "The published chain on the sphere keeps accepted moves only, so that its law is another one than the "
            "guarantee is for; here the law is drawn exactly.",
            "Our bound of the sensitivity has x/sin x in place of the published 2 - h, x = 2r and h = x cot x.",
        )
