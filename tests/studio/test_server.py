"""The studio's server: who may talk to it, what pages may ask for, and what their frames hold."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgnet as dg
import dgnet_paper
from dgnet.errors import InputError
from dgnet.studio.estimate import Estimate, Question
from dgnet.studio.scene import Scene, case_scene, mesh_scene, run_scene
from dgnet.studio.session import Limits
from dgnet.studio.simulation import Controls, Simulation, Spot
from dgnet_paper.scenarios import get

pytest.importorskip("starlette")
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from dgnet.studio.server import Entry, app

HOST = "127.0.0.1:9999"
OWN = {"host": HOST, "origin": f"http://{HOST}"}
PRETRAINED = Path(dgnet_paper.__file__).parent / "pretrained"


def plate() -> Scene:
    return mesh_scene(dg.box((9, 7), perturb=0.2, seed=1), "plate.msh")


def client(**limits: Any) -> TestClient:
    entries = {"plate": Entry("Plate", "A plate.", plate)}
    return TestClient(app(entries, {HOST}, replace(Limits(), **limits), "plate"), headers=OWN)


@pytest.fixture
def page() -> Iterator[TestClient]:
    with client() as made:
        yield made


def head(content: bytes) -> tuple[int, int, int, int, int, float, float]:
    return struct.unpack_from("<5Ifd", content)


def frame(socket: Any, **message: Any) -> tuple[int, float, np.ndarray]:
    """Step, time and values [rows, N] of the answer to a message."""
    socket.send_json({"type": "frame", **message})
    content = socket.receive_bytes()
    kind, step, rows, nodes, _, _, time = head(content)
    assert kind == 1
    return step, time, np.frombuffer(content, np.float32, offset=32).reshape(rows, nodes)


def opened(socket: Any, scene: str = "plate", **controls: Any) -> tuple[dict[str, Any], bytes]:
    socket.send_json({"type": "open", "scene": scene, "controls": controls})
    told = socket.receive_json()
    assert told["type"] == "scene", told
    return told, socket.receive_bytes()


# ---------------------------------------------------------------------- who may talk to it


@pytest.mark.parametrize("headers", [
    {"host": "evil.example"}, {"host": HOST, "origin": "http://evil.example"}, {"host": HOST, "origin": "null"},
    {"host": "127.0.0.1:1"}], ids=["host", "origin", "sandboxed", "port"])
def test_strangers_are_refused(page: TestClient, headers: dict[str, str]) -> None:
    assert page.get("/", headers=headers).status_code == 403
    assert page.post("/mesh?name=a.msh", headers=headers, content=b"x").status_code == 403
    with pytest.raises(WebSocketDisconnect), page.websocket_connect("/session", headers=headers):
        pass


def test_uploads_and_sockets_need_an_origin(page: TestClient) -> None:
    bare = TestClient(page.app, headers={"host": HOST})
    assert bare.get("/").status_code == 200
    assert bare.post("/mesh?name=a.msh", content=b"x").status_code == 403
    with pytest.raises(WebSocketDisconnect), bare.websocket_connect("/session"):
        pass


def test_the_page_needs_nothing_from_elsewhere(page: TestClient) -> None:
    answer = page.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for name in ("studio.css", "soft.js", "viewer.js", "chart.js", "gif.js", "controls.js", "told.js", "studio.js"):
        text = page.get(f"/{name}")
        assert text.status_code == 200 and name in answer.text and "http" not in text.text.replace("http://www.w3.org", "")
    assert page.get("/../session.py").status_code == 404 and page.get("/__init__.py").status_code == 404
    told = page.get("/gallery.json").json()
    assert [s["name"] for s in told["scenes"]] == ["plate"] and told["first"] == "plate" and "viridis" in told["colours"]


# ---------------------------------------------------------------------- the talk


def test_a_session(page: TestClient) -> None:
    with page.websocket_connect("/session") as socket:
        told, mesh = opened(socket)
        scene = plate()
        n, cells = scene.case.mesh.n_nodes, scene.case.mesh.cells
        assert told["nodes"] == n and list(told["models"]) == ["classical", "universal"]
        assert told["controls"]["model"] == "universal"
        assert head(mesh)[:4] == (2, 0, n, 2)
        points = np.frombuffer(mesh, np.float32, 2 * n, offset=32).reshape(n, 2)
        counts = np.frombuffer(mesh, np.uint32, 3, offset=32 + 8 * n)
        assert np.allclose(points, scene.case.mesh.points)
        assert counts.tolist() == [len(cells), 0, len(scene.case.mesh.boundary_facets)]
        assert (np.frombuffer(mesh, np.uint32, cells.size, offset=44 + 8 * n).reshape(-1, 3) == cells).all()
        assert frame(socket, steps=0)[:2] == (0, 0.0)
        spot = {"from": [0.5, 0.5], "to": [0.5, 0.5], "radius": 0.1, "power": 2.0}
        step, time, values = frame(socket, steps=3, spots=[spot])
        near = np.argmin(np.linalg.norm(points - 0.5, axis=1))
        assert step == 3 and time == 3.0 and values.shape == (1, n) and values[0].argmax() == near
        socket.send_json({"type": "controls", "controls": {"model": "classical", "versus": "universal", "dt": 2.0}})
        assert socket.receive_json()["controls"]["dt"] == 2.0
        step, time, both = frame(socket, steps=1)
        assert (step, time) == (4, 5.0) and both.shape == (2, n) and not np.array_equal(both[0], both[1])
        socket.send_json({"type": "impulse", "node": 5, "field": 0})
        green = socket.receive_bytes()
        assert head(green)[:5] == (3, 4, 1, n, 5)
        column = dg.GreenSolver(scene.problem(2.0, 1.0, [])).impulse(5)[:, 0].numpy()
        assert np.allclose(np.frombuffer(green, np.float32, offset=32), column, atol=1e-5)
        socket.send_bytes(struct.pack("<dII", 3.0, 3, 1) + values.tobytes())
        content = socket.receive_bytes()  # both models go on from the values of the one
        assert head(content)[1] == 3 and np.array_equal(np.frombuffer(content, np.float32, n, offset=32), values[0])
        socket.send_json({"type": "restart"})
        assert head(socket.receive_bytes())[1] == 0


def test_two_pages_do_not_disturb_each_other(page: TestClient) -> None:
    spot = {"from": [0.5, 0.5], "to": [0.6, 0.5], "radius": 0.1, "power": 1.0}
    with page.websocket_connect("/session") as one, page.websocket_connect("/session") as two:
        opened(one), opened(two)
        for _ in range(2):
            frame(one, steps=2, spots=[spot])
        assert frame(two, steps=1)[2].max() == 0.0 and frame(one, steps=0)[2].max() > 0.1


@pytest.mark.parametrize("message, word", [
    ({"type": "frame", "steps": 1e9}, "number of steps"), ({"type": "frame", "steps": "many"}, "number of steps"),
    ({"type": "frame", "spots": [{"from": [0], "to": [0], "radius": 1, "power": 1}]}, "2 coordinates"),
    ({"type": "frame", "spots": [{"from": [0, 1], "to": [0, 1], "radius": -1, "power": 1}]}, "radius"),
    ({"type": "frame", "spots": [{}]}, "from, to"), ({"type": "frame", "spots": [{}] * 99}, "up to 50"),
    ({"type": "controls", "controls": {"dt": -1}}, "time step"), ({"type": "controls", "controls": {"model": "magic"}}, "magic"),
    ({"type": "controls", "controls": {"conditions": [{"boundary": "moon", "kind": "held", "value": 1}]}}, "moon"),
    ({"type": "impulse", "node": 10**6}, "does not exist"), ({"type": "open", "scene": "../secret"}, "no scene"),
    ({"type": "dance"}, "dance")])
def test_what_cannot_be_done_is_said_and_the_session_goes_on(page: TestClient, message: dict[str, Any], word: str) -> None:
    with page.websocket_connect("/session") as socket:
        opened(socket)
        socket.send_json(message)
        told = socket.receive_json()
        assert told["type"] == "error" and word in told["message"] and told["of"] == message["type"]
        assert frame(socket, steps=1)[0] == 1


def test_messages_that_are_none(page: TestClient) -> None:
    with page.websocket_connect("/session") as socket:
        socket.send_json({"type": "frame"})
        assert "nothing is open" in socket.receive_json()["message"]
        opened(socket)
        for text in ("{", "[1, 2]", "[" * 5000):
            socket.send_text(text)
            assert "JSON" in socket.receive_json()["message"]
        for content in (b"", b"x" * 16, struct.pack("<dII", 0.0, 0, 1) + b"\0" * 8,
                        struct.pack("<dII", float("nan"), 0, 1) + b"\0" * 320):
            socket.send_bytes(content)
            assert socket.receive_json()["type"] == "error"
        assert frame(socket, steps=1)[0] == 1


def test_limits_of_time_and_number() -> None:
    with client(frame_seconds=0.0, sessions=1) as page, page.websocket_connect("/session") as socket:
        opened(socket)
        assert frame(socket, steps=50)[0] == 1  # a frame ends early
        with page.websocket_connect("/session") as second, pytest.raises(WebSocketDisconnect) as refused:
            second.receive_text()
        assert refused.value.code == 1013 and "1 pages" in refused.value.reason
    with client(session_seconds=0.0) as page, page.websocket_connect("/session") as socket:
        opened(socket)
        socket.send_json({"type": "frame", "steps": 1})
        assert "limit" in socket.receive_json()["message"]


def test_what_sensors_tell(page: TestClient) -> None:
    """A source that stays is found where it was drawn, from the readings of eight sensors around it."""
    spot = {"from": [0.5, 0.5], "to": [0.5, 0.5], "radius": 0.12, "power": 1.0}
    with page.websocket_connect("/session") as socket:
        opened(socket, model="universal")
        mesh = plate().case.mesh
        around = [[0.35, 0.4], [0.65, 0.45], [0.5, 0.68], [0.42, 0.6], [0.6, 0.6], [0.5, 0.35], [0.2, 0.2], [0.8, 0.8]]
        nodes = [int(np.argmin(np.linalg.norm(mesh.points - p, axis=1))) for p in around]
        socket.send_json({"type": "tell", "sensors": nodes, "times": [0], "values": [[0.0] * 8], "noise": 0.01})
        assert "draw a source" in socket.receive_json()["message"]
        frames = [frame(socket, steps=4)] + [frame(socket, steps=4, spots=[spot]) for _ in range(20)]  # nothing acts at first
        message = {"type": "tell", "sensors": nodes, "times": [f[1] for f in frames], "noise": 0.01,
                   "values": [f[2][0, nodes].tolist() for f in frames]}
        socket.send_json(message)
        told, shares = answered(socket)
        assert shares == sorted(shares) and 0 <= shares[0] < shares[-1] < 1
        assert told["type"] == "told" and told["seconds"] == 80.0 and told["left"] < 3 * told["noise"]
        content = socket.receive_bytes()
        mean, sd, drawn = np.frombuffer(content, np.float32, offset=32).reshape(head(content)[2:4])
        exact = np.exp(-((mesh.points - 0.5) ** 2).sum(1) / (2 * 0.12**2))
        assert head(content)[0] == 4 and np.allclose(drawn, exact, atol=0.04)  # less than a spacing wide
        assert drawn @ mesh.dual_volumes() == pytest.approx(2 * np.pi * 0.12**2, rel=2e-3)
        weight = mean.clip(0.3 * mean.max()) - 0.3 * mean.max()
        assert np.linalg.norm(weight @ mesh.points / weight.sum() - 0.5) < 0.1 and 0.3 < mean.max() < 2 and (sd > 0).all()
        for wrong, word in (({"noise": 0}, "noise"), ({"sensors": [10**6]}, "sensors"), ({"values": [[1.0]]}, "finite numbers"),
                            ({"times": "many"}, "tables"), ({"field": 4}, "field")):
            socket.send_json({**message, **wrong})
            answer = socket.receive_json()
            assert answer["of"] == "tell" and word in answer["message"], wrong


def answered(socket: Any) -> tuple[dict[str, Any], list[float]]:
    """The answer to a question, and how far it said that it was."""
    shares = []
    while True:
        told = socket.receive_json()
        if told["type"] != "progress":
            return told, shares
        shares.append(told["share"])


def asked(socket: Any) -> dict[str, Any]:
    """A question to three sensors about a source that was drawn."""
    spot = {"from": [0.5, 0.5], "to": [0.5, 0.5], "radius": 0.12, "power": 1.0}
    frames = [frame(socket, steps=4, spots=[spot]) for _ in range(8)]
    return {"type": "tell", "sensors": [3, 30, 60], "times": [f[1] for f in frames], "noise": 0.01,
            "values": [f[2][0, [3, 30, 60]].tolist() for f in frames]}


def test_a_long_question_does_not_keep_others_waiting(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """While sensors are asked, frames are computed, of this page and of another; a second question is refused in words."""
    go, stopped = threading.Event(), []

    def slow(self: Question, report: Any = None) -> Estimate:
        report("sensors", 0, 1)
        go.wait(60)
        try:
            report("priors", 1, 2)
        except BaseException as error:
            stopped.append(type(error).__name__)
            raise
        return Estimate(np.zeros((3, len(self.drawn)), np.float32), {"noise": self.noise})

    monkeypatch.setattr(Question, "answer", slow)
    with page.websocket_connect("/session") as socket, page.websocket_connect("/session") as other:
        opened(socket), opened(other)
        message = asked(socket)
        socket.send_json(message)
        assert socket.receive_json() == {"type": "progress", "of": "tell", "share": 0.0}
        assert frame(socket, steps=2)[0] == 34 and frame(other, steps=2)[0] == 2
        socket.send_json(message)
        assert "still being answered" in socket.receive_json()["message"]
        go.set()
        told, shares = answered(socket)
        assert told["type"] == "told" and shares == pytest.approx([0.6])
        assert head(socket.receive_bytes())[0] == 4 and frame(socket, steps=1)[0] == 35
        go.clear()
        socket.send_json(message)
        assert socket.receive_json()["type"] == "progress"
        opened(socket)  # nobody waits for the answer any more
        go.set()
        assert frame(socket, steps=1)[0] == 1
        socket.send_json({**asked(socket), "noise": 0.5})
        assert answered(socket)[0]["type"] == "told"
        assert stopped == ["Dropped"]


# ---------------------------------------------------------------------- uploads


def test_a_mesh_is_uploaded_and_opened(page: TestClient, tmp_path: Path) -> None:
    dg.save_mesh(dg.box((4, 3)), tmp_path / "part.msh")
    told = page.post("/mesh?name=part.msh", content=(tmp_path / "part.msh").read_bytes()).json()
    with page.websocket_connect("/session") as socket:
        scene, _ = opened(socket, told["scene"], conditions=[
            {"boundary": "left", "kind": "held", "value": 2.0},
            {"boundary": "right", "kind": "exchange", "value": 0.0, "coefficient": 0.1}])
        assert scene["free"] and [row["boundary"] for row in scene["conditions"]] == ["left", "right", "bottom", "top"]
        values = frame(socket, steps=5)[2]
        assert np.allclose(values[0, dg.box((4, 3)).nodes_on("left")], 2.0)


def test_wrong_files(page: TestClient) -> None:
    for name, content, word in (("a.exe", b"MZ", "not a mesh"), ("a.msh", b"no mesh at all", "not a mesh in .msh"),
                                ("a.xdmf", b"<a/>", "not a mesh")):
        answer = page.post(f"/mesh?name={name}", content=content)
        assert answer.status_code == 422 and word in answer.json()["error"] and name in answer.json()["error"]


def test_uploads_are_limited(tmp_path: Path) -> None:
    dg.save_mesh(dg.box((4, 3)), tmp_path / "part.npz")
    content = (tmp_path / "part.npz").read_bytes()
    with client(upload_bytes=len(content) - 1) as page:
        assert page.post("/mesh?name=part.npz", content=content).status_code == 413
    with client(nodes=10) as page:
        assert "20 nodes; the studio takes up to 10" in page.post("/mesh?name=part.npz", content=content).json()["error"]
    with client(upload_seconds=0.01) as page:
        assert "longer than" in page.post("/mesh?name=part.npz", content=content).json()["error"]


def test_what_mesh_and_step_cannot_see(page: TestClient) -> None:
    """Nothing of a usual start; then a spot between the nodes, a side held far from the start, and the overshoot that follows."""
    with page.websocket_connect("/session") as socket:
        scene, _ = opened(socket, model="classical")

        def asked() -> str:
            socket.send_json({"type": "doubts"})
            answer = socket.receive_json()
            assert answer["type"] == "doubts"
            return " ".join(answer["doubts"])

        frame(socket, steps=4)
        assert asked() == ""
        frame(socket, steps=4, spots=[{"from": [0.5, 0.5], "to": [0.5, 0.5], "radius": 0.02, "power": 1.0}])
        assert "the spot has a radius of 0.02, the mesh a spacing of" in asked()
        row = {**scene["conditions"][0], "kind": "held", "value": 40.0}
        socket.send_json({"type": "controls", "controls": {"model": "classical", "dt": 1e4, "conditions": [row]}})
        socket.receive_json()
        assert f"from what '{row['boundary']}' holds" in asked()
        frame(socket, steps=8)
        assert "that start, conditions and sources allow" in asked()


def test_pickles_are_not_read(page: TestClient, tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", points=np.array([object()], dtype=object), cells=np.zeros((1, 3), int))
    answer = page.post("/mesh?name=evil.npz", content=(tmp_path / "evil.npz").read_bytes())
    assert answer.status_code == 422


# ---------------------------------------------------------------------- the simulation


def test_steps_are_those_of_a_rollout() -> None:
    scene = plate()
    simulation = Simulation(scene, Controls.read(scene, {"model": "classical"}))
    spot = Spot((0.2, 0.5), (0.8, 0.5), 0.2, 3.0)
    assert simulation.advance(6, [spot], False, 60.0) == 6
    lamp = dg.FunctionSource(lambda x, t: 3 * torch.exp(-((x[:, 0] - 0.2 - 0.1 * t) ** 2 + (x[:, 1] - 0.5) ** 2) / 0.08))
    x = torch.tensor(scene.case.mesh.points, dtype=torch.float32)
    heat = dg.step_average(lamp, x, torch.arange(6.0), 1.0, 2, order=4)
    expected = dg.rollout(dg.Classical(), scene.problem(1.0, 1.0, []), scene.start, heat)[0, -1, :, 0]
    assert np.abs(simulation.values()[0] - expected.numpy()).max() < 1e-3 * float(expected.max())


def test_other_settings_leave_the_state_as_it_is() -> None:
    """Also what a model has between the nodes; and each of two models goes on with its own state, wherever it is shown."""
    scene, spot = plate(), Spot((0.2, 0.5), (0.8, 0.5), 0.1, 3.0)
    controls = Controls.read(scene, {"model": "universal", "versus": "classical"})
    whole, simulation = Simulation(scene, controls), Simulation(scene, controls)
    whole.advance(6, [spot], False, 60.0)
    for one in (whole, simulation):
        one.restart()
        one.advance(4, [spot], False, 60.0)
    simulation.configure(replace(controls, model="classical", versus="universal"))
    for one in (whole, simulation):
        one.advance(3, [], False, 60.0)
    assert np.array_equal(simulation.values()[::-1], whole.values())


def test_a_boundary_value_that_is_changed_does_not_ring() -> None:
    scene = plate()
    controls = Controls.read(scene, {"model": "classical"})
    held = [{"boundary": "left", "kind": "held", "value": value, "coefficient": 0.0} for value in (0.0, 1.0)]
    simulation = Simulation(scene, replace(controls, conditions=held[:1]))
    simulation.advance(4, [], False, 60.0)
    simulation.configure(replace(simulation.controls, conditions=held[1:]))
    before = torch.from_numpy(simulation.values()).T[None].double()
    simulation.advance(3, [], False, 60.0)
    anew = dg.rollout(dg.Classical(), simulation.problem, before.to(simulation.problem.dtype), steps=3)[0, -1, :, 0]
    assert np.abs(simulation.values()[0] - anew.numpy()).max() < 1e-5


def test_settings_that_are_refused_change_nothing() -> None:
    scene = plate()
    simulation = Simulation(scene, Controls.read(scene, {}))
    before = simulation.problem
    bad = replace(simulation.controls, conditions=[{"boundary": "left", "kind": "exchange", "value": 0.0, "coefficient": -1.0}])
    with pytest.raises(InputError, match="negative"):
        simulation.configure(bad)
    assert simulation.problem is before and simulation.advance(1, [], False, 1.0) == 1


def test_the_trained_model_of_a_scenario() -> None:
    scene = run_scene(dg.load_run(PRETRAINED / "allen-cahn-converged"))
    controls = Controls.read(scene, {"versus": "classical"})
    assert controls.model == "trained" and json.dumps(scene.described())
    simulation = Simulation(scene, controls)
    simulation.advance(2, [], True, 60.0)
    first, second = simulation.values()
    problem = scene.problem(scene.case.dt, 1.0, list(scene.case.conditions))
    expected = dg.rollout(scene.learned, problem, scene.start, steps=2).detach()
    assert np.allclose(first, expected[0, -1, :, 0], atol=1e-6) and not np.allclose(first, second, atol=1e-6)


def test_a_flow_that_is_not_there_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="flow comes with its data"):
        case_scene(get("cylinder", "small"))


def test_values_of_boundaries_and_conductivity() -> None:
    mesh = dg.box((6, 2))
    scene = mesh_scene(mesh, "rod")
    rows = [{"boundary": "left", "kind": "held", "value": 1.0}, {"boundary": "right", "kind": "held", "value": 3.0}]
    simulation = Simulation(scene, Controls.read(scene, {"conditions": rows, "diffusion": 1e4, "dt": 100.0}))
    simulation.advance(60, [], False, 60.0)
    assert np.allclose(simulation.values()[0], 1 + 2 * mesh.points[:, 0], atol=1e-2)
