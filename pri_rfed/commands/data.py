"""`pri-rfed data`: public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Download public data sets, or see where they are.", no_args_is_help=True)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with data files. Without it: PRIRFED_DATA, then the cache of `pri-rfed data get`."),
]


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="Name of the data set; `pri-rfed data list` shows them.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where to put it. Without it: a cache folder.")] = None,
) -> None:
    """Download a public data set and check its files against known checksums."""
    from pri_rfed.data.download import cache_folder, fetch

    for path in fetch(name, data_dir or cache_folder()):
        typer.echo(path)


@app.command("list")
def list_data(
    data_dir: DataDir = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the files at hand with known checksums.")] = False,
) -> None:
    """Show the public data sets, and whether files of their names are at hand."""
    from rich.console import Console
    from rich.table import Table

    from pri_rfed.data.download import PUBLIC_DATA, DataFolders

    folders = DataFolders(data_dir)
    table = Table("name", "what", "licence", "at hand", box=None, pad_edge=False)
    doubts: list[str] = []
    for name, data in PUBLIC_DATA.items():
        reasons = folders.unverified(name) if verify and folders.has(name) else []
        found = "no" if not folders.has(name) else "not verified" if reasons else "verified" if verify else "yes"
        table.add_row(name, data.description, data.licence, found)
        doubts += reasons
    Console().print(table)
    typer.echo("\n".join(doubts), nl=bool(doubts))
    typer.echo("looked for in " + ", ".join(map(str, folders.folders)))
    if not verify:
        typer.echo("by name alone; --verify compares checksums")
