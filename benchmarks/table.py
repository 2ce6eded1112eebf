"""The table of figures: what a row is, how it is judged, kept and shown."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

LIMIT = "the limit"
OURS = ("pri-rfed", "numpy", "scipy", "dp-accounting", "autodp", "flwr")


@dataclass(frozen=True)
class Row:
    """One figure.

    name: what was measured. value: of ours, in `unit`; None where it could not be measured, and `note` says why.
    against: what it is compared with; reference: that one's figure. wanted: the least reference/value that will do;
    None where nothing was promised. A limit is a reference of which one is wanted. details: what the figure was
    chosen from.
    """

    name: str
    value: float | None
    against: str = ""
    reference: float | None = None
    wanted: float | None = None
    unit: str = "s"
    note: str = ""
    details: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def ratio(self) -> float | None:
        """How many times better than the reference."""
        return None if self.value is None or self.reference is None else self.reference / self.value

    @property
    def met(self) -> bool | None:
        """None where nothing was promised, or nothing measured."""
        return None if self.ratio is None or self.wanted is None else self.ratio >= self.wanted

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "met": self.met}


def limited(name: str, value: float, limit: float, unit: str = "s", note: str = "", **more: Any) -> Row:
    """A figure that is to stay under a limit."""
    return Row(name, value, LIMIT, limit, 1.0, unit, note, **more)


def worst(rows: Sequence[Row], note: str = "") -> Row:
    """The row with the least ratio, with all of them for its details."""
    row = min(rows, key=lambda each: math.inf if each.ratio is None else each.ratio)
    details = [{key: value for key, value in each.to_dict().items() if key != "details"} for each in rows]
    return Row(row.name, row.value, row.against, row.reference, row.wanted, row.unit, note or row.note, details)


# What is kept ---------------------------------------------------------------------------------------------------------


def surroundings() -> dict[str, Any]:
    """Machine and versions."""
    versions = {"Python": platform.python_version()}
    for name in OURS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "machine": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(terse=True),
        "versions": versions,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write(folder: Path, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """table.json and table.md; groups that are there already and were not measured now stay."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = read(folder) | dict(groups)
    (folder / "table.json").write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(page(groups), encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    file = folder / "table.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


# What is shown --------------------------------------------------------------------------------------------------------


def page(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """All groups, a table each, in Markdown; first how many of the wanted figures were met, and which were not."""
    judged = [row for group in groups.values() for row in group["rows"] if row["met"] is not None]
    lines = [f"{sum(row['met'] for row in judged)} of {len(judged)} wanted figures were met."]
    if missed := [row for row in judged if not row["met"]]:
        lines += ["Missed, beginning with the farthest:", ""]
        for row in sorted(missed, key=lambda row: row["ratio"] / row["wanted"]):
            beside = "" if row["against"] == LIMIT else f", against {row['against']}"
            lines.append(f"- {row['name']}{beside}: {row['ratio'] / row['wanted']:.2g} of what was wanted")
    lines.append("")
    for group in groups.values():
        lines += [f"## {group['title']}", "", *([group["about"], ""] if group["about"] else []), _measured(group), ""]
        lines += ["| what | PriRFed | against | its figure | ratio | wanted | |", "|---|---|---|---|---|---|---|"]
        lines += [_line(row) for row in group["rows"]]
        notes = dict.fromkeys(row["note"] for row in group["rows"] if row["note"])
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
        lines += ["", *(f"![{text}]({path})" for path, text in group.get("figures", {}).items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def _measured(group: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in group["versions"].items())
    quick = "**A quick run: the figures mean little.** " if group["quick"] else ""
    return (
        f"{quick}{group['date']}, {group['machine']}, {group['cores']} cores, load {group['load']:.1f}; took "
        f"{group['seconds']:.0f} s. {versions}."
    )


def _line(row: Mapping[str, Any]) -> str:
    limit = row["against"] == LIMIT
    wanted = ""
    if row["wanted"] is not None:
        wanted = f"{row['wanted']:.3g} x" if row["wanted"] >= 1 else f"within {1 / row['wanted']:.3g} x"
    if limit:
        wanted = f"at most {amount(row['reference'], row['unit'])}"
    verdict = {True: "met", False: "**missed**", None: "" if row["value"] is not None else "not measured"}[row["met"]]
    cells = (
        row["name"],
        amount(row["value"], row["unit"]),
        "" if limit else row["against"],
        "" if limit or row["reference"] is None else amount(row["reference"], row["unit"]),
        "" if limit or row["ratio"] is None else f"{row['ratio']:.3g} x",
        wanted,
        verdict,
    )
    return f"| {' | '.join(cells)} |"


def amount(value: float | None, unit: str) -> str:
    """A figure with three digits, and a prefix to its unit."""
    if value is None:
        return "–"
    if unit == "s":
        for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return f"{value * 1e9:.3g} ns"
    if unit == "B":
        for size, name in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
            if value >= size:
                return f"{value / size:.3g} {name}"
    return f"exponent {value:.2f}" if unit == "exponent" else f"{value:.3g} {unit}".rstrip()
