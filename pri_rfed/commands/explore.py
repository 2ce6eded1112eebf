"""`pri-rfed explore`: try settings on a local page, and follow a run while it goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pri_rfed.commands.data import DataDir

if TYPE_CHECKING:
    from pri_rfed.data.download import DataFolders
    from pri_rfed.explorer.app import Explored


def explore(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN|SWEEP|CONFIG]",
            help="Folder of a run, finished or going on; or of a sweep; or a configuration. Default: synthetic data.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Serve a page on which settings are tried: privacy at once, utility by simulation. Ctrl-C ends it."""
    from pri_rfed.explorer.app import is_loopback, serve

    explored = explored_of(source, data_dir)
    if not is_loopback(host):
        print(
            f"note: everybody who can reach {host} can see this page, diagnostics of the run that are not private "
            "included, and can start simulations on this machine; there is no password, and nothing is encrypted",
            file=sys.stderr,
        )
    serve(explored, host, port, lambda address: print(f"{address}  (Ctrl-C ends it)", flush=True))


def explored_of(source: Path | None, data_dir: Path | None) -> Explored:
    """What the page is to show."""
    from pri_rfed.data.download import DataFolders
    from pri_rfed.experiment.folder import RunFolder
    from pri_rfed.experiment.report import is_sweep
    from pri_rfed.explorer.app import Explored
    from pri_rfed.explorer.following import Follower
    from pri_rfed.explorer.setting import Base, read_config

    folders = DataFolders(data_dir)
    if source is None:
        return Explored(Base.synthetic(), data_dir=data_dir)
    if not source.is_dir():
        tables = read_config(source)
        return Explored(Base.of_tables(tables["run"]["name"], tables, None, folders), data_dir=data_dir)
    if is_sweep(source):
        return _of_sweep(source, folders, data_dir)
    folder = RunFolder.open(source)
    follower = Follower(folder)
    try:
        return Explored(Base.of_run(folder, folders), run=follower, data_dir=data_dir)
    except ValueError as error:
        note = f"The settings below are not those of this run: {error}."
        return Explored(Base.synthetic(), run=follower, data_dir=data_dir, note=note)


def _of_sweep(source: Path, folders: DataFolders, data_dir: Path | None) -> Explored:
    """The page begins with the sweep's first point."""
    from pri_rfed.experiment.sweep import SweepFolder
    from pri_rfed.experiment.sweep_report import utility
    from pri_rfed.explorer.app import Explored
    from pri_rfed.explorer.setting import Base

    folder = SweepFolder.open(source)
    points = utility(folder)
    try:
        base = Base.of_tables(folder.sweep.name, folder.points[0].tables, None, folders)
        return Explored(base, utility=points, data_dir=data_dir)
    except ValueError as error:
        note = f"The settings below are not those of this sweep: {error}."
        return Explored(Base.synthetic(), utility=points, data_dir=data_dir, note=note)
