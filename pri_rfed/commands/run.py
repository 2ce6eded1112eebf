"""`pri-rfed run` and `pri-rfed resume`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pri_rfed.commands.data import DataDir

if TYPE_CHECKING:
    from pri_rfed.experiment.folder import RunFolder
    from pri_rfed.experiment.run import Progress

RUNTIMES = ("simulation",)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, the last line on stdout, and no summary.")]


def run(
    config: Annotated[Path, typer.Argument(help="Configuration, a TOML file; see the folder configs.")],
    runtime: Annotated[str, typer.Option(help=f"Where agents train: {', '.join(RUNTIMES)}.")] = RUNTIMES[0],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY.SUB=VALUE", help="Override an entry of the configuration; repeatable."),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; new or empty. Without it: runs/NAME-TIME.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the simulation; overrides run.seed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a configuration: private federated learning with all agents in one process."""
    from pri_rfed.data.download import DataFolders
    from pri_rfed.experiment.config import ConfigError, load, override, read_toml
    from pri_rfed.experiment.folder import RunFolder
    from pri_rfed.experiment.run import start

    if runtime not in RUNTIMES:
        raise ConfigError([f"--runtime {runtime}: there is only {', '.join(RUNTIMES)}"])
    with _interruptible():
        tables = read_toml(config)
        tables = override(tables, assignments or [])
        if isinstance(tables.setdefault("run", {}), dict):
            tables["run"].setdefault("name", config.stem)
            if seed is not None:
                tables["run"]["seed"] = seed
        experiment = load(tables, DataFolders(data_dir))
        folder = RunFolder.create(experiment.run.name, out)
        with _progress() as report:
            summary = start(experiment, folder, report)
        _tell(folder, summary, as_json)


def resume(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run that was interrupted.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted run: the result is the one that it would have had unbroken."""
    from pri_rfed.data.download import DataFolders
    from pri_rfed.experiment.config import load, read_toml
    from pri_rfed.experiment.folder import RunFolder, versions
    from pri_rfed.experiment.run import resume as go_on

    folder = RunFolder.open(run_dir)
    summary = folder.read("summary.json")
    if summary is not None:
        print(f"{run_dir}: this run is finished, there is nothing to resume", file=sys.stderr)
        _tell(folder, summary, as_json)
        return
    for name, before in (folder.read("versions.json") or {}).items():
        now = versions().get(name)
        if now != before:
            print(f"note: {name} was {before} and is {now}; the result may differ in its last digits", file=sys.stderr)
    with _interruptible():
        experiment = load(read_toml(folder.config), DataFolders(data_dir))
        with _progress() as report:
            summary = go_on(experiment, folder, report)
        _tell(folder, summary, as_json)


def _tell(folder: RunFolder, summary: dict[str, Any], as_json: bool) -> None:
    from pri_rfed.experiment.run import in_words

    if as_json:
        typer.echo(json.dumps(summary, allow_nan=False))
    else:
        typer.echo(in_words(summary, folder.read("privacy.json") or {}))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends with a message and exit code 130."""
    from pri_rfed.experiment.run import Interrupted

    try:
        yield
    except Interrupted as stop:
        how = f"continue with: pri-rfed resume {stop.folder.path}"
        print(f"\ninterrupted after round {stop.round}; {how}", file=sys.stderr)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        print("\ninterrupted before the run began", file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A progress bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("cost {task.fields[cost]}  ε spent {task.fields[epsilon]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, cost="–", epsilon="0")

        def report(progress: Progress) -> None:
            fields: dict[str, Any] = {"epsilon": f"{progress.epsilon:.4g}".replace("inf", "∞")}
            if progress.cost is not None:
                fields["cost"] = f"{progress.cost:.6g}"
            bar.update(task, completed=progress.round, total=progress.rounds, **fields)

        yield report
