"""Commands that take a trained run elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgnet.cli.options import file_to_write, refuse
from dgnet.cli.screen import advise, say, say_path
from dgnet.cli.shell import AllowDifferent, Json, Problem, command, write_json
from dgnet.errors import InputError

if TYPE_CHECKING:
    from dgnet.training.simulator import Simulator

_FMU = "it is an option of .fmu"


def _beside(out: Path) -> list[Path]:
    """What `export` writes with OUT."""
    return [out.with_suffix(end) for end in (".vtu", ".json", *((".h",) if out.suffix == ".c" else ()))]


def _point(text: str) -> tuple[float, ...]:
    """Coordinates of a probe."""
    try:
        return tuple(float(x) for x in text.split(","))
    except ValueError:
        raise InputError(f"--probe {text}: coordinates are numbers with commas in between, as in 0.3,0.7") from None


def _opened(context: typer.Context, folder: Path, problem: Path | None, allow_different: bool, model: str) -> Simulator:
    """A run with its own model, or a problem with one that needs no data."""
    from dgnet.training.run import open_simulator

    own = (folder / "problem.toml").exists() and not (folder / "run.toml").exists()
    plain = f"{folder} is a problem, not a run"
    refuse(context, {"problem": plain, "allow_different": plain} if own else {"model": f"{folder} is no problem; runs have theirs"})
    return open_simulator(folder, problem, allow_different, model)


@command("dgnet export run --out step.pt2", "dgnet export run --out step.onnx", "dgnet export run --out plate.c",
         "dgnet export run --out plate.fmu --fmi 3 --probe 0.3,0.7 --spots 2")
def export(context: typer.Context,
           run: Annotated[Path, typer.Argument(help="Folder of a run, or of a problem (problem.toml).")],
           out: Annotated[Path, typer.Option(help="FILE.pt2 (torch.export), FILE.onnx, FILE.c (C99, with FILE.h) or FILE.fmu; the "
                                                  "mesh (.vtu) and a description (.json) are written beside it.",
                                             callback=file_to_write(".pt2", ".onnx", ".c", ".fmu", beside=_beside))],
           batch: Annotated[int | None, typer.Option(help="Fix the number of trajectories of .pt2 and .onnx; the default is any "
                                                          "number.", min=1)] = None,
           fmi: Annotated[int, typer.Option(help="Version of the standard of an .fmu: 2 or 3.", min=2, max=3)] = 2,
           probe: Annotated[list[str] | None, typer.Option(help="X,Y or X,Y,Z: a point whose values are outputs of an .fmu. May be "
                                                                "repeated; the default is the middle.")] = None,
           spots: Annotated[int, typer.Option(help="Number of Gaussian spots that are inputs of an .fmu.", min=0, max=1000)] = 1,
           model: Annotated[str, typer.Option(help="Model of a problem: classical, or universal as .c or .fmu.")] = "classical",
           problem: Problem = None, allow_different: AllowDifferent = False, json_path: Json = None) -> None:
    """Write one step of a run as a program, a C file or an FMU that works without this package."""
    from dgnet.export import export as write

    refuse(context, {"batch": "a C file has one trajectory"} if out.suffix in (".c", ".fmu") else {})
    refuse(context, {} if out.suffix == ".fmu" else {"fmi": _FMU, "probe": _FMU, "spots": _FMU})
    opened = _opened(context, run, problem, allow_different, model)
    result = write(opened, out, batch, fmi=fmi, probes=[_point(text) for text in probe or ()], spots=spots)
    write_json(json_path, result.record)
    size = f"{result.record['nodes']} nodes, {len(result.record['fields'])} field{'s' * (len(result.record['fields']) > 1)}"
    say(f"One step of {opened.case.units.in_time(result.record['dt'])} on {size}: {result.record['bytes'] / 1e6:.1f} MB")
    for note in opened.notes:
        say(note)
    for line in result.record["call"]:
        say(f"    {line}")
    for path in result.paths:
        say_path(path)
    advise("bench", "export", run)
