"""`pri-rfed server`: the server of a federation. `pri-rfed keys`: certificates and keys for both sides."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from pri_rfed.commands.run import AsJson, interruptible, show_progress, tell

keys_app = typer.Typer(help="Make certificates and keys for a federation.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder for the files.")]


def check_addresses(**options: str | None) -> None:
    """Raises ValueError for an option that is no HOST:PORT."""
    wrong = [
        f"--{name} {value}: must be HOST:PORT, such as fl.example.org:8443, without https://"
        for name, value in options.items()
        if value is not None and not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}", value)
    ]
    if wrong:
        raise ValueError("\n".join(wrong))


def server(
    config: Annotated[Path, typer.Argument(help="The federation's configuration, a TOML file.")],
    keys: Annotated[Path, typer.Option(help="Folder with ca.crt, server.crt and server.key.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; a run that is not finished there is gone on with.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT that clients reach.")] = "0.0.0.0:8443",
    health: Annotated[
        str | None, typer.Option(help="HOST:PORT of a gRPC health service for this machine's supervisor, without TLS.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a federation whose agents are on other machines, until its rounds are done."""
    from pri_rfed.experiment.federation import open_run
    from pri_rfed.experiment.folder import check_out
    from pri_rfed.experiment.run import NamedRuntime, resume, start
    from pri_rfed.keys import AUTHORITY, SERVER, SERVER_KEY
    from server.deployment import over_network

    check_out(out)
    check_addresses(listen=listen, health=health)
    if missing := [name for name in (AUTHORITY, SERVER, SERVER_KEY) if not (keys / name).is_file()]:
        raise ValueError(f"--keys {keys}: holds no {' and no '.join(missing)}; `pri-rfed keys server` makes them")
    with interruptible(how=f"start it again with --out {out}, and it goes on"):
        federation, folder, begun = open_run(config, out)
        if begun:
            print(f"{out}: goes on with this run, by the configuration in it", file=sys.stderr)
        summary = folder.read("summary.json")
        if summary is None:
            runtime = NamedRuntime("server", over_network(federation, keys, listen, folder.path / "logs", health))
            with show_progress(slow=True) as report:
                summary = (resume if begun else start)(federation.experiment, folder, report, runtime)
        tell(folder, summary, as_json)


@keys_app.command("server")
def server_keys(
    folder: Folder,
    hosts: Annotated[
        list[str], typer.Option("--host", help="Name or address under which clients reach the server; repeatable.")
    ],
) -> None:
    """Make the federation's authority, unless FOLDER holds one, and a certificate for the server."""
    from pri_rfed import keys

    if not (folder / keys.AUTHORITY_KEY).exists():
        keys.make_authority(folder)
        typer.echo(f"{folder / keys.AUTHORITY}: give it to every client")
        typer.echo(f"{folder / keys.AUTHORITY_KEY}: keep it to yourself, away from the server if you can")
    keys.make_server_certificate(folder, hosts)
    typer.echo(f"{folder / keys.SERVER}, {folder / keys.SERVER_KEY}: for the server, as {', '.join(hosts)}")


@keys_app.command("client")
def client_key(path: Annotated[Path, typer.Argument(help="File for the private key.")]) -> None:
    """Make a client's key."""
    from pri_rfed import keys

    keys.make_client_key(path)
    typer.echo(f"{path}: keep it on this machine")
    typer.echo(f"{path}.pub: give it to the server's operator")
