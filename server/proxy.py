"""The one port that other machines reach: the Fleet API, and nothing else of a SuperLink.

A SuperLink has all its APIs on one port, one of them without any authentication. So it listens on the loopback
interface, and this proxy in front of it passes on exactly the calls that a registered client makes, by their full
names; everything else ends here. Clients prove who they are to the SuperLink, by a signature in every call.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from pri_rfed import keys

CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "pull-object",
    "push-object",
    "confirm-message-received",
)
"""What a client needs. Registering is the operator's, and code is not shipped."""
PATHS = frozenset(f"/v1/fleet/{call}" for call in CALLS)
LARGEST_BODY = 16 << 20
"""In bytes; Flower sends arrays in pieces of 5 MB."""
LARGEST_TOTAL = 512 << 20
"""Of all bodies that are held at a time, in bytes: who sends them is known only when they are passed on."""
LONGEST = 120.0
"""In seconds, for a body to arrive."""
_NOT_PASSED_ON = frozenset(
    (b"host", b"connection", b"transfer-encoding", b"content-length", b"expect", b"accept-encoding")
)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class FleetProxy:
    """An ASGI application that passes Fleet calls on to `target`, a base URL whose certificate `authority` signed."""

    def __init__(self, target: str, authority: Path, largest_total: int = LARGEST_TOTAL, longest: float = LONGEST):
        self._target, self._largest_total, self._longest = target, largest_total, longest
        self._held = 0
        self._client = httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=str(authority)), timeout=60.0, trust_env=False
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._pass_on(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = (await receive())["type"]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                await self._client.aclose()
                return

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path as it was sent, before anything is decoded or put in order.
        path = scope.get("raw_path", b"").decode("latin-1")
        if path not in PATHS or scope["query_string"]:
            return await _end(send, 403)
        if scope["method"] != "POST":
            return await _end(send, 405)
        body = bytearray()
        try:
            async with asyncio.timeout(self._longest):
                refused = await self._collect(body, receive)
            if refused is not None:
                return await _end(send, refused)
            return await self._ask(path, scope, bytes(body), send)
        except TimeoutError:
            return await _end(send, 408)
        except _Disconnected:
            return None
        finally:
            self._held -= len(body)

    async def _collect(self, body: bytearray, receive: Receive) -> int | None:
        """Fill in the body; the status to refuse it with, where it is too much."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            part = message.get("body", b"")
            body += part
            self._held += len(part)
            more = message.get("more_body", False)
            if len(body) > LARGEST_BODY:
                return 413
            if self._held > self._largest_total:
                return 503
        return None

    async def _ask(self, path: str, scope: Scope, body: bytes, send: Send) -> None:
        """What the SuperLink answers, passed back."""
        headers = [pair for pair in scope["headers"] if pair[0].lower() not in _NOT_PASSED_ON]
        headers.append((b"accept-encoding", b"identity"))
        try:
            answer = await self._client.post(f"{self._target}{path}", content=body, headers=headers)
        except httpx.HTTPError:
            return await _end(send, 503)
        kept = [(name, value) for name, value in answer.headers.raw if name.lower() not in _NOT_PASSED_ON]
        await _end(send, answer.status_code, answer.content, kept)
        return None


class _Disconnected(Exception):
    """The client has left."""


async def _end(send: Send, status: int, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> None:
    headers = [*(headers or []), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Run the proxy: `python -m server.proxy --keys FOLDER --listen HOST:PORT --superlink HOST:PORT`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=Path, required=True, help="folder with ca.crt, server.crt and server.key")
    parser.add_argument("--listen", required=True, help="HOST:PORT that other machines reach")
    parser.add_argument("--superlink", required=True, help="HOST:PORT of the SuperLink")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    uvicorn.run(
        FleetProxy(f"https://{options.superlink}", options.keys / keys.AUTHORITY),
        host=host.strip("[]"),
        port=int(port),
        ssl_certfile=str(options.keys / keys.SERVER),
        ssl_keyfile=str(options.keys / keys.SERVER_KEY),
        access_log=False,
        server_header=False,
        log_level="warning",
        timeout_keep_alive=75,
        limit_concurrency=1000,
    )


if __name__ == "__main__":
    main()
