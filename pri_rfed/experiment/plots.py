"""Plots of a run, from what its folder holds. Colours are of the Okabe-Ito palette, which colour-blind readers can tell
apart; lines differ in style besides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
PURPLE, YELLOW, SKY, BLACK = "#CC79A7", "#E69F00", "#56B4E9", "#000000"

LOOKS: tuple[dict[str, Any], ...] = tuple(
    {"color": color, "linestyle": line, "marker": marker, "markersize": 4}
    for color, line, marker in zip(
        (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, BLACK),
        ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), "-"),
        "osD^vPX",
        strict=True,
    )
)
"""How to draw one series after another: colour, line and marker differ."""

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "pri-rfed",
}


@dataclass
class Picture:
    """A figure to draw on. wanted: whether it is worth keeping. files: the names of what was written."""

    figure: Figure
    wanted: bool = True
    files: list[str] = field(default_factory=list)


@contextmanager
def drawing(path: Path, size: tuple[float, float] = (5.6, 3.6)) -> Iterator[Picture]:
    """A picture of that size in inches, in the style of all; written to `path`.png and `path`.svg at the end, unless it
    is not wanted."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        picture = Picture(Figure(figsize=size))
        yield picture
        if picture.wanted:
            for suffix in ("png", "svg"):
                metadata = {"Date": None} if suffix == "svg" else None
                picture.figure.savefig(f"{path}.{suffix}", dpi=150, metadata=metadata)
                picture.files.append(f"{path.name}.{suffix}")
                picture.figure.set_layout_engine("none")  # laid out once, the second looks the same


def plot_run(
    folder: Path,
    title: str,
    rounds: Sequence[dict[str, Any]],
    privacy: dict[str, Any],
    ledgers: Sequence[float] = (),
) -> list[str]:
    """Draw cost, gradient norm and epsilon by round, and epsilon agent by agent, into the folder, as PNG and SVG each;
    returns the files' names.

    rounds: the lines of rounds.jsonl. privacy: `by_round` of privacy.json. ledgers: what each agent has spent; without
    them there is no picture of agents.
    """
    from matplotlib.ticker import MaxNLocator

    names = []
    with drawing(folder / "ledgers") as picture:
        axes = picture.figure.subplots()
        picture.wanted = _ledgers(axes, ledgers, privacy)
        axes.set_title(title, loc="left", fontsize=10, color=GREY)
    names += picture.files
    for name, draw in (("risk", _risk), ("gradient_norm", _gradient_norm), ("epsilon", _epsilon)):
        with drawing(folder / name) as picture:
            axes = picture.figure.subplots()
            picture.wanted = draw(axes, rounds, privacy)
            axes.set_xlabel("round $t$")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_title(title, loc="left", fontsize=10, color=GREY)
        names += picture.files
    return names


def _series(rounds: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Rounds and values, where there is one."""
    pairs = [(r["round"], r[key]) for r in rounds if r.get(key) is not None]
    return [t for t, _ in pairs], [value for _, value in pairs]


def log_if_positive(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic axis, except where it would say nothing; plain numbers on it where it spans little."""
    if min(values) <= 0 or max(values) < 3 * min(values):
        return
    axes.set_yscale("log")
    plain_log(axes.yaxis, min(values), max(values))


def plain_log(axis: Any, low: float, high: float) -> None:
    """Plain numbers as ticks of a logarithmic axis where it spans little."""
    if high < 30 * low:
        from matplotlib.ticker import LogLocator

        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(LogLocator(subs=range(1, 10)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")


def _risk(axes: Any, rounds: Sequence[dict[str, Any]], privacy: dict[str, Any]) -> bool:
    t, risk = _series(rounds, "excess_risk")
    if risk:
        # At the optimum the difference of two costs is rounding, of either sign.
        shown = np.maximum(risk, 1e-16)
        axes.plot(t, shown, color=BLUE, marker="o" if len(t) <= 50 else None, markersize=3)
        log_if_positive(axes, shown.tolist())
        axes.set_ylabel("excess risk $F(w_t) - F(w^*)$\n(diagnostic, not private)")
        return True
    t, cost = _series(rounds, "cost")
    if not cost:
        return False
    axes.plot(t, cost, color=BLUE, marker="o" if len(t) <= 50 else None, markersize=3)
    axes.set_ylabel("cost $F(w_t)$\n(diagnostic, not private)")
    return True


def _gradient_norm(axes: Any, rounds: Sequence[dict[str, Any]], privacy: dict[str, Any]) -> bool:
    t, norm = _series(rounds, "gradient_norm")
    if not norm:
        return False
    shown = np.maximum(norm, 1e-17)
    axes.plot(t, shown, color=ORANGE, marker="o" if len(t) <= 50 else None, markersize=3)
    log_if_positive(axes, shown.tolist())
    axes.set_ylabel("gradient norm $\\|\\mathrm{grad}\\,F(w_t)\\|$\n(diagnostic, not private)")
    return True


def _epsilon(axes: Any, rounds: Sequence[dict[str, Any]], privacy: dict[str, Any]) -> bool:
    curves = privacy["global"], privacy["ledger"]
    if not curves[0]:
        return False
    for curve, color, line, label in zip(
        curves,
        (BLUE, ORANGE),
        ("-", "--"),
        ("before the run: global", "after it: largest agent ledger"),
        strict=True,
    ):
        t, epsilon = zip(*[(0, 0.0), *curve], strict=True)
        axes.step(t, epsilon, where="pre", color=color, linestyle=line, label=label)
    axes.set_ylabel(f"ε at δ = {privacy['delta']:g}")
    axes.set_ylim(bottom=0)
    axes.legend()
    return True


def _ledgers(axes: Any, ledgers: Sequence[float], privacy: dict[str, Any]) -> bool:
    from matplotlib.ticker import MaxNLocator

    if not ledgers:
        return False
    edges = np.arange(len(ledgers) + 1) + 0.5
    axes.stairs(sorted(ledgers, reverse=True), edges, fill=True, color=SKY)
    axes.stairs(sorted(ledgers, reverse=True), edges, color=BLUE, label="after it: ledger of an agent")
    if privacy["global"]:
        axes.axhline(privacy["global"][-1][1], color=ORANGE, linestyle="--", label="before the run: global")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.25 * max(*ledgers, *(epsilon for _, epsilon in privacy["global"][-1:])))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("agents, the one that has spent most first")
    axes.set_ylabel(f"ε at δ = {privacy['delta']:g}")
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    return True
