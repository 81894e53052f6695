"""HTTP around a `Service`: JSON or NumPy archives (.npz) in and out, a bounded queue, sentences for whoever asks wrongly.

One request is computed at a time; the others wait, at most `Limits.queue`. Bytes of all requests and answers at once are limited,
too: beyond, new requests are told to come again (503). What is wrong with a request is 400 (cannot be read), 413 (too large), 415
(neither JSON nor .npz) or 422 (numbers that do not fit). Nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import zipfile
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from html import escape
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dgnet import __version__
from dgnet.errors import InputError, SolveError
from dgnet.output.serve.openapi import description
from dgnet.output.serve.service import KEYS, Arrays, Service, TooLong

JSON, NPZ = "application/json", "application/x-npz"
LOCAL = ("127.0.0.1", "localhost")
_SPREAD = 4  # an archive may unpack to this many times the largest body


class Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Gate:
    """Counts requests and their bytes, and lets one at a time be computed."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.limits
        self.requests = self.held = 0
        self.turn, self.room = asyncio.Semaphore(1), asyncio.Condition()
        self.pool = ThreadPoolExecutor(1, "serve")

    def enter(self) -> None:
        if self.requests >= self.limits.queue or self.held >= self.limits.held:
            raise Refused(503, "too many requests at once: come again in a second")
        self.requests += 1

    async def leave(self, size: int) -> None:
        self.requests -= 1
        self.held -= size
        async with self.room:
            self.room.notify_all()

    def take(self, size: int) -> None:
        """Bytes of a body as they come in."""
        if self.held + size > self.limits.held:
            raise Refused(503, "too many requests at once: come again in a second")
        self.held += size

    async def compute(self, work: Callable[[], bytes], gone: Callable[[], Awaitable[bool]]) -> bytes:
        """Wait for the turn, and for room where answers are read slowly, then work in the one thread."""
        async with self.turn:
            async with self.room:
                await self.room.wait_for(lambda: self.held <= self.limits.held)
            if await gone():
                raise Refused(499, "the client has gone")
            return await asyncio.get_running_loop().run_in_executor(self.pool, work)


class Held(Response):
    """An answer that counts until it is sent."""

    def __init__(self, content: bytes, kind: str, gate: Gate, size: int) -> None:
        super().__init__(content, media_type=kind)
        self.gate, self.size = gate, size

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(self.gate.limits.seconds):
                await super().__call__(scope, receive, send)
        finally:
            await self.gate.leave(self.size)


async def _received(request: Request, gate: Gate) -> bytes:
    """The body, counted as it comes in: at the end it holds as many bytes of the gate as it has."""
    body, limits = bytearray(), gate.limits
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in request.stream():
                if len(body) + len(part) > limits.body:
                    raise Refused(413, f"a request may have {limits.body:,} bytes")
                gate.take(len(part))
                body += part
    except BaseException:
        gate.held -= len(body)
        raise
    return bytes(body)


def application(service: Service, hosts: tuple[str, ...] = LOCAL) -> Starlette:
    """The application. It answers requests that name one of `hosts`; "*" stands for any."""
    gate, limits = Gate(service), service.limits

    async def front(request: Request) -> Response:
        return HTMLResponse(_page(service, str(request.base_url)))

    async def about(request: Request) -> Response:
        return JSONResponse(service.about())

    async def openapi(request: Request) -> Response:
        return JSONResponse(description(service))

    async def mesh(request: Request) -> Response:
        kind = _wanted(request)
        return Response(encoded(service.mesh(), kind), media_type=kind)

    async def compute(request: Request) -> Response:
        name, kind, given = request.url.path.strip("/"), _wanted(request), _given(request)
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limits.body:
            raise Refused(413, f"a request may have {limits.body:,} bytes")
        gate.enter()
        size = 0
        try:
            body = await _received(request, gate)
            size = len(body)

            def work() -> bytes:
                return encoded(service.answer(name, decoded(body, given, limits.body)), kind)

            answer = await gate.compute(work, request.is_disconnected)
            gate.held += len(answer)
            return Held(answer, kind, gate, size + len(answer))
        except BaseException as error:
            await gate.leave(size)
            told = _refusal(error)
            if told is None:
                raise
            raise told from error

    routes = [Route("/", front), Route("/openapi.json", openapi), Route("/about", about), Route("/mesh", mesh),
              *(Route(f"/{name}", compute, methods=["POST"]) for name in KEYS)]
    made = Starlette(routes=routes, exception_handlers={HTTPException: _said, Refused: _said})
    if "*" not in hosts:  # a page of another site must not reach it under a name of its own
        made.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return made


async def _said(request: Request, error: Any) -> Response:
    """Every refusal is one sentence."""
    known = {404: "there is no such page; / lists them", 405: "this page takes another method; / lists them"}
    status = error.status if isinstance(error, Refused) else error.status_code
    sentence = str(error) if isinstance(error, Refused) else known.get(status, str(error.detail))
    return JSONResponse({"error": sentence}, status, headers={"Retry-After": "1"} if status == 503 else {})


def _refusal(error: BaseException) -> Refused | None:
    """What a failed request is told; None where nobody foresaw it."""
    if isinstance(error, InputError | SolveError):
        return Refused(422, str(error))
    if isinstance(error, TooLong):
        return Refused(503, str(error))
    if isinstance(error, TimeoutError):
        return Refused(408, "the request took too long to arrive")
    if isinstance(error, MemoryError):
        return Refused(503, "the memory is short: ask for less at once")
    return error if isinstance(error, Refused) else None


# ---------------------------------------------------------------------- formats


def _given(request: Request) -> str:
    kind = (request.headers.get("content-type") or JSON).split(";")[0].strip().lower()
    if kind not in (JSON, NPZ):
        raise Refused(415, f"a request is {JSON} or {NPZ}, not {kind[:60]}")
    return kind


def _wanted(request: Request) -> str:
    return NPZ if NPZ in (request.headers.get("accept") or "") else JSON


def decoded(body: bytes, kind: str, limit: int) -> dict[str, Any]:
    """The table of a request."""
    if kind == JSON:
        try:
            found = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the request is no JSON: {str(error)[:120]}") from error
        if not isinstance(found, dict):
            raise Refused(400, "the request must be a JSON object")
        return found
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _SPREAD * limit:
                raise Refused(413, f"the archive unpacks to more than {_SPREAD * limit:,} bytes")
        with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except Refused:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise Refused(400, "the request is no NumPy archive (.npz) of numbers") from error


def encoded(arrays: Arrays, kind: str) -> bytes:
    if kind == NPZ:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()
    return json.dumps({key: array.tolist() for key, array in arrays.items()}, separators=(",", ":")).encode()


def _page(service: Service, address: str) -> str:
    """A page for people: what this is, and how to ask."""
    facts = service.about()
    example = json.dumps({"steps": 10, "points": [service.problem.mesh.points.mean(0).round(6).tolist()]})
    rows = "".join(f"<tr><td><code>{method} {path}</code></td><td>{escape(next(iter(ways.values()))['summary'])}</td></tr>"
                   for path, ways in description(service)["paths"].items() for method in [next(iter(ways)).upper()])
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{escape(facts['title'])}</title><style>body{{font:16px/1.5 system-ui,sans-serif;max-width:44em;"
            "margin:2em auto;padding:0 1em;color-scheme:light dark}td{padding:.2em 1em .2em 0;vertical-align:top}"
            "pre{overflow:auto}</style>"
            f"<h1>{escape(facts['title'])}</h1><p>{facts['nodes']:,} nodes, fields {escape(', '.join(facts['fields']))}, steps of "
            f"{escape(service.run.case.units.in_time(facts['dt']))}; model {escape(facts['model'])}, dgnet {__version__}.</p>"
            f"<table>{rows}</table><p>For instance:</p><pre>curl -H 'Content-Type: application/json' -d '{escape(example)}' "
            f"{escape(address)}probe</pre><p><a href=/openapi.json>openapi.json</a> describes every entry.</p></html>")


def serve(service: Service, host: str = LOCAL[0], port: int = 0, ready: Callable[[str], None] | None = None) -> None:
    """Serve until interrupted. `port` 0 takes a free one; `ready` is told the address before the first request is answered."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        raise InputError(f"{host}, port {port}, cannot be used: {error.strerror}") from error
    local = host in LOCAL
    config = uvicorn.Config(application(service, LOCAL if local else ("*",)), log_level="warning", timeout_graceful_shutdown=2,
                            limit_concurrency=4 * service.limits.queue, h11_max_incomplete_event_size=1 << 16)
    if ready is not None:
        ready(f"http://{host}:{listening.getsockname()[1]}/")
    uvicorn.Server(config).run(sockets=[listening])
