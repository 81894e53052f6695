"""A step of a trained run for use without this package: as a program of torch or ONNX, as a C file, as an FMU.

The kind follows from the name of the file: .pt2, .onnx (`program`), .c (`c_file`) or .fmu (`fmu`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dgnet.errors import InputError
from dgnet.export.c_file import export_c
from dgnet.export.fmu import export_fmu
from dgnet.export.plain import Solve, Step
from dgnet.export.program import export_program
from dgnet.export.record import Exported
from dgnet.training import Simulator

KINDS = (".pt2", ".onnx", ".c", ".fmu")


def export(run: Simulator, out: Path, batch: int | None = None, *, fmi: int = 2, probes: Sequence[tuple[float, ...]] = (),
           spots: int = 1) -> Exported:
    """Write one step of a run as the kind of file that OUT ends in, with the mesh (.vtu) and a description (.json) beside it.

    `batch` is for .pt2 and .onnx (`export_program`); `fmi`, `probes` and `spots` are for .fmu (`export_fmu`).
    """
    if out.suffix not in KINDS:
        raise InputError(f"{out} must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if out.suffix == ".c":
        return export_c(run, out)
    if out.suffix == ".fmu":
        return export_fmu(run, out, fmi, probes, spots)
    return export_program(run, out, batch)


__all__ = ["KINDS", "Exported", "Solve", "Step", "export"]
