"""`dgnet serve`: the library's numbers over HTTP, limits, a bounded queue, and clear words for bad requests."""

import asyncio
import io
import json
import resource
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.models import Classical, Model, rollout
from dgnet.models.universal import Universal
from dgnet.output.serve.service import Limits, Service
from dgnet.problems import PDE, Dirichlet
from dgnet.problems.case import base_problem
from dgnet.scenarios import get
from tests.output.test_export import fake

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from dgnet.output.serve.app import NPZ, application  # noqa: E402  (after the packages that it needs)

SPOT = [[0.0, 0.2, 0.3, 0.2, 5.0], [1.0, 0.8, 0.3, 0.2, 5.0]]


def service(limits: Limits | None = None, model: Model | None = None) -> Service:
    run = replace(fake(PDE(diffusion=0.1), (Dirichlet("left", 1.5),)), model=model or Classical())
    return Service(replace(run, case=replace(run.scenario, offset=(0.5,))), limits)


def asked(what: Callable[[Any], Awaitable[Any]], served: Service | None = None, **settings: Any) -> Any:
    async def talk() -> Any:
        transport = httpx.ASGITransport(application(served or service(), **settings), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            return await what(client)

    return asyncio.run(talk())


def post(path: str, table: Any, served: Service | None = None, **settings: Any) -> Any:
    return asked(lambda client: client.post(path, json=table, **settings), served)


def test_a_rollout_is_that_of_the_library() -> None:
    problem = service().problem
    u0 = torch.rand(1, 25, 1, generator=torch.Generator().manual_seed(0))
    f = torch.rand(1, 6, 25, 1, generator=torch.Generator().manual_seed(1))
    expected = rollout(Classical(), problem, u0, f)[0].numpy()
    told = post("/rollout", {"steps": 6, "every": 2, "initial": u0[0].tolist(), "source": f[0].tolist()})
    assert told.status_code == 200 and told.headers["content-type"] == "application/json"
    np.testing.assert_allclose(told.json()["states"], expected[::2], rtol=1e-6)
    np.testing.assert_allclose(told.json()["times"], problem.dt * np.arange(0, 7, 2))
    buffer = io.BytesIO()
    np.savez(buffer, steps=6, initial=u0[0].numpy(), source=f[0].numpy())
    told = asked(lambda client: client.post("/rollout", content=buffer.getvalue(), headers={"content-type": NPZ, "accept": NPZ}))
    assert told.headers["content-type"] == NPZ
    np.testing.assert_array_equal(np.load(io.BytesIO(told.content))["states"], expected)


def test_probes_follow_spots() -> None:
    corner, middle = [0.0, 0.0], [0.5, 0.5]
    quiet = post("/probe", {"steps": 20, "points": [middle, corner]}).json()["values"]
    driven = post("/probe", {"steps": 20, "points": [middle, corner], "spots": [SPOT]}).json()["values"]
    assert np.shape(driven) == (21, 2, 1) and driven[0][0] == quiet[0][0] == [0.5]
    assert driven[-1][0][0] > quiet[-1][0][0] + 0.5 and driven[-1][1] == quiet[-1][1] == [1.5]


@pytest.mark.parametrize("model", [Classical(), Universal()], ids=lambda m: m.name)
def test_a_gradient_is_that_of_differences(model: Model) -> None:
    served, start = service(model=model), torch.full((25, 1), 0.5)
    table = {"steps": 5, "points": [[0.6, 0.4]], "initial": start.tolist(), "spots": [SPOT], "source": 0.3}
    found = post("/gradient", table, served).json()

    def value(**changes: Any) -> float:
        return post("/probe", table | changes, served).json()["values"][-1][0][0]

    assert found["value"] == pytest.approx(value(), rel=1e-6)
    moved = start.clone()
    moved[12] += 0.5  # the model is linear, so a large difference is exact
    assert found["initial"][12][0] == pytest.approx((value(initial=moved.tolist()) - value()) / 0.5, rel=1e-3)
    assert sum(g[0] for g in found["source"]) == pytest.approx(value(source=1.3) - value(), rel=1e-3)
    twice = [[*row[:-1], 2 * row[-1]] for row in SPOT]
    assert found["spots"] == [pytest.approx(value(spots=[twice]) - value(), rel=1e-3)]


def test_pages_describe_the_service() -> None:
    page = asked(lambda client: client.get("/"))
    assert page.status_code == 200 and "/rollout" in page.text and page.headers["content-type"].startswith("text/html")
    paths = asked(lambda client: client.get("/openapi.json")).json()["paths"]
    assert set(paths) >= {"/rollout", "/probe", "/gradient", "/mesh", "/about"}
    assert set(paths["/probe"]["post"]["requestBody"]["content"]) == {"application/json", NPZ}
    facts, mesh = (asked(lambda client, path=path: client.get(path)).json() for path in ("/about", "/mesh"))
    assert facts["nodes"] == len(mesh["points"]) == 25 and facts["fields"] == ["u"]


BAD = {
    "steps must be": {"steps": 0}, "steps must be a positive whole number": {}, "steps must be a positive": {"steps": "ten"},
    "unknown entry 'step'; did you mean 'steps'": {"step": 3}, "too many": {"steps": 10**7},
    "got the shape": {"steps": 1, "initial": [1, 2]},
    "real numbers": {"steps": 1, "initial": "warm"}, "equal length": {"steps": 1, "source": [[1], [2, 3]]},
    "two rows": {"steps": 1, "spots": [[[0, 0, 0, 1, 1]]]},
    "must increase": {"steps": 1, "spots": [[[1, 0, 0, 1, 1], [0, 0, 0, 1, 1]]]},
}


@pytest.mark.parametrize("words", BAD)
def test_bad_numbers_are_one_sentence(words: str) -> None:
    told = post("/rollout", BAD[words])
    assert told.status_code == 422 and words in told.json()["error"]


def test_other_refusals() -> None:
    def refused(status: int, words: str, what: Callable[[Any], Awaitable[Any]], served: Service | None = None) -> None:
        told = asked(what, served)
        assert told.status_code == status and words in told.text, told.text

    kind = {"content-type": "application/json"}
    refused(400, "no JSON", lambda c: c.post("/rollout", content=b"{steps", headers=kind))
    refused(400, "object", lambda c: c.post("/rollout", content=b"[]", headers=kind))
    refused(400, "no NumPy archive", lambda c: c.post("/rollout", content=b"PK", headers={"content-type": NPZ}))
    pickled = io.BytesIO()
    np.savez(pickled, steps=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(400, "no NumPy archive", lambda c: c.post("/rollout", content=pickled.getvalue(), headers={"content-type": NPZ}))
    refused(415, "text/csv", lambda c: c.post("/rollout", content=b"1,2", headers={"content-type": "text/csv"}))
    refused(404, "no such page", lambda c: c.get("/nowhere"))
    refused(405, "method", lambda c: c.get("/rollout"))
    refused(422, "outside", lambda c: c.post("/probe", json={"steps": 1, "points": [[5, 5]]}))
    refused(422, "numbers", lambda c: c.post("/rollout", json={"steps": 9}), service(Limits(numbers=100)))
    refused(413, "bytes", lambda c: c.post("/rollout", json={"steps": 1, "source": [[0.0]] * 25}), service(Limits(body=50)))
    refused(503, "fewer", lambda c: c.post("/rollout", json={"steps": 50}), service(Limits(seconds=1e-9)))
    refused(400, "host", lambda c: c.get("/about", headers={"host": "elsewhere.example"}))
    with pytest.raises(InputError, match="flow"):
        run = fake(PDE(diffusion=0.1))
        Service(replace(run, case=get("cylinder", "small")))


def test_the_queue_is_bounded_and_empties() -> None:
    async def crowd(client: Any) -> tuple[list[int], int]:
        one = {"steps": 3, "points": [[0.5, 0.5]]}
        many = await asyncio.gather(*(client.post("/probe", json=one) for _ in range(40)))
        return [told.status_code for told in many], (await client.post("/probe", json=one)).status_code

    codes, after = asked(crowd, service(Limits(queue=10)))
    assert codes.count(200) >= 10 and set(codes) == {200, 503} and after == 200
    codes, _ = asked(crowd, service(Limits(queue=40)))
    assert set(codes) == {200}


@pytest.mark.slow
def test_two_hundred_at_once_none_lost() -> None:
    """Half of them large: memory stays bounded by the limit on bytes, not by the number of requests."""
    served = Service(replace(fake(PDE(diffusion=0.1)), model=Classical(), case=replace(
        get("laser-heat", "small"), conditions=())))
    n = base_problem(served.run.case, "cpu").mesh.n_nodes

    async def crowd(client: Any) -> list[Any]:
        large = {"steps": 40, "initial": [[300.0]] * n}
        small = {"steps": 5, "points": [served.problem.mesh.points[0].tolist()]}
        return await asyncio.gather(*(client.post("/rollout" if k % 2 else "/probe", json=large if k % 2 else small)
                                      for k in range(200)))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = asked(crowd, served)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert [a.status_code for a in answers] == [200] * 200
    assert all(len(json.loads(a.content)["times"]) == (41 if k % 2 else 6) for k, a in enumerate(answers))
    print(f"{sum(len(a.content) for a in answers) / 1e6:.0f} MB of answers, {grown:.0f} MB more memory (the client holds them all)")
