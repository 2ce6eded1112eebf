"""Configurations: what they become, and how mistakes are named."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from conftest import ROOT

from pri_rfed.aggregation import TangentMean
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import ConfigError, Experiment, load, override, read_toml
from pri_rfed.experiment.options import build
from pri_rfed.manifolds import MANIFOLDS
from pri_rfed.manifolds.naming import make_manifold, origin
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.report import Rounds, global_event
from pri_rfed.problems import FrechetMean, PrincipalSubspace
from pri_rfed.training import DPRSGD, StepSize

BASE = """
[run]
name = "base"
rounds = 3
[problem]
name = "principal-eigenvector"
[data]
source = "synthetic-pca"
records = 400
dimension = 8
[data.partition]
name = "iid"
agents = 4
[trainer]
name = "dp-rsgd"
noise = 0.1
"""


def made(*assignments: str, text: str = BASE) -> Experiment:
    return load(override(tomllib.loads(text), assignments), DataFolders())


def errors(*assignments: str, text: str = BASE) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        made(*assignments, text=text)
    assert str(caught.value) == "\n".join(caught.value.errors)
    return caught.value.errors


def test_what_a_configuration_becomes() -> None:
    experiment = made("run.sampled=0.5", "trainer.step_size={initial = 0.2, schedule = 'inverse'}", "trainer.batch=10")
    assert experiment.sampled == 2
    assert experiment.trainer == DPRSGD(noise=0.1, batch=10, step_size=StepSize(0.2, "inverse"))
    assert experiment.aggregation == TangentMean()
    assert experiment.agents.counts.tolist() == [100] * 4
    assert experiment.problem.record_shape == (8,)
    assert experiment.privacy.delta == 1e-5


def test_problems_with_manifolds() -> None:
    subspace = made("problem.name=principal-subspace", "problem.r=3", "problem.manifold=stiefel").problem
    assert isinstance(subspace, PrincipalSubspace) and subspace.manifold.point_shape == (8, 3)
    spd = ("problem.name=frechet-mean", "problem.manifold=spd-affine-invariant", "problem.radius=2",
           "data.source=synthetic-spd", "data.dimension=")  # fmt: skip
    mean = made(*spd).problem
    assert isinstance(mean, FrechetMean)
    np.testing.assert_array_equal(mean.center, np.eye(2))
    moved = made(*spd, "problem.center=[[2.0, 0.0], [0.0, 1.0]]")
    assert isinstance(moved.problem, FrechetMean)
    np.testing.assert_array_equal(moved.problem.center, np.diag([2.0, 1.0]))
    assert moved.resolved["problem"]["center"] == [[2.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("name", sorted(set(MANIFOLDS) - {"product"}))
def test_every_manifold_can_be_named_by_the_shape_of_its_points(name: str) -> None:
    shape = (4, 2) if name in ("stiefel", "grassmann") else (3, 3) if name.startswith("spd") else (4,)
    manifold = make_manifold(name, shape)
    assert manifold.name == name and manifold.point_shape == shape
    assert manifold.check_point(origin(manifold))


def test_own_problem_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(
        "from pri_rfed.manifolds import Euclidean\n"
        "from pri_rfed.problems import Problem\n"
        "class Mean(Problem):\n"
        "    name = 'mean'\n"
        "    def __init__(self, n: int, weight: float = 1.0):\n"
        "        self.manifold, self.record_shape, self.weight = Euclidean(n), (n,), weight\n"
        "    def loss(self, w, z): return self.weight * ((w - z) ** 2).sum(-1)\n"
        "    def gradient(self, w, z): return 2 * self.weight * (w - z)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = made("problem.name='own:Mean'", "problem.weight=3", "trainer.clip=1")
    assert own.problem.weight == 3.0  # type: ignore[attr-defined]
    assert errors("problem.name='own:Mean'", "problem.wait=3", "trainer.clip=1") == [
        "problem.wait: unknown key; did you mean weight?"
    ]
    assert errors("problem.name='own:Median'", "trainer.clip=1") == [
        "problem.name = \"own:Median\": module 'own' has no attribute 'Median'"
    ]


def test_noise_is_found_for_a_target() -> None:
    experiment = made("privacy.epsilon=1.5", "privacy.delta=1e-6", "trainer.noise=", "run.sampled=2", "trainer.steps=3")
    trainer = experiment.trainer
    assert isinstance(trainer, DPRSGD) and trainer.noise_unit == "sensitivity"
    event = global_event(trainer.event(experiment.problem, 100), [Rounds(2, 4, 3)])
    assert 1.49 < best_epsilon(event, 1e-6).epsilon <= 1.5
    # The resolved configuration holds the noise, and is taken at its word.
    again = load(experiment.resolved, DataFolders())
    assert again.trainer == trainer and again.resolved == experiment.resolved


def test_a_target_is_kept_by_noise_that_is_given() -> None:
    (line,) = errors("privacy.epsilon=1.5", "trainer.noise=0.001")
    assert line.startswith("privacy.epsilon = 1.5: the trainer dp-rsgd as configured spends ")
    assert errors("privacy.epsilon=1.5", "trainer.noise=0") == [
        "privacy.epsilon = 1.5: the trainer dp-rsgd as configured is not private"
    ]
    assert errors("privacy.epsilon=1.5", "trainer.noise=", "trainer.name=rgd") == [
        "privacy.epsilon = 1.5: the trainer rgd as configured is not private"
    ]


@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("privacy.epsilon=1", "trainer.noise=", "run.sampled=0.5", "data.partition.equal=true"),
        ("trainer.name=dp-rsvrg", "trainer.step_size={initial = 1, rounds = 3}"),
        ("problem.name=frechet-mean", "problem.manifold=spd-log-euclidean", "problem.radius=3", "problem.outside=move",
         "data.source=synthetic-spd", "data.dimension="),
        ("aggregation.name=frechet-mean", "aggregation.tolerance=1e-8", "run.output=uniform"),
    ],
)  # fmt: skip
def test_the_resolved_configuration_is_the_same_experiment(assignments: tuple[str, ...]) -> None:
    experiment = made(*assignments)
    again = load(tomllib.loads(tomli_w.dumps(experiment.resolved)), DataFolders())
    assert again.resolved == experiment.resolved
    assert (again.run, again.trainer, again.aggregation, again.privacy) == (
        experiment.run,
        experiment.trainer,
        experiment.aggregation,
        experiment.privacy,
    )
    np.testing.assert_array_equal(again.agents.all_records(), experiment.agents.all_records())


# Mistakes


def test_records_that_are_too_long_lead_to_what_scales_them(tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", np.full((8, 4), 2.0))
    text = BASE.replace('"synthetic-pca"\nrecords = 400\ndimension = 8', f'"file"\npath = "{tmp_path / "long.npy"}"')
    (line,) = errors(text=text)
    assert "has norm 4, above 1" in line and line.endswith("(data.unit and data.scale change them)")


def test_everything_that_is_wrong_is_named_at_once() -> None:
    found = errors(
        "run.rounds='ten'",
        "run.sampled=9",
        "run.sed=1",
        "trainer.batch=2000",
        "trainer.stepsize=0.3",
        "privacy.delta=1.5",
        "extra.x=1",
        "data.partition.agents=3",
        "aggregation.weights=equl",
    )
    assert sorted(found) == sorted(
        [
            'run.rounds = "ten": must be a whole number',
            "run.sampled = 9: must be at most 3, the number of agents",
            "run.sed: unknown key; did you mean seed?",
            "trainer.batch = 2000 exceeds the 133 records of an agent",
            "trainer.stepsize: unknown key; did you mean step_size?",
            "privacy.delta = 1.5: must be more than 0 and less than 1",
            "extra: unknown section; known are run, problem, data, trainer, aggregation, privacy",
            'aggregation.weights = "equl": must be "records" or "equal"',
        ]
    )


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("run.rounds=0", "run.rounds = 0: must be at least 1"),
        ("run.rounds=2.5", "run.rounds = 2.5: must be a whole number"),
        ("run.rounds=true", "run.rounds = true: must be a whole number"),
        ("run.rounds=", "run.rounds is missing"),
        ("run.sampled=0", "run.sampled = 0: must be at least 1 agent, or a fraction such as 0.5"),
        (
            "run.sampled=1.5",
            "run.sampled = 1.5: a fraction must lie in (0, 1]; a number of agents is whole",
        ),
        ("run.seed=-1", "run.seed = -1: must be at least 0"),
        ("run.output=best", 'run.output = "best": must be "last" or "uniform"'),
        ("run.name='a/b'", "run.name = \"a/b\": must consist of letters, digits, '-', '_' and '.'"),
        ("privacy.delta=0", "privacy.delta = 0: must be more than 0 and less than 1"),
        ("privacy.delta=nan", "privacy.delta = NaN: must be a finite number"),
        ("privacy.epsilon=-1", "privacy.epsilon = -1: must be more than 0"),
        ("trainer.noise=", "trainer.noise is missing"),
        ("trainer.noise=-1", "trainer.noise = -1.0 must be a finite number >= 0"),
        ("trainer.noise=loud", 'trainer.noise = "loud": must be a number'),
        ("trainer.name=dp-rgsd", 'trainer.name = "dp-rgsd": unknown; did you mean dp-rsgd?'),
        ("trainer.batch=half", 'trainer.batch = "half": must be a whole number or "full"'),
        ("trainer.step_size.inital=1", "trainer.step_size.inital: unknown key"),
        ("trainer.step_size.initial=-1", "initial = -1.0 must be a positive finite number"),
        ("problem.name=", "problem.name is missing; known are "),
        ("problem.name=frechet-mean", "problem.manifold is missing; known are "),
        ("trainer.name=DP-RSGD", 'trainer.name = "DP-RSGD": unknown; did you mean dp-rsgd?'),
        ("data.source=digit", 'data.source = "digit": unknown; did you mean digits?'),
        ("data.source=my.csv", 'data.source = "my.csv": unknown; a file of yours is source = "file", with its path'),
        ("partition.name=iid", "partition: unknown section; did you mean data.partition?"),
        ("data.gap=2", "data.gap = 2.0: must lie between 0 and 0.7"),
        ("data.partition=iid", 'data.partition = "iid": must be a table'),
        ("data.partition=", "data.partition is missing"),
        ("data.partition.agents=500", "data.partition.agents = 500: they need 500 records, and the data set has 400"),
        ("data.partition.name=natural", "data.partition"),
        ("aggregation.name=median", 'aggregation.name = "median": unknown; '),
    ],
)
def test_a_mistake_in_words(assignment: str, line: str) -> None:
    found = errors(assignment)
    assert any(line in said for said in found), found
    assert all("\n" not in said and "pydantic" not in said for said in found)


def test_records_that_are_none_of_the_problem(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", np.full((40, 3), 2.0))
    (line,) = errors(*file_source(tmp_path / "z.npy"))
    assert line.startswith("data: ") and "has norm" in line
    assert made(*file_source(tmp_path / "z.npy"), "data.scale=unit").agents.counts.tolist() == [10] * 4
    assert made(*file_source(tmp_path / "z.npy"), "data.scale=unit").resolved["data"]["path"] == str(tmp_path / "z.npy")
    (line,) = errors(*file_source(tmp_path / "y.npy"))
    assert line == f'data.path = "{tmp_path / "y.npy"}": there is no such file'.replace('"', "'")


def file_source(path: Path) -> tuple[str, ...]:
    return "data.source=file", f"data.path='{path}'", "data.records=", "data.dimension="


def test_missing_public_data_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRIRFED_DATA", raising=False)
    monkeypatch.setattr("pri_rfed.data.download.cache_folder", lambda: tmp_path)
    found = errors("data.source=mnist", "data.records=", "data.dimension=", "run.rounds=0")
    assert "run.rounds = 0: must be at least 1" in found
    assert any("pri-rfed data get mnist" in line for line in found)


# Overrides and files


def test_overrides() -> None:
    tables: dict[str, Any] = {"run": {"name": "a"}, "data": {"partition": {"agents": 3}}}
    changed = override(
        tables, ["run.name=b-2", "run.seed=7", "data.partition.agents=5", "trainer.step_size.initial=0.5", "run.name=c"]
    )
    assert changed == {
        "run": {"name": "c", "seed": 7},
        "data": {"partition": {"agents": 5}},
        "trainer": {"step_size": {"initial": 0.5}},
    }
    assert tables == {"run": {"name": "a"}, "data": {"partition": {"agents": 3}}}, "the argument is left as it was"
    assert override(tables, ["data.partition="]) == {"run": {"name": "a"}, "data": {}}
    with pytest.raises(ConfigError) as caught:
        override(tables, ["rounds=3", "run.rounds", "run.rounds=[1", "run.name.x=1"])
    assert caught.value.errors == [
        "--set rounds=3: must be of the form section.key=value",
        "--set run.rounds: must be of the form section.key=value",
        "--set run.rounds=[1: [1 is no TOML value",
        "--set run.name.x=1: name is no table",
    ]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[run\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: .*line 1"):
        read_toml(tmp_path / "broken.toml")


def shipped() -> list[Path]:
    """The configurations that `pri-rfed run` takes; others are for other commands."""
    return [path for path in sorted((ROOT / "configs").glob("*.toml")) if "run" in read_toml(path)]


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_shipped_configurations_say_what_they_are(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ") and f"pri-rfed run configs/{path.name}" in text
    assert {"run", "problem", "data", "trainer", "privacy"} <= set(tomllib.loads(text))


def test_an_option_has_one_home() -> None:
    built = build("trainer", DPRSGD, {"noise": 1, "steps": 2})
    assert built.value == DPRSGD(noise=1.0, steps=2)
    assert set(built.table) == set(DPRSGD.__dataclass_fields__) - {"clip", "nominal"}, "those have no value"


def test_a_batch_too_large_is_told_beside_mistakes_in_the_same_section():
    tables = {
        "run": {"name": "x", "rounds": 2},
        "problem": {"name": "principal-eigenvector"},
        "data": {"source": "digits", "partition": {"name": "iid", "agents": 10}},
        "trainer": {"name": "dp-rsgd", "batch": 2000, "stps": 2, "clip": "a"},
        "privacy": {"epsilon": 1.0, "delta": 2.0},
    }
    with pytest.raises(ConfigError) as raised:
        load(tables, DataFolders(None))
    told = {error.split()[0].rstrip(":") for error in raised.value.errors}
    assert told == {"trainer.batch", "trainer.stps", "trainer.clip", "privacy.delta"}
