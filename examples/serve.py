"""Answer requests of other programs over HTTP: a trained run, rolled out with spots that the request draws.

    python examples/serve.py run
    curl 127.0.0.1:8420/probe -d '{"steps": 9, "points": [[0.5, 0.5]], "spots": [[[0, 0.2, 0.5, 0.1, 9], [9, 0.8, 0.5, 0.1, 9]]]}'

A spot is a list of rows t, x, y[, z], radius, power. The answer has times and, for each, the values of all fields at the points.
Needs starlette and uvicorn (`pip install 'dgnet[studio]'`). It listens to this computer alone and does not ask who calls.
"""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import dgnet as dg

WORK, BYTES = 20_000_000, 1 << 20  # nodes times steps of a request, and its size


def table(value: object, what: str, columns: int) -> np.ndarray:
    found = np.array(value, dtype=float)
    if found.ndim != 2 or found.shape[1] != columns or not len(found) or not np.isfinite(found).all():
        raise dg.InputError(f"{what} must be rows of {columns} finite numbers")
    return found


def answer(run: dg.Run, asked: dict) -> dict:
    """Values [times, points, fields] of a rollout."""
    mesh, dt, steps, drawn = run.case.mesh, run.case.dt, asked.get("steps"), asked.get("spots", [])
    if type(steps) is not int or not 0 < steps * mesh.n_nodes <= WORK or not isinstance(drawn, list):
        raise dg.InputError(f"steps must be a number from 1 to {WORK // mesh.n_nodes}, and spots a list")
    points, heat = table(asked.get("points"), "points", mesh.dim), torch.zeros(1, steps, mesh.n_nodes, len(run.case.offsets))
    for k, rows in enumerate(table(rows, "a spot", mesh.dim + 3) for rows in drawn):
        if (np.diff(rows[:, 0]) <= 0).any() or (rows[:, -2] <= 0).any():
            raise dg.InputError("the times of a spot must increase and its radii be positive")
        spot = dg.SpotTable((str(k),), (rows[:, 0],), (rows[:, 1:],))
        heat[..., :1] += spot.average(torch.tensor(mesh.points), 0, steps, dt).float()
    start = torch.tensor(run.case.offsets).expand(1, mesh.n_nodes, -1)
    with torch.no_grad():
        states = dg.rollout(run.model, run.case.problem(dtype=torch.float32), start, heat)
    return {"times": (dt * np.arange(steps + 1)).tolist(), "values": mesh.interpolate(states[0], points).tolist()}


def application(run: dg.Run) -> Starlette:
    pool = ThreadPoolExecutor(1)  # one request computes at a time

    def computed(body: bytes) -> JSONResponse:
        try:
            asked = json.loads(body)
            return JSONResponse(answer(run, asked if isinstance(asked, dict) else {}))
        except dg.InputError as error:
            return JSONResponse({"error": str(error)}, 422)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return JSONResponse({"error": "a request is JSON, with numbers in rows of equal length"}, 400)

    async def probe(request: Request) -> JSONResponse:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BYTES:
                return JSONResponse({"error": f"a request may have {BYTES:,} bytes"}, 413)
        return await asyncio.get_running_loop().run_in_executor(pool, computed, bytes(body))

    served = Starlette(routes=[Route("/probe", probe, methods=["POST"])])
    served.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])  # not for pages of other sites
    return served


if __name__ == "__main__":
    uvicorn.run(application(dg.load_run(Path(sys.argv[1]))), host="127.0.0.1", port=8420)
