"""A condition of one's own class is as good as the built-in one that has the same law: nothing asks for conditions by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.export.c_file import export_c, find_compiler
from dgnet.inverse.coefficients import Factors
from dgnet.inverse.unknowns import warmed
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.universal import Universal
from dgnet.problems import (
    PDE,
    Case,
    Condition,
    Dirichlet,
    FunctionSource,
    Neumann,
    Periodic,
    Problem,
    Robin,
    SpotTable,
    TimeTable,
    Units,
    Value,
)
from dgnet.problems.conditions import CONDITIONS
from dgnet.problems.sight import Bounds, doubts
from dgnet.studio.scene import case_scene
from dgnet.training import Simulator, open_simulator
from dgnet.training.identity import fingerprint


@dataclass(frozen=True)
class Contact(Condition):
    """Surroundings behind an exchange and a layer of a thermal resistance: coefficient 1 / (1 / exchange + resistance)."""

    role, kind, keys = "exchange", "contact", {"exchange": "convection", "resistance": (0, -1, 1, 0, 0), "behind": (1, 0, 0, 0, 0)}

    boundary: str
    exchange: float
    resistance: float
    behind: Value = 0.0
    field: str | None = None

    @property
    def drive(self) -> Value:
        return self.behind

    @property
    def coefficient(self) -> Value:
        return 1 / (1 / self.exchange + self.resistance)


@dataclass(frozen=True)
class Wall(Condition):
    """A held value that is the mean of two."""

    role, kind, keys = "held", "wall", {"one": (1, 0, 0, 0, 0), "two": (1, 0, 0, 0, 0)}

    boundary: str
    one: float
    two: float
    field: str | None = None

    @property
    def drive(self) -> Value:
        return 0.5 * (self.one + self.two)


@dataclass(frozen=True)
class Heater(Condition):
    """A flux of a power over an area."""

    role, kind, keys = "flux", "heater", {"power": "flux"}

    boundary: str
    power: Value
    field: str | None = None

    @property
    def drive(self) -> Value:
        return self.power


TABLE = TimeTable([0.0, 0.2, 0.2, 0.5], [1.0, 2.0, 7.0, 3.0])
PAIRS = [
    ([Contact("left", 4.0, 0.25, 3.0)], [Robin("left", 2.0, 3.0)]),
    ([Contact("left", 4.0, 0.25, TABLE, "T")], [Robin("left", 2.0, TABLE, "T")]),
    ([Wall("left", 1.0, 5.0)], [Dirichlet("left", 3.0)]),
    ([Heater("top", TABLE), Wall("left", 1.0, 5.0)], [Neumann("top", TABLE), Dirichlet("left", 3.0)]),
]


def problem(conditions: list[Condition]) -> Problem:
    return Problem(box((5, 4)), PDE(("T",), diffusion=0.3), conditions, dt=0.1)


@pytest.mark.parametrize(("own", "known"), PAIRS)
def test_results_doubts_and_bounds_are_those_of_the_same_law(own, known):
    mine, theirs = problem(own), problem(known)
    start = torch.full((1, mine.n_nodes, 1), 20.0, dtype=torch.float64)
    for model in (Classical(), Classical(degree=2), Universal()):
        assert torch.equal(rollout(model, mine, start, steps=5), rollout(model, theirs, start, steps=5))
    states = rollout(Classical(), mine, start, steps=5)
    slow = [replace(p, pde=replace(p.pde, diffusion=1e-3)) for p in (mine, theirs)]  # layers thinner than a cell
    assert doubts(slow[0], states=states) == doubts(slow[1], states=states) != []
    assert (Bounds(mine)._conditions(1)[0] == Bounds(theirs)._conditions(1)[0]).all()


def test_what_can_be_unknown_is_changed():
    own, known = (problem(list(pair)) for pair in PAIRS[0])
    assert torch.equal(warmed(own, 2.0).load(0.0), warmed(known, 2.0).load(0.0))
    twice = [Factors(("convection",), False, p).applied(p, [2.0]) for p in (own, known)]
    assert torch.equal(twice[0].convection_part().values, twice[1].convection_part().values)
    assert torch.equal(twice[0].load(0.0), twice[1].load(0.0))


def case(conditions: list[Condition]) -> Case:
    mesh = box((5, 4))
    return Case(name="own", title="Own", equation="", build_mesh=lambda: mesh, pde=PDE(("T",), diffusion=0.3),
                conditions=tuple(conditions), dt=0.1, steps=10, units=Units())


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("k", [0, 2])
def test_it_is_exported_and_compared_with_the_library(tmp_path: Path, k: int):
    texts = []
    for name, conditions in zip(("own", "known"), PAIRS[k]):
        export_c(Simulator(case=case(list(conditions)), model=Classical(), folder=tmp_path), tmp_path / name / "step.c")
        texts.append((tmp_path / name / "step.c").read_text())
    assert texts[0] == texts[1]


def test_the_studio_shows_and_changes_it():
    for own, known in PAIRS[:1] + PAIRS[2:3]:
        mine, theirs = case_scene(case(own)), case_scene(case(known))
        rows = mine.rows()
        assert rows == theirs.rows()
        rows[0]["value"] = 11.0
        assert mine.conditions(rows) == theirs.conditions(rows)


def test_a_problem_file_asks_for_it_by_its_kind(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(CONDITIONS, "contact", Contact)
    text = """
[problem]
name = "plate"
fields = ["T"]
dt = 1.0
[units]
length = "m"
time = "s"
T = "K"
[mesh]
shape = "rectangle"
size = [1, 1]
spacing = 0.5
[pde]
diffusion = "1 mm2/s"
[[boundary]]
name = "left"
kind = "contact"
exchange = "2 mm/s"
resistance = "500 s/m"
behind = 300
"""
    (tmp_path / "problem.toml").write_text(text)
    assert open_simulator(tmp_path).case.conditions[0] == Contact("left", 0.002, 500.0, 300.0)


def test_the_fingerprint_names_its_numbers():
    assert fingerprint(case([Contact("left", 4.0, 0.25, 3.0)]))["conditions"] == [
        "contact on left: exchange 4.0, resistance 0.25, behind 3.0"]


def test_two_boundaries_are_needed_for_a_periodic_one():
    with pytest.raises((TypeError, InputError)):
        Periodic("left")


@pytest.mark.parametrize("make", [lambda x: Robin("left", 1.0, x), lambda x: Robin("left", x, 1.0), lambda x: Neumann("left", x),
                                  lambda x: Dirichlet("left", x)])
def test_a_source_is_no_value_of_a_boundary(make):
    path = np.array([[0.5, 0.5, 0.1, 1.0]] * 2)
    for source in (SpotTable(("laser",), (np.array([0.0, 1.0]),), (path,)), FunctionSource(lambda x, t: x[:, :1] + t)):
        with pytest.raises(InputError, match="the condition on 'left' has a source of the inside for a value"):
            problem([make(source)])


def test_a_condition_that_says_too_little_is_no_insulation():
    class Odd(Contact):
        role = "exchanges"

    @dataclass(frozen=True)
    class Bare(Condition):
        role, kind = "exchange", "bare"
        boundary: str

    with pytest.raises(InputError, match="has the role 'exchanges'"):
        problem([Odd("left", 4.0, 0.25)])
    with pytest.raises(NotImplementedError, match="Bare does not say"):
        problem([Bare("left")])
