"""The explorer without a browser: settings, figures, following a run, simulations, and who may ask."""

from __future__ import annotations

import json
import socket
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from pages import ask, explorer, started

from pri_rfed.commands.explore import explored_of
from pri_rfed.commands.plan import plan_of
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import Experiment, load, override, read_toml
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.run import start
from pri_rfed.experiment.spending import Spending
from pri_rfed.experiment.sweep import SweepFolder, parse
from pri_rfed.explorer.app import FILES, Guard, host_of
from pri_rfed.explorer.figures import busiest, exact, point_of_curves, points_of_curves, quick
from pri_rfed.explorer.following import Follower
from pri_rfed.explorer.setting import SYNTHETIC, Base, Setting, SettingError
from pri_rfed.explorer.trials import Trials
from pri_rfed.privacy import planning

QUICKSTART = ROOT / "configs" / "quickstart.toml"
SMALL: dict[str, Any] = {"agents": 6, "sampled": 3, "rounds": 4, "records": 20, "batch": 5, "steps": 3, "delta": 1e-5}
LONG: dict[str, Any] = SMALL | {"agents": 20, "sampled": 10, "rounds": 10_000, "records": 10_000, "batch": 5_000,
                                "steps": 20}  # fmt: skip
"""A simulation of many minutes, to be cancelled: whatever a test does while it goes on, it goes on."""


def setting(**changes: Any) -> Setting:
    return Setting.of(SMALL | changes)


def experiment_of(tables: dict[str, Any]) -> Experiment:
    return load(tables, DataFolders())


def base_of(*assignments: str) -> Base:
    tables = override(read_toml(QUICKSTART), ["run.name=q", *assignments])
    return Base.of_tables("q", tables, None, DataFolders())


# Settings


@pytest.mark.parametrize(
    ("given", "errors"),
    [
        ([], ["a setting is an object"]),
        (SMALL, ["either noise or epsilon must be given"]),
        (SMALL | {"noise": 1, "epsilon": 1}, ["either noise or epsilon must be given"]),
        (
            SMALL | {"agents": 0, "rounds": 2.5, "steps": True, "epsilon": 0, "delta": None, "what": 1},
            [
                "what: unknown",
                "agents = 0: must be a whole number from 1 to 10000",
                "rounds = 2.5: must be a whole number from 1 to 10000",
                "steps = True: must be a whole number from 1 to 10000",
                "delta = None: must be a number from 1e-10 to 0.5",
                "epsilon = 0: must be a number from 0.001 to 1000",
            ],
        ),
        (
            SMALL | {"sampled": 7, "batch": 21, "noise": 1.0},
            ["sampled = 7: must be at most agents = 6", "batch = 21: must be at most records = 20"],
        ),
        (SMALL | {"noise": float("nan")}, ["noise = nan: must be a number from 0.001 to 1e+06"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_setting_is_said_at_once(given: Any, errors: list[str]) -> None:
    with pytest.raises(SettingError) as refused:
        Setting.of(given)
    assert refused.value.errors == errors


BASES = {
    "synthetic": Base.synthetic,
    "digits": base_of,
    "unequal": lambda: base_of("data.partition.equal=false"),
    "dirichlet": lambda: base_of("data.partition.name=dirichlet", "data.partition.alpha=0.5"),
    "rsvrg": lambda: base_of("trainer.name=dp-rsvrg", "trainer.steps=", "trainer.inner_steps=4", "trainer.epochs=2"),
    "poisson": lambda: base_of("trainer.sampling=poisson", "trainer.nominal=50"),
    "absolute": lambda: base_of("trainer.noise=0.3", "privacy.epsilon="),
    "capped": lambda: Base("capped", override(SYNTHETIC, ["data.partition.per_agent=7", "data.partition.equal=true"])),
}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("how", [{"epsilon": 1.5}, {"noise": 4.0}], ids=["epsilon", "noise"])
def test_the_configuration_is_of_the_setting_and_has_its_figures(name: str, how: dict[str, float]) -> None:
    base, chosen = BASES[name](), setting(**how)
    experiment = experiment_of(tomllib.loads(base.toml(chosen)))
    assert experiment.agents.counts.tolist() == [20] * 6
    assert (experiment.sampled, experiment.run.rounds, experiment.privacy.delta) == (3, 4, 1e-5)
    assert getattr(experiment.trainer, "batch") == 5  # noqa: B009
    found = quick(base, chosen)
    truth = planning.account(plan_of(experiment, None))
    assert found["noise"] == pytest.approx(experiment.trainer.noise, rel=2e-3)  # type: ignore[attr-defined]
    assert truth["global"]["epsilon"] == pytest.approx(found["global"], rel=2e-3)
    if "epsilon" in how:
        assert 0.99 * 1.5 < found["global"] <= 1.5 and truth["global"]["epsilon"] <= 1.5
    assert Setting.of(base.start), "the page can begin with it"


def test_it_says_what_neighbours_differ_in() -> None:
    chosen = setting(noise=1.0)
    assert quick(Base.synthetic(), chosen)["neighbours"].startswith("one record of one agent is replaced")
    assert quick(BASES["poisson"](), chosen)["neighbours"].startswith("one record of one agent is added or removed")
    labels = Base("labels", SYNTHETIC | {"problem": {"name": "hyperbolic-structured-prediction"}})
    assert "label DP" in quick(labels, chosen)["neighbours"]


def test_the_whole_batch_is_called_full() -> None:
    assert Base.synthetic().config(setting(batch=20, noise=1.0))["trainer"]["batch"] == "full"


def test_a_data_set_has_only_so_many_records() -> None:
    base = base_of()
    assert base.available == 1797 and base.start["records"] == 179
    assert base.misfit(setting(noise=1.0)) is None
    assert base.misfit(setting(agents=100, noise=1.0)) == "the data set holds 1797 records, and N n = 2000 are more"
    assert Base.synthetic().misfit(setting(agents=3, records=6, batch=5, noise=1.0)) is not None


def test_agents_that_the_data_give_are_not_chosen(tmp_path: Path) -> None:
    tables = override(read_toml(QUICKSTART), ["run.name=q", "data.partition.name=natural", "data.partition.agents="])
    folder = RunFolder.create("q", tmp_path / "q")
    with pytest.raises(ValueError, match=r"explore the folder of the run"):
        Base.of_tables("q", tables, folder, DataFolders())
    folder.write("plan.json", json.dumps({"counts": [30, 10, 20, 40]}))
    base = Base.of_tables("q", tables, folder, DataFolders())
    assert base.counts == (30, 10, 20, 40) and base.start["agents"] == 4 and base.start["records"] == 10
    plan = base.plan(setting(noise=2.0))
    assert plan.counts == (30, 10, 20, 40)
    with pytest.raises(SettingError, match="must be at most 4, the number of agents"):
        base.plan(setting(sampled=5, noise=2.0))
    assert base.config(setting(noise=2.0))["data"] == tables["data"]


def test_a_federation_can_be_planned_but_not_simulated(tmp_path: Path) -> None:
    tables = override(read_toml(QUICKSTART), ["run.name=wards", "federation.record_shape=[64]"])
    del tables["data"]
    folder = RunFolder.create("wards", tmp_path / "wards")
    folder.write("plan.json", json.dumps({"counts": [50, 80, 60, 70, 90]}))
    base = Base.of_tables("wards", tables, folder, DataFolders())
    chosen = setting(agents=5, epsilon=1.0)
    assert quick(base, chosen)["global"] <= 1.0
    config = tomllib.loads(base.toml(chosen))
    assert config["federation"] == {"record_shape": [64]} and "data" not in config
    trials = Trials(base, None)
    with pytest.raises(SettingError, match="the records are with their owners"):
        trials.start(chosen)
    trials.close()


def test_a_training_without_noise_is_no_base() -> None:
    with pytest.raises(ValueError, match="takes no noise and local steps"):
        base_of("trainer.name=rsgd")


# Figures


@pytest.mark.parametrize("chosen", [{"epsilon": 1.0}, {"noise": 0.7}, {"noise": 3.0, "batch": 20}], ids=str)
def test_what_comes_at_once_is_an_upper_bound_of_what_follows(chosen: dict[str, Any]) -> None:
    base, asked = Base.synthetic(), setting(**chosen)
    at_once = quick(base, asked)
    follows = exact(base, replace(asked, epsilon=None, noise=at_once["noise"]))
    assert not at_once["exact"] and follows["exact"]
    for figure in ("local", "global", "ledger"):
        assert follows[figure] * (1 - 1e-9) <= at_once[figure] <= follows[figure] * 1.001
    accountants = follows["accountants"]
    assert follows["global"] == min(accountants[name]["global_epsilon"] for name in ("pld", "rdp"))
    assert not accountants["theorem-4.2"]["sound"]
    assert accountants["theorem-4.2"]["global_epsilon"] == pytest.approx(at_once["claimed"], rel=1e-3)
    assert follows["every_round"] >= follows["ledger"]


def test_the_curves_end_with_the_figures() -> None:
    base, asked = Base.synthetic(), setting(noise=2.0)
    points = points_of_curves(4)
    assert points == [4, 3, 2, 1]
    last, first = point_of_curves(base, asked, 4), point_of_curves(base, asked, 1)
    at_once = quick(base, asked)
    assert last == {"round": 4, "global": at_once["global"], "ledger": at_once["ledger"]}
    assert first["global"] < last["global"] and first["ledger"] <= last["ledger"]


@pytest.mark.parametrize(("pool", "sampled", "rounds"), [(10, 5, 20), (100, 3, 200), (7, 7, 9), (1000, 10, 1)])
def test_the_busiest_agent_takes_part_about_so_often(pool: int, sampled: int, rounds: int) -> None:
    rng = np.random.Generator(np.random.PCG64DXSM(1))
    most = [
        np.bincount(np.concatenate([rng.permutation(pool)[:sampled] for _ in range(rounds)]), minlength=pool).max()
        for _ in range(200)
    ]
    claimed = busiest(pool, sampled, rounds)
    assert np.mean(np.array(most) <= claimed) >= 0.5
    assert np.median(most) <= claimed <= np.median(most) + 1


# Following a run


def test_a_run_is_followed_as_it_is_written(tmp_path: Path) -> None:
    whole = RunFolder.create("whole", tmp_path / "whole")
    tables = override(read_toml(QUICKSTART), ["run.name=q", "run.rounds=8"])
    summary = start(experiment_of(tables), whole, lambda _: None)
    privacy = whole.read("privacy.json")
    assert privacy is not None
    lines = (whole.path / "rounds.jsonl").read_text().splitlines(True)

    now = RunFolder.create("now", tmp_path / "now")
    for name in ("config.toml", "plan.json"):
        now.write(name, (whole.path / name).read_text())
    now.write("rounds.jsonl", "")
    follower = Follower(now)
    begun = follower.since(0)
    assert (begun["state"], begun["done"], begun["rounds"], begun["new"]) == ("starting", 0, 8, [])
    assert begun["epsilon"] == {"global": [], "ledger": []} and begun["name"] == "q"

    def write(text: str) -> None:
        with (now.path / "rounds.jsonl").open("a") as file:
            file.write(text)

    write(lines[0] + lines[1] + lines[2][:20])
    seen = follower.since(0)
    assert seen["state"] == "going on" and [record["round"] for record in seen["new"]] == [1, 2]
    assert set(seen["new"][0]) == {"round", "cost", "excess_risk", "gradient_norm", "distance"}
    curves = {t: epsilon for t, epsilon in privacy["by_round"]["ledger"]}
    assert [t for t, _ in seen["epsilon"]["ledger"]] == [1, 2]
    assert seen["epsilon"]["ledger"][-1][1] == pytest.approx(curves[2], rel=1e-12)
    assert seen["left"] is not None and seen["left"] >= 0
    write(lines[2][20:] + "".join(lines[3:6]))
    assert [record["round"] for record in follower.since(2)["new"]] == [3, 4, 5, 6]

    # A run that was killed goes on from its checkpoint, and drops what came after it.
    now.write_rounds(now.rounds()[:3])
    again = follower.since(0)
    assert again["done"] == 3 and [record["round"] for record in again["new"]] == [1, 2, 3]
    # One that stopped says why, and counts whom it drew for the round that was not done.
    failed = [{"sampled": [0, 1, 2, 3, 4], "refused": []}]
    now.write("stopped.json", json.dumps({"round": 3, "reason": "no client came", "failed": failed}))
    stopped = follower.since(3)
    assert (stopped["state"], stopped["left"]) == ("stopped", None)
    assert stopped["stopped"] == {
        "reason": "no client came", "drawn": True, "goes_on": f"pri-rfed resume {now.path}"
    }  # fmt: skip
    spending = Spending.of(now)
    assert spending is not None
    taken = [sum(agent in json.loads(line)["sampled"] for line in lines[:3]) + (agent < 5) for agent in range(10)]
    assert stopped["epsilon"]["global"][-1] == (3, pytest.approx(dict(spending.before())[4], rel=1e-9))
    assert stopped["epsilon"]["ledger"][-1] == (3, pytest.approx(spending.after(taken), rel=1e-9))
    (now.path / "stopped.json").unlink()
    assert follower.since(3)["state"] == "going on" and follower.since(3)["epsilon"] == again["epsilon"]

    write("".join(lines[3:]))
    now.write("summary.json", (whole.path / "summary.json").read_text())
    ended = follower.since(3)
    assert ended["state"] == "finished" and ended["done"] == 8 and ended["summary"] == summary
    for figure in ("global", "ledger"):
        rounds, epsilons = zip(*ended["epsilon"][figure], strict=True)
        assert list(rounds) == [t for t, _ in privacy["by_round"][figure]]
        assert epsilons == pytest.approx([epsilon for _, epsilon in privacy["by_round"][figure]], rel=1e-12)


def test_a_folder_of_another_time_can_be_followed(tmp_path: Path) -> None:
    folder = RunFolder.create("old", tmp_path / "old")
    folder.write("config.toml", "")
    assert Follower(folder).since(0)["state"] == "starting"
    folder.write("rounds.jsonl", '{"round": 1, "sampled": [0], "refused": [], "seconds": 0.1}\n')
    seen = Follower(folder).since(0)
    assert (seen["done"], seen["rounds"], seen["epsilon"], seen["left"]) == (1, None, None, None)


# Simulations


@pytest.fixture
def trials() -> Iterator[Trials]:
    made = Trials(Base.synthetic(), None)
    yield made
    made.close()


def ended(trials: Trials, number: int) -> dict[str, Any]:
    trial = trials.find(number)
    assert trial is not None
    trial.process.wait(300)
    return trial.to_dict()


def test_a_simulation_is_a_run_of_the_setting(trials: Trials) -> None:
    asked = setting(epsilon=2.0)
    trial = trials.start(asked)
    shown = ended(trials, trial.number)
    assert shown["state"] == "finished"
    summary = shown["progress"]["summary"]
    assert summary["agents"] == 6 and summary["rounds"] == 4 and summary["excess_risk"] > 0
    assert summary["epsilon_global"] == pytest.approx(quick(Base.synthetic(), asked)["global"], rel=2e-3)
    assert [record["round"] for record in shown["progress"]["new"]] == [1, 2, 3, 4]
    folder = trial.path
    trials.close()
    assert not folder.exists(), "nothing is left behind"


def test_a_simulation_can_be_cancelled(trials: Trials) -> None:
    trial = trials.start(Setting.of(LONG | {"noise": 5.0}))
    assert trial.to_dict()["state"] == "running"
    with pytest.raises(SettingError, match="a simulation is running"):
        trials.start(setting(noise=5.0))
    trials.cancel(trial)
    assert trial.process.poll() is not None and trial.to_dict()["state"] == "cancelled"
    assert trials.start(setting(noise=5.0)).number == 2, "the next one may start"


def test_what_cannot_be_simulated_is_said_before_it_starts(trials: Trials) -> None:
    with pytest.raises(SettingError) as large:
        trials.start(setting(agents=1000, records=1000, rounds=9000, sampled=900, noise=1.0))
    assert large.value.errors == [
        "N n = 1000000: a quick simulation has at most 200000 records",
        "T s K = 24300000: a quick simulation takes at most 2000000 local steps",
        "copy the configuration, and run it by `pri-rfed run`",
    ]
    assert not trials.all


def test_why_a_simulation_failed_is_told() -> None:
    broken = Base("broken", SYNTHETIC | {"problem": {"name": "no-such-problem"}})
    trials = Trials(broken, None)
    try:
        shown = ended(trials, trials.start(setting(noise=1.0)).number)
        assert shown["state"] == "failed" and "no-such-problem" in shown["error"]
        assert "Traceback" not in shown["error"]
    finally:
        trials.close()


# Over HTTP


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with explorer() as serving:
        yield serving


def test_it_serves_pages_that_talk_to_nobody_else(address: str) -> None:
    for path in (*FILES, "/plotly.js", "/api/begin"):
        status, headers, content = ask(address, path)
        assert status == 200 and content, path
        assert headers["content-security-policy"].startswith("default-src 'self';"), path
        assert headers["x-content-type-options"] == "nosniff" and "server" not in headers
        assert "access-control-allow-origin" not in headers
    assert ask(address, "/api/nothing")[0] == 404
    assert ask(address, "/api/run")[0] == 404, "no run is followed here"
    assert ask(address, "/../pyproject.toml")[0] == 404


def test_figures_are_answered(address: str) -> None:
    status, _, content = ask(address, "/api/figures", SMALL | {"epsilon": 1.0})
    assert status == 200 and 0.99 < content["global"] <= 1 < content["ledger"]
    assert tomllib.loads(content["config"])["privacy"] == {"epsilon": 1.0, "delta": 1e-5}
    given = SMALL | {"noise": content["noise"]}
    assert ask(address, "/api/exact", given)[2]["global"] == pytest.approx(content["global"], rel=1e-3)
    curves = ask(address, "/api/curves", given)[2]
    assert [point["round"] for point in curves] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Host": "evil.example"}, "names another host"),
        ({"Host": "evil.example:80"}, "names another host"),
        ({"Host": "127.0.0.1.evil.example"}, "names another host"),
        ({"Host": "localhost@evil.example"}, "names another host"),
        ({"Host": "192.0.2.7"}, "names another host"),
        ({"Host": ""}, "names another host"),
        ({"Origin": "http://evil.example"}, "comes from another page"),
        ({"Origin": "null"}, "comes from another page"),
        ({"Origin": "http://127.0.0.1:1"}, "comes from another page"),
        ({"Sec-Fetch-Site": "cross-site"}, "comes from another page"),
        ({"Sec-Fetch-Site": "same-site"}, "comes from another page"),
        ({"Content-Type": "text/plain"}, "not in JSON"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "not in JSON"),
    ],
    ids=str,
)
def test_what_no_page_of_its_own_would_ask_is_refused(address: str, headers: dict[str, str], reason: str) -> None:
    for path in ("/api/figures", "/api/trials"):
        status, answered, content = ask(address, path, SMALL | {"noise": 1.0}, headers)
        assert status == 403 and reason in content and "content-security-policy" in answered
    if "Host" in headers:
        assert ask(address, "/", headers=headers)[0] == 403
    assert ask(address, "/api/trials")[2] == [], "nothing was started"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9999", "[::1]:80", "LOCALHOST:1"])
def test_its_own_names_are_answered(address: str, host: str) -> None:
    assert ask(address, "/", headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ([1], "a setting is an object"),
        (SMALL | {"noise": 1.0, "agents": "<b>"}, "agents = <b>: must be a whole number"),
        (
            SMALL | {"epsilon": 1.0, "delta": 0.1, "rounds": 1, "steps": 1, "batch": 1},
            "(epsilon, delta) = (1, 0.1) holds without any noise",
        ),
    ],
)
def test_a_mistake_is_answered_in_words(address: str, body: Any, error: str) -> None:
    status, headers, content = ask(address, "/api/figures", body)
    assert status == 200 and content["errors"][0].startswith(error)
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b" " * 20_000, 413)])
def test_what_is_no_question_is_refused(address: str, body: bytes, status: int) -> None:
    assert ask(address, "/api/figures", body, {"Content-Type": "application/json"})[0] == status


def test_other_machines_cannot_reach_it(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with socket.socket() as here:
        assert here.connect_ex(("127.0.0.1", port)) == 0
    with socket.socket() as elsewhere:
        assert elsewhere.connect_ex(("127.0.0.2", port)) != 0, "of this machine's addresses it listens on one"


def test_who_listens_elsewhere_is_told_what_that_shows() -> None:
    with started("explore", "--host", "0.0.0.0") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("http://0.0.0.0:")
        note = process.stderr.readline()
    assert "everybody who can reach 0.0.0.0" in note and "no password" in note


def test_hosts_elsewhere() -> None:
    async def app(*_: Any) -> None:
        raise AssertionError

    def own(listening: str, host: str) -> bool:
        return Guard(app, listening)._own(host_of(host))

    assert own("0.0.0.0", "192.0.2.7:8000") and own("0.0.0.0", socket.gethostname())
    assert own("ward.example", "ward.example:8000")
    assert not own("0.0.0.0", "evil.example") and not own("127.0.0.1", socket.gethostname() + ".evil.example")
    assert not own("::1", "192.0.2.7") and own("::1", "[::1]:80")


def test_what_is_copied_is_accepted_by_run(address: str, tmp_path: Path) -> None:
    config = ask(address, "/api/figures", SMALL | {"epsilon": 3.0})[2]["config"]
    (tmp_path / "chosen.toml").write_text(config)
    with started("run", tmp_path / "chosen.toml", "--out", tmp_path / "out", "--json") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["agents"] == 6 and 2.9 < summary["epsilon_global"] <= 3


def test_a_simulation_over_http(address: str) -> None:
    status, _, trial = ask(address, "/api/trials", LONG | {"noise": 5.0})
    assert status == 201 and trial["state"] == "running"
    assert "a simulation is running" in ask(address, "/api/trials", SMALL | {"noise": 5.0})[2]["errors"][0]
    path = f"/api/trials/{trial['number']}"
    assert ask(address, f"{path}/cancel", {})[2]["state"] == "cancelled"

    status, _, trial = ask(address, "/api/trials", SMALL | {"noise": 5.0})
    assert status == 201
    path = f"/api/trials/{trial['number']}"
    while (trial := ask(address, path)[2])["state"] == "running":
        time.sleep(0.05)
    assert trial["state"] == "finished" and trial["progress"]["summary"]["noise"] == 5.0
    assert ask(address, f"{path}/cancel", {})[2]["state"] == "finished", "what has ended cannot be cancelled"
    assert ask(address, "/api/trials/99")[0] == 404
    assert [each["state"] for each in ask(address, "/api/trials")[2]] == ["cancelled", "finished"]


# What is explored


def test_a_run_whose_training_is_not_for_the_page_is_followed_all_the_same(tmp_path: Path) -> None:
    folder = RunFolder.create("plain", tmp_path / "plain")
    assignments = ["run.name=plain", "trainer.name=rsgd", "privacy.epsilon=", "run.rounds=2"]
    start(experiment_of(override(read_toml(QUICKSTART), assignments)), folder, lambda _: None)
    explored = explored_of(folder.path, None)
    assert explored.run is not None and explored.note is not None and explored.base.name == "synthetic data"
    assert explored.run.since(0)["epsilon"] is None


def test_a_sweep_brings_its_points_along(tmp_path: Path) -> None:
    sweep = parse({**read_toml(QUICKSTART), "sweep": {"grid": {"privacy.epsilon": [0.5, 1.0]}}}, tmp_path, "two")
    folder = SweepFolder.prepare(sweep, tmp_path / "two")
    row = {"status": "done", "private": True, "epsilon_global": 0.5, "excess_risk": 0.25, "agents": 10}
    folder.append(folder.points[0], row, {})
    explored = explored_of(folder.path, None)
    assert explored.base.name == "two" and explored.base.start["epsilon"] == 0.5
    assert explored.utility is not None
    (series,) = explored.utility["series"]
    assert (series["x"], series["y"], series["text"]) == ([0.5], [0.25], ["epsilon 0.5"])
    (point,) = explored.utility["points"]
    assert (point["epsilon"], point["risk"], point["seeds"], point["agents"]) == (0.5, 0.25, 1, 10)


def test_what_is_nothing_of_the_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no run folder"):
        explored_of(tmp_path, None)
    with pytest.raises(ValueError, match="there is no such file"):
        explored_of(tmp_path / "nothing.toml", None)
