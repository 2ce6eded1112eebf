"""The explorer's pages and figures over HTTP, for the person at this machine.

Nobody logs in, so everything rests on who can send requests. It listens on this machine alone unless told otherwise; a
request that names another host is refused (a page elsewhere whose name is made to point here), and so is one that would
start something and comes from another page. The pages themselves may talk to nobody else (Content-Security-Policy).
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pri_rfed.experiment.folder import without_infinities
from pri_rfed.experiment.report import TEMPLATES, plotly_js
from pri_rfed.explorer import figures
from pri_rfed.explorer.following import Follower
from pri_rfed.explorer.setting import LARGEST, Base, Setting
from pri_rfed.explorer.trials import Trials

STATIC = Path(__file__).parent / "static"
FILES = {
    "/": (STATIC / "index.html", "text/html"),
    "/explorer.css": (STATIC / "explorer.css", "text/css"),
    "/explorer.js": (STATIC / "explorer.js", "text/javascript"),
    "/live.js": (STATIC / "live.js", "text/javascript"),
    "/page.css": (TEMPLATES / "page.css", "text/css"),
    "/charts.js": (TEMPLATES / "charts.js", "text/javascript"),
}
MOST_BYTES = 10_000
"""Of what a request sends."""
HEADERS = {
    # Plotly writes its few styles into the page itself, and makes pictures to download as data.
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Explored:
    """What the page shows. base: what its settings are settings of. run: one to follow. utility: points of a sweep."""

    base: Base
    run: Follower | None = None
    utility: dict[str, Any] | None = None
    data_dir: Path | None = None
    note: str | None = None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(header: str) -> str:
    """The host that a Host header names, without the port; nothing where it is none."""
    try:
        return "" if "@" in header else urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class Guard:
    """Refuses what does not come from a page of this explorer itself. listening: the host it listens on."""

    def __init__(self, app: ASGIApp, listening: str):
        self._app = app
        self._loopback = is_loopback(listening)
        self._names = {listening.lower(), "localhost"} | (set() if self._loopback else {socket.gethostname().lower()})

    def _own(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host.lower() in self._names
        # A name can be made to point here, an address cannot; so any address goes where any may be listened on.
        return address.is_loopback or not self._loopback

    def _reason(self, scope: Scope) -> str | None:
        """Why the request is refused; None where it is not."""
        headers = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"]]
        hosts = [value for key, value in headers if key == "host"]
        if len(hosts) != 1 or not self._own(host_of(hosts[0])):
            return "the request names another host"
        if scope["method"] in ("GET", "HEAD"):
            return None
        given = dict(headers)
        if given.get("origin", f"http://{hosts[0]}") != f"http://{hosts[0]}":
            return "the request comes from another page"
        if given.get("sec-fetch-site", "same-origin") != "same-origin":
            return "the request comes from another page"
        if given.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "the request is not in JSON"
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {key.lower() for key, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        reason = self._reason(scope)
        if reason is not None:
            await PlainTextResponse(f"{reason}\n", status_code=403)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


async def _json(request: Request) -> Any:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"a request has at most {MOST_BYTES} bytes")
    try:
        return json.loads(body)
    except ValueError as error:
        raise HTTPException(400, f"no JSON: {error}") from error


def _answer(content: Any, status: int = 200) -> JSONResponse:
    return JSONResponse(without_infinities(content), status_code=status)


def _wrong(request: Request, error: Exception) -> Response:
    """What is wrong with a setting, in words: an answer like another, of which a browser makes no error."""
    return _answer({"errors": getattr(error, "errors", None) or str(error).splitlines()})


def build_app(explored: Explored, listening: str = "127.0.0.1") -> Starlette:
    """The application. listening: the host that it will listen on."""
    base, trials = explored.base, Trials(explored.base, explored.data_dir)
    files = {path: (source.read_text(encoding="utf-8"), kind) for path, (source, kind) in FILES.items()}

    def file(path: str) -> Callable[[Request], Response]:
        content, kind = files[path]
        return lambda request: Response(content, media_type=kind)

    def plotly(request: Request) -> Response:
        return Response(plotly_js(), media_type="text/javascript", headers={"cache-control": "max-age=86400"})

    def begin(request: Request) -> Response:
        return _answer(
            {
                "base": base.name,
                "start": base.start,
                "fixed": base.counts is not None,
                "federation": "federation" in base.tables,
                "trainer": base.tables["trainer"]["name"],
                "problem": base.tables["problem"]["name"],
                "data": base.tables.get("data", {}).get("source"),
                "available": base.available,
                "most": LARGEST,
                "run": explored.run is not None,
                "utility": explored.utility,
                "note": explored.note,
            }
        )

    async def setting_of(request: Request) -> Setting:
        return Setting.of(await _json(request))

    async def quick(request: Request) -> Response:
        setting = await setting_of(request)
        began = perf_counter()
        found = await run_in_threadpool(figures.quick, base, setting)
        return _answer(found | {"milliseconds": 1e3 * (perf_counter() - began), "config": base.toml(setting)})

    async def exact(request: Request) -> Response:
        setting = await setting_of(request)
        began = perf_counter()
        found = await run_in_threadpool(figures.exact, base, setting)
        return _answer(found | {"milliseconds": 1e3 * (perf_counter() - began)})

    async def curves(request: Request) -> Response:
        setting = await setting_of(request)
        points = []
        for t in figures.points_of_curves(setting.rounds):
            if await request.is_disconnected():
                return Response(status_code=204)  # a slider has moved on
            points.append(await run_in_threadpool(figures.point_of_curves, base, setting, t))
        return _answer(points[::-1])

    async def start_trial(request: Request) -> Response:
        setting = await setting_of(request)
        trial = await run_in_threadpool(trials.start, setting)
        return _answer(trial.to_dict(), 201)

    def all_trials(request: Request) -> Response:
        return _answer([trial.to_dict(after=trial.setting.rounds) for trial in trials.all])

    def one_trial(request: Request) -> Response:
        trial = trials.find(int(request.path_params["number"]))
        if trial is None:
            return _answer({"errors": ["there is no such simulation"]}, 404)
        if request.method == "POST":
            trials.cancel(trial)
        return _answer(trial.to_dict(_after(request)))

    def run(request: Request) -> Response:
        if explored.run is None:
            return _answer({"errors": ["no run is followed"]}, 404)
        return _answer(explored.run.since(_after(request)))

    def icon(request: Request) -> Response:
        return Response(status_code=204)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            trials.close()

    routes = [Route(path, file(path)) for path in FILES]
    routes += [
        Route("/plotly.js", plotly),
        Route("/favicon.ico", icon),
        Route("/api/begin", begin),
        Route("/api/figures", quick, methods=["POST"]),
        Route("/api/exact", exact, methods=["POST"]),
        Route("/api/curves", curves, methods=["POST"]),
        Route("/api/trials", all_trials, methods=["GET"]),
        Route("/api/trials", start_trial, methods=["POST"]),
        Route("/api/trials/{number:int}", one_trial, methods=["GET"]),
        Route("/api/trials/{number:int}/cancel", one_trial, methods=["POST"]),
        Route("/api/run", run),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, listening=listening)],
        exception_handlers={ValueError: _wrong},
        lifespan=lifespan,
    )


def _after(request: Request) -> int:
    text = request.query_params.get("after", "0")
    if not text.isdecimal():
        raise HTTPException(400, "after: must be a whole number")
    return int(text)


def serve(explored: Explored, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until interrupted. tell: is given the address. Raises OSError where it cannot listen there."""
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with listening:
        try:
            listening.bind((host, port))
        except OSError as error:
            raise OSError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from error
        listening.listen(128)
        shown = f"[{host}]" if ":" in host else host
        app = build_app(explored, host)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="on")
        tell(f"http://{shown}:{listening.getsockname()[1]}/")
        uvicorn.Server(config).run(sockets=[listening])
