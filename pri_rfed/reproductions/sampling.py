"""What the publication on fast sampling measures of sampling and of privacy: its Figures 1 and 2, and Table 2."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import numpy as np
from matplotlib.figure import Figure

from pri_rfed.data.agents import Records
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.plots import BLUE, GREEN, GREY, LOOKS, ORANGE, SKY
from pri_rfed.manifolds import (
    Grassmann,
    Hyperboloid,
    Manifold,
    PoincareBall,
    SPDAffineInvariant,
    SPDBuresWasserstein,
    SPDLogEuclidean,
    Sphere,
    Stiefel,
)
from pri_rfed.noise import tangent_gaussian
from pri_rfed.privacy.accountants import ACCOUNTANTS
from pri_rfed.privacy.calibration import optimise_alpha
from pri_rfed.problems import FrechetMean, PrincipalEigenvector, Problem
from pri_rfed.randomness import AgentStreams
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.reproductions.slow_samplers import SLOW_SAMPLERS, basis_bytes, metropolis
from pri_rfed.reproductions.timing import seconds
from pri_rfed.training.dp_rsgd import DPRSGD
from pri_rfed.training.dp_rsvrg import DPRSVRG
from pri_rfed.training.sgd import RSGD

SPD: dict[str, Callable[[int], Manifold]] = {
    "SPD, affine-invariant": SPDAffineInvariant,
    "SPD, log-Euclidean": SPDLogEuclidean,
    "SPD, Bures–Wasserstein": SPDBuresWasserstein,
}
VECTORS: dict[str, Callable[[int], Manifold]] = {
    "Poincaré ball": PoincareBall,
    "Lorentz hyperboloid": lambda m: Hyperboloid(m - 1),
    "sphere": Sphere,
}
FRAMES: dict[str, Callable[[int, int], Manifold]] = {"Grassmann": Grassmann, "Stiefel": Stiefel}
METHODS = {
    "prirfed": "PriRFed",
    "prirfed-batch": "PriRFed, a batch, per draw",
    "transport": "transport, as published",
    "explicit": "explicit basis",
    "gram-schmidt": "Gram–Schmidt",
    "mcmc": "MCMC (no exact law)",
}
"""What to call the methods."""


@final
@dataclass(frozen=True, kw_only=True)
class SamplingTime(Reproduction):
    """Seconds for one tangent Gaussian at a random base point, over manifolds, sizes and methods.

    spd, vectors, frames: sizes m. ranks: r of the frames. batch: how many draws at once where they are drawn so.
    explicit_bytes: the largest basis that is formed. gram_schmidt_dim: the largest dimension that is orthonormalised.
    mcmc_steps: length of a chain; mcmc_measured: of so many steps its time is measured, and scaled up. seeds: base
    points.
    """

    name = "sampling-time"
    title = "Time of one draw of the tangent Gaussian"
    paper = Paper.FAST_SAMPLING
    shows = "Figure 1"
    statement = (
        "Sampling by isometric transport is two to four orders of magnitude faster than by an explicit basis or by "
        "Gram–Schmidt, on all manifolds."
    )
    alone = True

    spd: list[int]
    vectors: list[int]
    frames: list[int]
    ranks: list[int]
    batch: int = 100
    explicit_bytes: int = 400_000_000
    gram_schmidt_dim: int = 500
    mcmc_steps: int = 5000
    mcmc_measured: int = 250

    def cells(self) -> Sequence[Cell]:
        sizes: list[dict[str, Any]] = [{"manifold": name, "m": m, "r": None} for name in SPD for m in self.spd]
        sizes += [{"manifold": name, "m": m, "r": None} for name in VECTORS for m in self.vectors]
        sizes += [{"manifold": name, "m": m, "r": r} for name in FRAMES for r in self.ranks for m in self.frames]
        return [{**size, "method": method} for size in sizes for method in METHODS if self._fits(size, method)]

    def _fits(self, size: Cell, method: str) -> bool:
        manifold = _manifold(size)
        if method == "explicit":
            return basis_bytes(manifold) <= self.explicit_bytes
        if method == "gram-schmidt":
            needed = size["manifold"] in SPD or size["manifold"] == "Lorentz hyperboloid"
            return needed and manifold.dim <= self.gram_schmidt_dim
        return True

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        manifold, method = _manifold(cell), cell["method"]
        taken = []
        for seed in range(self.seeds):
            rng = np.random.default_rng(seed)
            w = manifold.random_point(rng)
            if method == "prirfed-batch":
                taken.append(seconds(partial(tangent_gaussian, manifold, w, 1.0, rng, (self.batch,))) / self.batch)
            elif method == "prirfed":
                taken.append(seconds(partial(tangent_gaussian, manifold, w, 1.0, rng)))
            elif method == "mcmc":
                chain = partial(metropolis, manifold, w, 1.0, rng, steps=self.mcmc_measured)
                taken.append(seconds(chain) * self.mcmc_steps / self.mcmc_measured)
            else:
                taken.append(seconds(partial(SLOW_SAMPLERS[method], manifold, w, 1.0, rng)))
        return [{"dim": manifold.dim, "seconds": statistics.mean(taken), "extrapolated": method == "mcmc"}]

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        panels = list(dict.fromkeys((row["manifold"], row["r"]) for row in rows))
        columns = min(5, len(panels))
        axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False, sharey=True)
        for ax, (manifold, r) in zip(axes.flat, panels, strict=False):
            for method, look in zip(METHODS, LOOKS, strict=False):
                shown = [
                    (row["m"], row["seconds"])
                    for row in rows
                    if (row["manifold"], row["r"], row["method"]) == (manifold, r, method)
                ]
                if shown:
                    ax.plot(*zip(*shown, strict=True), **look)
            ax.set(xscale="log", yscale="log", xlabel="m")
            sizes = sorted({row["m"] for row in rows if (row["manifold"], row["r"]) == (manifold, r)})
            ax.set_xticks(sizes, [str(m) for m in sizes], fontsize=7)
            ax.minorticks_off()
            ax.set_title(manifold if r is None else f"{manifold}, r = {r}", fontsize=9)
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax in axes[:, 0]:
            ax.set_ylabel("seconds a draw")
        lines = [axes[0, 0].plot([], [], **look, label=METHODS[m])[0] for m, look in zip(METHODS, LOOKS, strict=False)]
        figure.legend(handles=lines, loc="outside upper center", ncols=6, fontsize=8)

    @property
    def size(self) -> tuple[float, float]:
        return (11, 5.2)

    def compare(self, rows: Sequence[Row]) -> str:
        """At the largest size at which each method was measured."""
        ours = {(row["manifold"], row["m"], row["r"]): row["seconds"] for row in rows if row["method"] == "prirfed"}
        said = []
        for method in ("explicit", "gram-schmidt", "mcmc", "transport"):
            largest: dict[tuple[str, int | None], Row] = {}
            for row in rows:
                if row["method"] == method:
                    key = row["manifold"], row["r"]
                    largest[key] = max(largest.get(key, row), row, key=lambda each: each["m"])
            ratios = [row["seconds"] / ours[row["manifold"], row["m"], row["r"]] for row in largest.values()]
            if ratios:
                said.append(f"{METHODS[method]} takes {min(ratios):.3g} to {max(ratios):.3g} times as long")
        batches = [
            ours[row["manifold"], row["m"], row["r"]] / row["seconds"]
            for row in rows
            if row["method"] == "prirfed-batch"
        ]
        return (
            f"At the largest size measured on each manifold, beside one draw of PriRFed's: {', '.join(said)}. In "
            f"batches of {self.batch} a draw takes {min(batches):.2g} to {max(batches):.3g} times less time still."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            f"Explicit bases are formed up to {self.explicit_bytes / 1e6:.0f} MB, Gram–Schmidt is done up to dimension "
            f"{self.gram_schmidt_dim}, where the metric is no multiple of the ambient one; larger ones are left out.",
            f"A chain of {self.mcmc_steps} steps stands for MCMC, timed over {self.mcmc_measured} of them. It has no "
            "exact law, and in high dimensions would need more.",
            "The published transport is written in NumPy here, with its errors put right; `make bench` times the same "
            "with geomstats. The explicit basis is formed by batched operations, so it is fast for what it is.",
        )


def _manifold(cell: Cell) -> Manifold:
    name, m, r = cell["manifold"], cell["m"], cell["r"]
    return FRAMES[name](m, r) if name in FRAMES else (SPD | VECTORS)[name](m)


# Table 2 --------------------------------------------------------------------------------------------------------------

RECORDS = 200
"""Of an agent, in the overhead's problems: its number does not matter for the time."""

PUBLISHED_SECONDS = {"SPD": 41.0, "sphere": 24.0}
PUBLISHED_EARLIER = {"SPD": 660 * 3600.0, "sphere": 668.0}


@final
@dataclass(frozen=True, kw_only=True)
class SamplingOverhead(Reproduction):
    """What privacy adds to many steps of stochastic gradient descent with batches of one record.

    steps: for which the time is told. spd, sphere: sizes m of the two problems. agents: how many train at once, where
    more than one does. measured: most steps that are really taken by one agent alone; slow_draws: most draws by the
    slow methods; what is told for more is scaled up. mcmc_steps: length of a chain. seeds: repeats, of which the
    fastest count.
    """

    name = "sampling-overhead"
    title = "Overhead of privatisation"
    paper = Paper.FAST_SAMPLING
    shows = "Table 2"
    statement = (
        "Privatising 3·10⁵ steps of DP-RSGD takes 41 s on SPD matrices of 11 x 11, where MCMC takes 660 h, and 24 s on "
        "a sphere of size 786, where an explicit basis takes 668 s."
    )
    alone = True

    steps: int = 300_000
    spd: int = 11
    sphere: int = 786
    agents: int = 60
    measured: int = 20_000
    slow_draws: int = 200
    mcmc_steps: int = 5000

    def cells(self) -> Sequence[Cell]:
        methods = {"SPD": ("transport", "explicit", "gram-schmidt", "mcmc"), "sphere": ("transport", "explicit")}
        cells: list[Cell] = []
        for problem, m in (("SPD", self.spd), ("sphere", self.sphere)):
            cells += [{"problem": problem, "m": m, "method": "prirfed", "agents": a} for a in (1, self.agents)]
            cells += [{"problem": problem, "m": m, "method": method, "agents": 1} for method in methods[problem]]
        return cells

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        manifold: Manifold = SPDAffineInvariant(cell["m"]) if cell["problem"] == "SPD" else Sphere(cell["m"])
        rng = np.random.default_rng(0)
        if cell["method"] == "prirfed":
            return [self._training(manifold, cell["agents"], rng)]
        draws = min(self.slow_draws, self.steps)
        points = manifold.random_point(rng, (draws,))
        sampler, share = SLOW_SAMPLERS[cell["method"]], 1.0
        if cell["method"] == "mcmc":
            # A few steps of a few chains: the time of all of them, for each step.
            share = 100 / self.mcmc_steps
            sampler, points = partial(metropolis, steps=100), points[: max(1, draws // 20)]
        sampler(manifold, points[0], 1.0, rng)
        began = time.perf_counter()
        for w in points:
            sampler(manifold, w, 1.0, rng)
        each = (time.perf_counter() - began) / len(points) / share
        return [{"measured": len(points), "overhead": each * self.steps, "training": None}]

    def _training(self, manifold: Manifold, agents: int, rng: np.random.Generator) -> Row:
        """The same steps without clipping and noise, and with them, in turns."""
        steps = max(1, min(self.measured if agents == 1 else self.steps, self.steps) // agents)
        matrices = not isinstance(manifold, Sphere)
        problem: Problem = FrechetMean(manifold) if matrices else PrincipalEigenvector(manifold.point_shape[0])
        start, values = manifold.random_point(rng), manifold.random_point(rng, (agents, RECORDS))
        records = Records(values, np.full(agents, RECORDS))
        move = "exp" if matrices else "retract"
        options: dict[str, Any] = {"steps": steps, "batch": 1, "step_size": 1e-4, "move": move}
        trainers = RSGD(**options), DPRSGD(**options, clip=1.0, noise=0.1)
        taken: tuple[list[float], list[float]] = [], []
        for repeat in range(self.seeds):
            for trainer, times in zip(trainers, taken, strict=True):
                streams = AgentStreams(repeat, 0, range(agents))
                began = time.perf_counter()
                trainer.train(problem, start, records, streams)
                times.append((time.perf_counter() - began) * self.steps / (steps * agents))
        plain, private = map(min, taken)
        # A busy machine can hide the difference, or turn it round; the draws alone are a part of it that cannot hide.
        w = np.broadcast_to(start, (agents, *start.shape))
        draws = seconds(partial(tangent_gaussian, manifold, w, 0.1, rng)) * self.steps / agents
        return {"measured": steps * agents, "overhead": max(private - plain, draws), "training": private}

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        axes = figure.subplots(1, 2, sharex=True)
        for ax, problem in zip(axes, PUBLISHED_SECONDS, strict=True):
            shown = [row for row in rows if row["problem"] == problem]
            names = [
                METHODS[row["method"]].partition(",")[0].partition(" (")[0]
                + (f",\n{row['agents']} agents" if row["agents"] > 1 else "")
                for row in shown
            ]
            colors = [BLUE if row["method"] == "prirfed" else ORANGE for row in shown]
            names += ["published:\ntransport", "published:\nbefore"]
            values = [row["overhead"] for row in shown] + [PUBLISHED_SECONDS[problem], PUBLISHED_EARLIER[problem]]
            ax.barh(names, values, color=[*colors, GREY, GREY])
            ax.invert_yaxis()
            ax.set(xscale="log", xlabel=f"seconds for {self.steps:.0e} steps")
            m = shown[0]["m"]
            ax.set_title(f"{m} x {m} SPD matrices" if problem == "SPD" else f"sphere, m = {m}", fontsize=10)

    @property
    def size(self) -> tuple[float, float]:
        return (9, 3.6)

    def compare(self, rows: Sequence[Row]) -> str:
        said = []
        for problem, published in PUBLISHED_SECONDS.items():
            by = {(row["method"], row["agents"]): row for row in rows if row["problem"] == problem}
            slow = "mcmc" if problem == "SPD" else "explicit"
            one, many, slowest = by["prirfed", 1], by["prirfed", self.agents], by[slow, 1]
            m = f"SPD {one['m']} x {one['m']}" if problem == "SPD" else f"sphere {one['m']}"
            said.append(
                f"{m}: {one['overhead']:.3g} s for one agent alone and {many['overhead']:.3g} s for {self.agents} at "
                f"once (published {published:g} s), {METHODS[slow]} {_duration(slowest['overhead'])} (published "
                f"{_duration(PUBLISHED_EARLIER[problem])})"
            )
        return (
            f"For {self.steps:.3g} steps, clipping and noise together. {'; '.join(said)}. The seconds are of another "
            "machine than the published ones; their ratios can be compared."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            "PriRFed's overhead is the time of DP-RSGD less that of the same steps without clipping and noise, and its "
            "draws alone at least; that of the other methods is their draws alone.",
            f"One agent alone takes {min(self.measured, self.steps)} steps, {self.agents} at once all of them; the "
            f"slow methods make {min(self.slow_draws, self.steps)} draws (MCMC: 100 steps of a twentieth as many "
            f"chains, of {self.mcmc_steps} steps each); what is told for more is scaled up.",
            "The data are random: times do not depend on them. The publication says size 786; images of 28 x 28 have "
            "784 pixels.",
        )


def _duration(value: float) -> str:
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


# Figure 2 -------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class SamplingAlpha(Reproduction):
    """Epsilon of DP-RSVRG with its variance split in halves, and split best, by two accountants.

    clip_full, clip_step: C1 of the full gradient and C2 of the inner steps. inner_steps: m. records: n. noise: the
    sigmas. epochs: the S. delta: not told in the publication.
    """

    name = "sampling-alpha"
    title = "An optimised share of the variance for the full gradient"
    paper = Paper.FAST_SAMPLING
    shows = "Figure 2"
    statement = (
        "Choosing the share α of the variance that goes to the full gradient lowers ε at the same noise: to 0.47 from "
        "0.64 with σ = 0.05."
    )

    clip_full: float = 0.1
    clip_step: float = 0.01
    inner_steps: int = 10_000
    records: int = 100_000
    noise: list[float]
    epochs: list[int]
    delta: float = 1e-6

    def cells(self) -> Sequence[Cell]:
        return [
            {"noise": noise, "epochs": epochs, "accountant": accountant, "full_gradient_noise": released}
            for noise in self.noise
            for accountant, released in (("rdp", "every-step"), ("pld", "every-step"), ("pld", "once-an-epoch"))
            for epochs in self.epochs
        ]

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        problem = PrincipalEigenvector(2)
        halves = self._trainer(cell["noise"], cell["epochs"], cell["full_gradient_noise"])
        best = optimise_alpha(halves, problem, [self.records], 1, 1, 1, self.delta, cell["accountant"])
        epsilon = ACCOUNTANTS[cell["accountant"]].epsilon
        return [
            {
                "alpha": trainer.alpha,
                "split": split,
                "epsilon": epsilon(trainer.event(problem, self.records), self.delta),
            }
            for split, trainer in (("halves", halves), ("best", best))
        ]

    def _trainer(self, noise: float, epochs: int, released: Literal["every-step", "once-an-epoch"]) -> DPRSVRG:
        return DPRSVRG(
            epochs=epochs,
            inner_steps=self.inner_steps,
            batch=1,
            clip_full=self.clip_full,
            clip_step=self.clip_step,
            noise=noise,
            alpha=0.5,
            full_gradient_noise=released,
        )

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        axes = figure.subplots(1, len(self.noise), squeeze=False, sharey=True)[0]
        curves = (
            ("rdp", "every-step", ORANGE, "RDP, as published"),
            ("pld", "every-step", BLUE, "PLD, the same releases"),
            ("pld", "once-an-epoch", GREEN, "PLD, full gradient released once an epoch"),
        )
        for ax, noise in zip(axes, self.noise, strict=True):
            for accountant, released, color, label in curves:
                for split, line, marker in (("halves", "--", "s"), ("best", "-", "o")):
                    shown = [
                        (row["epochs"], row["epsilon"])
                        for row in rows
                        if (row["noise"], row["accountant"], row["full_gradient_noise"], row["split"])
                        == (noise, accountant, released, split)
                    ]
                    name = f"{label}, α {'= ½' if split == 'halves' else 'best'}" if ax is axes[0] else None
                    ax.plot(*zip(*shown, strict=True), line, marker=marker, markersize=4, color=color, label=name)
            ax.set(xscale="log", yscale="log", xlabel="epochs S")
            ax.set_title(f"σ = {noise:g}", fontsize=10)
        if 0.05 in self.noise:
            for value in (0.47, 0.64):
                axes[self.noise.index(0.05)].axhline(value, color=SKY, linewidth=1)
        axes[0].set_ylabel(f"ε at δ = {self.delta:g}")
        figure.legend(loc="outside upper center", ncols=2, fontsize=8)

    @property
    def size(self) -> tuple[float, float]:
        return (7.6, 4.4)

    def compare(self, rows: Sequence[Row]) -> str:
        noise, epochs = min(self.noise), max(self.epochs)

        def at(accountant: str, released: str, split: str) -> Row:
            (row,) = (
                row
                for row in rows
                if (row["noise"], row["epochs"], row["accountant"], row["full_gradient_noise"], row["split"])
                == (noise, epochs, accountant, released, split)
            )
            return row

        said, gains = [], []
        for accountant, released, words in (
            ("rdp", "every-step", "by RDP, as published"),
            ("pld", "every-step", "by privacy loss distributions"),
            ("pld", "once-an-epoch", "by the same, with the full gradient released once an epoch,"),
        ):
            best, halves = at(accountant, released, "best"), at(accountant, released, "halves")
            said.append(f"{words} ε = {best['epsilon']:.3g} (α = {best['alpha']:.2g}) against {halves['epsilon']:.3g}")
            gains.append(100 * (1 - best["epsilon"] / halves["epsilon"]))
        return (
            f"With σ = {noise:g} and S = {epochs}: {'; '.join(said)}. The split saves {gains[0]:.2g} % of ε by RDP and "
            f"{gains[1]:.2g} % by the tighter accountant, which finds another α best."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            f"The publication does not tell δ ({self.delta:g} here, as in its other experiments) nor the S of its two "
            "figures, which are the horizontal lines. C₁ = "
            f"{self.clip_full:g} is taken for the clip of the full gradient, C₂ = {self.clip_step:g} for that of the "
            "inner steps.",
            "All ε are for the replacement of a record: sensitivities 2 C₁/n and 4 C₂, batches of one record.",
        )
