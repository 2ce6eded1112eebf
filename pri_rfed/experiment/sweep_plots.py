"""Pictures of a sweep, those that what varies in it allows. Style and colours are those of a run's plots.

The figures of a setting are medians over seeds. Where a picture shows fewer keys than vary, it shows the best setting
of the others, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pri_rfed.experiment.plots import BLUE, GREY, LOOKS, Picture, drawing, log_if_positive, plain_log
from pri_rfed.experiment.sweep import ALIKE, Setting, SweepFolder, pareto_front, rounded

MOST_SERIES = len(LOOKS)
MOST_TICKS = 8
MOST_CELLS = 12
"""A heat map with more rows or columns cannot be read."""
LEAST_SEEDS = 3
"""Quartiles of fewer say nothing."""

AGENTS, SAMPLED, ROUNDS, STEPS, EPSILON = (
    "data.partition.agents", "run.sampled", "run.rounds", "trainer.steps", "privacy.epsilon",
)  # fmt: skip
SYMBOLS = {
    AGENTS: "N", SAMPLED: "s", ROUNDS: "T", STEPS: "K", EPSILON: "ε", "data.partition.per_agent": "n",
    "trainer.batch": "b", "trainer.noise": "σ", "trainer.step_size": "η", "privacy.delta": "δ", "trainer.clip": "C",
    "trainer.inner_steps": "K", "data.partition.alpha": "α",
}  # fmt: skip
NAMES = {
    AGENTS: "agents", SAMPLED: "agents in a round", ROUNDS: "rounds", STEPS: "local steps in a round",
    "data.partition.per_agent": "records of an agent", "trainer.batch": "records in a batch", "trainer.noise": "noise",
    "trainer.step_size": "step size", "trainer.clip": "clip bound",
    "trainer.inner_steps": "local steps in a round", "data.partition.alpha": "likeness of agents' data",
}  # fmt: skip


class LeftOut(Exception):
    """Why a sweep has no such picture."""


def plot_sweep(folder: SweepFolder) -> tuple[list[str], dict[str, str]]:
    """Draw into the folder, as PNG and SVG each; returns the files' names, and by name why others were left out."""
    sheet = _Sheet(folder)
    pictures: dict[str, tuple[Callable[[Picture], None], tuple[float, float]]] = {
        "risk_by_epsilon_and_agents": (partial(sheet.risk_by_epsilon, by="agents"), (6.4, 3.8)),
        "risk_by_epsilon_and_sampled": (partial(sheet.risk_by_epsilon, by="sampled"), (6.4, 3.8)),
        "risk_over_agents_and_rate": (sheet.heat_map, (5.6, 4.2)),
        "pareto": (sheet.pareto, (5.6, 4.0)),
        "convergence": (sheet.convergence, (5.6, 4.4)),
    }
    for key in sheet.numeric_keys():
        pictures[f"risk_by_{key.replace('.', '_')}"] = (partial(sheet.risk_by_key, key=key), (6.4, 3.8))
    files: list[str] = []
    left_out: dict[str, str] = {}
    for name, (draw, size) in pictures.items():
        for suffix in ("png", "svg"):  # of an earlier call that had less to show, or more
            (folder.path / f"{name}.{suffix}").unlink(missing_ok=True)
        with drawing(folder.path / name, size) as picture:
            try:
                draw(picture)
            except LeftOut as reason:
                left_out[name] = str(reason)
                picture.wanted = False
        files += picture.files
    return files, left_out


class _Sheet:
    """A sweep's settings, and how to draw them."""

    def __init__(self, folder: SweepFolder):
        self.name, self.curves = folder.sweep.name, folder.rounds()
        self.settings = folder.settings()
        self.varied = [
            key for key in folder.varied if len({repr(setting.values[key]) for setting in self.settings}) > 1
        ]
        self.utility = "excess_risk" if any(len(s.all("excess_risk")) for s in self.settings) else "cost"
        self.deltas = {row["delta"] for setting in self.settings for row in setting.rows}

    # Pictures

    def risk_by_epsilon(self, picture: Picture, by: str) -> None:
        """Excess risk against the epsilon before the run, a line for each number of agents, or of sampled ones."""
        private = self._private()
        if len(_values(private, "epsilon_global", ALIKE)) < 2:
            raise LeftOut("ε takes one value only; let privacy.epsilon or trainer.noise vary")
        values = _values(private, by)
        if len(values) < 2:
            raise LeftOut(f"{'N' if by == 'agents' else 's'} takes one value only")
        if len(values) > MOST_SERIES:
            raise LeftOut(f"{len(values)} values of {'N' if by == 'agents' else 's'} are too many lines")
        axes = picture.figure.subplots()
        symbol = "N" if by == "agents" else "s"
        hidden = False
        for value, look in zip(values, LOOKS, strict=False):
            chosen = [setting for setting in private if setting.median(by) == value]
            places, several = _best(chosen, lambda s: rounded(s.median("epsilon_global"), ALIKE), self.utility)
            hidden |= several
            self._line(axes, places, [s.median("epsilon_global") for s in places], look, f"{symbol} = {value:g}")
        self._axes(axes, self._epsilon_label(), hidden, {EPSILON, "trainer.noise", {"N": AGENTS, "s": SAMPLED}[symbol]})
        self._ticks(axes, _values(private, "epsilon_global", ALIKE), log=True)
        picture.figure.legend(loc="outside right upper")

    def heat_map(self, picture: Picture) -> None:
        """Excess risk over the number of agents and the sampling rate."""
        settings, at = self._at_one_epsilon()
        agents, rates = _values(settings, "agents"), _values(settings, "rate", digits=3)
        if len(agents) < 2 or len(rates) < 2:
            raise LeftOut("it needs several values of both N and s/N")
        if len(agents) > MOST_CELLS or len(rates) > MOST_CELLS:
            raise LeftOut(f"{len(agents)} values of N by {len(rates)} of s/N are too many cells; sweep a grid")
        from matplotlib.colors import LogNorm

        axes = picture.figure.subplots()
        cells = np.full((len(rates), len(agents)), np.nan)
        hidden = False
        for i, rate in enumerate(rates):
            for j, number in enumerate(agents):
                chosen = [
                    s for s in settings if s.median("agents") == number and rounded(s.median("rate"), 3) == rate
                ]
                best, several = _best(chosen, lambda s: None, self.utility)
                hidden |= several
                if best:
                    cells[i, j] = self._shown(best[0].median(self.utility))
        low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
        log = low > 0 and high > 3 * low
        mesh = axes.pcolormesh(cells, cmap="cividis", norm=LogNorm() if log else None, edgecolors="white")
        for (i, j), value in np.ndenumerate(cells):
            if np.isfinite(value):
                shade: Any = mesh.norm(value)
                bright = shade > 0.5
                axes.text(j + 0.5, i + 0.5, f"{value:.2g}", ha="center", va="center",
                          color="black" if bright else "white", fontsize=8)  # fmt: skip
        axes.set_xticks(np.arange(len(agents)) + 0.5, [f"{value:g}" for value in agents])
        axes.set_yticks(np.arange(len(rates)) + 0.5, [f"{value:g}" for value in rates])
        axes.grid(False)
        axes.set_xlabel("agents N")
        axes.set_ylabel("sampling rate s/N")
        bar = picture.figure.colorbar(mesh, ax=axes)
        bar.outline.set_visible(False)
        bar.set_label(self._risk_label())
        if log:
            plain_log(bar.ax.yaxis, low, high)
        self._title(axes, hidden, {AGENTS, SAMPLED, EPSILON}, at)

    def pareto(self, picture: Picture) -> None:
        """All settings by epsilon and risk, and those that no other betters in both."""
        private = self._private()
        if len(private) < 3 or len(_values(private, "epsilon_global", ALIKE)) < 2:
            raise LeftOut("it needs three settings with a guarantee, and several values of ε")
        axes = picture.figure.subplots()

        def risk(setting: Setting) -> float:
            return float(self._shown(setting.median(self.utility)))

        def places(of: Sequence[Setting]) -> tuple[list[float], list[float]]:
            return [s.median("epsilon_global") for s in of], [risk(s) for s in of]

        front = pareto_front(private, risk)
        rest = [setting for setting in private if setting not in front]
        if rest:
            axes.plot(*places(rest), linestyle="", marker="o", markersize=4, color=GREY, alpha=0.6,
                      label="a setting, median over seeds")  # fmt: skip
        axes.step(*places(front), where="post", color=BLUE, marker="s", markersize=5,
                  label="no other is better in both")  # fmt: skip
        self._axes(axes, self._epsilon_label(), False, set(self.varied), quartiles=False)
        self._ticks(axes, _values(private, "epsilon_global", ALIKE), log=True)
        picture.figure.legend(loc="outside lower center", ncols=2)

    def convergence(self, picture: Picture) -> None:
        """Excess risk by round: median and quartiles over seeds."""
        curves = {i: self._bands(setting) for i, setting in enumerate(self.settings)}
        with_bands = [i for i, bands in curves.items() if bands is not None]
        if not with_bands:
            raise LeftOut(f"it needs {LEAST_SEEDS} seeds, and diagnostics of more than one round")
        from matplotlib.ticker import MaxNLocator

        axes = picture.figure.subplots()
        shown = _spread(with_bands, 5)
        lowest, highest = np.inf, -np.inf
        for i, look in zip(shown, LOOKS, strict=False):
            bands = curves[i]
            assert bands is not None
            t, low, middle, high = bands
            every = max(1, len(t) // 10)
            axes.plot(t, middle, label=self._setting_label(self.settings[i]), markevery=every, **look)
            axes.fill_between(t, low, high, color=look["color"], alpha=0.2, linewidth=0)
            lowest, highest = min(lowest, low.min()), max(highest, high.max())
        log_if_positive(axes, [lowest, highest])
        axes.set_xlabel("round t")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(self._risk_label(True))
        said = f"{len(shown)} of {len(with_bands)} settings" if len(shown) < len(with_bands) else ""
        self._title(axes, False, set(self.varied), said)
        if self.varied:
            picture.figure.legend(loc="outside lower center", ncols=2, fontsize=8)

    def risk_by_key(self, picture: Picture, key: str) -> None:
        """Excess risk against one key that varies; a line for each value of a second one, if there is one."""
        chosen = [s for s in self.settings if np.isfinite(s.median(self.utility))]
        if len({s.values[key] for s in chosen}) < 2:
            raise LeftOut(f"no diagnostics for several values of {key}")
        together = self._bound_to(key)
        others = [other for other in self.varied if other != key and other not in together]
        few = [other for other in others if len({repr(s.values[other]) for s in chosen}) <= MOST_SERIES]
        second = next(iter(sorted(few, key=lambda other: other != EPSILON)), None)
        axes = picture.figure.subplots()
        hidden = False
        series = [None] if second is None else _in_order({repr(s.values[second]): s.values[second] for s in chosen})
        for value, look in zip(series, LOOKS, strict=False):
            line = chosen if second is None else [s for s in chosen if s.values[second] == value]
            places, several = _best(line, lambda s: repr(s.values[key]), self.utility)
            hidden |= several
            label = None if second is None else f"{self._symbol(second)} = {_short(value)}"
            self._line(axes, places, [float(s.values[key]) for s in places], look, label)
        self._axes(axes, self._key_label(key, together), hidden, {key, *together, *([second] if second else [])})
        at = sorted({float(s.values[key]) for s in chosen})
        self._ticks(axes, at, log=at[0] > 0 and at[-1] >= 8 * at[0])
        if second is not None:
            picture.figure.legend(loc="outside right upper")

    # What they share

    def numeric_keys(self) -> list[str]:
        """Keys to draw the risk against: numbers, epsilon apart; of several that vary together the first."""
        keys: list[str] = []
        for key in self.varied:
            numeric = all(type(s.values[key]) in (int, float) for s in self.settings)
            if numeric and key != EPSILON and not any(key in self._bound_to(other) for other in keys):
                keys.append(key)
        return keys

    def _bound_to(self, key: str) -> list[str]:
        """The other keys that take one value for each value of this one, and the other way round."""
        bound = []
        for other in self.varied:
            pairs = {(repr(s.values[key]), repr(s.values[other])) for s in self.settings}
            if other != key and len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}):
                bound.append(other)
        return bound

    def _at_one_epsilon(self) -> tuple[list[Setting], str]:
        """The settings with the middle one of the epsilons asked for, and which that is."""
        if EPSILON not in self.varied:
            return self.settings, ""
        asked = _values(self.settings, "epsilon_target")
        middle = asked[len(asked) // 2]
        return [s for s in self.settings if s.median("epsilon_target") == middle], f"ε = {middle:g}"

    def _private(self) -> list[Setting]:
        found = [
            s for s in self.settings
            if np.isfinite(s.median("epsilon_global")) and s.median("epsilon_global") > 0
            and np.isfinite(s.median(self.utility))
        ]  # fmt: skip
        if not found:
            raise LeftOut("no setting has both a guarantee and diagnostics")
        return found

    def _bands(self, setting: Setting) -> tuple[Any, Any, Any, Any] | None:
        """Rounds, and quartiles of the utility at them, over seeds."""
        found = [self.curves.get(row["point"], {}) for row in setting.rows]
        found = [curve for curve in found if self.utility in curve]
        if len(found) < LEAST_SEEDS or len(found[0]["round"]) < 2:
            return None
        values = [self._shown(np.array(curve[self.utility], dtype=float)) for curve in found]
        return np.array(found[0]["round"]), *np.nanquantile(values, [0.25, 0.5, 0.75], axis=0)

    def _shown(self, value: Any) -> Any:
        """At the optimum the difference of two costs is rounding, of either sign."""
        return np.maximum(value, 1e-16) if self.utility == "excess_risk" else value

    def _line(self, axes: Any, places: Sequence[Setting], x: Sequence[float], look: dict[str, Any], label: Any) -> None:
        """Medians over seeds along x, with quartiles as bars where there are enough seeds."""
        order = np.argsort(x)
        columns = [self._shown(places[i].all(self.utility)) for i in order]
        middle = np.array([np.median(column) for column in columns])
        quartiles = self._shown(np.array([places[i].quartiles(self.utility) for i in order]).T)
        error = np.abs(quartiles - middle) if min(map(len, columns)) >= LEAST_SEEDS else None
        axes.errorbar(np.array(x)[order], middle, error, label=label, capsize=2, elinewidth=1, **look)

    def _axes(self, axes: Any, x_label: str, hidden: bool, shown: set[str], quartiles: bool = True) -> None:
        log_if_positive(axes, [axes.dataLim.y0, axes.dataLim.y1])
        axes.set_xlabel(x_label)
        axes.set_ylabel(self._risk_label(quartiles))
        self._title(axes, hidden, shown)

    def _ticks(self, axes: Any, values: Sequence[float], log: bool) -> None:
        """The horizontal axis, with the values themselves as ticks where they are few."""
        from matplotlib.ticker import NullLocator

        if log:
            axes.set_xscale("log")
            plain_log(axes.xaxis, min(values), max(values))
        if len(values) <= MOST_TICKS:
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.xaxis.set_minor_locator(NullLocator())

    def _title(self, axes: Any, hidden: bool, shown: set[str], said: str = "") -> None:
        others = [key for key in self.varied if key not in shown]
        best = f"the best over {', '.join(map(self._symbol, others))}" if hidden and others else ""
        axes.set_title("; ".join(filter(None, [self.name, said, best])), loc="left", fontsize=10, color=GREY)

    def _risk_label(self, quartiles: bool = False) -> str:
        what = "excess risk $F(w) - F(w^*)$" if self.utility == "excess_risk" else "cost $F(w)$"
        seeds = min(len(s.rows) for s in self.settings)
        how = "median and quartiles" if quartiles and seeds >= LEAST_SEEDS else "median"
        over = f"{how} over {seeds} seeds, " if seeds > 1 else ""
        return f"{what}\n({over}not private)"

    def _epsilon_label(self) -> str:
        at = f" at δ = {next(iter(self.deltas)):g}" if len(self.deltas) == 1 else ""
        return f"ε before the run{at}"

    def _symbol(self, key: str) -> str:
        """How a key is called in few letters. The agents in a round may be given as a share of all."""
        if key == SAMPLED and any(type(s.values.get(key)) is float for s in self.settings):
            return "s/N"
        return SYMBOLS.get(key, key)

    def _key_label(self, key: str, together: Sequence[str]) -> str:
        symbol = self._symbol(key)
        name = "sampling rate" if symbol == "s/N" else NAMES.get(key, key)
        label = name if symbol == name else f"{name} {symbol}"
        both = ", ".join(map(self._symbol, together))
        return f"{label} (and {both} with it)" if together else label

    def _setting_label(self, setting: Setting) -> str:
        said = [f"{self._symbol(key)} = {_short(setting.values[key])}" for key in self.varied]
        return ", ".join(said)


def _best(settings: Sequence[Setting], place: Callable[[Setting], Any], utility: str) -> tuple[list[Setting], bool]:
    """For each place the setting with the smallest median, and whether any place had several."""
    best: dict[Any, Setting] = {}
    several = False
    for setting in settings:
        where = place(setting)
        several |= where in best
        if where not in best or setting.median(utility) < best[where].median(utility):
            best[where] = setting
    return list(best.values()), several


def _values(settings: Sequence[Setting], column: str, digits: int = 12) -> list[float]:
    """The different values of a column, ascending."""
    return sorted({rounded(value, digits) for s in settings if np.isfinite(value := s.median(column))})


def _in_order(values: Mapping[str, Any]) -> list[Any]:
    try:
        return sorted(values.values())
    except TypeError:
        return list(values.values())


def _spread(items: Sequence[int], most: int) -> list[int]:
    """At most so many of the items, evenly spread, the ends included."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _short(value: Any) -> str:
    return f"{value:g}" if type(value) in (int, float) else str(value)
