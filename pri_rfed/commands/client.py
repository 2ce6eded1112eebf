"""`pri-rfed client`: agents that take part in a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def client(
    policies: Annotated[
        Path, typer.Argument(help="The owner's policy, a TOML file; or a folder of them, one for each agent.")
    ],
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    ca: Annotated[Path, typer.Option(help="The federation's certificate authority, ca.crt.")],
    key: Annotated[Path, typer.Option(help="This client's private key, made with `pri-rfed keys client`.")],
    health: Annotated[
        str | None, typer.Option(help="HOST:PORT of a gRPC health service for this machine's supervisor, without TLS.")
    ] = None,
) -> None:
    """Take part in a federation, as far as the owner's policy and ledger allow; runs until it is stopped."""
    import os

    for name, value in (("FLWR_TELEMETRY_ENABLED", "0"), ("FLWR_DISABLE_UPDATE_CHECK", "1")):
        os.environ.setdefault(name, value)
    from clients.process import configure_logging, serve

    configure_logging()
    raise typer.Exit(serve(server, ca, key, policies, health))
