"""On the port that others reach there is the Fleet API of registered clients, and nothing else."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pri_rfed import keys
from server.proxy import LARGEST_BODY, PATHS, FleetProxy
from server.superlink import SuperLink, free_port, start_process, stop, tail

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("proxy")
    keys.make_authority(path)
    keys.make_server_certificate(path, ["127.0.0.1", "localhost"])
    return path


@pytest.fixture(scope="module")
def superlink(folder: Path) -> Iterator[SuperLink]:
    with SuperLink(folder, folder, folder / "superlink.log") as link:
        yield link


@pytest.fixture(scope="module")
def port(folder: Path, superlink: SuperLink) -> Iterator[str]:
    """HOST:PORT of a proxy in front of a SuperLink."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "server.proxy", "--keys", str(folder), "--listen", address]
    process = start_process([*command, "--superlink", superlink.address], folder / "proxy.log")
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.post(f"https://{address}/", verify=str(folder / keys.AUTHORITY), trust_env=False)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline and process.poll() is None, tail(folder / "proxy.log")
                time.sleep(0.1)
        yield address
    finally:
        stop(process)


@pytest.fixture
def client(folder: Path) -> Iterator[httpx.Client]:
    with httpx.Client(verify=str(folder / keys.AUTHORITY), trust_env=False, timeout=30) as made:
        yield made


def test_the_superlink_itself_answers_anybody(superlink: SuperLink, client: httpx.Client) -> None:
    """Why there is a proxy: the Control API asks for no credentials."""
    answer = client.post(f"https://{superlink.address}/v1/control/list-runs", content=b"", headers=PROTOBUF)
    assert answer.status_code == 200


PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/openapi.json",
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/v1/runtime/push-messages",
        "/v1/fleet/register-node",
        "/v1/fleet/get-fab",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "//v1/control/list-runs",
        "/v1//control/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages?x=1",
        "/v1/fleet/Pull-Messages",
        "/V1/fleet/pull-messages",
    ],
)
def test_everything_else_ends_at_the_proxy(path: str, port: str, client: httpx.Client) -> None:
    request = client.build_request("POST", f"https://{port}/", content=b"", headers=PROTOBUF)
    # As it stands, without httpx putting the path in order.
    request.extensions = {**request.extensions, "target": path.encode()}
    answer = client.send(request)
    assert answer.status_code == 403 and not answer.content


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_end_at_the_proxy(method: str, port: str, client: httpx.Client) -> None:
    assert client.request(method, f"https://{port}/v1/fleet/pull-messages").status_code == 405


def test_large_bodies_end_at_the_proxy(port: str, client: httpx.Client) -> None:
    answer = client.post(f"https://{port}/v1/fleet/push-object", content=bytes(LARGEST_BODY + 1))
    assert answer.status_code == 413


def test_bodies_that_never_end_take_no_more_memory_than_is_set_apart(folder: Path) -> None:
    proxy = FleetProxy("https://127.0.0.1:9", folder / keys.AUTHORITY, largest_total=3 << 20, longest=0.3)
    scope = {"type": "http", "raw_path": b"/v1/fleet/push-object", "query_string": b"", "method": "POST", "headers": []}

    async def send_a_part(end: bool) -> int:
        """The status of a request with a body of 1 MiB, whether or not it ends there."""
        parts = [{"type": "http.request", "body": bytes(1 << 20), "more_body": not end}]
        answered: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return parts.pop() if parts else await asyncio.get_running_loop().create_future()

        async def send(message: dict[str, Any]) -> None:
            answered.append(message)

        await proxy(scope, receive, send)
        return int(answered[0]["status"])

    async def all_at_once() -> list[int]:
        return await asyncio.gather(*(send_a_part(end=False) for _ in range(5)))

    async def both() -> tuple[list[int], int]:
        return await all_at_once(), await send_a_part(end=True)

    statuses, after = asyncio.run(both())
    assert sorted(statuses) == [408, 408, 408, 503, 503]
    assert after == 503 and proxy._held == 0, "there is no SuperLink; but there is room again"


@pytest.mark.parametrize("path", sorted(PATHS))
def test_without_a_registered_key_there_is_no_call(path: str, port: str, client: httpx.Client) -> None:
    answer = client.post(f"https://{port}{path}", content=b"", headers=PROTOBUF)
    assert answer.status_code == 401


def test_plain_text_is_turned_away(port: str) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{port}/v1/fleet/pull-messages", trust_env=False)


def test_another_authority_is_not_trusted(port: str, tmp_path: Path) -> None:
    keys.make_authority(tmp_path)
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.post(f"https://{port}/v1/fleet/pull-messages", verify=str(tmp_path / keys.AUTHORITY), trust_env=False)
