"""The report of a run or of a sweep: one page that needs nothing else, `report.html` in the folder."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pri_rfed.experiment import sweep_report
from pri_rfed.experiment.citations import bibtex, references
from pri_rfed.experiment.config import PrivacyOptions, protects
from pri_rfed.experiment.folder import RunFolder, without_infinities
from pri_rfed.experiment.run import command_to_go_on, exceptions
from pri_rfed.experiment.spending import Spending
from pri_rfed.experiment.sweep import Point, SweepFolder
from pri_rfed.experiment.sweep_report import DIAGNOSTIC, Chart
from pri_rfed.files import write_atomically
from pri_rfed.privacy.accountants import ACCOUNTANTS
from pri_rfed.privacy.events import Unit
from pri_rfed.privacy.report import neighbours

if TYPE_CHECKING:
    from jinja2 import Environment

NAME = "report.html"
TEMPLATES = Path(__file__).parent / "templates"
MOST_ROWS = 50
"""A table of refusals or of groups is cut after so many rows."""
MOST_COMBINATIONS = 200
"""So is that of a sweep's combinations."""
MOST_RECORD_COUNTS = 30
"""Ledgers are drawn agent by agent where agents hold at most so many different numbers of records."""


def write_report(path: Path) -> Path:
    """Write the report of the run or the sweep in the folder, and return where it is.

    Raises ValueError where the folder is of neither, or of a run that is not finished.
    """
    page = _report_of_sweep(path) if is_sweep(path) else _report_of_run(RunFolder.open(path))
    write_atomically(path / NAME, page.encode())
    return path / NAME


def is_sweep(path: Path) -> bool:
    """Whether the folder is that of a sweep, and not of a run."""
    return (path / "sweep.toml").is_file()


def plotly_js() -> str:
    """The plotting library, to be put into a page."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script


@cache
def environment() -> Environment:
    """Templates: whatever is put into them is escaped, unless it is one of this package's own files."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters["number"] = number
    made.filters["size"] = size
    made.globals["asset"] = lambda name: Markup((TEMPLATES / name).read_text(encoding="utf-8"))
    return made


def number(value: float | None) -> str:
    """A figure for people: four digits; ∞ for None, which stands for it in JSON."""
    if value is None or math.isinf(value):
        return "∞"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"


def render(template: str, charts: Sequence[Chart], **values: Any) -> str:
    """The page that the template makes of charts and values, with the plotting library in it."""
    from markupsafe import Markup

    page = environment().get_template(template)
    return page.render(charts=without_infinities(list(charts)), plotly=Markup(plotly_js()), **values)


# A sweep ------------------------------------------------------------------------------------------------------------


def _report_of_sweep(path: Path) -> str:
    folder = SweepFolder.open(path)
    table, settings = folder.table(), folder.settings()
    rows, failures = sweep_report.table(settings), sweep_report.failed(folder)
    with_risk = [row | {"label": sweep_report.named(c)} for row, c in zip(rows, settings, strict=True)
                 if row["excess_risk"] is not None]  # fmt: skip
    epsilons = [row["epsilon_global"] for row in rows if row["epsilon_global"] is not None]
    claimed = any(row["epsilon_theorem_4_2"] is not None for row in rows)
    accountants = {"pld", "rdp"} if any(map(math.isfinite, epsilons)) else set()
    cited = {r.key: r for point in folder.points for r in references(point.tables, "simulation", accountants)}
    first = folder.points[0].tables
    what = f"{first['problem'].get('name')} by {first['trainer'].get('name')}"
    seeds = len({point.seed for point in folder.points})
    status = [row["status"] for row in table]
    versions = folder.path / "versions.json"
    return render(
        "sweep.html",
        sweep_report.charts(folder),
        title=folder.sweep.name,
        subtitle=f"a sweep of {len(folder.points)} runs: {what}",
        counts={"all": len(status)} | {name: status.count(name) for name in ("done", "failed", "missing")},
        epsilons=(min(epsilons), max(epsilons)) if epsilons else None,
        best=min(with_risk, key=lambda row: row["excess_risk"], default=None),
        seeds=seeds,
        what=[(key, _values_of(folder.points, key)) for key in folder.varied] + _shared(first, folder.varied),
        guarantee=_guarantee_of_points(folder.points),
        claimed=claimed,
        caveat=ACCOUNTANTS["theorem-4.2"].caveat,
        varied=folder.varied,
        rows=rows[:MOST_COMBINATIONS],
        rows_left=max(0, len(rows) - MOST_COMBINATIONS),
        failures=failures[:MOST_ROWS],
        failures_left=max(0, len(failures) - MOST_ROWS),
        config=(path / "sweep.toml").read_text(encoding="utf-8"),
        versions=list(json.loads(versions.read_text(encoding="utf-8")).items()) if versions.is_file() else [],
        references=list(cited.values()),
        bibtex=bibtex(list(cited.values())),
    )


def _values_of(points: Sequence[Point], key: str) -> str:
    values = list(dict.fromkeys(sweep_report.said(point.values[key]) for point in points if key in point.values))
    return f"varies: {', '.join(values[:12])}{f' and {len(values) - 12} more' if len(values) > 12 else ''}"


def _shared(tables: Mapping[str, Any], varied: Sequence[str]) -> list[tuple[str, str]]:
    """What all points have in common, section by section."""
    rows = []
    for section, table in tables.items():
        entries = _flat(table, section)
        said = [f"{key.partition('.')[2]} = {_plain(value)}" for key, value in entries.items()
                if key not in varied and key not in ("run.seed", "run.name")]  # fmt: skip
        if said:
            rows.append((section, ", ".join(said)))
    return rows


def _flat(table: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        return {prefix: table}
    return {name: leaf for key, value in table.items() for name, leaf in _flat(value, f"{prefix}.{key}").items()}


def _guarantee_of_points(points: Sequence[Point]) -> list[tuple[str, str]]:
    units = dict.fromkeys(
        neighbours(
            Unit.ADD_REMOVE_RECORD if point.tables["trainer"].get("sampling") == "poisson" else Unit.REPLACE_RECORD,
            protects(point.tables["problem"]),
        )
        for point in points
    )
    deltas = sorted({point.tables.get("privacy", {}).get("delta", PrivacyOptions.delta) for point in points})
    return [
        ("unit, and neighbours", "; or, by point: ".join(map(str, units))),
        ("δ", ", ".join(map(number, deltas))),
        ("ε before a run", "global: agents drawn as announced, by randomness that nobody can predict"),
        ("ε after it", "of the agent that took part most, whoever chose the agents"),
    ]


# A run --------------------------------------------------------------------------------------------------------------


def _report_of_run(folder: RunFolder) -> str:
    summary, privacy = folder.read("summary.json"), folder.read("privacy.json")
    if summary is None or privacy is None:
        raise ValueError(
            f"{folder.path}: this run is not finished; `{command_to_go_on(folder)}` goes on with it, and "
            f"`pri-rfed explore {folder.path}` follows it"
        )
    config = folder.config.read_text(encoding="utf-8")
    tables = tomllib.loads(config)
    accountants = privacy["accountants"] if summary["private"] else {}
    cited = references(tables, summary["runtime"], set(accountants))
    rounds = folder.rounds()
    refused = [
        (record["round"], ", ".join(f"{key} {value}" for key, value in refusal.items()))
        for record in rounds
        for refusal in record["refused"]
    ]
    groups = privacy["groups"]
    return render(
        "run.html",
        run_charts(rounds, privacy, Spending.of(folder), summary["epsilon_target"]),
        title=summary["name"],
        subtitle=f"{summary['problem']} by {summary['trainer']} on {summary['data']}",
        summary=summary,
        what=_what_was_run(summary, tables),
        guarantee=_guarantee(summary, privacy),
        exceptions=exceptions(summary),
        factor_global=_factor(summary["epsilon_global"]),
        factor_ledger=_factor(summary["epsilon_ledger_max"]),
        accountants={name: {"unsupported": None} | entry for name, entry in accountants.items()},
        groups=groups[:MOST_ROWS],
        groups_left=max(0, len(groups) - MOST_ROWS),
        refused=refused[:MOST_ROWS],
        refused_left=max(0, len(refused) - MOST_ROWS),
        config=config,
        command=f"pri-rfed {'server' if 'federation' in tables else 'run'} config.toml",
        versions=list((folder.read("versions.json") or {}).items()),
        references=cited,
        bibtex=bibtex(cited),
    )


def _what_was_run(summary: Mapping[str, Any], tables: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The run in rows; of each section of the configuration what its class takes."""
    sampled = "all" if summary["sampled"] == summary["agents"] else f"{summary['sampled']}, drawn uniformly,"
    rows = [
        ("data", f"{summary['data']}; {summary['records']} records of {summary['agents']} agents"),
        ("rounds", f"T = {summary['rounds']}, with {sampled} of the N = {summary['agents']} agents in each"),
    ]
    for section in ("problem", "trainer", "aggregation"):
        table = dict(tables.get(section, {}))
        name = table.pop("name", "")
        options = ", ".join(f"{key} = {_plain(value)}" for key, value in table.items())
        rows.append((section, f"{name}: {options}" if options else str(name)))
    target = summary["epsilon_target"]
    if target is not None:
        spent = summary["epsilon_global"]
        kept = "which the noise keeps to"
        if spent is not None and spent > target:
            kept = "which was passed, because rounds were drawn anew"
        rows.append(("target", f"ε = {number(target)} before the run, {kept}"))
    rows.append(("output", {"last": "the last point", "uniform": "a uniformly drawn point"}[tables["run"]["output"]]))
    rows.append(("carried out by", f"{summary['runtime']}, seed {summary['seed']}"))
    rows.append(("time", f"{summary['seconds']:.3g} s of training and aggregation"))
    return rows


def _plain(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _guarantee(summary: Mapping[str, Any], privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("unit, and neighbours", str(privacy["neighbours"])),
        (
            "adversary",
            "everybody who sees all that is sent and who took part in which round, the server and the other agents "
            "included, whatever else they know",
        ),
        ("δ", number(summary["delta"])),
        ("ε before the run", f"{number(summary['epsilon_global'])}, the largest over agents"),
        ("ε after the run", f"{number(summary['epsilon_ledger_max'])}, of the agent that took part most"),
    ]
    if "agent_level" in privacy:
        level = privacy["agent_level"]
        rows.append(
            ("whole agents", f"ε = {number(level['epsilon'])}, with a server that is trusted with the uploads")
        )
    return rows


def _factor(epsilon: float | None) -> str:
    """e^epsilon in words."""
    if epsilon is None:
        return "∞"
    return f"{math.exp(epsilon):.3g}" if epsilon < 100 else f"e^{epsilon:.3g}"


def run_charts(
    rounds: Sequence[Mapping[str, Any]],
    privacy: Mapping[str, Any] | None,
    spending: Spending | None,
    target: float | None,
) -> list[Chart]:
    """Excess risk or cost, gradient norm, distance, epsilon round by round, and the agents' ledgers."""
    charts = [chart for chart in (_risk(rounds), _norm(rounds), _distance(rounds)) if chart is not None]
    if privacy is not None and privacy["by_round"]["global"]:
        curves = privacy["by_round"]
        charts.append(epsilon_chart(curves["global"], curves["ledger"], privacy["delta"], target))
    if spending is not None and spending.is_private and len(spending.local) <= MOST_RECORD_COUNTS and rounds:
        times = spending.participations(rounds)
        order = sorted(range(len(times)), key=lambda agent: -times[agent])
        epsilons = spending.ledgers(times)
        charts.append(
            {
                "id": "ledgers", "title": "What each agent has spent", "x": "agents, by how often they took part",
                "y": f"ε of the ledger at δ = {number(spending.delta)}",
                "series": [
                    {
                        "name": "ledger", "kind": "bar", "x": list(range(1, len(order) + 1)),
                        "y": [epsilons[agent] for agent in order],
                        "text": [f"agent {agent}, in {times[agent]} rounds" for agent in order],
                    }
                ],
            }
        )  # fmt: skip
    return charts


def epsilon_chart(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], delta: float, target: float | None
) -> Chart:
    """Both figures round by round; each point holds for the rounds since the one before it."""
    series = [
        {"name": name, "kind": "step", "x": [0, *(t for t, _ in curve)], "y": [0.0, *(e for _, e in curve)]}
        for name, curve in (("before the run", before), ("after it: largest ledger", after))
    ]
    chart: Chart = {"id": "epsilon", "title": "ε spent", "x": "round t", "y": f"ε at δ = {number(delta)}",
                    "series": series}  # fmt: skip
    return chart if target is None else chart | {"rule": {"at": target, "name": "target before the run"}}


def _by_round(rounds: Sequence[Mapping[str, Any]], key: str, least: float) -> tuple[list[int], list[float]]:
    pairs = [(record["round"], record[key]) for record in rounds if record.get(key) is not None]
    return [t for t, _ in pairs], [max(value, least) for _, value in pairs]


def _risk(rounds: Sequence[Mapping[str, Any]]) -> Chart | None:
    # At the optimum the difference of two costs is rounding, of either sign.
    t, risk = _by_round(rounds, "excess_risk", 1e-16)
    if t:
        return {"id": "risk", "title": "Excess risk", "note": DIAGNOSTIC, "x": "round t", "y": "F(w) − F(w*)",
                "log": True, "series": [{"name": "excess risk", "x": t, "y": risk}]}  # fmt: skip
    t, cost = _by_round(rounds, "cost", -math.inf)
    if t:
        return {"id": "risk", "title": "Cost", "note": DIAGNOSTIC, "x": "round t", "y": "F(w)", "free": True,
                "series": [{"name": "cost", "x": t, "y": cost}]}  # fmt: skip
    return None


def _norm(rounds: Sequence[Mapping[str, Any]]) -> Chart | None:
    t, norm = _by_round(rounds, "gradient_norm", 1e-17)
    if not t:
        return None
    return {"id": "gradient", "title": "Gradient norm", "note": DIAGNOSTIC, "x": "round t", "y": "‖grad F(w)‖",
            "log": True, "series": [{"name": "gradient norm", "x": t, "y": norm}]}  # fmt: skip


def _distance(rounds: Sequence[Mapping[str, Any]]) -> Chart | None:
    t, distance = _by_round(rounds, "distance", 1e-17)
    if not t:
        return None
    return {"id": "distance", "title": "Distance to the optimum", "note": DIAGNOSTIC, "x": "round t",
            "y": "dist(w, w*)", "log": True, "series": [{"name": "distance", "x": t, "y": distance}]}  # fmt: skip
