"""A case as files is the case that was written, to the last bit of its steps; functions and damaged files are not taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, ByRegion, Case, Condition, Curve, Dirichlet, Neumann, Periodic, Robin, Scaled, TimeTable, Units
from dgnet.projects import CASE, read_case, write_case
from dgnet.training.identity import fingerprint
from tests.problems.test_conditions import Contact

MESH = box((5, 4), perturb=0.2, seed=1)
LEFT = np.flatnonzero(MESH.centroids[:, 0] < 0.5)
PULSE = TimeTable([0.0, 0.2, 0.2, 0.5], [1.0, 2.0, 7.0, 3.0])
RIM: list[Condition] = [Dirichlet("left", PULSE), Robin("right", 2.0, 1.5), Neumann("top", 0.3)]
STEEL = Curve([-50.0, 0.0, 50.0], [1.0, 1.5, 2.0]).melting(0.5, 0.2, 0.6)


def case(pde: PDE, conditions: list[Condition] = RIM, **more: object) -> Case:
    from dataclasses import replace
    mesh = replace(MESH, regions={"iron": LEFT})
    return Case(name="own", title='A <"title"> ü', equation="du/dt = ...", build_mesh=lambda: mesh, pde=pde,
                conditions=tuple(conditions), dt=0.1, steps=7, units=Units("m", "s", {"u": "K"}), **more)  # type: ignore[arg-type]


CASES = {
    "numbers": case(PDE(diffusion=0.1, decay=0.2, velocity=[0.1, 0.2]), offset=(1.5,)),
    "arrays": case(PDE(diffusion=torch.linspace(0.1, 0.3, MESH.n_cells), velocity=np.ones((MESH.n_nodes, 2)) / 3)),
    "tensors": case(PDE(diffusion=[[0.2, 0.05], [0.05, 0.1]], capacity=np.float32(2.0))),
    "fields": case(PDE(("a", "b"), diffusion={"a": 0.1, "b": torch.linspace(0.1, 0.3, MESH.n_cells)}),
                   [Dirichlet("left", 1.0, "a"), Robin("right", 2.0, PULSE, "b")]),
    "curves": case(PDE(diffusion=Scaled(Curve([-50.0, 50.0], [0.1, 0.2]), [[1.0, 0.0], [0.0, 2.0]]), capacity=STEEL)),
    "regions": case(PDE(diffusion=ByRegion({"iron": Curve([-50.0, 50.0], [0.1, 0.2]), "elsewhere": 0.3}))),
    "periodic": case(PDE(diffusion=0.1), [Periodic("left", "right"), Dirichlet("top", 2.0)]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_steps_as_what_was_written(name: str, tmp_path: Path) -> None:
    written = CASES[name]
    assert write_case(written, tmp_path)
    read = read_case(tmp_path)
    assert fingerprint(read) == fingerprint(written) and read.title == written.title and read.units == written.units
    start = torch.randn(1, MESH.n_nodes, len(written.pde.fields), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = (rollout(Classical(), c.problem(), start, steps=c.steps) for c in (written, read))
    assert torch.equal(one, other)


@pytest.mark.parametrize("made", [case(PDE(reaction=torch.sin)), case(PDE(velocity=lambda t: torch.zeros(MESH.n_nodes, 2))),
                                  case(PDE(), [Dirichlet("left", lambda x, t: x[:, 0])]),
                                  case(PDE(), [Contact("left", 4.0, 0.25, 3.0)])])
def test_functions_are_not_stored(made: Case, tmp_path: Path) -> None:
    assert not write_case(made, tmp_path / "x") and not (tmp_path / "x").exists()


def test_damaged_files_are_refused_or_are_what_they_were(tmp_path: Path) -> None:
    write_case(CASES["curves"], tmp_path)
    file, wanted, rng = tmp_path / CASE, fingerprint(CASES["curves"]), np.random.default_rng(0)
    whole = file.read_bytes()
    for place in rng.integers(0, len(whole), 80):
        content = bytearray(whole)
        content[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        try:
            assert fingerprint(read_case(tmp_path)) == wanted  # a date of the archive
        except InputError as error:
            assert str(file) in str(error)
    for content in (b"", whole[:200], b"PK"):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"case\.npz"):
            read_case(tmp_path)
    for text in ("[]", '{"name": {"is": "Path", "of": {}}}', '{"name": {"is": "PDE", "of": {"fields": 3}}}', "{}"):
        np.savez(file, case=np.array(text))
        with pytest.raises(InputError):
            read_case(tmp_path)
