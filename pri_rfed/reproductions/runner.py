"""Run an experiment of a publication, keep what was measured, and write it up.

    RESULTS/README.md            all experiments that are there: figure, sentence, command, time
    RESULTS/NAME/settings.toml   the settings; with others, nothing is added to the folder
    RESULTS/NAME/cells.jsonl     one line a cell that was measured, appended: a second call goes on from there
    RESULTS/NAME/table.csv       all rows
    RESULTS/NAME/figure.png|svg
    RESULTS/NAME/summary.json    the outcome in words, settings, versions, seconds; its presence says it is finished
"""

from __future__ import annotations

import csv
import io
import json
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import tomli_w

from pri_rfed.data.download import PUBLIC_DATA, DataFolders
from pri_rfed.experiment.config import ConfigError
from pri_rfed.experiment.folder import append_line, mend_lines, read_lines, to_json, versions
from pri_rfed.experiment.options import build, suggestion
from pri_rfed.experiment.plots import drawing
from pri_rfed.files import write_atomically
from pri_rfed.reproductions import EXPERIMENTS
from pri_rfed.reproductions.base import Cell, Paper, Reproduction, Row

PAGE = "README.md"


def settings_of(name: str, quick: bool, assignments: Mapping[str, Any] | None = None) -> Reproduction:
    """The experiment of that name with the settings of its configuration: the section [settings], with `quick` those of
    [quick] on top, and the assignments on top of all. Raises ConfigError with everything that is wrong."""
    if name not in EXPERIMENTS:
        raise ConfigError([f"{name}: there is no such experiment; {suggestion(name, EXPERIMENTS)}"])
    tables = tomllib.loads(_configuration(name).read_text(encoding="utf-8"))
    settings = tables.get("settings", {}) | (tables.get("quick", {}) if quick else {}) | dict(assignments or {})
    built = build("settings", EXPERIMENTS[name], settings)
    if built.value is None or built.errors:
        raise ConfigError(built.errors)
    errors = [f"settings.{key} = []: must not be empty" for key, value in built.table.items() if value in ([], ())]
    if built.value.seeds < 1:
        errors.append(f"settings.seeds = {built.value.seeds}: must be at least 1")
    if errors:
        raise ConfigError(errors)
    return built.value


def _configuration(name: str) -> Traversable:
    """configs/reproduce/NAME.toml, wherever that is installed."""
    return resources.files("configs") / "reproduce" / f"{name}.toml"


def missing_data(experiment: type[Reproduction], folders: DataFolders) -> list[str]:
    """What has to be downloaded first."""
    return [name for name in experiment.data if not folders.has(name, PUBLIC_DATA)]


@dataclass(frozen=True)
class Progress:
    """done of cells are measured; `cell` was the last one."""

    done: int
    cells: int
    cell: Cell | None


@dataclass(frozen=True)
class ResultFolder:
    """The folder of one experiment."""

    path: Path
    quick: bool = False

    def summary(self) -> dict[str, Any] | None:
        """The outcome; None where the experiment is not finished."""
        file = self.path / "summary.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    def prepare(self, settings: str) -> None:
        """Make the folder. Raises ConfigError if it holds measurements with other settings."""
        file = self.path / "settings.toml"
        if file.is_file() and tomllib.loads(file.read_text(encoding="utf-8")) != tomllib.loads(settings):
            raise ConfigError(
                [f"{self.path} holds measurements with other settings ({file}); choose another --out, or remove it"]
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(file, settings.encode())
        mend_lines(self._file)

    def measured(self) -> dict[str, dict[str, Any]]:
        """Rows and seconds of the cells that were measured, by `key_of` the cell."""
        return {line["cell"]: line for line in read_lines(self._file)}

    def append(self, key: str, rows: Sequence[Row], seconds: float) -> dict[str, Any]:
        """One more cell; returns it as `measured` will."""
        line = {"cell": key, "seconds": seconds, "rows": rows}
        append_line(self._file, line)
        measured: dict[str, Any] = json.loads(to_json(line))
        return measured

    @property
    def _file(self) -> Path:
        return self.path / "cells.jsonl"


def key_of(cell: Cell) -> str:
    """What tells the cell from all others, as a text."""
    return json.dumps(cell, sort_keys=True, ensure_ascii=False)


def reproduce(
    experiment: Reproduction,
    folder: ResultFolder,
    folders: DataFolders,
    *,
    jobs: int = 1,
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Measure all cells that are not in the folder yet, then write table, figure and summary; returns the summary.

    jobs: processes that measure at the same time, one where seconds are measured. Raises ConfigError as `prepare`, and
    before any work where data are missing.
    """
    if missing := missing_data(type(experiment), folders):
        where = ", ".join(map(str, folders.folders))
        raise ConfigError([f"{experiment.name} needs `pri-rfed data get {name}` (not in {where})" for name in missing])
    settings = tomli_w.dumps(build("settings", type(experiment), _fields(experiment)).table)
    folder.prepare(settings)
    if (summary := folder.summary()) is not None:
        return summary
    cells = {key_of(cell): cell for cell in experiment.cells()}
    done = folder.measured()
    todo = [cell for key, cell in cells.items() if key not in done]
    report(Progress(len(done), len(cells), None))
    for cell, rows, seconds in _measure(experiment, todo, folders, 1 if experiment.alone else jobs):
        done[key_of(cell)] = folder.append(key_of(cell), rows, seconds)
        report(Progress(len(done), len(cells), cell))
    table = [{**cell, **row} for key, cell in cells.items() for row in done[key]["rows"]]
    return _finish(experiment, folder, folders, table, sum(done[key]["seconds"] for key in cells))


def _fields(experiment: Reproduction) -> dict[str, Any]:
    return {name: getattr(experiment, name) for name in experiment.__dataclass_fields__}


def _measure(
    experiment: Reproduction, cells: Sequence[Cell], folders: DataFolders, jobs: int
) -> Iterator[tuple[Cell, Sequence[Row], float]]:
    """Every cell with its rows and the seconds that they took, as they get ready."""

    def one(cell: Cell) -> tuple[Cell, Sequence[Row], float]:
        began = time.perf_counter()
        return cell, experiment.measure(cell, folders), time.perf_counter() - began

    if jobs == 1 or len(cells) < 2:
        yield from map(one, cells)
        return
    from joblib import Parallel, delayed

    yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(one)(cell) for cell in cells)


def _finish(
    experiment: Reproduction, folder: ResultFolder, folders: DataFolders, rows: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder.path / "table.csv", table.getvalue().encode())
    with drawing(folder.path / "figure", experiment.size) as picture:
        experiment.draw(picture.figure, rows)
    summary = {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper.value,
        "shows": experiment.shows,
        "statement": experiment.statement,
        "outcome": experiment.compare(rows),
        "remarks": list(experiment.remarks(folders)),
        "quick": folder.quick,
        "command": command(experiment.name, folder.quick),
        "seconds": seconds,
        "settings": tomllib.loads((folder.path / "settings.toml").read_text(encoding="utf-8")),
        "versions": versions(),
    }
    write_atomically(folder.path / "summary.json", to_json(summary).encode())
    return summary


def command(name: str, quick: bool) -> str:
    """The command that runs the experiment."""
    return f"pri-rfed reproduce {name}{' --quick' if quick else ''}"


def write_page(results: Path) -> Path:
    """The page of all experiments that are finished in the folder."""
    found = [ResultFolder(results / name).summary() for name in EXPERIMENTS]
    path = results / PAGE
    write_atomically(path, page([summary for summary in found if summary is not None]).encode())
    return path


def page(summaries: Iterable[Mapping[str, Any]]) -> str:
    """The page, in Markdown: an experiment after another, under the publication that it is from."""
    by_paper: dict[str, list[Mapping[str, Any]]] = {paper.value: [] for paper in Paper}
    for summary in summaries:
        by_paper[summary["paper"]].append(summary)
    lines = [
        "# Experiments of the publications",
        "",
        "Each was run by the command that stands with it, on the machine that its `summary.json` names. What is said "
        "of a publication is what its text says, in our words; what came of it here is computed from the table beside "
        "the figure. Every ε is that of a sound accountant, unless it is said to be published.",
    ]
    for paper, experiments in by_paper.items():
        if experiments:
            lines += ["", f"## {paper}"]
        for summary in experiments:
            lines += _entry(summary)
    return "\n".join(lines) + "\n"


def _entry(summary: Mapping[str, Any]) -> list[str]:
    name = summary["name"]
    lines = [
        "",
        f"### {summary['title']}",
        "",
        f"{summary['shows']}; `{summary['command']}`, {_duration(summary['seconds'])}; "
        f"[table]({name}/table.csv), [settings]({name}/settings.toml)",
        "",
        f"![{summary['title']}]({name}/figure.png)",
        "",
        f"*Published:* {summary['statement']}",
        "",
        f"*Here:* {summary['outcome']}",
    ]
    if summary["remarks"]:
        lines += ["", *(f"- {remark}" for remark in summary["remarks"])]
    return lines


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
