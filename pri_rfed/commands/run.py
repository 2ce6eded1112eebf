"""`pri-rfed run` and `pri-rfed resume`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pri_rfed.commands.data import DataDir

if TYPE_CHECKING:
    from pri_rfed.experiment.config import Experiment
    from pri_rfed.experiment.folder import RunFolder
    from pri_rfed.experiment.run import NamedRuntime, Progress

RUNTIMES = ("simulation", "grid", "flower", "containers")

SECONDS_BETWEEN_LINES = 2.0

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, the last line on stdout, and no summary.")]


RuntimeName = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="Where agents train: all at once in this process (simulation), in this process but by messages, as in a "
        "federation (grid), in processes of their own, over TLS (flower), or in containers of their own (containers, "
        "which `docker compose up` uses).",
    ),
]
Clients = Annotated[int | None, typer.Option(help="Number of clients that agents are divided among. Without it: 4.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.SUB=VALUE",
        help="Override an entry of the configuration, or remove it: KEY.SUB= and no value. Repeatable.",
    ),
]


def run(
    config: Annotated[Path, typer.Argument(help="Configuration, a TOML file; see the folder configs.")],
    runtime: RuntimeName = RUNTIMES[0],
    clients: Clients = None,
    assignments: Assignments = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; new or empty. Without it: runs/NAME-TIME.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the simulation; overrides run.seed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a configuration: private federated learning, all of it on this machine."""
    from pri_rfed.data.download import DataFolders
    from pri_rfed.experiment.config import load, read_run
    from pri_rfed.experiment.folder import RunFolder, check_out
    from pri_rfed.experiment.run import start

    _check_runtime(runtime, clients)
    check_out(out)
    with interruptible():
        tables = read_run(config, assignments or [])
        if seed is not None and isinstance(tables["run"], dict):
            tables["run"]["seed"] = seed
        experiment = load(tables, DataFolders(data_dir))
        folder = RunFolder.create(experiment.run.name, out)
        with show_progress(runtime != RUNTIMES[0]) as report:
            summary = start(experiment, folder, report, _runtime(runtime, experiment, clients, folder))
        tell(folder, summary, as_json)


def resume(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run that was interrupted.")],
    runtime: RuntimeName = RUNTIMES[0],
    clients: Clients = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted run. A simulation comes to the result that it would have had unbroken; in the other
    runtimes agents are drawn anew for a round that was under way, since some may have trained for it."""
    from pri_rfed.data.download import DataFolders
    from pri_rfed.experiment.config import load, read_toml
    from pri_rfed.experiment.folder import RunFolder, versions
    from pri_rfed.experiment.run import command_to_go_on
    from pri_rfed.experiment.run import resume as go_on

    _check_runtime(runtime, clients)
    folder = RunFolder.open(run_dir)
    summary = folder.read("summary.json")
    if summary is not None:
        print(f"{run_dir}: this run is finished, there is nothing to resume", file=sys.stderr)
        tell(folder, summary, as_json)
        return
    if (command := command_to_go_on(folder)) != f"pri-rfed resume {run_dir}":
        raise ValueError(f"{run_dir}: a server's run, whose records are with their owners; it goes on with `{command}`")
    for name, before in (folder.read("versions.json") or {}).items():
        now = versions().get(name)
        if now != before:
            print(f"note: {name} was {before} and is {now}; the result may differ in its last digits", file=sys.stderr)
    with interruptible():
        experiment = load(read_toml(folder.config), DataFolders(data_dir))
        with show_progress(runtime != RUNTIMES[0]) as report:
            summary = go_on(experiment, folder, report, _runtime(runtime, experiment, clients, folder))
        tell(folder, summary, as_json)


def _check_runtime(name: str, clients: int | None) -> None:
    if name not in RUNTIMES:
        raise ValueError(f"--runtime {name}: there is only {', '.join(RUNTIMES)}")
    if clients is not None and name not in ("grid", "flower"):
        raise ValueError(f"--clients {clients}: --runtime {name} does not take it; grid and flower do")


def _runtime(name: str, experiment: Experiment, clients: int | None, folder: RunFolder) -> NamedRuntime:
    """The runtime of that name, for this experiment."""
    from pri_rfed.experiment.run import SIMULATION, NamedRuntime

    if name == SIMULATION.name:
        return SIMULATION
    from pri_rfed.experiment.federation import Exchange
    from server.rehearsal import in_process, over_containers, over_flower

    logs = folder.path / "logs"
    if name == "containers":
        from pri_rfed.meeting import folder as meeting

        return NamedRuntime(name, over_containers(experiment, meeting(), Exchange(), logs))
    number = min(4, len(experiment.agents)) if clients is None else clients
    if name == "grid":
        from clients.app import app

        return NamedRuntime(name, in_process(experiment, app, number, Exchange()))
    return NamedRuntime(name, over_flower(experiment, number, Exchange(), logs))


def tell(folder: RunFolder, summary: dict[str, Any], as_json: bool) -> None:
    """Print what came of a run: its summary as JSON, or in words."""
    from pri_rfed.experiment.run import in_words

    if as_json:
        typer.echo(json.dumps(summary, allow_nan=False))
    else:
        typer.echo(in_words(summary, folder.read("privacy.json") or {}))


@contextmanager
def interruptible(how: str | None = None) -> Iterator[None]:
    """Ctrl-C, and SIGTERM, end with a message and exit code 130, a run that cannot go on with exit code 1. how: to
    continue."""
    from pri_rfed.experiment.run import Interrupted, stoppable

    try:
        with stoppable():
            yield
    except Interrupted as stop:
        how = how or f"continue with: pri-rfed resume {stop.folder.path}"
        said = "interrupted" if stop.reason is None else f"{stop.reason}\nstopped"
        print(f"\n{said} after round {stop.round}; {how}", file=sys.stderr)
        raise typer.Exit(130 if stop.reason is None else 1) from None
    except KeyboardInterrupt:
        print("\ninterrupted before the run began", file=sys.stderr)
        raise typer.Exit(130) from None


@contextmanager
def show_progress(slow: bool) -> Iterator[Callable[[Progress], None]]:
    """A progress bar on stderr, where that is a terminal; elsewhere, for a slow run, a line every few seconds."""
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
        said = -SECONDS_BETWEEN_LINES

        def report(progress: Progress) -> None:
            fields: dict[str, Any] = {"epsilon": f"{progress.epsilon:.4g}".replace("inf", "∞")}
            if progress.cost is not None:
                fields["cost"] = f"{progress.cost:.6g}"
            nonlocal said
            last = progress.round == progress.rounds
            if slow and not console.is_terminal and (last or time.monotonic() - said >= SECONDS_BETWEEN_LINES):
                said = time.monotonic()
                shown = f"cost {fields.get('cost', '–')}  ε spent {fields['epsilon']}"
                print(f"round {progress.round}/{progress.rounds}  {shown}", file=sys.stderr, flush=True)
            bar.update(task, completed=progress.round, total=progress.rounds, **fields)

        yield report
