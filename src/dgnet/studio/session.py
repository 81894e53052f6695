"""The talk with one page over a WebSocket: JSON from the page, JSON and binary frames to it.

The page asks for each frame and so sets the pace (back-pressure). Messages of the page:

    {"type": "open", "scene": NAME, "controls": {...}}             -> {"type": "scene", ...}, then the mesh (kind 2)
    {"type": "controls", "controls": {...}}                        -> {"type": "controls", ...}
    {"type": "frame", "steps": n, "spots": [...], "driven": bool}  -> a frame (kind 1)
    {"type": "restart"}                                            -> a frame of the start
    {"type": "doubts"}                                             -> {"type": "doubts", "doubts": [sentences]}: what mesh and step
                                                                      cannot see, and where the run left its bounds
    {"type": "impulse", "node": i, "field": f}                     -> the Green's function of a node (kind 3)
    {"type": "tell", "sensors": [nodes], "times": [T], "values": [T][S], "field": f, "noise": share}
                                                                   -> {"type": "told", ...}, then three fields (kind 4): the
                                                                      recovered source, its standard deviation, what was drawn.
                                                                      Meanwhile {"type": "progress", "of": "tell", "share": s},
                                                                      and other messages are answered
    binary: time (float64), step (uint32), rows (uint32), values   -> goes on from there; a frame

Whatever cannot be done is answered by {"type": "error", "message": ..., "of": TYPE}, and the session goes on. A binary message to
the page begins with five uint32 (kind, step, a, b, tag), a float32 (milliseconds of computing) and a float64 (time), 32 bytes:

    kind 1, 3, 4   a rows of b nodal values, float32
    kind 2         a nodes, b coordinates each; then uint32: number of triangles, tetrahedra and lines, and what they are made of.
                   Triangles are the cells of a flat mesh or the surface of a solid one, lines the outline of a flat one
"""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from dgnet.errors import InputError, SolveError
from dgnet.files import cause
from dgnet.mesh import Mesh
from dgnet.studio.estimate import Question
from dgnet.studio.scene import Scene, number
from dgnet.studio.simulation import Controls, Simulation, Spot

FRAME, MESH, IMPULSE, ESTIMATE = 1, 2, 3, 4
_FIRST = 0.2  # share of an answer's time until it is known how the sensors respond
_HEAD = struct.Struct("<5Ifd")
_STATE = struct.Struct("<dII")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a page may ask for."""

    upload_bytes: int = 64 << 20
    upload_seconds: float = 30.0
    uploads: int = 8  # kept at a time
    nodes: int = 300_000
    sessions: int = 8
    frame_steps: int = 200
    frame_seconds: float = 2.0  # after which a frame ends early
    session_seconds: float = 3600.0  # of computing
    spots: int = 50
    text_bytes: int = 4 << 20  # of a message in words; a binary one has the size of the state
    message_bytes: int = 64 << 20  # beyond which the connection is closed, unread
    questions: int = 1  # of all pages, computed at once: one takes up to a minute


class Socket(Protocol):
    """What a session needs of a WebSocket."""

    async def receive(self) -> dict[str, Any]: ...
    async def send_text(self, data: str) -> None: ...
    async def send_bytes(self, data: bytes) -> None: ...


class Gone(Exception):
    """The page is not there any more."""


class Dropped(Exception):
    """A question whose answer nobody waits for."""


class Session:
    """One page: its simulation, and how long that has computed.

    `pool` computes frames and settings, `slow` the questions to sensors, which take so long that frames must not wait for them.
    """

    def __init__(self, socket: Socket, scenes: Callable[[str], Scene], limits: Limits, pool: ThreadPoolExecutor,
                 slow: ThreadPoolExecutor) -> None:
        self.socket, self.scenes, self.limits, self.pool, self.slow = socket, scenes, limits, pool, slow
        self.simulation: Simulation | None = None
        self.seconds, self.last = 0.0, 0.0  # of computing: in all, and for the last answer
        self.question: asyncio.Task[None] | None = None
        self.unwanted = threading.Event()  # the present question's answer
        self.sending = asyncio.Lock()

    async def run(self) -> None:
        """Answer until the page goes away."""
        try:
            while True:
                message = await self.socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("bytes") is not None:
                    await self._answered("state", self._resume(message["bytes"]))
                else:
                    await self._heard(message.get("text") or "")
        except Gone:
            pass
        finally:
            self._forget()

    async def _heard(self, text: str) -> None:
        kind = "message"
        try:
            if len(text) > self.limits.text_bytes:
                raise InputError(f"a message has up to {self.limits.text_bytes:,} characters, this one {len(text):,}")
            given = _parsed(text)
            kind = str(given.get("type"))[:40]
        except InputError as error:
            await self._say({"type": "error", "message": str(error), "of": kind})
        else:
            await self._answered(kind, self._answer(kind, given))

    async def _answered(self, kind: str, answer: Awaitable[None]) -> None:
        """Whatever goes wrong is said in a sentence, and the session goes on."""
        try:
            await answer
        except (Gone, Dropped):
            raise
        except (InputError, SolveError) as error:
            said = str(error)
        except (MemoryError, RuntimeError) as error:  # torch tells of too little memory by a RuntimeError
            said = f"this computer cannot do that: {cause(error)}"
        except Exception as error:
            traceback.print_exception(error)
            said = f"a defect of dgnet: {type(error).__name__}: {cause(error)}"
        else:
            return
        await self._say({"type": "error", "message": said, "of": kind})

    def _forget(self) -> None:
        """Nobody waits for the answer to the present question any more."""
        self.unwanted.set()
        self.question = None

    async def _answer(self, kind: str, given: dict[str, Any]) -> None:
        if kind == "open":
            return await self._open(given)
        answers = {"controls": self._controls, "frame": self._frame, "restart": self._restart, "impulse": self._impulse,
                   "doubts": self._doubts, "tell": self._tell}
        if kind not in answers:
            raise InputError(f"unknown message '{kind[:40]}' (known: open, {', '.join(answers)})")
        if self.simulation is None:
            raise InputError("nothing is open yet")
        await answers[kind](self.simulation, given)

    async def _open(self, given: dict[str, Any]) -> None:
        def made() -> Simulation:
            scene = self.scenes(str(given.get("scene")))
            return Simulation(scene, Controls.read(scene, _table(given, "controls")))

        simulation = await self._work(made)
        self._forget()
        self.simulation = simulation
        await self._say({"type": "scene", "scene": str(given.get("scene")), "controls": vars(simulation.controls),
                         **simulation.scene.described()}, packed_mesh(simulation.scene.case.mesh))

    async def _controls(self, simulation: Simulation, given: dict[str, Any]) -> None:
        controls = Controls.read(simulation.scene, _table(given, "controls"))
        begin = time.perf_counter()
        await self._work(lambda: simulation.configure(controls))
        await self._say({"type": "controls", "controls": vars(controls), "seconds": time.perf_counter() - begin})

    async def _frame(self, simulation: Simulation, given: dict[str, Any]) -> None:
        steps = int(number(given.get("steps", 1), "the number of steps", 0, self.limits.frame_steps))
        spots = given.get("spots", [])
        if not isinstance(spots, list) or len(spots) > self.limits.spots:
            raise InputError(f"a frame has a list of up to {self.limits.spots} spots")
        case = simulation.scene.case
        drawn = [Spot.read(spot, case.mesh.dim, len(case.pde.fields)) for spot in spots]
        driven = bool(given.get("driven", False))
        await self._work(lambda: simulation.advance(steps, drawn, driven, self.limits.frame_seconds) if steps else 0)
        await self._show(simulation, given)

    async def _restart(self, simulation: Simulation, given: dict[str, Any]) -> None:
        await self._work(simulation.restart)
        await self._show(simulation, given)

    async def _resume(self, content: bytes) -> None:
        if self.simulation is None or len(content) < _STATE.size:
            raise InputError("nothing is open yet" if self.simulation is None else "the values to go on from are incomplete")
        simulation = self.simulation
        at, step, rows = _STATE.unpack_from(content)
        case = simulation.scene.case
        if len(content) > _STATE.size + 8 * len(case.pde.fields) * case.mesh.n_nodes:
            raise InputError("the values to go on from are more than this scene has")
        body = np.frombuffer(content, np.float32, offset=_STATE.size) if len(content) % 4 == 0 else np.empty(0, np.float32)
        if not 0 < rows <= 64 or len(body) % rows:
            raise InputError("the values to go on from are incomplete")
        number(at, "the time", -1e30, 1e30)
        await self._work(lambda: simulation.resume(body.reshape(rows, -1), step, at))
        await self._show(simulation, {})

    async def _doubts(self, simulation: Simulation, given: dict[str, Any]) -> None:
        await self._say({"type": "doubts", "doubts": await self._work(simulation.doubts)})

    async def _impulse(self, simulation: Simulation, given: dict[str, Any]) -> None:
        node, of = (int(number(given.get(key, 0), f"the {key}", 0, 1e9)) for key in ("node", "field"))
        values = await self._work(lambda: simulation.impulse(node, of))
        head = _HEAD.pack(IMPULSE, simulation.step, 1, len(values), node, 0.0, simulation.time)
        await self._send(head + values.tobytes())

    async def _tell(self, simulation: Simulation, given: dict[str, Any]) -> None:
        if self.question is not None and not self.question.done():
            raise InputError("the last question to the sensors is still being answered")
        question = await self._work(lambda: Question.read(simulation, given))
        self.unwanted = threading.Event()
        self.question = asyncio.create_task(self._asked(question, self.unwanted))

    async def _asked(self, question: Question, unwanted: threading.Event) -> None:
        """The answer to a question, with its progress, while other messages are answered."""
        loop, begin = asyncio.get_running_loop(), time.perf_counter()

        def report(what: str, done: int, total: int) -> None:
            if unwanted.is_set():
                raise Dropped
            share = _FIRST * done / total if what == "sensors" else _FIRST + (1 - _FIRST) * done / total
            asyncio.run_coroutine_threadsafe(self._say({"type": "progress", "of": "tell", "share": share}), loop)

        async def answer() -> None:
            found = await loop.run_in_executor(self.slow, lambda: question.answer(report))
            if not unwanted.is_set():
                head = _HEAD.pack(ESTIMATE, 0, *found.values.shape, 0, 0.0, 0.0)
                await self._say({"type": "told", **found.figures}, head + found.values.tobytes())

        try:
            await self._answered("tell", answer())
        except (Gone, Dropped):
            pass
        finally:
            self.seconds += time.perf_counter() - begin

    async def _show(self, simulation: Simulation, given: dict[str, Any]) -> None:
        tag = int(number(given.get("tag", 0), "the tag", 0, 2**32 - 1))
        values = simulation.values()
        head = _HEAD.pack(FRAME, simulation.step, *values.shape, tag, 1000 * self.last, simulation.time)
        await self._send(head + values.tobytes())

    async def _work(self, function: Callable[[], T]) -> T:
        """Compute in a worker thread, so that other pages are answered meanwhile; a session has limited time."""
        if self.seconds > self.limits.session_seconds:
            raise InputError(f"this page has computed for {self.limits.session_seconds:g} s, the limit: reload it to go on")
        begin = time.perf_counter()
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, function)
        finally:
            self.last = time.perf_counter() - begin
            self.seconds += self.last

    async def _say(self, message: dict[str, Any], content: bytes = b"") -> None:
        """A message, and what belongs to it in binary."""
        await self._send(json.dumps(message), *([content] if content else []))

    async def _send(self, *parts: str | bytes) -> None:
        """Parts that no other message comes between."""
        async with self.sending:
            for part in parts:
                try:
                    await (self.socket.send_text(part) if isinstance(part, str) else self.socket.send_bytes(part))
                except Exception as error:  # each kind of server has errors of its own for a page that went away
                    raise Gone from error


def packed_mesh(mesh: Mesh) -> bytes:
    """The mesh as the page draws it (kind 2)."""
    solid = mesh.dim == 3
    none = np.empty(0)
    parts = (mesh.boundary_facets if solid else mesh.cells, mesh.cells if solid else none, none if solid else mesh.boundary_facets)
    counts = np.array([len(part) for part in parts], dtype=np.uint32)
    head = _HEAD.pack(MESH, 0, mesh.n_nodes, mesh.dim, 0, 0.0, 0.0)
    return b"".join([head, mesh.points.astype(np.float32).tobytes(), counts.tobytes(),
                     *(part.astype(np.uint32).tobytes() for part in parts)])


def _parsed(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("a message must be JSON") from error
    if not isinstance(given, dict):
        raise InputError("a message must be a JSON object")
    return given


def _table(given: dict[str, Any], key: str) -> dict[str, Any]:
    found = given.get(key, {})
    if not isinstance(found, dict):
        raise InputError(f"'{key}' must be a table")
    return found
