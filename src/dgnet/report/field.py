"""The moving field of the report page: one trajectory with its truth, the model and the classical solver.

The arrays are inside the page as one compressed block. The truth has 16 bits per value; differences from it have 8 bits on a
scale of their own, so that an error a thousand times smaller than the field is still drawn finely.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from dgnet.data import Corpus
from dgnet.files import strict
from dgnet.mesh import Mesh
from dgnet.models import title_of
from dgnet.report.viewer import VIEWER, colour_maps
from dgnet.scoring import rivals
from dgnet.training import Run

Tensor = torch.Tensor

FRAMES = 61
BLOCK = 2_500_000
"""Characters of the block: with the pictures beside it a page stays below 5 MB."""
_BYTES = 2_600_000  # of all frames, before they are compressed
_CELLS = 400_000  # numbers that name the corners of tetrahedra; beyond, a solid is shown without a cutting plane


def content(run: Run, result: dict[str, Any], states: dict[str, Tensor], data: Corpus) -> dict[str, Any]:
    """The data and scripts of the section; `why` there are none where the mesh is too large for a page."""
    mesh, own, other = run.case.mesh, run.settings.model, rival(result)
    parts = 4 + int(data.source_average is not None)  # bytes per node, field and frame
    frames = min(FRAMES, data.state.shape[1], _BYTES // (parts * mesh.n_nodes * data.state.shape[3]))
    each = result["scores"][own]["trajectories"]
    number = int(np.argmax(each))
    finite = torch.isfinite(states[own][number]).flatten(1).all(1) & torch.isfinite(states[other][number]).flatten(1).all(1)
    last = int(finite.long().cumprod(0).sum()) - 1  # a model that diverges is shown as long as it has numbers
    if frames < 2 or last < 1:
        return {"block": "", "why": "The mesh is too large to be shown moving in a page" if frames < 2 else
                "There is nothing finite to show"}
    rows = np.unique(np.linspace(0, last, frames).round().astype(int))
    about, block = _packed(run, result, states, data, number, rows)
    while len(block) > BLOCK and len(rows) > 3:  # fields that compress badly have fewer frames
        rows = rows[::2]
        about, block = _packed(run, result, states, data, number, rows)
    return {"block": block, "about": about, "scores": strict(result), "names": (title_of(own), title_of(other)),
            "many": f" of the trajectory with the largest error, number {number}" if len(each) > 1 else "",
            "scripts": Markup("\n".join((VIEWER / name).read_text() for name in ("soft.js", "viewer.js", "chart.js", "report.js")))}


def rival(result: dict[str, Any]) -> str:
    """The better of the classical solvers with linear elements."""
    return min(rivals(), key=lambda name: result["scores"][name]["rne_from_offset"])


def _packed(run: Run, result: dict[str, Any], states: dict[str, Tensor], data: Corpus, number: int, rows: np.ndarray,
            ) -> tuple[dict[str, Any], str]:
    """What the page's script must know, and the arrays as base64 of one zlib stream."""
    case, own, other = run.case, run.settings.model, rival(result)

    def taken(values: Tensor) -> np.ndarray:
        return values[number, rows].permute(0, 2, 1).double().cpu().numpy()  # [frame, field, node]

    truth = taken(data.state)
    low, high = truth.min((0, 2)), truth.max((0, 2))
    span = np.where(high > low, high - low, 1.0)
    arrays = [*_mesh_arrays(case.mesh), np.round((truth - low[:, None]) / span[:, None] * 65535).astype(np.uint16)]
    scales = []
    for name in (own, other):
        error = taken(states[name]) - truth
        scale = np.maximum(np.abs(error).max((0, 2)), 1e-300)
        arrays.append(np.round(127 * error / scale[:, None]).astype(np.int8))
        scales.append(scale.tolist())
    top: list[float] = []
    if data.source_average is not None:
        steps = np.minimum(rows, data.source_average.shape[1] - 1)  # the source of the step that begins there
        source = data.source_average[number, steps].permute(0, 2, 1).double().cpu().numpy()
        size = np.maximum(np.abs(source).max((0, 2)), 1e-300)
        arrays.append(np.round(127 * source / size[:, None]).astype(np.int8))
        top = size.tolist()
    units, begin = case.units, float(data.begin[number]) if data.begin is not None else 0.0
    about = {
        "title": case.title or case.name, "dim": case.mesh.dim, "nodes": case.mesh.n_nodes, "fields": list(case.pde.fields),
        "counts": [len(a) for a in _mesh_arrays(case.mesh)[1:]], "times": (begin + case.dt * rows).tolist(), "low": low.tolist(),
        "high": (low + span).tolist(), "names": [title_of(n) for n in (own, other)], "scales": scales, "source": top,
        "peaks": [] if not top else [_peaks(case.mesh, np.abs(f).max(0)) for f in source],
        "units": {"time": units.time, "fields": [units.fields.get(f, "") for f in case.pde.fields],
                  "source": units.name((0, -3, -1, 1, 0) if case.pde.weighted else (1, 0, -1, 0, 0), case.pde.fields[0])},
        "colours": colour_maps()}
    stream = zlib.compress(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays), 9)
    return about, base64.b64encode(stream).decode()


def _mesh_arrays(mesh: Mesh) -> list[np.ndarray]:
    """Points, then triangles, tetrahedra and lines as the viewer draws them, each flat."""
    solid, none = mesh.dim == 3, np.empty(0)
    cells = mesh.cells if solid and mesh.cells.size <= _CELLS else none
    parts = (mesh.boundary_facets if solid else mesh.cells, cells, none if solid else mesh.boundary_facets)
    return [mesh.points.astype(np.float32).ravel(), *(part.astype(np.uint32).ravel() for part in parts)]


def _peaks(mesh: Mesh, size: np.ndarray) -> list[int]:
    """Nodes where a source [N] is largest among its neighbours and at least a third of its peak: where the spots are."""
    i, j = mesh.edges.T
    highest = size.copy()
    np.maximum.at(highest, i, size[j])
    np.maximum.at(highest, j, size[i])
    found = np.flatnonzero((size >= highest) & (size > size.max() / 3) & (size > 0))
    return found[np.argsort(-size[found])][:12].tolist()
