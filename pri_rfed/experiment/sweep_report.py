"""What a report shows of a sweep: charts and tables over the seeds of each combination."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pri_rfed.experiment.sweep import SweepFolder

Chart = dict[str, Any]
DIAGNOSTIC = "diagnostic, not private"
MOST_SERIES = 7
"""As many as can be told apart."""
PRIVACY_KEYS = ("privacy.epsilon", "trainer.noise", "privacy.delta")
LEAST = 1e-16
"""At the optimum an excess risk is rounding, of either sign."""


@dataclass(frozen=True)
class Combination:
    """The rows of one combination of what varies: one for each seed."""

    values: dict[str, Any]
    rows: list[dict[str, Any]]

    def mean(self, column: str) -> float | None:
        """Over the seeds that have a figure; infinite where one is."""
        found = [row[column] for row in self.rows if row[column] is not None]
        return sum(found) / len(found) if found else None

    def ends(self, column: str) -> tuple[float, float]:
        found = [row[column] for row in self.rows if row[column] is not None]
        return min(found), max(found)

    @property
    def label(self) -> str:
        return ", ".join(f"{short(key)} {said(value)}" for key, value in self.values.items())


def short(key: str) -> str:
    """The last part of a key's full name."""
    return key.rpartition(".")[2]


def said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def combinations(folder: SweepFolder) -> list[Combination]:
    """Those of which a point is done, in the order of the sweep."""
    found: dict[str, Combination] = {}
    for row in folder.table():
        if row["status"] == "done":
            values = {key: row[key] for key in folder.varied}
            found.setdefault(repr(values), Combination(values, [])).rows.append(row)
    return list(found.values())


def charts(folder: SweepFolder) -> list[Chart]:
    """Risk against epsilon, and against whatever number varies; a map of two; the Pareto front; convergence."""
    all_ = combinations(folder)
    with_risk = [c for c in all_ if c.mean("excess_risk") is not None]
    out: list[Chart] = []
    numbers = [key for key in folder.varied if _varies(all_, key) and all(_is_number(c.values[key]) for c in all_)]
    others = [key for key in numbers if key not in PRIVACY_KEYS]
    private = [c for c in with_risk if _finite(c.mean("epsilon_global"))]
    if len({f"{c.mean('epsilon_global'):.2g}" for c in private}) > 1:
        out.append(
            _lines("epsilon", "Excess risk against ε", "ε before the run", private, lambda c: c.mean("epsilon_global"),
                   [key for key in folder.varied if key not in PRIVACY_KEYS])
        )  # fmt: skip
        out.append(_pareto(private))
    for key in others[:4]:
        rest = [other for other in folder.varied if other != key]
        chart = _lines(key.replace(".", "-"), f"Excess risk by {short(key)}", key, with_risk,
                       lambda c, key=key: float(c.values[key]), rest)  # type: ignore[misc]  # fmt: skip
        if chart["series"]:
            out.append(chart)
    if len(numbers) > 1 and with_risk:
        out.append(_map(with_risk, *(others + [k for k in numbers if k not in others])[:2]))
    if (convergence := _convergence(folder, with_risk)) is not None:
        out.append(convergence)
    return out


def utility(folder: SweepFolder) -> dict[str, Any]:
    """Excess risk and epsilon of each combination, as points of a chart; and of each what it was, as numbers."""
    private = [c for c in combinations(folder) if c.mean("excess_risk") is not None]
    private = [c for c in private if _finite(c.mean("epsilon_global"))]
    facts = {"agents": "agents", "sampled": "sampled", "rounds": "rounds", "records": "records_per_agent",
             "batch": "batch", "steps": "steps", "epsilon": "epsilon_global"}  # fmt: skip
    points = [
        {name: c.mean(column) for name, column in facts.items()}
        | {"risk": _risk(c), "ends": c.ends("excess_risk"), "seeds": len(c.rows)}
        for c in private
    ]
    series = {"name": f"sweep {folder.sweep.name}", "kind": "points", **_points(private)}
    return {"name": folder.sweep.name, "series": [series], "points": points}


def _points(of: Sequence[Combination]) -> dict[str, list[Any]]:
    return {"x": [c.mean("epsilon_global") for c in of], "y": [_risk(c) for c in of], "text": [c.label for c in of]}


def _risk(c: Combination) -> float:
    mean = c.mean("excess_risk")
    assert mean is not None
    return max(mean, LEAST)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _varies(of: Sequence[Combination], key: str) -> bool:
    return len({repr(c.values[key]) for c in of}) > 1


def _lines(
    name: str,
    title: str,
    x: str,
    of: Sequence[Combination],
    at: Callable[[Combination], float | None],
    keys: Sequence[str],
) -> Chart:
    """Risk along x, a line with a band over seeds for every other combination of `keys`; points where that is more than
    can be told apart."""
    lines: dict[str, list[Combination]] = {}
    telling = [key for key in keys if _varies(of, key)]
    for c in of:
        lines.setdefault(", ".join(f"{short(key)} {said(c.values[key])}" for key in telling) or "all", []).append(c)
    log = [value for value in map(at, of) if value is not None]
    chart: Chart = {"id": name, "title": title, "note": DIAGNOSTIC, "x": x, "y": "F(w) − F(w*)", "log": True,
                    "logx": bool(log) and min(log) > 0 and max(log) > 8 * min(log)}  # fmt: skip
    if len(lines) > MOST_SERIES or (len(of) > 1 and all(len(line) == 1 for line in lines.values())):
        x_values = [at(c) for c in of]
        points = {"x": x_values, "y": [_risk(c) for c in of], "text": [c.label for c in of]}
        return chart | {"series": [{"name": "mean over seeds", "kind": "points", **points}]}
    series = []
    for label, line in lines.items():
        line.sort(key=lambda c: at(c) or 0.0)
        ends = [c.ends("excess_risk") for c in line]
        series.append(
            {
                "name": label, "x": [at(c) for c in line], "y": [_risk(c) for c in line],
                "low": [max(low, LEAST) for low, _ in ends], "high": [max(high, LEAST) for _, high in ends],
                "text": [c.label for c in line],
            }
        )  # fmt: skip
    return chart | {"series": series}


def _pareto(of: Sequence[Combination]) -> Chart:
    order = sorted(of, key=lambda c: (c.mean("epsilon_global") or 0.0, _risk(c)))
    front: list[Combination] = []
    for c in order:
        if not front or _risk(c) < _risk(front[-1]):
            front.append(c)
    return {
        "id": "pareto", "title": "What cannot be improved on", "note": DIAGNOSTIC, "x": "ε before the run",
        "y": "F(w) − F(w*)", "log": True, "logx": True,
        "series": [
            {"name": "all", "kind": "points", **_points(of)},
            {"name": "Pareto front", **_points(front)},
        ],
    }  # fmt: skip


def _map(of: Sequence[Combination], across: str, up: str) -> Chart:
    """Mean risk over two numbers; over all others, where more vary."""
    cells: dict[tuple[Any, Any], list[float]] = {}
    for c in of:
        cells.setdefault((c.values[across], c.values[up]), []).append(_risk(c))
    xs, ys = sorted({x for x, _ in cells}), sorted({y for _, y in cells})

    def cell(x: Any, y: Any) -> float | None:
        risks = cells.get((x, y))
        return math.log10(sum(risks) / len(risks)) if risks else None

    return {
        "id": "map", "title": f"Excess risk over {short(across)} and {short(up)}", "note": DIAGNOSTIC, "x": across,
        "y": up,
        "heat": {"x": xs, "y": ys, "z": [[cell(x, y) for x in xs] for y in ys], "label": "log₁₀ excess risk"},
    }  # fmt: skip


def _convergence(folder: SweepFolder, of: Sequence[Combination]) -> Chart | None:
    """Risk round by round, a band over seeds; of the best, the worst and some between where there are many."""
    rounds = folder.rounds()
    order = sorted(of, key=_risk)
    if len(order) > MOST_SERIES:
        order = [order[round(i * (len(order) - 1) / (MOST_SERIES - 1))] for i in range(MOST_SERIES)]
    series = []
    for c in order:
        curves = [rounds[row["point"]] for row in c.rows if row["point"] in rounds]
        curves = [curve for curve in curves if "excess_risk" in curve and curve["round"] == curves[0]["round"]]
        if not curves:
            continue
        by_round = zip(*(curve["excess_risk"] for curve in curves), strict=True)
        risks = [[max(value, LEAST) for value in at if value is not None] for at in by_round]
        if not all(risks):
            continue
        series.append(
            {
                "name": c.label or "all", "x": curves[0]["round"], "y": [sum(at) / len(at) for at in risks],
                "low": [min(at) for at in risks], "high": [max(at) for at in risks],
            }
        )  # fmt: skip
    if not series:
        return None
    some = f", {len(series)} of {len(of)} combinations" if len(series) < len(of) else ""
    return {"id": "convergence", "title": f"Excess risk round by round{some}", "note": DIAGNOSTIC, "x": "round t",
            "y": "F(w) − F(w*)", "log": True, "series": series}  # fmt: skip


def table(of: Sequence[Combination]) -> list[dict[str, Any]]:
    """A row for each combination: means over seeds, and the ends of the risk."""
    columns = ("agents", "sampled", "rounds", "noise", "epsilon_global", "epsilon_ledger_max", "epsilon_theorem_4_2",
               "excess_risk", "cost", "gradient_norm", "distance", "bytes_up", "seconds")  # fmt: skip
    rows = []
    for c in of:
        row: dict[str, Any] = {"values": list(c.values.values()), "seeds": len(c.rows)}
        row |= {column: c.mean(column) for column in columns}
        row["ends"] = c.ends("excess_risk") if row["excess_risk"] is not None else None
        rows.append(row)
    return rows


def failed(folder: SweepFolder) -> list[tuple[Mapping[str, Any], str]]:
    """What varied, and the error, of each point that failed."""
    return [
        ({key: row[key] for key in (*folder.varied, "seed")}, str(row["error"]))
        for row in folder.table()
        if row["status"] == "failed"
    ]
