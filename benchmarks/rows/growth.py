"""A million agents, and how time and memory grow.

The leading eigenvector on the sphere; data are made on demand; one thread. Growth: one number varies, the others stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.federation import in_a_process
from benchmarks.table import Row, limited
from pri_rfed.experiment.plots import BLUE, GREY, ORANGE, drawing

PLACE = 70
MILLION: dict[str, Any] = {
    "agents": 10**6, "sampled": 1000, "records": 20, "dim": 50, "steps": 5, "rounds": 100, "shared": False,
}  # fmt: skip
BASE: dict[str, Any] = {
    "agents": 10**4, "sampled": 100, "records": 20, "dim": 50, "steps": 5, "rounds": 4, "shared": True, "repeats": 3,
}  # fmt: skip
SIZES: dict[str, tuple[str, tuple[int, ...]]] = {
    "N": ("agents", (10**3, 10**4, 10**5, 10**6, 4 * 10**6)),
    "s": ("sampled", (3, 10, 30, 100, 300, 1000, 3000)),
    "n": ("records", (3, 10, 30, 100, 300, 1000, 3000, 10_000)),
    "K": ("steps", (1, 3, 10, 30, 100, 300, 1000)),
    "d": ("dim", (3, 10, 30, 100, 300, 1000, 3000, 10_000)),
}
MEANING = {"N": "agents", "s": "sampled agents", "n": "records an agent", "K": "local steps", "d": "dimension"}


def rows(quick: bool) -> Iterator[Row]:
    plan = MILLION | {"agents": 10**4, "sampled": 100, "rounds": 10} if quick else MILLION
    million = in_a_process(plan)
    label = f"{plan['agents']:.0e} agents, s = {plan['sampled']}, T = {plan['rounds']}, n = 20, K = 5, d = 50"
    note = f"Accounting for it took {million['accounting']:.2g} s besides (ε = {million['epsilon']:.3g})."
    yield limited(f"{label}: time", million["seconds"], 300.0, note=note)
    yield limited(f"{label}: memory", million["bytes"], 2.0 * 2**30, "B", note)
    for symbol, (key, sizes) in SIZES.items():
        measured: list[dict[str, float]] = []
        for size in sizes[:3] if quick else sizes:
            measured.append({"size": size, **in_a_process(BASE | {key: size})})
        yield from (_grown(symbol, measured, what) for what in ("round", "bytes"))
        if symbol == "N":
            first, last = measured[0], measured[-1]
            each = max(1.0, last["bytes"] - first["bytes"]) / (last["size"] - first["size"])
            yield limited(f"memory that one more agent takes, up to {last['size']:.0e}", each, 16.0, "B")


def _grown(symbol: str, measured: Sequence[dict[str, float]], what: str) -> Row:
    """The exponent at the large end, and from where growth is linear, and whether it is ever more than that."""
    sizes, values = (np.array([point[key] for point in measured]) for key in ("size", what))
    values = np.maximum(values, 1e-9)
    local = np.diff(np.log(values)) / np.diff(np.log(sizes))
    end = fitted(sizes, values)
    linear = next((f"linear from {sizes[i]:g}" for i in range(len(local)) if np.all(local[i:] > 0.75)), "")
    steep = [f"{sizes[i]:g}" for i in range(len(local)) if local[i] > 1.25]
    said = [linear or "below linear", f"steeper from {', '.join(steep)}" if steep else "never steeper"]
    name = "time of a round" if what == "round" else "memory"
    return Row(
        f"{name} by {symbol} ({MEANING[symbol]}), {sizes[0]:g} to {sizes[-1]:g}: {', '.join(said)}",
        end,
        unit="exponent",
        note="Exponents are those of the last three sizes. Linear: at least 0.75 from there on; steeper: above 1.25.",
        details=[{"symbol": symbol, "what": what, **point} for point in measured],
    )


def fitted(sizes: np.ndarray, values: np.ndarray) -> float:
    """The slope of log value by log size over the last three sizes."""
    return float(np.polyfit(np.log(sizes[-3:]), np.log(values[-3:]), 1)[0])


def pictures(rows: Sequence[Row], folder: Path) -> dict[str, str]:
    """Log-log plots of time and memory, a panel for each number."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = {}
    for what, unit, color, title in (
        ("round", "seconds a round", BLUE, "Time of a round"),
        ("bytes", "MiB beyond the start", ORANGE, "Memory"),
    ):
        curves = {
            row.details[0]["symbol"]: row.details for row in rows if row.details and row.details[0].get("what") == what
        }
        name = f"growth-{'time' if what == 'round' else 'memory'}"
        with drawing(folder / name, (11, 2.8)) as picture:
            axes = picture.figure.subplots(1, len(SIZES), sharey=True)
            for ax, symbol in zip(axes, SIZES, strict=True):
                points = curves.get(symbol, ())
                if not points:
                    continue
                x = np.array([point["size"] for point in points])
                y = np.maximum([point[what] for point in points], 1e-9) / (1 if what == "round" else 2**20)
                ax.loglog(x, y, "o-", color=color, markersize=4)
                ax.loglog(x, y[-1] * x / x[-1], ":", color=GREY, label="linear")
                ax.set_title(f"exponent {fitted(x, y):.2f}", fontsize=9)
                ax.set_xlabel(f"{symbol}, {MEANING[symbol]}")
            low = min((point[what] for points in curves.values() for point in points), default=1.0)
            axes[0].set_ylim(bottom=max(low, 1e-9) / (1 if what == "round" else 2**20) / 2)
            axes[0].set_ylabel(unit)
            axes[0].legend(fontsize=8)
        shown[f"figures/benchmarks/{name}.png"] = f"{title} by the size of a federation; dotted: linear growth"
    return shown


