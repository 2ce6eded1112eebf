"""`pri-rfed client`: agents that take part in a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pri_rfed.commands.server import check_addresses


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
    check_addresses(server=server, health=health)
    _quiet()
    from clients.process import configure_logging, serve

    configure_logging()
    raise typer.Exit(serve(server, ca, key, policies, health))


def _quiet() -> None:
    """Keep Flower from connecting to anybody but the server."""
    import os

    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def join() -> None:
    """Take part in a rehearsal in containers, which meet in the folder PRIRFED_MEETING."""
    from pri_rfed.meeting import folder

    meeting = folder()
    _quiet()
    from clients.meeting import join as take_part
    from clients.process import configure_logging

    configure_logging()
    raise typer.Exit(take_part(meeting))


def health(address: Annotated[str, typer.Argument(help="HOST:PORT of a gRPC health service without TLS.")]) -> None:
    """Ask a health service whether its process serves; exit status 0 if it does."""
    import grpc
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from grpc_health.v1.health_pb2_grpc import HealthStub

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            status = HealthStub(channel).Check(HealthCheckRequest(), timeout=5).status
        except grpc.RpcError as error:
            typer.echo(f"{address}: {error.code()}", err=True)
            raise typer.Exit(1) from None
    raise typer.Exit(0 if status == HealthCheckResponse.SERVING else 1)
