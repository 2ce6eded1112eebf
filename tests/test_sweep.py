"""Sweeps: what a configuration stands for, what comes of its points, and that nothing computed is lost."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from conftest import ROOT

from pri_rfed.data.download import DataFolders
from pri_rfed.experiment import config, sweep_run
from pri_rfed.experiment.config import ConfigError, check, load
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.memory import Memory
from pri_rfed.experiment.run import Progress, carry_out, evaluation_of, figures, start
from pri_rfed.experiment.sweep import (
    CURVES,
    FACTS,
    RESULTS,
    Setting,
    Sweep,
    SweepFolder,
    pareto_front,
    parse,
    read_sweep,
)
from pri_rfed.experiment.sweep_run import compute, refusals, run_sweep
from pri_rfed.privacy.accountants import ACCOUNTANTS
from pri_rfed.privacy.calibration import calibrate_noise
from pri_rfed.privacy.events import Participation, repeat
from pri_rfed.problems import PROBLEMS, PrincipalEigenvector
from pri_rfed.simulation import simulate
from pri_rfed.wire import Answer, Plan, exchange_sizes

FOLDERS = DataFolders()
SYNTHETIC: dict[str, Any] = {
    "run": {"rounds": 4, "sampled": 2},
    "problem": {"name": "principal-eigenvector"},
    "data": {"source": "synthetic-pca", "records": 60, "dimension": 8, "gap": 0.1,
             "partition": {"name": "iid", "agents": 3}},
    "trainer": {"name": "dp-rsgd", "steps": 2, "batch": "full", "step_size": 0.1},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
}  # fmt: skip
TIMES = ("seconds", "point_seconds")


def sweep_of(sweep: dict[str, Any], name: str = "test") -> Sweep:
    return parse(SYNTHETIC | {"sweep": sweep}, Path(), name)


def wrong_with(tables: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(tables, ROOT / "configs", "test")
    return raised.value.errors


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


# Points


def test_a_grid_is_every_combination() -> None:
    sweep = sweep_of({"grid": {"run.sampled": [1, 2], "trainer": {"steps": [1, 2, 3]}}, "seeds": 2})
    assert sweep.varied == ("run.sampled", "trainer.steps") and len(sweep.points) == 12
    assert [point.index for point in sweep.points] == list(range(12))
    found = {(p.values["run.sampled"], p.values["trainer.steps"], p.seed) for p in sweep.points}
    assert found == {(s, k, seed) for s in (1, 2) for k in (1, 2, 3) for seed in (0, 1)}
    for point in sweep.points:
        assert point.tables["run"]["sampled"] == point.values["run.sampled"]
        assert point.tables["trainer"]["steps"] == point.values["trainer.steps"]
        assert point.tables["run"]["seed"] == point.seed
        assert point.tables["data"] == SYNTHETIC["data"] and "sweep" not in point.tables


def test_lists_go_together_in_a_zip() -> None:
    rows = sweep_of({"zip": {"trainer.steps": [1, 5, 25], "run.rounds": [50, 10, 2]}}).points
    assert [(p.values["trainer.steps"], p.values["run.rounds"]) for p in rows] == [(1, 50), (5, 10), (25, 2)]
    two = sweep_of({"zip": [{"trainer.steps": [1, 2], "run.rounds": [4, 2]}, {"run.sampled": [1, 2]}]}).points
    assert len(two) == 4


def test_draws() -> None:
    options = {"number": 400, "seed": 7, "privacy.epsilon": {"log": [0.1, 10]}, "run.sampled": {"linear": [1, 3]},
               "trainer.step_size": {"linear": [0.0, 1.0]}, "trainer.output": {"choice": ["last", "uniform"]},
               "trainer.steps": {"log": [1, 100]}}  # fmt: skip
    points = sweep_of({"random": options}).points
    assert [p.values for p in points] == [p.values for p in sweep_of({"random": options}).points]
    assert [p.values for p in points] != [p.values for p in sweep_of({"random": options | {"seed": 8}}).points]
    column = {key: [p.values[key] for p in points] for key in points[0].values}
    epsilon, size = np.array(column["privacy.epsilon"]), np.array(column["trainer.step_size"])
    assert epsilon.min() >= 0.1 and epsilon.max() <= 10 and 0.4 < (epsilon < 1).mean() < 0.6
    assert size.min() >= 0 and size.max() <= 1 and 0.4 < (size < 0.5).mean() < 0.6
    assert set(column["run.sampled"]) == {1, 2, 3} and set(column["trainer.output"]) == {"last", "uniform"}
    steps = column["trainer.steps"]
    assert all(type(k) is int and 1 <= k <= 100 for k in steps) and 0.4 < np.mean(np.array(steps) <= 10) < 0.65
    assert all(value == float(f"{value:.4g}") for value in (*size, *epsilon)), "to be read and typed again"


def test_combinations_multiply_and_the_same_point_is_one() -> None:
    sweep = sweep_of(
        {"grid": {"privacy.epsilon": [1, 2]}, "zip": {"trainer.steps": [1, 2], "run.rounds": [2, 1]},
         "random": {"number": 50, "run.sampled": {"linear": [1, 2]}}, "seeds": [3, 5, 8]}
    )  # fmt: skip
    assert len(sweep.points) == 2 * 2 * 2 * 3
    assert len({point.key for point in sweep.points}) == 24
    assert {point.seed for point in sweep.points} == {3, 5, 8}


def test_only_seeds_may_vary() -> None:
    tables = SYNTHETIC | {"run": SYNTHETIC["run"] | {"seed": 10}, "sweep": {"seeds": 3}}
    sweep = parse(tables, Path(), "test")
    assert [point.seed for point in sweep.points] == [10, 11, 12] and sweep.varied == ()


def test_a_base_and_what_stands_above_it(tmp_path: Path) -> None:
    tables = {"base": "quickstart.toml", "run": {"rounds": 3}, "trainer": {"steps": 1}, "sweep": {}}
    base = parse(tables, ROOT / "configs", "mine").base
    assert base["run"] == {"rounds": 3, "sampled": 5, "seed": 0, "name": "mine"}
    assert base["trainer"]["steps"] == 1 and base["trainer"]["step_size"] == 0.1
    assert base["data"]["partition"]["agents"] == 10
    other = {"base": "quickstart.toml", "trainer": {"name": "rsgd"}, "sweep": {}}
    assert parse(other, ROOT / "configs", "mine").base["trainer"] == {"name": "rsgd"}, "another class, other entries"


def test_everything_wrong_is_said_at_once() -> None:
    assert wrong_with({"base": "quickstart.toml", "trainr": {}, "sweep": {
        "seeds": 0, "grid": {"run.seed": [1], "run.rounds": [], "steps": [1], "trainr.steps": [1]}, "sorts": 1,
        "zip": {"trainer.steps": [1, 2], "run.rounds": [1]},
        "random": {"number": 0, "privacy.delta": {"log": [0, 1]}, "privacy.epsilon": {"linear": [2, 1]},
                   "trainer.batch": 3, "trainer.clip": {"choice": []}},
    }}) == [
        "trainr: unknown section; did you mean trainer?",
        "sweep.sorts: unknown key; known are name, seeds, grid, zip, random",
        "sweep.seeds = 0: must be at least 1, or a list of seeds",
        "sweep.grid: run.rounds = []: must be a list of values, one at least",
        "sweep.zip: all lists must be equally long; trainer.steps has 2, run.rounds has 1",
        "sweep.random.number = 0: must be a whole number >= 1",
        'sweep.random: privacy.delta = {"log": [0, 1]}: log must be two numbers > 0, the smaller one first',
        'sweep.random: privacy.epsilon = {"linear": [2, 1]}: linear must be two numbers, the smaller one first',
        "sweep.random: trainer.batch = 3: must be one of { linear = [a, b] }, { log = [a, b] }, { choice = [...] }",
        'sweep.random: trainer.clip = {"choice": []}: choice must be a list of values, one at least',
        "sweep: run.seed varies by `seeds` in [sweep], not as a key",
        "sweep: run.rounds varies in two places; once is enough",
        "sweep: steps: no such key; known are run, problem, data, trainer, aggregation, privacy",
        "sweep: trainr.steps: no such key; did you mean trainer?",
    ]  # fmt: skip
    assert wrong_with({"base": "nowhere.toml"}) == [
        f'base = "nowhere.toml": {ROOT / "configs" / "nowhere.toml"}: there is no such file',
        "sweep is missing: a table that says what varies; `pri-rfed run` runs a configuration as it is",
    ]
    assert wrong_with(SYNTHETIC | {"sweep": {"grid": {"run.rounds.many": [1]}}}) == [
        "sweep: run.rounds.many: rounds is no table"
    ]


def test_what_no_point_can_do_is_said_before_any_work() -> None:
    with pytest.raises(ConfigError) as raised:
        refusals(sweep_of({"grid": {"trainer.stps": [1, 2], "data.partition.agents": [3, "many"]}}))
    assert raised.value.errors == [
        "trainer.stps: unknown key; did you mean steps?",
        'data.partition.agents = "many": must be a whole number',
    ]
    some = refusals(sweep_of({"grid": {"trainer.steps": [1, 0]}, "seeds": 2}))
    assert list(some.values()) == [["trainer.steps = 0 must be a whole number >= 1"]] * 2


def test_a_check_without_data_says_what_loading_says() -> None:
    for section, entry, value in (
        ("run", "rounds", 0), ("trainer", "name", "dp-rsdg"), ("data", "dimension", "big"), ("privacy", "epsilon", -1),
        ("problem", "name", "pca"), ("aggregation", "nam", "x"), ("data", "source", "digit"),
    ):  # fmt: skip
        tables = SYNTHETIC | {section: SYNTHETIC.get(section, {}) | {entry: value}}
        tables["run"] = {"name": "test"} | tables["run"]
        with pytest.raises(ConfigError) as raised:
            load(tables, FOLDERS)
        assert set(check(tables)) <= set(raised.value.errors) and check(tables)
    assert check(SYNTHETIC | {"run": {"name": "test", "rounds": 1}}) == []


# Results


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """A sweep of 12 points over agents, budgets and seeds by two processes; those with 100 agents fail."""
    sweep = sweep_of({"grid": {"data.partition.agents": [3, 5, 100], "privacy.epsilon": [1.0, 2.0]}, "seeds": 2})
    folder = SweepFolder.prepare(sweep, tmp_path_factory.mktemp("sweep") / "mixed")
    run_sweep(folder, FOLDERS, jobs=2)
    return SweepFolder.open(folder.path)


def test_the_table_has_what_single_runs_have_to_the_last_bit(mixed: SweepFolder, tmp_path: Path) -> None:
    rows, curves = mixed.table(), mixed.rounds()
    done = [point for point in mixed.points if rows[point.index]["status"] == "done"]
    assert len(done) == 8
    for point in done[1::3]:
        run = RunFolder.create("single", tmp_path / str(point.index))
        summary = start(load(point.tables, FOLDERS), run, ignore)
        row = rows[point.index]
        for name in (*FACTS, *RESULTS):
            if name not in TIMES:
                assert row[name] == summary[name], name
        assert row["seed"] == summary["seed"] == point.seed
        lines = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
        assert curves[point.index] == {name: [line[name] for line in lines] for name in ("round", *CURVES)}


def ignore(progress: Progress) -> None:
    pass


def test_a_point_that_fails_is_a_row(mixed: SweepFolder) -> None:
    rows = mixed.table()
    failed = [row for row in rows if row["status"] == "failed"]
    assert len(failed) == 4 and {row["data.partition.agents"] for row in failed} == {100}
    for row in failed:
        assert "agents = 100: they need 100 records, and the data set has 60" in row["error"]
        assert all(row[name] is None for name in (*FACTS, *RESULTS))
    assert all(row["error"] is None for row in rows if row["status"] == "done")
    summary = mixed.summary
    assert summary is not None and (summary["points"], summary["done"], summary["failed"]) == (12, 8, 4)


def test_the_files(mixed: SweepFolder) -> None:
    rows = mixed.table()
    table = pyarrow.parquet.read_table(mixed.path / "table.parquet")
    assert table.to_pylist() == rows
    assert table.column_names == [
        "point", "data.partition.agents", "privacy.epsilon", "seed", "status", *FACTS, *RESULTS, "error"
    ]  # fmt: skip
    read = pyarrow.csv.read_csv(mixed.path / "table.csv").to_pylist()
    assert [row["excess_risk"] for row in read] == [row["excess_risk"] for row in rows]
    curves = pyarrow.parquet.read_table(mixed.path / "rounds.parquet").to_pylist()
    assert len(curves) == 8 * 4 and set(curves[0]) == {"point", "round", *CURVES}
    assert [c["cost"] for c in curves if c["point"] == 0] == mixed.rounds()[0]["cost"]
    assert read_sweep(mixed.path / "sweep.toml").points == mixed.points
    assert mixed.finished and json.loads((mixed.path / "versions.json").read_text())["numpy"] == np.__version__


def test_figures_are_what_they_are_called(mixed: SweepFolder) -> None:
    row = mixed.table()[0]
    assert row["sampled"] / row["agents"] == row["rate"] and row["records"] == 60 and row["records_per_agent"] == 20
    assert row["batch"] == 20 and row["steps"] == 2 and row["step_size"] == 0.1 and row["noise_unit"] == "sensitivity"
    assert row["gradient_calls"] == 4 * 2 * 2 * 20
    assert row["epsilon_target"] == 1.0 and 0.999 <= row["epsilon_global"] <= 1.0
    experiment = load(mixed.points[0].tables, FOLDERS)
    local = experiment.trainer.event(experiment.problem, 20)
    claim = ACCOUNTANTS["theorem-4.2"].epsilon(repeat(Participation(local, 2, 3), 4), 1e-5)
    assert row["epsilon_theorem_4_2"] == claim
    result = carry_out(experiment, evaluation_of(experiment))
    assert row["epsilon_ledger_max"] == result.privacy.epsilon_ledger_max
    optimum = experiment.problem.optimum(experiment.agents.all_records())
    assert row["distance"] == experiment.problem.distance(result.point, optimum)


def test_figures_of_a_drawn_output_are_of_that_point() -> None:
    tables = sweep_of({}).points[0].tables
    tables["run"] = tables["run"] | {"output": "uniform", "rounds": 6, "seed": 3}
    experiment = load(tables, FOLDERS)
    evaluation = evaluation_of(experiment)
    result = carry_out(experiment, evaluation)
    found = figures(experiment, result, evaluation, {})
    where = [i for i, record in enumerate(result.history) if record["cost"] == found["cost"]]
    assert where and where[0] < 5, "a point that a round began with"
    record = result.history[where[0]]
    for name in CURVES:
        assert found[name] == record[name]


def test_without_privacy_both_figures_are_infinite(tmp_path: Path) -> None:
    sweep = sweep_of({"grid": {"trainer.noise": [0, 30.0]}})
    for point in sweep.points:
        point.tables["privacy"] = {"delta": 1e-5}
    folder = SweepFolder.prepare(sweep, tmp_path / "out")
    run_sweep(folder, FOLDERS, jobs=1)
    without, noisy = SweepFolder(folder.path, sweep).table()
    assert without["private"] is False and noisy["private"] is True
    for name in ("epsilon_global", "epsilon_ledger_max", "epsilon_theorem_4_2"):
        assert without[name] == math.inf and 0 < noisy[name] < math.inf


def test_a_message_is_as_long_as_it_is_said_to_be() -> None:
    problem, trainer, point = {"name": "mean"}, {"name": "rsgd", "steps": 3}, np.ones((2, 3))
    asked = [(0, "a", 7), (9, "a", 7), (10, "a", 7), (10, "Zürich", 12345)]
    down = up = 0
    for round_, name, records in asked:
        plan = Plan("run", round_, 0, problem, trainer, point, {name: records})
        for message in (plan.pack(), Answer(plan.digest, {name: point}).pack()):
            size = sum(len(part.encode() if isinstance(part, str) else part) for part in message.values())
            down, up = (down + size, up) if "problem" in str(message["header"]) else (down, up + size)
    assert exchange_sizes("run", problem, trainer, (2, 3), asked) == (down, up)


def test_what_is_remembered_changes_nothing() -> None:
    memory = Memory()
    sweep = sweep_of({"grid": {"data.partition.agents": [3, 4], "data.gap": [0.1, 0.2], "privacy.epsilon": [1, 2]},
                      "seeds": 2})  # fmt: skip
    for point in (*sweep.points, *sweep.points):
        remembered, fresh = load(point.tables, FOLDERS, memory), load(point.tables, FOLDERS)
        assert remembered.resolved == fresh.resolved
        for i in range(len(fresh.agents)):
            np.testing.assert_array_equal(remembered.agents[i], fresh.agents[i])
    assert len({load(p.tables, FOLDERS, memory).resolved["trainer"]["noise"] for p in sweep.points}) == 4


class Longer(PrincipalEigenvector):
    """A problem of one's own, whose gradients are the longer the more numbers a record has."""

    def __init__(self, n: int):
        super().__init__(n)
        self.gradient_bound = float(n)


def test_noise_is_remembered_for_what_is_released_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBLEMS, "longer", Longer)
    memory, noise = Memory(), []
    for dimension in (8, 16):
        tables = SYNTHETIC | {
            "run": SYNTHETIC["run"] | {"name": "x"},
            "problem": {"name": "longer"},
            "data": SYNTHETIC["data"] | {"dimension": dimension},
            "trainer": SYNTHETIC["trainer"] | {"noise_unit": "absolute"},
        }
        noise.append(load(tables, FOLDERS, memory).resolved["trainer"]["noise"])
    assert noise[1] == pytest.approx(2 * noise[0], rel=2e-3)


def test_what_one_process_found_the_others_need_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of({"grid": {"privacy.epsilon": [1, 2]}, "seeds": 3})
    fresh = []
    for point in sweep.points:
        sweep_run._memory.cache_clear()
        fresh.append(compute(point, FOLDERS)[1])
    found: list[float] = []

    def counted(*args: Any) -> Any:
        trainer = calibrate_noise(*args)
        found.append(trainer.noise)
        return trainer

    monkeypatch.setattr(config, "calibrate_noise", counted)
    shared = sweep_run._Shared()

    def answers() -> Iterator[Any]:
        for function, args, _ in shared.tasks(sweep.points, FOLDERS):
            sweep_run._memory.cache_clear()  # as in another process
            yield function(*args)

    computed = list(shared.collect(answers()))
    assert len(found) == 2 and {point.values["privacy.epsilon"] for point, *_ in computed[:2]} == {1, 2}
    rows = {point.index: row for point, row, _ in computed}
    assert without_times([rows[point.index] for point in sweep.points]) == without_times(fresh)


def test_a_front_has_one_setting_for_epsilons_that_noise_was_found_for_alike() -> None:
    figures = [(0.9991, 0.09), (0.9995, 0.04), (1.9987, 0.05), (1.9993, 0.01), (3.998, 0.01)]
    settings = [Setting({}, [{"epsilon_global": epsilon, "excess_risk": risk}]) for epsilon, risk in figures]
    front = pareto_front(settings, lambda setting: setting.median("excess_risk"))
    assert front == [settings[1], settings[3]]


def test_figures_are_remembered_for_the_same_draws_and_delta_only() -> None:
    grid = {"run.rounds": [1, 4], "run.sampled": [1, 3], "privacy.delta": [1e-5, 1e-3]}
    tables = SYNTHETIC | {"trainer": SYNTHETIC["trainer"] | {"noise": 5.0, "noise_unit": "sensitivity"}}
    sweep = parse(tables | {"privacy": {"delta": 1e-5}, "sweep": {"grid": grid}}, Path(), "test")
    rows = [compute(point, FOLDERS)[1] for point in (*sweep.points, *sweep.points)]
    assert len({row["epsilon_global"] for row in rows}) == len(sweep.points) == 8
    for point, row in zip(sweep.points, rows, strict=False):
        truth = carry_out(load(point.tables, FOLDERS), None).privacy
        assert row["epsilon_global"] == pytest.approx(truth.epsilon_global, rel=1e-12)
        assert row["epsilon_ledger_max"] == pytest.approx(truth.epsilon_ledger_max, rel=1e-12)


def test_what_is_remembered_is_bounded() -> None:
    memory, made = Memory(100), []

    def make(name: str, size: int) -> str:
        return memory.recall("thing", name, lambda: made.append(name) or name, lambda _: size)

    assert [make(name, 40) for name in "aabcab"] == list("aabcab")
    assert made == ["a", "b", "c", "a", "b"], "the longest unused goes first"
    make("small", 0)
    make("huge", 1000)
    made.clear()
    make("small", 0)
    make("huge", 1000)
    assert made == [], "what takes no room stays, and so does the last one"


def test_an_evaluation_may_be_shared() -> None:
    experiment = load(sweep_of({}).points[0].tables, FOLDERS)
    plan = {"rounds": 2, "sampled": 2, "seed": 1}
    alone = simulate(experiment.problem, experiment.agents, experiment.trainer, **plan)
    evaluation = evaluation_of(experiment)
    shared = simulate(experiment.problem, experiment.agents, experiment.trainer, **plan, evaluation=evaluation)
    assert [r["excess_risk"] for r in alone.history] == [r["excess_risk"] for r in shared.history]


# Resumption


def test_a_folder_of_another_sweep_is_refused(mixed: SweepFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds another sweep"):
        SweepFolder.prepare(sweep_of({"seeds": 2}), mixed.path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not empty, and holds no sweep"):
        SweepFolder.prepare(sweep_of({"seeds": 2}), tmp_path)
    with pytest.raises(ValueError, match=r"holds no sweep\.toml"):
        SweepFolder.open(tmp_path)


def test_a_line_that_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    sweep = sweep_of({"seeds": 3})
    folder = SweepFolder.prepare(sweep, tmp_path / "out")
    run_sweep(folder, FOLDERS, jobs=1)
    whole = SweepFolder.open(folder.path).table()
    file = folder.path / "points.jsonl"
    file.write_bytes(file.read_bytes()[:-50])
    (folder.path / "summary.json").unlink()
    half = SweepFolder.open(folder.path)
    assert [row["status"] for row in half.table()] == ["done", "done", "missing"] and not half.finished
    assert half.rounds().keys() == {0, 1}
    run_sweep(SweepFolder.prepare(sweep, folder.path), FOLDERS, jobs=1)
    assert without_times(SweepFolder.open(folder.path).table()) == without_times(whole)
    assert len(file.read_text().splitlines()) == 3


CONFIG = """
[run]
rounds = 150
sampled = 2
[problem]
name = "principal-eigenvector"
[data]
source = "synthetic-pca"
records = 60
dimension = 8
gap = 0.1
partition = { name = "iid", agents = 3 }
[trainer]
name = "dp-rsgd"
steps = 2
step_size = 0.1
[privacy]
epsilon = 2.0
[sweep]
seeds = 20
[sweep.grid]
"trainer.steps" = [2, 3]
"""


RAY = ["ray"] if importlib.util.find_spec("ray") else []
"""Of the backends that ask for an extra, those that are installed; pytest's summary says whether that is so."""


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda kill: kill.name)
@pytest.mark.parametrize("backend", ["processes", *RAY])
def test_a_sweep_that_is_stopped_goes_on(tmp_path: Path, backend: str, kill: signal.Signals) -> None:
    (tmp_path / "many.toml").write_text(CONFIG)
    command = ["sweep", "many.toml", "--jobs", "2", "--backend", backend]
    stopped = [sys.executable, str(Path(__file__).with_name("stopped_sweep.py")), kill.name, "5", "--", *command]
    lines = tmp_path / "sweeps" / "many" / "points.jsonl"
    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        stopped, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, told = process.communicate(timeout=300)
        deadline = time.monotonic() + 120
        while members(process.pid):
            assert time.monotonic() < deadline, "processes are left behind"
            time.sleep(0.1)
    finally:
        for pid in {process.pid, *members(process.pid)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if kill is not signal.SIGKILL:
        assert process.returncode == 130 and "the same command goes on from there" in told and "Traceback" not in told
        assert pyarrow.parquet.read_table(lines.parent / "table.parquet").num_rows == 40
    else:
        assert process.returncode == -kill
    kept = [line for line in lines.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert 5 <= len(kept) < 40 and not (lines.parent / "summary.json").exists()

    again = [str(Path(sys.executable).with_name("pri-rfed")), *command]
    done = subprocess.run(again, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "many: 40 of 40 points" in done.stdout
    now = lines.read_text().splitlines(keepends=True)
    assert now[: len(kept)] == kept and len(now) == 40, "what was there is neither lost nor computed again"
    assert len({json.loads(line)["key"] for line in now}) == 40
    rows = SweepFolder.open(lines.parent).table()
    experiment = load(read_sweep(tmp_path / "many.toml").points[30].tables, FOLDERS)
    result = carry_out(experiment, evaluation_of(experiment))
    assert rows[30]["excess_risk"] == result.history[-1]["excess_risk"]


def members(session: int) -> list[int]:
    """The processes of a session that live."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if folder.name.isdigit() and int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


# The command


def test_the_command(pri_rfed: Any) -> None:
    Path("small.toml").write_text(CONFIG)
    grid = ("--set", "sweep.seeds=1", "--set", "sweep.grid={run.sampled=[2,9]}")
    arguments = ("sweep", "small.toml", "--jobs", "1", *grid)
    code, out, _ = pri_rfed(*arguments)
    assert code == 0
    for words in ("small: 1 of 2 points", "failed   1", "run.sampled = 9: must be at most 3", "sweeps/small",
                  "no pareto: ", "varied   run.sampled; 1 seed"):  # fmt: skip
        assert words in out
    lines = Path("sweeps/small/points.jsonl").read_text()
    code, out, _ = pri_rfed(*arguments, "--json")
    assert code == 0 and json.loads(out)["failed"] == 1
    assert Path("sweeps/small/points.jsonl").read_text() == lines, "there was nothing to do"
    assert pri_rfed(*arguments, "--retry")[0] == 0
    again = Path("sweeps/small/points.jsonl").read_text()
    assert again.startswith(lines) and again.count("\n") == lines.count("\n") + 1

    code, out, err = pri_rfed("sweep", "small.toml", "--out", "sweeps/small")
    assert (code, out) == (2, "") and "holds another sweep" in err


def test_mistakes_are_lines_and_nothing_is_written(pri_rfed: Any) -> None:
    Path("wrong.toml").write_text(CONFIG.replace("dp-rsgd", "dp-rsdg").replace("rounds = 150", "rounds = 0"))
    code, out, err = pri_rfed("sweep", "wrong.toml", "--set", 'sweep.grid={"trainer.x"=[1]}')
    assert (code, out) == (2, "") and not Path("sweeps").exists()
    assert err.splitlines() == [
        "run.rounds = 0: must be at least 1",
        'trainer.name = "dp-rsdg": unknown; did you mean dp-rsgd?',
    ]
    assert pri_rfed("sweep", "wrong.toml", "--backend", "mpi")[2] == "--backend mpi: there is only processes, ray\n"


def test_a_backend_that_is_not_installed(pri_rfed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("small.toml").write_text(CONFIG)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "ray" else find(name, *a))
    code, _, err = pri_rfed("sweep", "small.toml", "--backend", "ray")
    assert code == 2 and "Ray is not installed; pip install 'pri-rfed[cluster]'" in err and not Path("sweeps").exists()


def test_a_sweep_of_failures_ends_as_one(pri_rfed: Any) -> None:
    Path("small.toml").write_text(CONFIG)
    code, out, _ = pri_rfed(
        "sweep", "small.toml", "-j", "1", "--set", "sweep.seeds=1", "--set", "trainer.batch=21", "--set", "sweep.grid="
    )
    assert code == 1 and "trainer.batch = 21 exceeds the 20 records of an agent" in out


@pytest.mark.parametrize("config", sorted((ROOT / "configs" / "tradeoffs").glob("*.toml")), ids=lambda path: path.stem)
def test_the_configurations_of_trade_offs(config: Path) -> None:
    sweep = read_sweep(config)
    assert refusals(sweep) == {} and len(sweep.points) >= 50
    load(sweep.points[-1].tables, FOLDERS)
