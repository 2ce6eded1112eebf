"""Experiments of the publications: the mechanism that all share, and every one of them with its quick settings."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from conftest import DATA, ROOT
from matplotlib.figure import Figure
from typer.testing import CliRunner

from pri_rfed.cli import app
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import ConfigError
from pri_rfed.reproductions import EXPERIMENTS
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row
from pri_rfed.reproductions.runner import PAGE, ResultFolder, key_of, missing_data, reproduce, settings_of

NAMES = list(EXPERIMENTS)
WITH_DATA = [name for name in NAMES if not missing_data(EXPERIMENTS[name], DataFolders(DATA))]


@dataclass(frozen=True, kw_only=True)
class Squares(Reproduction):
    """Counts how often its cells were measured, in a file."""

    name: ClassVar[str] = "squares"
    title: ClassVar[str] = "Squares"
    paper: ClassVar[Paper] = Paper.PRIRFED
    shows: ClassVar[str] = "nowhere"
    statement: ClassVar[str] = "Squares grow."

    log: str
    fails_at: int = -1

    def cells(self) -> Sequence[Cell]:
        return [{"x": x} for x in range(6)]

    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        if cell["x"] == self.fails_at:
            raise KeyboardInterrupt
        with Path(self.log).open("a") as file:
            file.write(f"{cell['x']}\n")
        return [{"power": 2, "value": cell["x"] ** 2}, {"power": 3, "value": cell["x"] ** 3}]

    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        figure.subplots().plot([row["x"] for row in rows], [row["value"] for row in rows])

    def compare(self, rows: Sequence[Row]) -> str:
        return f"The largest is {max(row['value'] for row in rows)}."


def test_results_are_files_in_the_order_of_cells(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "squares")
    said: list[tuple[int, int]] = []
    experiment = Squares(log=str(tmp_path / "log"))
    summary = reproduce(experiment, folder, DataFolders(), report=lambda p: said.append((p.done, p.cells)))
    assert said == [(i, 6) for i in range(7)]
    table = list(csv.DictReader((folder.path / "table.csv").open()))
    assert [(row["x"], row["power"], row["value"]) for row in table[-2:]] == [("5", "2", "25"), ("5", "3", "125")]
    assert summary == json.loads((folder.path / "summary.json").read_text())
    assert summary["outcome"] == "The largest is 125."
    assert {path.name for path in folder.path.iterdir()} == {
        "cells.jsonl", "figure.png", "figure.svg", "settings.toml", "summary.json", "table.csv",
    }  # fmt: skip


@pytest.mark.parametrize("jobs", [1, 2])
def test_it_goes_on_with_what_is_missing(tmp_path: Path, jobs: int) -> None:
    log, folder = tmp_path / "log", ResultFolder(tmp_path / "squares")
    with pytest.raises(KeyboardInterrupt):
        reproduce(Squares(log=str(log), fails_at=3), folder, DataFolders())
    assert log.read_text().split() == ["0", "1", "2"]
    assert folder.summary() is None
    with (folder.path / "cells.jsonl").open("a") as file:
        file.write('{"cell": "{\\"x\\": 3}", "ro')  # the process died while it wrote
    with pytest.raises(ConfigError, match="other settings"):
        reproduce(Squares(log=str(log)), folder, DataFolders())
    settings = folder.path / "settings.toml"
    mended = settings.read_text().replace("fails_at = 3", "fails_at = -1")
    settings.write_text("\n".join(reversed(mended.splitlines())))  # the same settings in another order
    reproduce(Squares(log=str(log)), folder, DataFolders(), jobs=jobs)
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3", "4", "5"]
    reproduce(Squares(log=str(log)), folder, DataFolders())
    assert len(log.read_text().split()) == 6, "a finished experiment is not measured again"
    table = list(csv.DictReader((folder.path / "table.csv").open()))
    assert [row["x"] for row in table[::2]] == ["0", "1", "2", "3", "4", "5"]


def test_missing_data_are_said_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Squares, "data", ("mnist", "emg"))
    monkeypatch.setattr("pri_rfed.data.download.cache_folder", lambda: tmp_path / "none")
    monkeypatch.delenv("PRIRFED_DATA", raising=False)
    with pytest.raises(ConfigError, match=r"data get mnist(.|\n)*data get emg"):
        reproduce(Squares(log=str(tmp_path / "log")), ResultFolder(tmp_path / "squares"), DataFolders())
    assert not (tmp_path / "squares").exists()


@pytest.mark.parametrize("name", NAMES)
def test_settings(name: str) -> None:
    """Every experiment has a configuration, whose quick settings differ, and says what it is."""
    experiment = EXPERIMENTS[name]
    full, quick = settings_of(name, quick=False), settings_of(name, quick=True)
    assert full != quick
    keys = [key_of(cell) for cell in full.cells()]
    assert 0 < len(set(keys)) == len(keys)
    assert (ROOT / "configs" / "reproduce" / f"{name}.toml").read_text().startswith("# ")
    assert experiment.statement.endswith(".") and experiment.title and experiment.__doc__


def test_every_configuration_has_its_experiment() -> None:
    assert sorted(path.stem for path in (ROOT / "configs" / "reproduce").glob("*.toml")) == sorted(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_DATA)
def test_quick(name: str, tmp_path: Path) -> None:
    """The command, from the configuration to the page."""
    arguments = ["reproduce", name, "--quick", "--out", str(tmp_path)] + (["--data-dir", str(DATA)] if DATA else [])
    said = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert said.exit_code == 0, said.output
    summary = json.loads((tmp_path / name / "summary.json").read_text())
    assert summary["outcome"].endswith((".", ")")) and "nan" not in summary["outcome"].split()
    assert f"({name}/figure.png)" in (tmp_path / PAGE).read_text()


def test_mistakes_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean prirfed-table"):
        settings_of("prirfed-tables", quick=False)
    with pytest.raises(ConfigError, match=r"settings\.seed: unknown key; did you mean seeds"):
        settings_of("prirfed-table", quick=False, assignments={"seed": 3})
    with pytest.raises(ConfigError, match=r"delta = 2"):
        settings_of("prirfed-table", quick=False, assignments={"delta": 2.0})
    with pytest.raises(ConfigError, match=r"settings\.seeds = 0: must be at least 1"):
        settings_of("sampling-alpha", quick=False, assignments={"seeds": 0})
    with pytest.raises(ConfigError, match=r"settings\.plans = \[\]: must not be empty"):
        settings_of("prirfed-table", quick=False, assignments={"plans": []})
