"""A functional mock-up unit (FMI 2.0 or 3.0, co-simulation) around the C file of a step. Neither Python nor torch is inside.

    inputs       values at boundaries; Gaussian spots that heat or inject: place, velocity, radius, power
    parameters   the uniform initial value of each field
    outputs      fields at probes; mean, lowest and highest value of each field

It holds the binary for this machine and all sources, so that it can be compiled for another one.
"""

from __future__ import annotations

import hashlib
import io
import platform
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import numpy as np

from dgnet import __version__
from dgnet.errors import InputError
from dgnet.export.c_file import FLAGS, TEXT, CSource, compare, filled, find_compiler, header_fields, identifier, written
from dgnet.export.c_rates import number
from dgnet.export.record import Exported, described, write_beside
from dgnet.files import write_bytes
from dgnet.mesh import Mesh, from_cells
from dgnet.problems import base_problem
from dgnet.training import Simulator

VERSIONS = (2, 3)


@dataclass(frozen=True)
class Variable:
    """An entry of modelDescription.xml; its value reference is its place in the list."""

    name: str
    causality: str  # independent, input, parameter or output
    description: str
    start: float | None = None


def export_fmu(run: Simulator, out: Path, fmi: int = 2, probes: Sequence[tuple[float, ...]] = (), spots: int = 1) -> Exported:
    """Write OUT.fmu, OUT.vtu and OUT.json.

    - `fmi`: version of the standard, 2 or 3
    - `probes`: points whose values are outputs; without any, the node next to the middle
    - `spots`: how many Gaussian spots are inputs; they drive the first field
    """
    if fmi not in VERSIONS:
        raise InputError(f"there is FMI 2 and 3 for co-simulation, not {fmi}")
    if not 0 <= spots <= 1000:
        raise InputError(f"a unit has 0 to 1000 spots, not {spots}")
    compiler = find_compiler()
    if compiler is None:
        raise InputError("an FMU needs a C compiler, and neither cc nor gcc nor clang was found")
    problem = base_problem(run.case, "cpu")
    made = written(run, problem, identifier(out.stem))
    nodes, weights, places = _probes(problem.mesh, probes)
    variables = _variables(run, made, places, spots)
    token = hashlib.sha256(f"{fmi}{variables}{made.source}".encode()).hexdigest()[:32]
    volumes = problem.mesh.dual_volumes()
    lists = {"start_values": [v.start or 0.0 for v in variables], "probe_weights": weights.ravel().tolist(),
             "shares": (volumes / volumes.sum()).tolist()}
    fields = header_fields(run, made.name, made.boundaries) | {
        "spots": str(spots), "probes": str(len(nodes)), "token": token, "probe_size": str(nodes.size),
        "probe_nodes": ", ".join(map(str, nodes.ravel().tolist())),
        **{key: ", ".join(number(x) for x in values) for key, values in lists.items()}}
    glue = filled("".join((TEXT / name).read_text() for name in ("fmu.c", f"fmi{fmi}.c")), fields)
    with tempfile.TemporaryDirectory() as place:
        compare(run, problem, made, Path(place), compiler)
        binary = _binary(made, glue, Path(place), compiler)
    data = _packed(run, made, glue, binary, variables, token, fmi)
    record = described(run, problem, out) | {
        "fmi": f"{fmi}.0", "kind": "co-simulation", "solver": made.solver, "bytes": len(data),
        **{f"{kind}s": {v.name: v.description for v in variables if v.causality == kind}
           for kind in ("input", "parameter", "output")},
        "call": [f"fmpy simulate {out.name} --start-time 0 --stop-time {100 * run.case.dt:g} --output-interval {run.case.dt:g}"]}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, data)
    return write_beside(out, problem, {}, record)


def _probes(mesh: Mesh, given: Sequence[tuple[float, ...]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Corners [P, d + 1] and weights of each probe, and where it is [P, d]."""
    for point in given:
        if len(point) != mesh.dim:
            raise InputError(f"a probe needs {mesh.dim} coordinates, got {','.join(f'{x:g}' for x in point)}")
    at = np.array(given, dtype=np.float64).reshape(-1, mesh.dim)
    if not len(at):
        at = mesh.points[np.linalg.norm(mesh.points - mesh.points.mean(0), axis=1).argmin()][None]
    if not np.isfinite(at).all():
        raise InputError("the coordinates of a probe must be finite")
    rows, outside = from_cells(mesh.points, mesh.cells, at)
    if len(outside):
        raise InputError(f"the probe at {', '.join(f'{x:g}' for x in at[outside[0]])} lies outside of the mesh")
    nodes, weights = np.zeros((len(at), mesh.dim + 1), int), np.zeros((len(at), mesh.dim + 1))
    for k in range(len(at)):
        row = rows[[k]]
        nodes[k, :row.nnz], weights[k, :row.nnz] = row.indices, row.data
    return nodes, weights, at


def _variables(run: Simulator, made: CSource, places: np.ndarray, spots: int) -> list[Variable]:
    """In the order of `c/fmu.c`."""
    case, axes = run.case, "xyz"[:places.shape[1]]
    low, high = case.mesh.points.min(0), case.mesh.points.max(0)
    middle, radius = 0.5 * (low + high), 0.1 * float((high - low).max())
    found = [Variable("time", "independent", "time")]
    found += [Variable(b.name, "input", b.meaning, b.value) for b in made.boundaries]
    first = case.pde.fields[0]
    for s in range(1, spots + 1):
        found += [Variable(f"spot{s}_{a}", "input", f"{a} of the middle of spot {s}", float(m)) for a, m in zip(axes, middle)]
        found += [Variable(f"spot{s}_v{a}", "input", f"its velocity along {a}", 0.0) for a in axes]
        found += [Variable(f"spot{s}_radius", "input", "its radius: the source falls to exp(-1/2) there", radius),
                  Variable(f"spot{s}_power", "input", f"its source in the middle, for {first}", 0.0)]
    found += [Variable(f"start_{f}", "parameter", f"initial value of {f}, everywhere", float(o))
              for f, o in zip(case.pde.fields, case.offsets)]
    for k, at in enumerate(places, 1):
        where = ", ".join(f"{x:.6g}" for x in at)
        found += [Variable(f"probe{k}_{f}", "output", f"{f} at ({where})") for f in case.pde.fields]
    for kind, words in (("mean", "mean of"), ("low", "lowest value of"), ("high", "highest value of")):
        found += [Variable(f"{kind}_{f}", "output", f"{words} {f}") for f in case.pde.fields]
    return found


def _binary(made: CSource, glue: str, folder: Path, compiler: str) -> bytes:
    for name, text in _sources(made, glue).items():
        (folder / name).write_text(text)
    names = [name for name in _sources(made, glue) if name.endswith(".c")]
    # the standard fixes the functions' parameters, used or not
    command = [compiler, *FLAGS, "-Wno-unused-parameter", "-fvisibility=hidden", "-shared", "-fPIC", "-o", "unit.so", *names, "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise InputError(f"the FMU does not compile: {done.stderr.strip().splitlines()[0] if done.stderr else compiler}")
    return (folder / "unit.so").read_bytes()


def _sources(made: CSource, glue: str) -> dict[str, str]:
    return {f"{made.name}.c": made.source, f"{made.name}.h": made.header, f"{made.name}_fmu.c": glue}


def _packed(run: Simulator, made: CSource, glue: str, binary: bytes, variables: Sequence[Variable], token: str, fmi: int) -> bytes:
    """The file: a zip archive."""
    machine = platform.machine().lower().replace("amd64", "x86_64")
    place = {2: f"linux{64 if machine in ('x86_64', 'aarch64') else 32}", 3: f"{machine}-linux"}[fmi]
    sources = _sources(made, glue)
    files: dict[str, str | bytes] = {
        "modelDescription.xml": _description(run, made, variables, token, fmi, [n for n in sources if n.endswith(".c")]),
        f"binaries/{place}/{made.name}.so": binary, **{f"sources/{name}": text for name, text in sources.items()},
        "documentation/index.html": _page(run, variables)}
    if fmi == 3:
        build = xml.Element("fmiBuildDescription", fmiVersion="3.0")
        configuration = xml.SubElement(build, "BuildConfiguration", modelIdentifier=made.name)
        group = xml.SubElement(configuration, "SourceFileSet", language="C99")
        for name in sources:
            if name.endswith(".c"):
                xml.SubElement(group, "SourceFile", name=name)
        xml.SubElement(configuration, "Library", name="m")
        files["sources/buildDescription.xml"] = _text(build)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)  # the same every time
    return buffer.getvalue()


def _description(run: Simulator, made: CSource, variables: Sequence[Variable], token: str, fmi: int, sources: Sequence[str]) -> str:
    case, two = run.case, fmi == 2
    root = xml.Element("fmiModelDescription", {
        "fmiVersion": f"{fmi}.0", "modelName": case.title, "guid" if two else "instantiationToken": token,
        "description": f"{case.title}: {case.mesh.n_nodes} nodes, steps of {case.units.in_time(case.dt)}",
        "generationTool": f"dgnet {__version__}", "variableNamingConvention": "flat"})
    unit = xml.SubElement(root, "CoSimulation", modelIdentifier=made.name, canHandleVariableCommunicationStepSize="true")
    if two:
        files = xml.SubElement(unit, "SourceFiles")
        for name in sources:
            xml.SubElement(files, "File", name=name)
    else:
        unit.set("fixedInternalStepSize", repr(case.dt))
    xml.SubElement(root, "DefaultExperiment", startTime="0", stopTime=repr(100 * case.dt), stepSize=repr(case.dt))
    listed, structure = xml.SubElement(root, "ModelVariables"), xml.SubElement(root, "ModelStructure")
    for reference, v in enumerate(variables):
        common = {"name": v.name, "valueReference": str(reference), "causality": v.causality, "description": v.description,
                  "variability": "fixed" if v.causality == "parameter" else "continuous"}
        initial = {"parameter": "exact", "output": "calculated"}.get(v.causality)
        common |= {} if initial is None else {"initial": initial}
        start = {} if v.start is None else {"start": repr(v.start)}
        if two:
            xml.SubElement(xml.SubElement(listed, "ScalarVariable", common), "Real", start)
        else:
            xml.SubElement(listed, "Float64", common | start)
    outputs = [k for k, v in enumerate(variables) if v.causality == "output"]
    if two:
        for name in ("Outputs", "InitialUnknowns"):
            group = xml.SubElement(structure, name)
            for k in outputs:
                xml.SubElement(group, "Unknown", index=str(k + 1))
    else:
        for name in ("Output", "InitialUnknown"):
            for k in outputs:
                xml.SubElement(structure, name, valueReference=str(k))
    return _text(root)


def _page(run: Simulator, variables: Sequence[Variable]) -> str:
    """documentation/index.html: what the variables mean."""
    page = xml.Element("html")
    body = xml.SubElement(page, "body")
    xml.SubElement(body, "h1").text = run.case.title
    words = f"{run.case.mesh.n_nodes} nodes, steps of {run.case.units.in_time(run.case.dt)}; written by dgnet {__version__}."
    xml.SubElement(body, "p").text = words
    table = xml.SubElement(body, "table")
    for v in variables:
        row: Any = xml.SubElement(table, "tr")
        for cell in (v.name, v.causality, v.description, "" if v.start is None else f"{v.start:g}"):
            xml.SubElement(row, "td").text = cell
    return _text(page)


def _text(root: xml.Element) -> str:
    xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(root, encoding="unicode") + "\n"
