# ruff: noqa: E501  (a table: one case a line)
"""Messages to the studio: each is answered by one sentence or by what it asks for, and the session goes on."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dgnet as dg
from dgnet.studio.scene import Scene, case_scene, mesh_scene
from dgnet.studio.session import Limits
from tests.attacks.harness import EXCEPTION

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from dgnet.studio.server import Entry, app

HOST = "127.0.0.1:9999"
HUGE = 10**400
SPOT = {"from": [0.5, 0.5], "to": [0.5, 0.5], "radius": 0.1, "power": 1.0}
ROW = {"boundary": "left", "kind": "held", "value": 1.0}
READ = {"type": "tell", "sensors": [1, 2], "times": [0, 1, 2, 3, 4], "values": [[0.0, 1.0]] * 5, "noise": 0.01}


def plate() -> Scene:
    return mesh_scene(dg.box((6, 4), perturb=0.2, seed=1), "plate.msh")


def fixed() -> Scene:
    """A scene whose conditions are given: only their values change."""
    from dgnet_paper.scenarios import get

    return case_scene(get("laser-heat", "small"))


@pytest.fixture(scope="module")
def page() -> Iterator[TestClient]:
    entries = {"plate": Entry("Plate", "A plate.", plate), "fixed": Entry("Fixed", "A scenario.", fixed)}
    with TestClient(app(entries, {HOST}, Limits(text_bytes=100_000)), headers={"host": HOST, "origin": f"http://{HOST}"}) as made:
        yield made


def controls(**given: Any) -> dict[str, Any]:
    return {"type": "controls", "controls": given}


def spot(**given: Any) -> dict[str, Any]:
    return {"type": "frame", "steps": 1, "spots": [SPOT | given]}


def state(time: float = 0.0, step: int = 0, rows: int = 1, values: bytes = np.zeros(35, np.float32).tobytes()) -> bytes:
    return struct.pack("<dII", time, step, rows) + values


REFUSED: list[tuple[Any, str]] = [  # a message, a word of the answer
    ("", "JSON"), ("{", "JSON"), ("null", "object"), ("7", "object"), ('"open"', "object"), ("[]", "object"), ("[" * 20000, "JSON"), ("1" * 5000, "JSON"),
    ('{"type": "frame", "steps": ' + "9" * 5000 + "}", "JSON"), ("x" * 200_000, "200,000"), ('{"a":' * 5000, "JSON"), ("\ud83d\ude00", "JSON"),
    ({}, "unknown message"), ({"type": None}, "unknown message"), ({"type": []}, "unknown message"), ({"type": {"a": 1}}, "unknown message"), ({"type": "x" * 90_000}, "unknown message"), ({"type": "__init__"}, "unknown message"),
    ({"type": "open"}, "no scene"), ({"type": "open", "scene": []}, "no scene"), ({"type": "open", "scene": HUGE}, "no scene"), ({"type": "open", "scene": "../../etc/passwd"}, "no scene"), ({"type": "open", "scene": "\u001b[31m"}, "no scene"),
    ({"type": "open", "scene": "plate", "controls": []}, "table"), ({"type": "open", "scene": "plate", "controls": {"dt": HUGE}}, "time step"), ({"type": "open", "scene": "plate", "controls": {"model": {}}}, "model"),
    (controls(model=[]), "model"), (controls(model={}), "model"), (controls(model=7), "model"), (controls(model="trained"), "model"), (controls(versus=["classical"]), "model"), (controls(versus={"a": 1}), "model"), (controls(versus="x" * 5000), "model"),
    (controls(dt=HUGE), "time step"), (controls(dt=-HUGE), "time step"), (controls(dt="fast"), "time step"), (controls(dt=None), "time step"), (controls(dt=[]), "time step"), (controls(dt=True), "time step"), (controls(dt=0), "time step"), (controls(dt=float("nan")), "time step"), (controls(dt=float("inf")), "time step"),
    (controls(diffusion=HUGE), "diffusion"), (controls(diffusion=0), "diffusion"), (controls(diffusion=-1), "diffusion"), (controls(diffusion={}), "diffusion"),
    (controls(conditions=7), "list of tables"), (controls(conditions={}), "list of tables"), (controls(conditions=[1]), "list of tables"), (controls(conditions=[[]]), "list of tables"), (controls(conditions=[{}]), "no boundary"),
    (controls(conditions=[{"boundary": "left"}]), "no boundary"), (controls(conditions=[{"boundary": ["left"], "kind": "held", "value": 1}]), "no boundary"), (controls(conditions=[{"boundary": "left", "kind": [], "value": 1}]), "no boundary"),
    (controls(conditions=[{"boundary": "left", "kind": "held"}]), "value"), (controls(conditions=[ROW | {"value": HUGE}]), "value"), (controls(conditions=[ROW | {"value": "warm"}]), "value"), (controls(conditions=[ROW | {"value": None}]), "value"), (controls(conditions=[ROW, ROW]), "twice"),
    (controls(conditions=[{"boundary": "left", "kind": "exchange", "value": 1}]), "coefficient"), (controls(conditions=[{"boundary": "left", "kind": "exchange", "value": 1, "coefficient": -1}]), "negative"), (controls(conditions=[{"boundary": "left", "kind": "exchange", "value": 1, "coefficient": HUGE}]), "coefficient"),
    (controls(conditions=[{"boundary": "moon", "kind": "held", "value": 1}]), "moon"), ({"type": "controls", "controls": 3}, "table"), ({"type": "controls", "controls": None}, "table"),
    ({"type": "frame", "steps": HUGE}, "number of steps"), ({"type": "frame", "steps": []}, "number of steps"), ({"type": "frame", "steps": None}, "number of steps"), ({"type": "frame", "steps": -1}, "number of steps"), ({"type": "frame", "steps": True}, "number of steps"),
    ({"type": "frame", "spots": 3}, "list"), ({"type": "frame", "spots": {}}, "list"), ({"type": "frame", "spots": [3]}, "spot"), ({"type": "frame", "spots": [[]]}, "spot"), ({"type": "frame", "spots": ["spot"]}, "spot"), ({"type": "frame", "spots": [None]}, "spot"), ({"type": "frame", "spots": [{}] * 51}, "50"),
    ({"type": "frame", "tag": HUGE}, "tag"), ({"type": "frame", "tag": -1}, "tag"), ({"type": "frame", "tag": "x"}, "tag"), ({"type": "restart", "tag": []}, "tag"),
    (spot(**{"from": 3}), "spot"), (spot(**{"from": "ab"}), "place"), (spot(**{"from": [HUGE, 0]}), "place"), (spot(**{"from": [0.5]}), "2 coordinates"), (spot(**{"from": list(range(9999))}), "2 coordinates"), (spot(to=None), "spot"),
    (spot(radius=0), "radius"), (spot(radius=HUGE), "radius"), (spot(radius=[]), "radius"), (spot(power=HUGE), "power"), (spot(power="much"), "power"), (spot(field=HUGE), "field"), (spot(field=1), "field"), (spot(field="T"), "field"), (spot(field=[]), "field"),
    ({"type": "impulse", "node": HUGE}, "node"), ({"type": "impulse", "node": []}, "node"), ({"type": "impulse", "node": -1}, "node"), ({"type": "impulse", "node": 35}, "does not exist"), ({"type": "impulse", "field": 9}, "field"), ({"type": "impulse", "field": "T"}, "field"),
    ({"type": "tell"}, "noise"), (READ | {"noise": HUGE}, "noise"), (READ | {"noise": []}, "noise"), (READ | {"field": HUGE}, "field"), (READ | {"sensors": 3}, "tables"), (READ | {"sensors": [HUGE]}, "tables|sensors"), (READ | {"sensors": [float("inf")]}, "tables"), (READ | {"sensors": []}, "sensors"), (READ | {"sensors": [[1]]}, "tables"), (READ | {"sensors": [1] * 99}, "sensors"),
    (READ | {"times": 7}, "readings"), (READ | {"times": [HUGE] * 5}, "tables"), (READ | {"times": ["a"] * 5}, "tables"), (READ | {"times": [0, 1, 1, 2, 3]}, "increase"), (READ | {"times": [float("nan")] * 5}, "finite"), (READ | {"times": []}, "finite"),
    (READ | {"values": 7}, "finite"), (READ | {"values": [[HUGE, 1]] * 5}, "tables"), (READ | {"values": [[1]] * 5}, "finite"), (READ | {"values": [[1, 2], [3]]}, "tables"), (READ | {"values": {}}, "tables"), (READ, "draw a source"),
    (b"", "incomplete"), (b"x", "incomplete"), (b"x" * 17, "incomplete"), (state(rows=0), "incomplete"), (state(rows=65), "incomplete"), (state(rows=2), "incomplete"), (state(time=float("nan")), "time"), (state(time=1e300), "time"), (state(step=2**32 - 1), "step"),
    (state(values=b""), "finite"), (state(values=np.full(35, np.nan, np.float32).tobytes()), "finite"), (state(values=np.zeros(4, np.float32).tobytes()), "finite"), (state(values=bytes(100_000)), "more than"),
]
TAKEN: list[Any] = [  # odd, and answered by what they ask for
    controls(model=None), controls(versus=""), controls(conditions=[]), controls(conditions=[{"boundary": "left", "kind": "insulated"}]), controls(dt=1.5, colour="red"), {"type": "frame", "steps": 2.7}, {"type": "frame", "steps": 0, "driven": []},
    spot(power=1e30), spot(radius=1e30), spot(radius=1e-30, to=[0.6, 0.5]), spot(**{"from": [1e30, 0.0]}), {"type": "restart", "tag": 4e9}, {"type": "impulse", "node": 3.9}, state(time=-1e30), state(values=np.full(35, 1e30, np.float32).tobytes()),
]


def answer(socket: Any, message: Any) -> tuple[str, dict[str, Any]]:
    """Kind of the answer, and the table where it is one."""
    if isinstance(message, bytes):
        socket.send_bytes(message)
    else:
        socket.send_text(message if isinstance(message, str) else json.dumps(message))
    found = socket.receive()
    if found.get("text") is None:
        return "binary", {}
    table = json.loads(found["text"])
    return table["type"], table


def name(message: Any) -> str:
    return re.sub(r"[^\w .,=+-]", "_", str(message)[:70])


@pytest.mark.parametrize(("message", "word"), [pytest.param(m, w, id=name(m)) for m, w in REFUSED])
def test_refused(message: Any, word: str, page: TestClient) -> None:
    with page.websocket_connect("/session") as socket:
        assert answer(socket, {"type": "open", "scene": "plate"})[0] == "scene"
        socket.receive_bytes()
        kind, table = answer(socket, message)
        assert kind == "error", table
        said = table["message"]
        assert re.search(word, said) and len(said) < 400 and len(table["of"]) <= 40, said
        assert "defect" not in said and not EXCEPTION.search(said) and "\n" not in said, said
        assert answer(socket, {"type": "frame", "steps": 1})[0] == "binary"  # the session goes on


@pytest.mark.parametrize("message", [pytest.param(m, id=name(m)) for m in TAKEN])
def test_taken(message: Any, page: TestClient) -> None:
    with page.websocket_connect("/session") as socket:
        assert answer(socket, {"type": "open", "scene": "plate"})[0] == "scene"
        socket.receive_bytes()
        kind, table = answer(socket, message)
        assert kind in ("binary", "controls"), table
        assert answer(socket, {"type": "restart"})[0] == "binary"


@pytest.mark.parametrize("rows", [[], [{}], [{"value": HUGE}] * 9, 3, [[1]]], ids=name)
def test_conditions_of_a_scenario(rows: Any, page: TestClient) -> None:
    with page.websocket_connect("/session") as socket:
        _, scene = answer(socket, {"type": "open", "scene": "fixed"})
        socket.receive_bytes()
        kind, table = answer(socket, controls(conditions=rows))
        assert kind == "error" and "defect" not in table["message"] and re.search("condition|value", table["message"]), table
        assert answer(socket, controls(conditions=scene["conditions"]))[0] == "controls"


@pytest.mark.parametrize("message", [{"type": "frame"}, {"type": "controls"}, {"type": "restart"}, {"type": "impulse"}, {"type": "tell"}, b"x" * 40], ids=name)
def test_before_anything_is_open(message: Any, page: TestClient) -> None:
    with page.websocket_connect("/session") as socket:
        kind, table = answer(socket, message)
        assert kind == "error" and "nothing is open" in table["message"]
        assert answer(socket, {"type": "open", "scene": "plate"})[0] == "scene"


@pytest.mark.parametrize(("query", "content", "word"), [
    ("name=", b"x", "not a mesh"), ("", b"x", "not a mesh"), ("name=../../x.msh", b"x", "x.msh"), ("name=a.npz", b"PK\3\4" + bytes(99), "a.npz"), ("name=a.inp", b"*NODE\n1, 0, 0\n*ELEMENT, TYPE=DCAX3\n1, 1, 1, 1\n", "DCAX3"), ("name=a.exe", b"MZ", "not a mesh"),
    ("name=%00%0A.msh", b"x", ".msh"), ("name=" + "x" * 300 + ".msh", b"x", ".msh"), ("name=a.xdmf", b"<Xdmf/>", "not a mesh")], ids=name)
def test_uploads(query: str, content: bytes, word: str, page: TestClient) -> None:
    found = page.post(f"/mesh?{query}", content=content)
    said = found.json()["error"]
    assert found.status_code == 422 and word in said and not EXCEPTION.search(said) and "/tmp" not in said, said
