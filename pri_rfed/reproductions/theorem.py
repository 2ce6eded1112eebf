"""What the PriRFed paper says of privacy: its Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from matplotlib.figure import Figure

from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.plots import BLUE, GREEN, GREY, ORANGE
from pri_rfed.privacy.planning import ClaimedRow, ClaimedTable
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row


@final
@dataclass(frozen=True, kw_only=True)
class PriRFedTable(Reproduction):
    """Theorem 4.2 for (epsilon, delta)-private local trainings, with delta_hat for advanced composition, beside the
    true figures where a local training is one Gaussian release of exactly that. plans: rows (N, s, T)."""

    name = "prirfed-table"
    title = "Privacy of a whole run: Theorem 4.2 and the truth"
    paper = Paper.PRIRFED
    shows = "Table 1"
    statement = (
        "More agents, or a smaller share of them in a round, give a smaller bound on the whole run's ε: 0.136 for "
        "N = 100, s = 1, T = 500 with local trainings of (0.15, 1e-4), by Theorem 4.2 and advanced composition."
    )

    epsilon: float = 0.15
    delta: float = 1e-4
    delta_hat: float = 1e-3
    plans: tuple[tuple[int, int, int], ...] = ((100, 1, 500),)
    seeds: int = 1

    def __post_init__(self) -> None:
        _ = self._table, [self._row(*plan) for plan in self.plans]  # they raise what is wrong

    @property
    def _table(self) -> ClaimedTable:
        return ClaimedTable(epsilon=self.epsilon, delta=self.delta, delta_hat=self.delta_hat)

    def _row(self, agents: int, sampled: int, rounds: int) -> ClaimedRow:
        return ClaimedRow(agents=agents, sampled=sampled, rounds=rounds)

    def cells(self) -> Sequence[Cell]:
        return [{"agents": n, "sampled": s, "rate": s / n, "rounds": t} for n, s, t in self.plans]

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        (row,) = self._table.figures([self._row(cell["agents"], cell["sampled"], cell["rounds"])])
        claim = row["theorem-4.2"]
        return [
            {
                "published_sequential": claim["sequential"]["epsilon"],
                "published_advanced": claim["advanced"]["epsilon"],
                "delta": row["delta"],
                "global": row["global"]["epsilon"],
                "ledger": row["ledger"]["epsilon"],
            }
        ]

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        axes = figure.subplots()
        at = range(len(rows))
        for key, label, color, marker in (
            ("published_sequential", "Theorem 4.2, sequential (no guarantee)", GREY, "v"),
            ("published_advanced", "Theorem 4.2, advanced (no guarantee)", ORANGE, "s"),
            ("global", "true, before the run", BLUE, "o"),
            ("ledger", "true, an agent in every round", GREEN, "D"),
        ):
            shown = [(i, row[key]) for i, row in zip(at, rows, strict=True) if row[key] is not None]
            axes.plot([i for i, _ in shown], [value for _, value in shown], marker, color=color, label=label)
        axes.set_yscale("log")
        axes.set_xticks(list(at), [f"{row['agents']}\n{row['sampled']}\n{row['rounds']}" for row in rows])
        axes.set_xlabel("N (above), s, T (below)")
        axes.set_ylabel("ε of the whole run")
        figure.legend(loc="outside upper center", ncols=2, fontsize=8)

    @property
    def size(self) -> tuple[float, float]:
        return (max(5.6, 0.8 * len(self.plans)), 4.2)

    def compare(self, rows: Sequence[Row]) -> str:
        known = [row for row in rows if row["global"] is not None]
        broken = [row for row in known if row["published_advanced"] < row["global"]]
        said = f"Theorem 4.2 claims less than the truth in {len(broken)} of {len(known)} plans, so it is no guarantee"
        if broken:
            worst = max(broken, key=lambda row: row["global"] / row["published_advanced"])
            said += (
                f" (N = {worst['agents']}, s = {worst['sampled']}, T = {worst['rounds']}: "
                f"{worst['published_advanced']:.3g} claimed, {worst['global']:.3g} true)"
            )
        loose = max(known, key=lambda row: row["published_advanced"] / row["global"])
        return (
            f"{said}; and for s > 1 it is loose (N = {loose['agents']}, s = {loose['sampled']}, T = {loose['rounds']}: "
            f"{loose['published_advanced']:.3g} claimed, {loose['global']:.3g} true). The true figure depends on the "
            "rate s/N and on T; the number of agents by itself does not enter."
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (
            "The table's numbers are lost from the text that we have; the rows here have its layout, and the formula "
            "of its proof.",
            "The true figures hold at the δ of advanced composition, T (s/N) s δ + δ̂, which grows with s.",
        )
