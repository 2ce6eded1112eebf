"""What a report shows of a sweep: charts and tables of its settings, medians over seeds with their quartiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pri_rfed.experiment.sweep import ALIKE, Setting, SweepFolder, pareto_front, rounded

Chart = dict[str, Any]
DIAGNOSTIC = "diagnostic, not private"
MOST_SERIES = 7
"""As many as can be told apart."""
PRIVACY_KEYS = ("privacy.epsilon", "trainer.noise", "privacy.delta")
LEAST = 1e-16
"""At the optimum an excess risk is rounding, of either sign."""


def median(of: Setting, column: str) -> float | None:
    """None where no seed has a value."""
    found = of.median(column)
    return None if math.isnan(found) else found


def named(of: Setting) -> str:
    return ", ".join(f"{short(key)} {said(value)}" for key, value in of.values.items())


def short(key: str) -> str:
    """The last part of a key's full name."""
    return key.rpartition(".")[2]


def said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def charts(folder: SweepFolder) -> list[Chart]:
    """Risk against epsilon, and against whatever number varies; a map of two; the Pareto front; convergence."""
    all_ = folder.settings()
    with_risk = [c for c in all_ if median(c, "excess_risk") is not None]
    out: list[Chart] = []
    numbers = [key for key in folder.varied if _varies(all_, key) and all(_is_number(c.values[key]) for c in all_)]
    others = [key for key in numbers if key not in PRIVACY_KEYS]
    private = [c for c in with_risk if _finite(median(c, "epsilon_global"))]
    if len({rounded(c.median("epsilon_global"), ALIKE) for c in private}) > 1:
        out.append(
            _lines("epsilon", "Excess risk against ε", "ε before the run", private,
                   lambda c: median(c, "epsilon_global"), [key for key in folder.varied if key not in PRIVACY_KEYS])
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
    """Excess risk and epsilon of each setting, as points of a chart; and of each what it was, as numbers."""
    private = [c for c in folder.settings() if median(c, "excess_risk") is not None]
    private = [c for c in private if _finite(median(c, "epsilon_global"))]
    facts = {"agents": "agents", "sampled": "sampled", "rounds": "rounds", "records": "records_per_agent",
             "batch": "batch", "steps": "steps", "epsilon": "epsilon_global"}  # fmt: skip
    points = [
        {name: median(c, column) for name, column in facts.items()}
        | {"risk": _risk(c), "quartiles": c.quartiles("excess_risk"), "seeds": len(c.rows)}
        for c in private
    ]
    series = {"name": f"sweep {folder.sweep.name}", "kind": "points", **_points(private)}
    return {"name": folder.sweep.name, "series": [series], "points": points}


def _points(of: Sequence[Setting]) -> dict[str, list[Any]]:
    return {"x": [median(c, "epsilon_global") for c in of], "y": [_risk(c) for c in of], "text": [named(c) for c in of]}


def _risk(c: Setting) -> float:
    return max(c.median("excess_risk"), LEAST)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _varies(of: Sequence[Setting], key: str) -> bool:
    return len({repr(c.values[key]) for c in of}) > 1


def _lines(
    name: str,
    title: str,
    x: str,
    of: Sequence[Setting],
    at: Callable[[Setting], float | None],
    keys: Sequence[str],
) -> Chart:
    """Risk along x, a line with a band over seeds for every other choice of `keys`; points where that is more than
    can be told apart."""
    lines: dict[str, list[Setting]] = {}
    telling = [key for key in keys if _varies(of, key)]
    for c in of:
        lines.setdefault(", ".join(f"{short(key)} {said(c.values[key])}" for key in telling) or "all", []).append(c)
    log = [value for value in map(at, of) if value is not None]
    chart: Chart = {"id": name, "title": title, "note": DIAGNOSTIC, "x": x, "y": "F(w) − F(w*)", "log": True,
                    "logx": bool(log) and min(log) > 0 and max(log) > 8 * min(log)}  # fmt: skip
    if len(lines) > MOST_SERIES or (len(of) > 1 and all(len(line) == 1 for line in lines.values())):
        x_values = [at(c) for c in of]
        points = {"x": x_values, "y": [_risk(c) for c in of], "text": [named(c) for c in of]}
        return chart | {"series": [{"name": "median over seeds", "kind": "points", **points}]}
    series = []
    for label, line in lines.items():
        line.sort(key=lambda c: at(c) or 0.0)
        bands = [c.quartiles("excess_risk") for c in line]
        series.append(
            {
                "name": label, "x": [at(c) for c in line], "y": [_risk(c) for c in line],
                "low": [max(low, LEAST) for low, _ in bands], "high": [max(high, LEAST) for _, high in bands],
                "text": [named(c) for c in line],
            }
        )  # fmt: skip
    return chart | {"series": series}


def _pareto(of: Sequence[Setting]) -> Chart:
    return {
        "id": "pareto", "title": "What cannot be improved on", "note": DIAGNOSTIC, "x": "ε before the run",
        "y": "F(w) − F(w*)", "log": True, "logx": True,
        "series": [
            {"name": "all", "kind": "points", **_points(of)},
            {"name": "Pareto front", **_points(pareto_front(of, _risk))},
        ],
    }  # fmt: skip


def _map(of: Sequence[Setting], across: str, up: str) -> Chart:
    """Risk over two numbers: of the best of the others, where more vary."""
    cells: dict[tuple[Any, Any], list[float]] = {}
    for c in of:
        cells.setdefault((c.values[across], c.values[up]), []).append(_risk(c))
    xs, ys = sorted({x for x, _ in cells}), sorted({y for _, y in cells})

    def cell(x: Any, y: Any) -> float | None:
        risks = cells.get((x, y))
        return math.log10(min(risks)) if risks else None

    return {
        "id": "map", "title": f"Excess risk over {short(across)} and {short(up)}", "note": DIAGNOSTIC, "x": across,
        "y": up,
        "heat": {"x": xs, "y": ys, "z": [[cell(x, y) for x in xs] for y in ys], "label": "log₁₀ excess risk"},
    }  # fmt: skip


def _convergence(folder: SweepFolder, of: Sequence[Setting]) -> Chart | None:
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
        if not all(len(at) == len(curves) for at in risks):
            continue
        low, middle, high = np.quantile(risks, [0.25, 0.5, 0.75], axis=1).tolist()
        series.append(
            {
                "name": named(c) or "all", "x": curves[0]["round"], "y": middle, "low": low, "high": high,
            }
        )  # fmt: skip
    if not series:
        return None
    some = f", {len(series)} of {len(of)} settings" if len(series) < len(of) else ""
    return {"id": "convergence", "title": f"Excess risk round by round{some}", "note": DIAGNOSTIC, "x": "round t",
            "y": "F(w) − F(w*)", "log": True, "series": series}  # fmt: skip


def table(of: Sequence[Setting]) -> list[dict[str, Any]]:
    """A row for each setting: medians over seeds."""
    columns = ("agents", "sampled", "rounds", "noise", "epsilon_global", "epsilon_ledger_max", "epsilon_theorem_4_2",
               "excess_risk", "cost", "gradient_norm", "distance", "bytes_up", "seconds")  # fmt: skip
    rows = []
    for c in of:
        row: dict[str, Any] = {"values": list(c.values.values()), "seeds": len(c.rows)}
        rows.append(row | {column: median(c, column) for column in columns})
    return rows


def failed(folder: SweepFolder) -> list[tuple[Mapping[str, Any], str]]:
    """What varied, and the error, of each point that failed."""
    return [
        ({key: row[key] for key in (*folder.varied, "seed")}, str(row["error"]))
        for row in folder.table()
        if row["status"] == "failed"
    ]
