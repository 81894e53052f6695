"""The description of the service in the OpenAPI format, version 3.1."""

from __future__ import annotations

from typing import Any

from dgnet import __version__
from dgnet.output.serve.service import KEYS, Service

_NPZ = {"schema": {"type": "string", "format": "binary", "description": "a NumPy archive with the same entries as arrays"}}
_SUMMARY = {"rollout": "the states of all steps", "probe": "the fields at some points, of all steps",
            "gradient": "how a value at the end depends on the initial state and the source"}
_REFUSALS = {"400": "cannot be read", "413": "too large", "415": "neither JSON nor .npz",
             "422": "numbers that do not fit, with the reason", "503": "too many requests at once, or too long: come again"}


def description(service: Service) -> dict[str, Any]:
    """What GET /openapi.json answers."""
    n, fields = service.shape
    dim = service.problem.mesh.dim
    number, row = {"type": "number"}, {"type": "array", "items": {"type": "number"}}
    rows = {"type": "array", "items": row}
    field = {"description": f"one number, {fields} (one for each field) or [{n}][{fields}]",
             "oneOf": [number, row, rows]}
    entries: dict[str, Any] = {
        "steps": {"type": "integer", "minimum": 1, "description": f"steps of {service.run.case.dt:g}"},
        "every": {"type": "integer", "minimum": 1, "default": 1, "description": "answer with one state in so many"},
        "initial": field | {"description": f"initial state: {field['description']}; the case's offset without it"},
        "source": {"description": f"source, averaged over the steps: {field['description']} for all steps, or "
                                  f"[steps][{n}][{fields}]",
                   "oneOf": [number, row, rows, {"type": "array", "items": rows}]},
        "spots": {"type": "array", "items": rows, "description": "Gaussian spots that drive the first field; each is a list of "
                  f"rows [time, {', '.join('xyz'[:dim])}, radius, power], linear in between"},
        "points": rows | {"description": f"[points][{dim}]"},
        "weights": field | {"description": f"of the points' values: one number, or [points][{fields}]; 1 without it"}}
    answers = {"rollout": {"times": row, "states": {"type": "array", "items": rows, "description": f"[times][{n}][{fields}]"}},
               "probe": {"times": row, "values": {"type": "array", "items": rows, "description": f"[times][points][{fields}]"}},
               "gradient": {"value": number, "initial": rows, "source": rows, "spots": row}}
    required = {"rollout": ["steps"], "probe": ["steps", "points"], "gradient": ["steps", "points"]}

    def both(schema: dict[str, Any]) -> dict[str, Any]:
        return {"application/json": {"schema": schema}, "application/x-npz": _NPZ}

    paths: dict[str, Any] = {
        f"/{name}": {"post": {
            "summary": _SUMMARY[name], "operationId": name,
            "requestBody": {"required": True, "content": both({
                "type": "object", "additionalProperties": False, "required": required[name],
                "properties": {key: entries[key] for key in keys}})},
            "responses": {"200": {"description": "the arrays; as .npz with Accept: application/x-npz", "content": both(
                {"type": "object", "properties": answers[name]})}, **{code: {"description": words} for code, words in
                                                                       _REFUSALS.items()}}}}
        for name, keys in KEYS.items()}
    for path, words in (("/about", "facts about the case and the limits"), ("/mesh", "points and cells of the mesh"),
                        ("/openapi.json", "this description")):
        paths[path] = {"get": {"summary": words, "responses": {"200": {"description": words}}}}
    words = f"{n} nodes, fields {', '.join(service.run.case.pde.fields)}"
    return {"openapi": "3.1.0", "info": {"title": service.run.case.title, "version": __version__, "description": words},
            "paths": paths}
