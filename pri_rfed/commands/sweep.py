"""`pri-rfed sweep`: one configuration, varied."""

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
from pri_rfed.commands.run import SECONDS_BETWEEN_LINES, AsJson, Assignments

if TYPE_CHECKING:
    from pri_rfed.experiment.sweep_run import Progress

POINTS_TO_JUDGE_BY = 5
"""From fewer it is too early to say how long the others take: processes have to start first."""
MOST_ERRORS = 5
"""Of more different errors of points, the table has the others."""


def sweep(
    config: Annotated[Path, typer.Argument(help="Configuration, a TOML file; see the folder configs/tradeoffs.")],
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes at the same time. Without it: one a core.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="processes: on this machine; ray: on a Ray cluster, which has to be installed.")
    ] = "processes",
    assignments: Assignments = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the sweep; one that holds a part of it is continued. Without it: sweeps/NAME."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Compute points that failed again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a configuration many times, with other values of some entries: a table of what came of it, and pictures.

    After Ctrl-C, or worse, the same command goes on with the points that are missing.
    """
    from pri_rfed.data.download import DataFolders
    from pri_rfed.experiment.config import ConfigError, read_toml
    from pri_rfed.experiment.folder import check_out
    from pri_rfed.experiment.run import stoppable
    from pri_rfed.experiment.sweep import SweepFolder, parse
    from pri_rfed.experiment.sweep_run import Interrupted, check_backend, refusals, run_sweep

    check_backend(backend)
    try:
        described = parse(read_toml(config), config.parent, config.stem, assignments or [])
        varied = [each for each in assignments or [] if each.partition("=")[0].strip() in described.varied]
        if varied:
            raise ConfigError([f"--set {each}: it varies in this sweep; change it in [sweep]" for each in varied])
        check_out(out)
        refusals(described)  # nothing is written if no point can be run
        folder = SweepFolder.prepare(described, out or Path("sweeps") / described.name)
        folders = DataFolders(data_dir)
        with stoppable(), show_progress() as report:
            summary = run_sweep(folder, folders, jobs=jobs, backend=backend, retry=retry, report=report)
    except Interrupted as stop:
        print(f"\n{stop}; what was computed is kept, the same command goes on from there", file=sys.stderr)
        raise typer.Exit(1 if stop.__cause__ else 130) from None
    except KeyboardInterrupt:
        print("\ninterrupted; the same command starts again", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(summary, allow_nan=False))
    else:
        _tell(SweepFolder.open(folder.path), summary)
    if summary["failed"] == summary["points"]:
        raise typer.Exit(1)


def _tell(folder: Any, summary: dict[str, Any]) -> None:
    varied = ", ".join(summary["varied"]) or "nothing but the seed"
    typer.echo(f"{summary['name']}: {summary['done']} of {summary['points']} points in {summary['seconds']:.3g} s")
    typer.echo(f"  varied   {varied}; {summary['seeds']} seed{'s' if summary['seeds'] > 1 else ''}")
    if summary["failed"]:
        errors = dict.fromkeys(row["error"] for row in folder.table() if row["status"] == "failed")
        typer.echo(f"  failed   {summary['failed']}")
        for error in list(errors)[:MOST_ERRORS]:
            typer.echo(f"    {error}")
        if len(errors) > MOST_ERRORS:
            typer.echo(f"    and {len(errors) - MOST_ERRORS} other reasons")
    drawn = [name for name in summary["pictures"] if name.endswith(".png")]
    typer.echo(f"  pictures {', '.join(drawn) or 'none'}")
    for name, reason in summary["left_out"].items():
        typer.echo(f"    no {name}: {reason}")
    typer.echo(f"\nTable, curves and pictures are in {folder.path}")


@contextmanager
def show_progress() -> Iterator[Callable[[Progress], None]]:
    """A progress bar with the time that is left, on stderr, where that is a terminal; elsewhere a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("points"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, failed="")
        said, began, first = time.monotonic(), time.monotonic(), -1

        def report(progress: Progress) -> None:
            nonlocal said, first
            if first < 0:
                first = progress.done
            bar.update(
                task,
                completed=progress.done,
                total=progress.points,
                failed=f"{progress.failed} failed" if progress.failed else "",
            )
            now = time.monotonic()
            if not console.is_terminal and now - said >= SECONDS_BETWEEN_LINES and progress.done > first:
                said = now
                failed = f", {progress.failed} failed" if progress.failed else ""
                left = (now - began) / (progress.done - first) * (progress.points - progress.done)
                said_left = f", {left:.0f} s left" if progress.done - first >= POINTS_TO_JUDGE_BY else ""
                print(f"{progress.done}/{progress.points} points{failed}{said_left}", file=sys.stderr, flush=True)

        yield report
