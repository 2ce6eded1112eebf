"""`pri-rfed reproduce`: the experiments of the publications."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pri_rfed.commands.data import DataDir

if TYPE_CHECKING:
    from pri_rfed.reproductions.runner import Progress


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name of the experiment. Without it, and without --all: a list of them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All experiments whose data are at hand.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="With small settings: seconds, to see that it works.")] = False,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results. Without it: results, or results-quick.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that measure at the same time.")] = 1,
    data_dir: DataDir = None,
) -> None:
    """Run an experiment of a publication again: a table, a figure, and how they compare with what was published."""
    from pri_rfed.data.download import DataFolders
    from pri_rfed.experiment.config import override
    from pri_rfed.experiment.folder import check_out
    from pri_rfed.reproductions import EXPERIMENTS
    from pri_rfed.reproductions.runner import PAGE, ResultFolder, missing_data, settings_of, write_page
    from pri_rfed.reproductions.runner import reproduce as measure

    folders = DataFolders(data_dir)
    if name is None and not everything:
        if quick or assignments or out or jobs > 1:
            raise ValueError("name an experiment, or --all of them; without either, options have no meaning")
        _list(folders)
        return
    if name is not None and everything:
        raise ValueError("name an experiment, or --all of them, not both")
    if everything and assignments:
        raise ValueError("--set has a meaning for one experiment; name it")
    if wrong := [f"--set {each}: must be of the form key=value" for each in assignments or [] if "=" not in each]:
        raise ValueError("\n".join(wrong))
    names = list(EXPERIMENTS) if everything else [str(name)]
    given = override({}, [f"settings.{assignment}" for assignment in assignments or []]).get("settings", {})
    chosen = {each: settings_of(each, quick, given) for each in names}  # nothing runs if one of them is wrong
    results = out or Path("results-quick" if quick else "results")
    check_out(results)
    try:
        for each, experiment in chosen.items():
            if everything and (missing := missing_data(type(experiment), folders)):
                print(f"{each}: left out, needs pri-rfed data get {' '.join(missing)}", file=sys.stderr)
                continue
            with _show_progress(each) as report:
                summary = measure(experiment, ResultFolder(results / each, quick), folders, jobs=jobs, report=report)
            typer.echo(f"{each} ({summary['shows']}; {summary['seconds']:.0f} s)")
            typer.echo(f"  published  {summary['statement']}")
            typer.echo(f"  here       {summary['outcome']}")
            for remark in summary["remarks"]:
                typer.echo(f"  note       {remark}")
            write_page(results)
    except KeyboardInterrupt:
        print("\ninterrupted; what was measured is kept, the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    typer.echo(f"Tables and figures: {results / PAGE}")


def _list(folders: object) -> None:
    from rich.console import Console
    from rich.table import Table

    from pri_rfed.reproductions import EXPERIMENTS
    from pri_rfed.reproductions.runner import missing_data

    table = Table("name", "what", "to download first", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for name, experiment in EXPERIMENTS.items():
        missing = missing_data(experiment, folders)  # type: ignore[arg-type]
        table.add_row(name, f"{experiment.title} ({experiment.shows})", ", ".join(missing))
    Console().print(table)


@contextmanager
def _show_progress(name: str) -> Iterator[Callable[[Progress], None]]:
    """A progress bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[cell]}"),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None, cell="")

        def report(progress: Progress) -> None:
            cell = "" if progress.cell is None else " ".join(f"{k}={v}" for k, v in progress.cell.items())
            bar.update(task, completed=progress.done, total=progress.cells, cell=cell)

        yield report
