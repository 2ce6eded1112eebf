"""The command line from end to end: run, resume, data."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA, ROOT, at_hand

from pri_rfed.data import download
from pri_rfed.data.download import PUBLIC_DATA, DataFolders, PublicDataSet, PublicFile
from pri_rfed.experiment.config import Experiment, load, override, read_toml
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.run import Interrupted, Progress, start
from pri_rfed.privacy import audit
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.calibration import calibrate_noise
from pri_rfed.privacy.events import event_from_dict
from pri_rfed.simulation import State

QUICKSTART = str(ROOT / "configs" / "quickstart.toml")
SWEEP = str(ROOT / "configs" / "tradeoffs" / "agents.toml")
PUBLIC = ("good", "bad", "form", "away")
PLOTS = {f"{name}.{suffix}" for name in ("risk", "gradient_norm", "epsilon", "ledgers") for suffix in ("png", "svg")}


def experiment_of(path: Path, *assignments: str) -> Experiment:
    return load(override(read_toml(path), [f"run.name={path.stem}", *assignments]), DataFolders(DATA))


def ignore(progress: Progress) -> None:
    pass


# A run


def test_a_run_and_its_folder(pri_rfed: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = pri_rfed("run", QUICKSTART, "--set", "run.rounds=3", "--seed", "5", "--out", out, "--json")
    assert ended.code == 0
    (line,) = ended.out.splitlines()
    summary = json.loads(line)
    assert {
        "run_dir", "rounds", "seconds", "cost", "excess_risk", "delta", "epsilon_global", "epsilon_ledger_max"
    } <= set(summary)  # fmt: skip
    assert summary["run_dir"] == str(out) and summary["rounds"] == 3 and summary["seed"] == 5
    assert summary["private"] is True and summary["delta"] == 1e-5
    assert 1.99 < summary["epsilon_global"] <= 2
    assert summary["excess_risk"] >= 0 > summary["cost"]

    files = {path.name for path in out.iterdir()}
    assert files == PLOTS | {
        "config.toml", "versions.json", "plan.json", "data.sha256", "rounds.jsonl", "checkpoint.npz", "point.npy",
        "privacy.json", "summary.json",
    }  # fmt: skip
    assert json.loads((out / "summary.json").read_text()) == summary
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds] == [1, 2, 3] and all(len(r["sampled"]) == 5 for r in rounds)
    assert rounds[-1]["cost"] == summary["cost"]
    point = np.load(out / "point.npy")
    assert point.shape == (64,) and np.isclose(np.linalg.norm(point), 1)
    np.testing.assert_array_equal(State.load(out / "checkpoint.npz").point, point)
    for name in PLOTS:
        head = (out / name).read_bytes()[:100]
        assert head.startswith(b"\x89PNG") if name.endswith("png") else b"<?xml" in head

    # The privacy record can be accounted for anew.
    privacy = json.loads((out / "privacy.json").read_text())
    (group,) = privacy["groups"]
    event = event_from_dict(group["global_event"])
    assert best_epsilon(event, privacy["delta"]).epsilon == pytest.approx(summary["epsilon_global"])
    most = max(sum(agent in r["sampled"] for r in rounds) for agent in range(10))
    assert group["most_participations"] == most
    assert privacy["accountants"]["pld"]["sound"] and not privacy["accountants"]["theorem-4.2"]["sound"]

    # The resolved configuration reproduces the run.
    again = pri_rfed("run", out / "config.toml", "--out", tmp_path / "again", "--json")
    assert again.code == 0
    assert (tmp_path / "again" / "point.npy").read_bytes() == (out / "point.npy").read_bytes()
    assert (tmp_path / "again" / "config.toml").read_text() == (out / "config.toml").read_text()


def test_the_summary_says_what_is_private(pri_rfed: Any) -> None:
    ended = pri_rfed("run", QUICKSTART, "--set", "run.rounds=2")
    assert ended.code == 0
    for words in ("10 agents", "before the run  ε = ", "after the run   ε = ", "one record of one agent is replaced",
                  "the server included", "δ = 1e-05", "Diagnostics, not private", "runs/quickstart-"):  # fmt: skip
        assert words in ended.out
    second = pri_rfed("run", QUICKSTART, "--set", "run.rounds=2")
    assert second.code == 0 and len(list(Path("runs").iterdir())) == 2, "a second run has a folder of its own"


def test_a_run_without_noise_claims_nothing(pri_rfed: Any) -> None:
    arguments = ("--set", "run.rounds=2", "--set", "privacy.epsilon=", "--set", "trainer.noise=0")
    told = pri_rfed("run", QUICKSTART, *arguments)
    assert "No privacy guarantee" in told.out and "before the run" not in told.out
    summary = json.loads(pri_rfed("run", QUICKSTART, *arguments, "--json").out)
    assert summary["private"] is False
    assert summary["epsilon_global"] is None and summary["epsilon_ledger_max"] is None
    assert not (Path(summary["run_dir"]) / "epsilon.png").exists()


def test_the_cost_is_that_of_the_output(pri_rfed: Any) -> None:
    arguments = ("--set", "run.rounds=6", "--set", "run.output=uniform", "--json")
    summary = json.loads(pri_rfed("run", QUICKSTART, *arguments).out)
    folder = Path(summary["run_dir"])
    experiment = experiment_of(folder / "config.toml")
    cost = experiment.problem.loss(np.load(folder / "point.npy"), experiment.agents.all_records()).mean()
    assert summary["cost"] == pytest.approx(cost, rel=1e-12)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert summary["cost"] != pytest.approx(rounds[-1]["cost"], rel=1e-6)
    least = rounds[-1]["cost"] - rounds[-1]["excess_risk"]
    assert summary["excess_risk"] == pytest.approx(cost - least, rel=1e-9)


def test_diagnostics_can_be_left_out(pri_rfed: Any) -> None:
    ended = pri_rfed("run", QUICKSTART, "--set", "run.rounds=2", "--set", "run.evaluate_every=0", "--json")
    summary = json.loads(ended.out)
    assert summary["cost"] is None and summary["excess_risk"] is None
    assert not (Path(summary["run_dir"]) / "risk.png").exists()


def test_whole_agents_are_protected_too_by_a_server_that_adds_noise(pri_rfed: Any) -> None:
    arguments = ("--set", "run.rounds=2", "--set", "aggregation.name=agent-level-mean", "--set", "aggregation.clip=0.5",
                 "--set", "aggregation.noise_multiplier=2")  # fmt: skip
    ended = pri_rfed("run", QUICKSTART, *arguments)
    assert "whole agents    ε = " in ended.out
    (folder,) = Path("runs").iterdir()
    level = json.loads((folder / "privacy.json").read_text())["agent_level"]
    assert best_epsilon(event_from_dict(level["event"]), 1e-5).epsilon == pytest.approx(level["epsilon"])


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["run", "nowhere.toml"], ["nowhere.toml: there is no such file"]),
        (
            ["run", QUICKSTART, "--set", "trainer.stepsize=1", "--set", "privacy.delta=2", "--set", "run.sampled=11"],
            [
                "privacy.delta = 2: must be more than 0 and less than 1",
                "trainer.stepsize: unknown key; did you mean step_size?",
                "run.sampled = 11: must be at most 10, the number of agents",
            ],
        ),
        (["run", QUICKSTART, "--set", "rounds=3"], ["--set rounds=3: must be of the form section.key=value"]),
        (["run", QUICKSTART, "--seed", "-3"], ["run.seed = -3: must be at least 0"]),
        (["resume", "."], [". is no run folder: it holds no config.toml"]),
        (["data", "get", "minst"], [f"unknown data set 'minst'; there are {', '.join(PUBLIC_DATA)}"]),
        (
            ["sweep", SWEEP, "--jobs", "0"],
            ["Invalid value for '--jobs' / '-j': 0 is not in the range x>=1 (pri-rfed sweep --help says more)"],
        ),
        (
            ["client", "policy.toml", "--server", "https://a:1", "--ca", "a", "--key", "k", "--health", "80"],
            [
                "--server https://a:1: must be HOST:PORT, such as fl.example.org:8443, without https://",
                "--health 80: must be HOST:PORT, such as fl.example.org:8443, without https://",
            ],
        ),
        (
            ["server", "federation.toml", "--out", "out", "--keys", "."],
            ["--keys .: holds no ca.crt and no server.crt and no server.key; `pri-rfed keys server` makes them"],
        ),
        (["run"], ["Missing argument 'CONFIG' (pri-rfed run --help says more)"]),
        (["data", "lst"], ["No such command 'lst'. Did you mean 'list'? (pri-rfed data --help says more)"]),
    ],
)
def test_a_mistake_is_a_line_each_and_no_traceback(pri_rfed: Any, arguments: list[str], lines: list[str]) -> None:
    ended = pri_rfed(*arguments)
    assert ended.code == 2 and ended.out == ""
    assert ended.err.splitlines() == lines
    assert not Path("runs").exists(), "nothing is left behind"


def test_help_is_shown_where_it_is_asked_for_or_nothing_else_is(pri_rfed: Any) -> None:
    asked, bare = pri_rfed("sweep", "--help"), pri_rfed("data")
    assert asked.code == 0 and "--retry" in asked.out and "CONFIG" in asked.out and asked.err == ""
    assert bare.code == 2 and "checksums" in bare.out and bare.err == ""


def test_an_interrupted_audit_says_that_nothing_is_kept(pri_rfed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = audit.audit

    def interrupted(*arguments: Any, progress: Callable[[int, int], None], **options: Any) -> audit.Audit:
        def report(done: int, total: int) -> None:
            progress(done, total)
            os.kill(os.getpid(), signal.SIGINT)

        return whole(*arguments, progress=report, **options)

    monkeypatch.setattr(audit, "audit", interrupted)
    ended = pri_rfed("audit", "--repetitions", "200")
    assert ended.code == 130 and ended.out == ""
    assert ended.err.splitlines() == ["", "interrupted; an audit keeps nothing, the same command starts again"]


def test_an_entry_is_removed_by_an_empty_value(pri_rfed: Any) -> None:
    arguments = ("--set", "privacy.epsilon=", "--set", "trainer.noise=3", "--set", "run.rounds=1", "--json")
    assert json.loads(pri_rfed("run", QUICKSTART, *arguments).out)["noise"] == 3
    # In a sweep it is removed from the configuration that it is based on, too.
    Path("sweep.toml").write_text(f"base = {json.dumps(QUICKSTART)}\n[sweep]\nseeds = 1\n")
    ended = pri_rfed("sweep", "sweep.toml", "--jobs", "1", *arguments)
    assert ended.code == 0, ended.err
    assert "epsilon" not in tomllib.loads(Path("sweeps/sweep/sweep.toml").read_text())["privacy"]


def test_what_takes_from_the_guarantee_is_said(pri_rfed: Any) -> None:
    fine = pri_rfed("run", QUICKSTART, "--set", "run.rounds=1", "--seed", "7").out
    assert "  except          for whoever knows the seed (7): " in fine and "δ is not below" not in fine
    large = pri_rfed("run", QUICKSTART, "--set", "run.rounds=1", "--set", "privacy.delta=0.001").out
    assert "  except          δ is not below 1/1790, one over the records" in large


def test_a_servers_run_goes_on_as_a_servers(pri_rfed: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("[federation]\nrecord_shape = [3]\n")
    for command in ("resume", "account", "report"):
        ended = pri_rfed(command, tmp_path / "run")
        assert ended.code == 2 and f"`pri-rfed server CONFIG --keys KEYS --out {tmp_path / 'run'}`" in ended.err


def test_an_unknown_runtime_is_refused(pri_rfed: Any) -> None:
    ended = pri_rfed("run", QUICKSTART, "--runtime", "spark")
    assert ended.code == 2 and "--runtime spark: there is only simulation" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["run", QUICKSTART, "--clients", "3"],
            "--clients 3: --runtime simulation does not take it; grid and flower do",
        ),
        (["run", QUICKSTART, "--out", "file"], "--out file: file is a file; it must be a folder"),
        (["run", SWEEP], f"{SWEEP}: has a section sweep, which is for `pri-rfed sweep`, not for a run"),
        (["account", SWEEP], f"{SWEEP}: has a section sweep, which is for `pri-rfed sweep`, not for a run"),
        (["explore", SWEEP], f"{SWEEP}: has a section sweep, which is for `pri-rfed sweep`, not for a run"),
        (["sweep", SWEEP, "--out", "file"], "--out file: file is a file; it must be a folder"),
        (
            ["sweep", SWEEP, "--set", "privacy.epsilon=3"],
            "--set privacy.epsilon=3: it varies in this sweep; change it in [sweep]",
        ),
        (
            ["sweep", SWEEP, "--set", "sweep.seeds=1000000000000"],
            "sweep: 45000000000000 points are too many; at most 100000 can be computed",
        ),
        (["audit", "--seed", "-1"], "--seed -1: must be at least 0"),
        (["audit", "--records", "0"], "--records 0: must be at least 1"),
        (["reproduce", "--quick"], "name an experiment, or --all of them; without either, options have no meaning"),
        (["reproduce", "prirfed-table", "--set", "x"], "--set x: must be of the form key=value"),
        (["reproduce", "prirfed-table", "--out", "file"], "--out file: file is a file; it must be a folder"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(
    pri_rfed: Any, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = pri_rfed(*arguments)
    assert (code, out, err.splitlines()) == (2, "", [said])
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_help_says_what_an_argument_is(pri_rfed: Any) -> None:
    assert "Folder of a finished run, or of a sweep." in " ".join(pri_rfed("report", "--help").out.split())


def test_a_file_name_with_a_space_makes_a_name(pri_rfed: Any, tmp_path: Path) -> None:
    (tmp_path / "my run.toml").write_text(Path(QUICKSTART).read_text())
    code, out, _ = pri_rfed("run", "my run.toml", "--set", "run.rounds=1")
    assert code == 0 and out.startswith("my-run: ") and "Everything is in runs/my-run-" in out


def test_a_run_never_overwrites_another(pri_rfed: Any, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("1")
    ended = pri_rfed("run", QUICKSTART, "--out", tmp_path / "full")
    assert ended.code == 2
    assert "the folder is not empty" in ended.err and f"pri-rfed resume {tmp_path / 'full'}" in ended.err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["precious"]


def test_data_list(pri_rfed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIRFED_DATA", str(tmp_path))
    ended = pri_rfed("data", "list")
    assert ended.code == 0 and "mnist" in ended.out and "emg" in ended.out and str(tmp_path) in ended.out
    assert "by name alone" in ended.out


def test_data_list_compares_checksums_when_asked(
    pri_rfed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = {f"{name}/a": name.encode() for name in PUBLIC}
    known = {path: hashlib.sha256(text).hexdigest() for path, text in content.items()}
    files = {name: PublicFile(f"{name}/a", (), known[f"{name}/a"], others=(f"{name}/b",)) for name in PUBLIC}
    sets = {name: PublicDataSet(f"{name} data", "free", (file,)) for name, file in files.items()}
    monkeypatch.setattr(download, "PUBLIC_DATA", sets)
    for path, text in (("good/a", content["good/a"]), ("bad/a", b"something else"), ("form/b", b"")):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_bytes(text)

    def listed(*options: str) -> tuple[dict[str, str], str]:
        out = pri_rfed("data", "list", "--data-dir", tmp_path, *options).out
        rows = {line.split()[0]: line.split("free")[1].strip() for line in out.splitlines() if "free" in line}
        return rows, out.replace("\n", "")

    assert listed()[0] == {"good": "yes", "bad": "yes", "form": "yes", "away": "no"}
    rows, said = listed("--verify")
    assert rows == {"good": "verified", "bad": "not verified", "form": "not verified", "away": "no"}
    assert f"{tmp_path / 'bad' / 'a'}: its checksum is not the known one, sha256:{known['bad/a']}" in said
    assert f"{tmp_path / 'form' / 'b'}: no checksum is known of the file in this form" in said


def test_help_imports_nothing_heavy() -> None:
    heavy = {
        "numpy", "scipy", "matplotlib", "pydantic", "sklearn", "dp_accounting", "autodp", "flwr", "rich", "jinja2",
        "plotly", "starlette", "uvicorn",
    }  # fmt: skip
    code = f"import sys, pri_rfed.cli; print(sorted({heavy!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_run_imports_nothing_that_takes_longer_than_the_run(tmp_path: Path) -> None:
    heavy = {"scipy.stats", "scipy.signal", "scipy.optimize", "sklearn", "autodp", "dp_accounting", "flwr"}
    code = (
        f"import sys, pri_rfed.cli; sys.argv[1:] = ['run', {QUICKSTART!r}, '--out', 'out', '--json']\n"
        f"try: pri_rfed.cli.main()\nfinally: print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == "[]"


# Interruption


@pytest.mark.parametrize(("stop", "output"), [(0, "last"), (1, "last"), (4, "last"), (4, "uniform")])
def test_an_interrupted_run_resumes_to_the_identical_result(
    pri_rfed: Any, tmp_path: Path, stop: int, output: str
) -> None:
    experiment = experiment_of(Path(QUICKSTART), "run.rounds=6", f"run.output={output}")
    whole = RunFolder.create("whole", tmp_path / "whole")
    expected = start(experiment, whole, ignore)

    def interrupt(progress: Progress) -> None:
        if progress.round == stop:
            raise KeyboardInterrupt

    broken = RunFolder.create("broken", tmp_path / "broken")
    if stop == 0:
        broken.write("config.toml", (whole.path / "config.toml").read_text())
        broken.write("rounds.jsonl", "")
    else:
        with pytest.raises(Interrupted) as stopped:
            start(experiment, broken, interrupt)
        assert stopped.value.round == stop
        # A process that dies hard may leave rounds that the checkpoint does not know of, the last one cut off.
        with (broken.path / "rounds.jsonl").open("a") as file:
            file.write(f'{{"round": {stop + 1}, "cost": 0}}\n{{"round": {stop + 2}, "co')
    ended = pri_rfed("resume", broken.path, "--json")
    assert ended.code == 0
    summary = json.loads(ended.out)
    for key in set(expected) - {"run_dir", "seconds"}:
        assert summary[key] == expected[key], key
    assert (broken.path / "point.npy").read_bytes() == (whole.path / "point.npy").read_bytes()
    for mine, its in zip(broken.rounds(), whole.rounds(), strict=True):
        assert mine | {"seconds": 0} == its | {"seconds": 0}

    ended = pri_rfed("resume", broken.path)
    assert ended.code == 0 and "this run is finished, there is nothing to resume" in ended.err


def test_a_run_goes_on_with_its_own_data_only(pri_rfed: Any, tmp_path: Path) -> None:
    table = tmp_path / "table.npy"
    records = np.random.default_rng(0).standard_normal((40, 3))
    np.save(table, records)
    run = {"name": "own", "rounds": 4, "sampled": 2}
    data = {"source": "file", "path": str(table), "scale": "unit", "partition": {"name": "iid", "agents": 4}}
    experiment = load(read_toml(Path(QUICKSTART)) | {"run": run, "data": data}, DataFolders())

    def interrupt(progress: Progress) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    folder = RunFolder.create("broken", tmp_path / "broken")
    with pytest.raises(Interrupted):
        start(experiment, folder, interrupt)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    np.save(table, np.where(np.arange(3) == 1, -records, records))
    ended = pri_rfed("resume", folder.path)
    assert ended.code == 2 and "records are not those that the run was started with" in ended.err
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    np.save(table, records)
    assert pri_rfed("resume", folder.path).code == 0


SLOW_ROUNDS = """
[run]
name = "slow"
rounds = 60
[problem]
name = "principal-eigenvector"
[data]
source = "synthetic-pca"
records = 60000
dimension = 60
[data.partition]
name = "iid"
agents = 20
[trainer]
name = "dp-rsgd"
noise = 0.01
steps = 20
"""


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda kill: kill.name)
def test_a_run_that_is_stopped_from_outside(pri_rfed: Any, tmp_path: Path, kill: signal.Signals) -> None:
    config, out = tmp_path / "slow.toml", tmp_path / "out"
    config.write_text(SLOW_ROUNDS)
    command = [sys.executable, "-m", "pri_rfed.cli", "run", str(config), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None and not (out / "checkpoint.npz").is_file():
            time.sleep(0.01)
        process.send_signal(kill)
        _, told = process.communicate(timeout=120)
    finally:
        process.kill()
    if kill is not signal.SIGKILL:
        assert process.returncode == 130
        assert f"continue with: pri-rfed resume {out}" in told and "Traceback" not in told
    assert not (out / "summary.json").exists()
    assert 0 < State.load(out / "checkpoint.npz").round < 60
    assert pri_rfed("resume", out).code == 0
    assert pri_rfed("run", config, "--out", tmp_path / "whole").code == 0
    assert (out / "point.npy").read_bytes() == (tmp_path / "whole" / "point.npy").read_bytes()


# What the shipped configurations show


def shipped(name: str, *needs: str) -> list[Path]:
    """The configuration, if the files that it needs are at hand."""
    return [ROOT / "configs" / f"{name}.toml"] if not needs or at_hand(*needs) else []


MNIST = shipped("mnist_pca", "mnist/train-images-idx3-ubyte.gz", "mnist/train-labels-idx1-ubyte.gz")
EMG = shipped("emg_spd_mean", "emg/emg.csv.gz")
NAMES = ("quickstart", "synthetic_pca", "synthetic_spd", "bures_wasserstein")
SYNTHETIC = [path for name in NAMES for path in shipped(name)]


def risk(experiment: Experiment, folder: Path, seed: int = 0) -> float:
    """The excess risk of a run, as a share of the least cost."""
    run = replace(experiment.run, seed=seed, evaluate_every=1000)
    summary = start(replace(experiment, run=run), RunFolder.create("run", folder / str(seed)), ignore)
    return summary["excess_risk"] / abs(summary["cost"] - summary["excess_risk"])


@pytest.mark.slow
@pytest.mark.parametrize("config", [*SYNTHETIC, *MNIST, *EMG], ids=lambda path: path.stem)
def test_risk_falls_as_epsilon_grows(config: Path, tmp_path: Path) -> None:
    seeds = 2 if config in SYNTHETIC else 1
    experiment = experiment_of(config)
    risks = []
    for epsilon in (0.25, 1.0, 4.0):
        trainer = calibrate_noise(
            experiment.trainer, experiment.problem, experiment.agents.counts, experiment.sampled,
            len(experiment.agents), experiment.run.rounds, epsilon, experiment.privacy.delta,
        )  # fmt: skip
        noisy = replace(experiment, trainer=trainer)
        risks.append(np.mean([risk(noisy, tmp_path / str(epsilon), seed) for seed in range(seeds)]))
    assert risks[0] > risks[1] > risks[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "changes"),
    [
        *((path, ("trainer.step_size=0.5", "run.rounds=60")) for path in shipped("quickstart")),
        *((path, ("trainer.step_size=0.5", "run.rounds=400", "data.gap=0.3")) for path in shipped("synthetic_pca")),
        *((path, ("trainer.step_size=0.4", "run.rounds=20")) for path in shipped("synthetic_spd")),
        *((path, ("trainer.step_size=0.4", "run.rounds=20")) for path in shipped("bures_wasserstein")),
        *((path, ("trainer.step_size=0.5", "run.rounds=60")) for path in MNIST),
        *((path, ("trainer.step_size=0.2", "run.rounds=30")) for path in EMG),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_without_noise_the_optimum_is_reached(config: Path, changes: tuple[str, ...], tmp_path: Path) -> None:
    plain = ("privacy.epsilon=", "trainer.noise=0", "trainer.steps=1", "run.sampled=1.0")
    assert abs(risk(experiment_of(config, *plain, *changes), tmp_path)) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("config", MNIST, ids=lambda path: path.stem)
def test_mnist_at_epsilon_1(config: Path, tmp_path: Path) -> None:
    experiment = experiment_of(config)
    assert np.mean([risk(experiment, tmp_path, seed) for seed in range(5)]) < 0.05


def test_quickstart_needs_no_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRIRFED_DATA", raising=False)
    monkeypatch.setattr("pri_rfed.data.download.cache_folder", lambda: tmp_path / "empty")
    assert tomllib.loads(Path(QUICKSTART).read_text())["data"]["source"] == "digits"
    assert len(load(override(read_toml(Path(QUICKSTART)), ["run.name=q"]), DataFolders()).agents) == 10


def test_json_has_no_infinities(tmp_path: Path) -> None:
    folder = RunFolder.create("x", tmp_path / "x")
    folder.append_round({"round": 1, "cost": float("nan"), "refused": [{"distance": float("inf")}]})
    assert folder.rounds() == [{"round": 1, "cost": None, "refused": [{"distance": None}]}]
