"""The studio's server: a page, its files, uploads of meshes and one WebSocket per page, on this computer alone.

It binds to 127.0.0.1 and refuses every request whose Host or Origin is not that address: pages of other sites can neither read nor
steer it. Uploads are limited in size and read in a process of their own (`reading`); nothing is unpickled and no code is run.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dgnet import plugins
from dgnet.errors import InputError
from dgnet.report.viewer import VIEWER, colour_maps
from dgnet.studio.reading import read_upload
from dgnet.studio.scene import Scene, mesh_scene, path_scene
from dgnet.studio.session import Limits, Session

if TYPE_CHECKING:
    from starlette.applications import Starlette

HOST = "127.0.0.1"
_PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".png": "image/png", ".jpg": "image/jpeg",
          ".json": "application/json", ".svg": "image/svg+xml"}
_POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
           "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
_WORKERS = 4
_PATH = "given"  # the name of the scene that the command line has named by a path


@dataclass(frozen=True)
class Entry:
    """A scene of the gallery: title and one sentence for its card, and how it is made when somebody opens it."""

    title: str
    about: str
    make: Callable[[], Scene]


class Scenes:
    """Scenes by name: the gallery's, and those of meshes that pages have uploaded (the oldest give way)."""

    def __init__(self, entries: Mapping[str, Entry], limits: Limits) -> None:
        self.entries, self.limits = dict(entries), limits
        self.uploads: OrderedDict[str, Scene] = OrderedDict()
        self.make = lru_cache(maxsize=4)(lambda name: self.entries[name].make())

    def __call__(self, name: str) -> Scene:
        if name in self.uploads:
            return self.uploads[name]
        if name not in self.entries:
            raise InputError(f"there is no scene '{name[:60]}' here; an uploaded mesh must be uploaded again after a restart")
        return self.make(name)

    def add(self, name: str, content: bytes) -> tuple[str, Scene]:
        """The scene of an uploaded mesh, under a name that nobody can guess."""
        mesh = read_upload(name, content, self.limits.upload_seconds, self.limits.nodes)
        key, scene = f"upload-{secrets.token_hex(8)}", mesh_scene(mesh, name)
        self.uploads[key] = scene
        while len(self.uploads) > self.limits.uploads:
            self.uploads.popitem(last=False)
        return key, scene


class Guard:
    """Lets only requests of the studio's own page through: the Host must be this server, and so must an Origin where there is one.

    An upload and a WebSocket must have one. So a page of another site that sends requests here, or that lets its own name point to
    this computer, is refused.
    """

    def __init__(self, inner: Any, hosts: set[str]) -> None:
        self.inner, self.hosts = inner, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.inner(scope, receive, send)
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        origin = headers.get(b"origin")
        needed = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        welcome = headers.get(b"host") in self.hosts and (
            origin in {f"http://{host}" for host in self.hosts} if origin is not None else not needed)
        if welcome:
            return await self.inner(scope, receive, send)
        if scope["type"] == "websocket":
            await receive()
            return await send({"type": "websocket.close", "code": 1008})
        from starlette.responses import PlainTextResponse

        await PlainTextResponse("This address answers its own page only.", 403)(scope, receive, send)


def app(entries: Mapping[str, Entry], hosts: set[str], limits: Limits | None = None, first: str = "") -> Starlette:
    """The application. `hosts` are the names under which it is reached, with their port; `first` is opened at once."""
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route, WebSocketRoute
        from starlette.websockets import WebSocketDisconnect
    except ImportError as error:
        raise InputError("the studio needs the packages of its extra: pip install 'dgnet[studio]'") from error
    limits = limits or Limits()
    scenes = Scenes(entries, limits)
    pool, slow = (ThreadPoolExecutor(count, name, initializer=torch.set_num_threads, initargs=(1,))
                  for count, name in ((_WORKERS, "studio"), (limits.questions, "studio questions")))
    open_pages: set[Session] = set()
    files = {path.name: path for folder in (_PAGE, VIEWER) for path in sorted(folder.iterdir()) if path.suffix in _TYPES}

    async def file(request: Any) -> Response:
        path = files.get(request.path_params.get("name", "studio.html"))
        if path is None:
            return Response("There is no such file.", 404, media_type="text/plain")
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
        return Response(path.read_bytes(), media_type=_TYPES[path.suffix], headers=headers)

    async def gallery(request: Any) -> Response:
        cards = [{"name": name, "title": e.title, "about": e.about, "picture": f"{name}.jpg" if f"{name}.jpg" in files else ""}
                 for name, e in scenes.entries.items()]
        return JSONResponse({"scenes": cards, "first": first, "colours": colour_maps(), "upload_bytes": limits.upload_bytes})

    async def upload(request: Any) -> Response:
        name = Path(request.query_params.get("name", "")).name
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > limits.upload_bytes:
                return JSONResponse({"error": f"'{name}' is larger than {limits.upload_bytes >> 20} MB"}, 413)
        try:
            key, scene = await asyncio.get_running_loop().run_in_executor(pool, scenes.add, name, bytes(content))
        except InputError as error:
            return JSONResponse({"error": str(error)}, 422)
        return JSONResponse({"scene": key, "title": scene.title})

    async def session(websocket: Any) -> None:
        await websocket.accept()
        page = Session(websocket, scenes, limits, pool, slow)
        if len(open_pages) >= limits.sessions:
            return await websocket.close(1013, f"{limits.sessions} pages are open already: close one of them")
        open_pages.add(page)
        try:
            await page.run()
        except WebSocketDisconnect:
            pass
        finally:
            open_pages.discard(page)

    routes = [Route("/", file), Route("/gallery.json", gallery), Route("/mesh", upload, methods=["POST"]),
              WebSocketRoute("/session", session), Route("/{name}", file)]
    made = Starlette(routes=routes)
    made.add_middleware(Guard, hosts=hosts)
    return made


def opened(what: str | None, port: int = 0) -> tuple[str, Callable[[], None]]:
    """The studio with what a command names, a scene of the gallery or a path, else with the gallery: its address, and a function
    that serves."""
    entries: dict[str, Entry] = {}
    for scenes in plugins.loaded("dgnet.scenes"):
        entries |= scenes()
    first = "" if what is None else what if what in entries else _PATH
    if what is not None and first == _PATH:
        scene = path_scene(Path(what), list(entries))  # now: what is wrong with it is said here and not in the browser
        entries = {_PATH: Entry(scene.title, f"{Path(what).name}, as given on the command line", lambda: scene), **entries}
    address, serve, _ = listening(entries, first, port)
    return address, serve


def listening(entries: Mapping[str, Entry], first: str = "", port: int = 0) -> tuple[str, Callable[[], None], Callable[[], None]]:
    """A server that is bound: its address, a function that serves until the end, and one that ends it from another thread.

    `port` 0 takes a free one; the address is answered as soon as serving begins.
    """
    try:
        import uvicorn
        import websockets  # noqa: F401
    except ImportError as error:
        raise InputError("the studio needs the packages of its extra: pip install 'dgnet[studio]'") from error
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except OSError as error:
        raise InputError(f"port {port} of {HOST} cannot be used: {error.strerror}") from error
    port = bound.getsockname()[1]
    hosts, limits = {f"{name}:{port}" for name in (HOST, "localhost")}, Limits()
    config = uvicorn.Config(app(entries, hosts, limits, first), log_level="warning", ws="websockets-sansio",
                            ws_max_size=limits.message_bytes, ws_per_message_deflate=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)

    def end() -> None:
        server.should_exit = True

    return f"http://{HOST}:{port}/", lambda: server.run(sockets=[bound]), end
