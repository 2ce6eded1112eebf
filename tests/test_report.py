"""The report of a run: one page that says what happened and what is guaranteed, whatever names it meets."""

from __future__ import annotations

import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from pri_rfed.data.download import DataFolders
from pri_rfed.data.sources import SOURCES
from pri_rfed.experiment.citations import BY_SOURCE, BY_TRAINER, REFERENCES, WITHOUT_REFERENCE, references
from pri_rfed.experiment.config import Experiment, load, override, read_toml
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.report import number, write_report
from pri_rfed.experiment.run import start
from pri_rfed.experiment.spending import Spending
from pri_rfed.experiment.sweep import SweepFolder, parse
from pri_rfed.explorer.following import Follower
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.events import Gaussian, Participation, compose, repeat
from pri_rfed.training import TRAINERS

QUICKSTART = ROOT / "configs" / "quickstart.toml"


def experiment_of(*assignments: str) -> Experiment:
    return load(override(read_toml(QUICKSTART), ["run.name=quick", "run.rounds=6", *assignments]), DataFolders())


def run(folder: Path, *assignments: str) -> RunFolder:
    made = RunFolder.create("quick", folder)
    start(experiment_of(*assignments), made, lambda _: None)
    return made


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("run") / "quick")


class Page(HTMLParser):
    """What a page shows, the scripts and styles apart, and what it would fetch."""

    def __init__(self, content: str):
        super().__init__()
        self.words, self.tags, self.fetched, self.data = "", [], [], ""
        self._inside: str | None = None
        self.feed(content)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attributes)
        if tag in ("script", "style"):
            self._inside = "data" if given.get("type") == "application/json" else tag
        self.fetched += [value for name, value in attributes if name in ("src", "href") and value]
        # What is run by the browser stands in scripts of this package only.
        assert not [name for name in given if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.words += data
        elif self._inside == "data":
            self.data += data


def page_of(folder: RunFolder) -> Page:
    return Page(write_report(folder.path).read_text(encoding="utf-8"))


def test_it_says_what_is_guaranteed(finished: RunFolder) -> None:
    page = page_of(finished)
    summary = json.loads((finished.path / "summary.json").read_text())
    words = " ".join(page.words.split())
    for expected in (
        "one record of one agent is replaced by any other",
        "everybody who sees all that is sent",
        f"ε before the run{number(summary['epsilon_global'])}, the largest over agents",
        f"ε after the run{number(summary['epsilon_ledger_max'])}, of the agent that took part most",
        "δ1e-05",
        "if agents are drawn as announced".replace("if ", ""),
        "not a guarantee",
        "Theorem 4.2 is shown for comparison",
        "excess risk not private",
        "every diagnostic on this page",
        "for whoever knows the seed (",
    ):
        assert expected in words, expected


def test_the_page_needs_nothing_else(finished: RunFolder) -> None:
    page = page_of(finished)
    assert all(value.startswith(("#", "data:")) for value in page.fetched), page.fetched
    charts = json.loads(page.data)
    assert [chart["id"] for chart in charts] == ["risk", "gradient", "distance", "epsilon", "ledgers"]
    for chart in charts:
        assert ("note" in chart) == (chart["id"] in ("risk", "gradient", "distance")), "diagnostics are labelled"
    content = (finished.path / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in content and content.count("Plotly") > 10


def test_what_is_copied_runs_again(finished: RunFolder) -> None:
    content = write_report(finished.path).read_text(encoding="utf-8")
    shown = re.search(r'<pre class="copy" id="config" tabindex="0">(.*?)</pre>', content, re.S)
    assert shown is not None
    copied = Page(f"<pre>{shown[1]}</pre>").words
    assert tomllib.loads(copied) == read_toml(finished.config)
    assert load(tomllib.loads(copied), DataFolders()).run.rounds == 6


HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"\'&'


def test_names_and_errors_are_not_trusted(finished: RunFolder, tmp_path: Path) -> None:
    hostile = RunFolder(tmp_path)
    for path in finished.path.iterdir():
        if path.suffix in (".json", ".jsonl", ".toml"):
            (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    summary: dict[str, Any] = json.loads((tmp_path / "summary.json").read_text())
    for key in ("name", "data", "problem", "trainer", "runtime"):
        summary[key] = HOSTILE
    hostile.write("summary.json", json.dumps(summary))
    rounds = hostile.rounds()
    rounds[2]["refused"] = [{"agent": HOSTILE, "reason": HOSTILE}]
    hostile.write("rounds.jsonl", "".join(json.dumps(record) + "\n" for record in rounds))
    hostile.write("versions.json", json.dumps({HOSTILE: HOSTILE}))
    privacy = json.loads((tmp_path / "privacy.json").read_text())
    privacy["neighbours"] = HOSTILE
    privacy["accountants"][HOSTILE] = {"sound": False, "caveat": HOSTILE, "epsilon": 1.0}
    hostile.write("privacy.json", json.dumps(privacy))

    clean, page = page_of(finished), page_of(hostile)
    assert page.tags.count("script") == clean.tags.count("script") and "img" not in page.tags
    assert page.words.count(HOSTILE) >= 8, "the reader sees them as they are"
    assert "49" not in page.words.split(HOSTILE)[0]


def test_a_run_without_noise_promises_nothing(tmp_path: Path) -> None:
    folder = run(tmp_path / "plain", "privacy.epsilon=", "trainer.noise=0")
    words = page_of(folder).words
    assert "Nothing is guaranteed." in words and "∞" in words
    assert "ε before the run" not in words and "Differential privacy, for every agent" not in words


def test_unequal_agents_are_told_apart(tmp_path: Path) -> None:
    folder = run(tmp_path / "unequal", "data.partition.equal=false", "run.evaluate_every=0")
    page = page_of(folder)
    assert "By agents of equally many records" in page.words and "not private" not in page.words.split("What was")[0]
    assert [chart["id"] for chart in json.loads(page.data)] == ["epsilon", "ledgers"]


def test_a_run_of_a_federation(finished: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for path in finished.path.glob("*.json*"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    folder.write("config.toml", finished.config.read_text().replace("[data", "[federation"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    hidden = {"runtime": "server", "cost": None, "excess_risk": None, "data": "records that are with their owners"}
    folder.write("summary.json", json.dumps(summary | hidden))
    page = page_of(folder)
    assert "pri-rfed server config.toml" in page.words and "the runtime: Flower" in page.words
    assert "excess risk" not in page.words.split("What is guaranteed")[0]


def test_an_unfinished_run_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ValueError, match="this run is not finished"):
        write_report(tmp_path)


# A sweep

SWEEP: dict[str, Any] = {
    **read_toml(QUICKSTART),
    "sweep": {"name": "few", "seeds": 2, "grid": {"data.partition.agents": [10, 20], "privacy.epsilon": [0.5, 2.0]}},
}


def swept(path: Path) -> SweepFolder:
    """A sweep of which one point failed and one is missing, with figures made up."""
    folder = SweepFolder.prepare(parse(SWEEP, path, "few"), path / "few")
    for point in folder.points[:-1]:
        if point.index == 6:
            folder.append(point, {"status": "failed", "error": HOSTILE}, {})
            continue
        agents, epsilon = point.values["data.partition.agents"], point.values["privacy.epsilon"]
        risk = agents / 1000 / epsilon * (1 + 0.1 * point.seed)
        row = {
            "status": "done", "agents": agents, "sampled": 5, "rounds": 20, "private": True, "delta": 1e-5,
            "epsilon_global": epsilon, "epsilon_ledger_max": 1.2 * epsilon, "epsilon_theorem_4_2": 30 * epsilon,
            "excess_risk": risk, "cost": -0.4, "bytes_up": 51200, "seconds": 0.5,
        }  # fmt: skip
        folder.append(point, row, {"round": [10, 20], "excess_risk": [2 * risk, risk]})
    return SweepFolder.open(folder.path)


def test_a_sweep_in_figures_and_words(tmp_path: Path) -> None:
    folder = swept(tmp_path)
    page = Page(write_report(folder.path).read_text(encoding="utf-8"))
    words = " ".join(page.words.split())
    for expected in (
        "6 of 8 are done, 1 failed, 1 are missing",
        "one record of one agent is replaced by any other",
        "Not of the sweep as a whole.",
        "not a guarantee",
        "data.partition.agentsvaries: 10, 20",
        HOSTILE,
    ):
        assert expected in words, expected
    assert "img" not in page.tags
    charts = {chart["id"]: chart for chart in json.loads(page.data)}
    assert list(charts) == ["epsilon", "pareto", "data-partition-agents", "map", "convergence"]
    assert all(chart["note"] == "diagnostic, not private" for chart in charts.values())
    lines = {series["name"]: series for series in charts["epsilon"]["series"]}
    assert set(lines) == {"agents 10", "agents 20"} and lines["agents 10"]["x"] == [0.5, 2.0]
    assert lines["agents 10"]["y"] == pytest.approx([0.021, 0.00525])
    # The quartiles of two seeds lie a quarter of the way in: of 0.02 and 0.022, of 0.005 and 0.0055.
    assert lines["agents 10"]["low"] == pytest.approx([0.0205, 0.005125])
    assert lines["agents 10"]["high"] == pytest.approx([0.0215, 0.005375])
    # What takes more epsilon and has more risk than another is not on the front.
    front = charts["pareto"]["series"][1]
    assert front["x"] == [0.5, 2.0] and front["y"] == pytest.approx([0.021, 0.00525])
    heat = charts["map"]["heat"]
    assert heat["x"] == [10, 20] and heat["y"] == [0.5, 2.0] and heat["z"][1][1] is None, "nothing is made up"
    shown = re.search(r'id="config" tabindex="0">(.*?)</pre>', (folder.path / "report.html").read_text(), re.S)
    assert shown is not None
    assert tomllib.loads(Page(f"<pre>{shown[1]}</pre>").words) == folder.config


def test_a_sweep_says_where_labels_alone_are_protected(tmp_path: Path) -> None:
    tables = SWEEP | {"problem": {"name": "hyperbolic-structured-prediction"}}
    folder = SweepFolder.prepare(parse(tables, tmp_path, "few"), tmp_path / "few")
    assert "label DP" in Page(write_report(folder.path).read_text(encoding="utf-8")).words


def test_a_sweep_without_a_finished_point(tmp_path: Path) -> None:
    folder = SweepFolder.prepare(parse(SWEEP, tmp_path, "few"), tmp_path / "few")
    page = Page(write_report(folder.path).read_text(encoding="utf-8"))
    assert "No point has an excess risk to draw." in page.words and json.loads(page.data) == []


# What a run has spent, from its folder


def test_spending_agrees_with_what_the_run_says_at_its_end(finished: RunFolder) -> None:
    privacy = finished.read("privacy.json")
    spending = Spending.of(finished)
    assert privacy is not None and spending is not None and spending.is_private
    assert spending.before()[-1][1] == pytest.approx(privacy["epsilon_global"], rel=1e-12)
    assert [list(point) for point in spending.before()] == privacy["by_round"]["global"]
    times = spending.participations(finished.rounds())
    assert max(times) == privacy["groups"][0]["most_participations"]
    assert spending.after(times) == pytest.approx(privacy["epsilon_ledger_max"], rel=1e-12)
    ledgers = spending.ledgers(times)
    assert max(ledgers) == spending.after(times) and min(ledgers) == spending.after([min(times)] * len(times))


def test_draws_in_vain_and_smaller_pools_are_in_every_curve(tmp_path: Path) -> None:
    local = repeat(Gaussian(1.0, 2.0), 2)
    spending = Spending((30,) * 6, 3, 4, 1e-5, {30: local})
    planned = spending.before()
    drawn: list[dict[str, Any]] = [{"sampled": [0, 1, 2]} for _ in range(4)]
    assert [spending.spent(drawn[:t], planned) for t in (1, 2, 4)] == [dict(planned)[t] for t in (1, 2, 4)]

    drawn[1] |= {"repeated": [{"sampled": [2, 3, 4]}, {"sampled": [0, 2, 4], "pool": 4}]}
    six = compose([repeat(Participation(local, 3, 6), 5), Participation(local, 3, 4)])
    assert spending.spent(drawn, planned) == pytest.approx(best_epsilon(six, 1e-5).epsilon, rel=1e-9)
    assert spending.spent(drawn, planned) > 1.1 * planned[-1][1]

    folder = RunFolder.create("now", tmp_path / "now")
    folder.write("config.toml", "")
    events = [{"records": 30, "event": local.to_dict()}]
    plan = {"counts": [30] * 6, "sampled": 3, "rounds": 4, "delta": 1e-5, "local_events": events}
    folder.write("plan.json", json.dumps(plan))
    folder.write("rounds.jsonl", "".join(json.dumps(record | {"round": t}) + "\n" for t, record in enumerate(drawn, 1)))
    followed = dict(Follower(folder).since(0)["epsilon"]["global"])
    assert followed == {t: spending.spent(drawn[:t], planned) for t in followed} and 4 in followed


def test_with_many_different_participations_ledgers_never_say_too_little() -> None:
    experiment = experiment_of("run.rounds=200")
    event = experiment.trainer.event(experiment.problem, 179)
    spending = Spending((179,) * 90, 5, 200, 1e-5, {179: event})
    times = [2 * i for i in range(90)]
    ledgers = spending.ledgers(times)
    for agent in (0, 1, 44, 88, 89):
        assert spending.after([times[agent]] * 90) <= ledgers[agent] <= spending.after([times[min(89, agent + 3)]] * 90)
    assert len(set(ledgers)) <= 40


# What to cite


def test_every_trainer_and_data_set_has_its_reference() -> None:
    assert set(BY_TRAINER) == set(TRAINERS)
    assert set(BY_SOURCE) == set(SOURCES) - set(WITHOUT_REFERENCE)
    for reference in REFERENCES.values():
        assert {"author", "title", "year"} <= set(reference.fields)
        entry = reference.bibtex()
        assert entry.count("{") == entry.count("}") and entry.isascii()


@pytest.mark.parametrize(
    ("assignments", "runtime", "keys"),
    [
        ((), "simulation", "huang2024prirfed han2024dpriemannian utpala2023improved doroshenko2022connect "
                           "wang2019subsampled alpaydin1998digits"),
        (("trainer.batch=10",), "flower", "huang2024prirfed han2024dpriemannian utpala2023improved "
         "doroshenko2022connect balle2018subsampling wang2019subsampled beutel2020flower alpaydin1998digits"),
        (("trainer.name=rfedsvrg", "data.source=mnist"), "grid",
         "huang2024prirfed li2023federated beutel2020flower deng2012mnist"),
    ],
)  # fmt: skip
def test_what_was_used_is_cited_and_nothing_else(assignments: tuple[str, ...], runtime: str, keys: str) -> None:
    config = override(read_toml(QUICKSTART), list(assignments))
    accountants = set() if "trainer.name=rfedsvrg" in assignments else {"pld", "rdp", "theorem-4.2"}
    assert {reference.key for reference in references(config, runtime, accountants)} == set(keys.split())
