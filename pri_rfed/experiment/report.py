"""The report of a run or of a sweep: one page that needs nothing else, `report.html` in the folder."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pri_rfed.experiment.citations import bibtex, references
from pri_rfed.experiment.folder import RunFolder, without_infinities, write_atomically
from pri_rfed.experiment.spending import Spending

if TYPE_CHECKING:
    from jinja2 import Environment

NAME = "report.html"
TEMPLATES = Path(__file__).parent / "templates"
DIAGNOSTIC = "diagnostic, not private"
MOST_ROWS = 50
"""A table of refusals or of groups is cut after so many rows."""
MOST_RECORD_COUNTS = 30
"""Ledgers are drawn agent by agent where agents hold at most so many different numbers of records."""

Chart = dict[str, Any]


def write_report(path: Path) -> Path:
    """Write the report of the run in the folder, and return where it is.

    Raises ValueError where the folder is of no run, or of one that is not finished.
    """
    page = _report_of_run(RunFolder.open(path))
    write_atomically(path / NAME, page.encode())
    return path / NAME


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
    made.globals["asset"] = lambda name: Markup((TEMPLATES / name).read_text(encoding="utf-8"))
    return made


def number(value: float | None) -> str:
    """A figure for people: four digits; ∞ for None, which stands for it in JSON."""
    if value is None or math.isinf(value):
        return "∞"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def render(template: str, charts: Sequence[Chart], **values: Any) -> str:
    from markupsafe import Markup

    page = environment().get_template(template)
    return page.render(charts=without_infinities(list(charts)), plotly=Markup(plotly_js()), **values)


# A run --------------------------------------------------------------------------------------------------------------


def _report_of_run(folder: RunFolder) -> str:
    summary, privacy = folder.read("summary.json"), folder.read("privacy.json")
    if summary is None or privacy is None:
        raise ValueError(
            f"{folder.path}: this run is not finished; `pri-rfed resume {folder.path}` goes on with it, and "
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
        factor_global=_factor(summary["epsilon_global"]),
        factor_ledger=_factor(summary["epsilon_ledger_max"]),
        accountants={name: {"unsupported": None} | entry for name, entry in accountants.items()},
        groups=groups[:MOST_ROWS],
        groups_left=max(0, len(groups) - MOST_ROWS),
        refused=refused[:MOST_ROWS],
        refused_left=max(0, len(refused) - MOST_ROWS),
        config=config,
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
        rows.append(("target", f"ε = {number(target)} before the run; the noise was found for it"))
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
                "id": "ledgers", "title": "What each agent has spent", "x": "agents, the one that took part most first",
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
