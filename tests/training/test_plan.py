"""What is learned and how it is trained follows from problem, data and what is unknown, never from a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dgnet as dg
from dgnet.discovery.unknowns import Unknowns
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models.dgnet import DGNetConfig
from dgnet.models.registry import configure
from dgnet.problems import PDE
from dgnet.problems.case import Case
from dgnet.projects import Training
from dgnet.recipe import GENERAL, IN_A_FLOW, PaperSettings, Recipe, Stage
from dgnet.training.plan import RETREAT, Plan, make_plan, staged

TUNED = "universal-tuned"


def own(name: str = "foo", pde: PDE | None = None, given_flow: bool = False) -> Case:
    return Case(name=name, title=name, equation="", build_mesh=lambda: box((2, 2)), pde=pde or PDE(diffusion=1.0), conditions=(),
                dt=0.1, steps=100, given_flow=given_flow)


def methods(plan: Plan) -> list[str]:
    return [s.method for s in plan.recipe.stages]


@pytest.mark.parametrize("name", ["cylinder", "allen-cahn", "foo"])
@pytest.mark.parametrize("pde, given_flow", [(PDE(diffusion=1.0), False), (PDE(diffusion=1.0), True),
                                             (PDE(velocity=(1.0, 0.0)), False)])
def test_a_problem_of_a_user_is_trained_by_what_it_is_and_not_by_its_name(name: str, pde: PDE, given_flow: bool) -> None:
    plan = make_plan(own(name, pde, given_flow), 10, 100, sources=True)
    flows, config = given_flow or pde.velocity is not None, plan.config
    assert plan.recipe == Recipe("own", IN_A_FLOW if flows else GENERAL, retreat=RETREAT)
    assert config.learn_streamline == flows and config.learn_source and not config.learn_swirl and not config.odd_reaction


@pytest.mark.parametrize("fields", [("u",), ("u", "v")])
@pytest.mark.parametrize("model", [{}, {"reaction_degree": 2}, {"reaction_terms": ("u/(1+u)",)}, {"dgnet": {"reaction_degree": 2}}])
def test_an_unknown_reaction_is_a_table_for_one_field_and_terms_for_two_or_where_asked_for(
        fields: tuple[str, ...], model: dict, tmp_path: Path) -> None:
    mesh, states = box((2, 2)), np.random.default_rng(0).random((2, 6, 9, len(fields)))
    runs = [dg.trajectory(one, mesh, 0.1) for one in states]
    project = dg.project("foo", mesh, PDE(fields, diffusion=1.0), [], 0.1, runs, tmp_path / "d.h5", unknown_reaction=True,
                         model=model)
    plan = make_plan(project, 10, 100)
    table = len(fields) == 1 and not model
    assert bool(plan.config.reaction_table) == table and bool(plan.config.reaction_degree) != table
    assert methods(plan) == ["identify"] + ["adam"] * len(GENERAL) + ["identify"] * (not table)


def test_a_case_may_bring_its_own_plan() -> None:
    """Windows are cut to the data; what it says of its reaction holds once that is unknown."""
    stages = (Stage(10, 60, first=80, skip=50), Stage(5, 8))
    mine = Plan(DGNetConfig(hidden=4), staged(stages, validate_steps=600), PaperSettings(6, 1e-3, 30, 10, 0.2, 6),
                odd_reaction=True, hold_reaction=True)
    case = replace(own(), training=mine)
    plan = make_plan(case, 10, 40)
    assert plan.recipe == Recipe("staged", (Stage(10, 40, first=0, skip=39), Stage(5, 8)), validate_steps=40, retreat=RETREAT)
    assert plan.config == mine.config
    plan = make_plan(case, 10, 40, unknowns=Unknowns(reaction=True))
    first, *rest = plan.recipe.stages
    assert plan.config.odd_reaction and first.method == "identify" and all("reaction_net" not in s.only and s.only for s in rest)
    paper = make_plan(case, 10, 41, model="dgnet-paper")
    (stage,) = paper.recipe.stages
    assert paper.config == configure("dgnet-paper") and (paper.recipe.name, paper.recipe.hold_out) == ("paper", 0)
    assert (stage.iterations, stage.length, stage.decay_every, stage.decay_rate) == (30 * 13, 5, 10 * 13, 0.2)
    mgn = make_plan(case, 10, 41, model="mgn")
    assert mgn.recipe.iterations == stage.iterations and mgn.recipe.name == "mgn" and mgn.recipe.hold_out == 0


def test_what_can_be_fitted_by_itself_comes_first_and_is_held() -> None:
    factors = make_plan(own(), 10, 100, unknowns=Unknowns(factors=("diffusion",), per_region=True))
    assert methods(factors) == ["gauss-newton", "adam"] * 2 + ["gauss-newton"] and factors.config.regions
    assert not factors.config.learn_diffusion and all("calibration" not in s.only and s.only for s in factors.recipe.stages[1::2])
    curves = make_plan(own(), 10, 100, unknowns=Unknowns(curves=("diffusion",)))
    assert methods(curves) == ["material", "adam", "adam", "material"] and not curves.config.learn_diffusion
    both = make_plan(own(), 10, 100, unknowns=Unknowns(reaction=True, factors=("decay",)))
    assert both.config.reaction_table and both.config.calibrate == ("decay",) and both.config.learn_diffusion
    for plan in (factors, curves, both):
        assert Unknowns.of(plan.config).factors == plan.config.calibrate
    with pytest.raises(InputError, match="unknown curves go neither"):
        make_plan(own(), 10, 100, unknowns=Unknowns(reaction=True, curves=("diffusion",)))
    with pytest.raises(InputError, match="'decay' cannot be an unknown curve"):
        Unknowns(curves=("decay",))
    with pytest.raises(InputError, match="unknown_curves"):  # the paper's model has none, and says so
        make_plan(own(), 10, 100, model="dgnet-paper", unknowns=Unknowns(curves=("diffusion",)))


@pytest.mark.parametrize("model", ["dgnet", TUNED])
def test_the_table_of_training_changes_the_recipe(model: str, tmp_path: Path) -> None:
    mesh, states = box((2, 2)), np.random.default_rng(0).random((4, 31, 9))
    runs = [dg.trajectory(one, mesh, 0.1) for one in states]

    def plan(training: Training) -> Plan:
        project = dg.project("foo", mesh, PDE(diffusion=1.0), [], 0.1, runs, tmp_path / "d.h5", training=training)
        return make_plan(project, 4, 30, model=model)

    found = plan(Training(windows=(4, 50), iterations=(7, 3), learning_rate=1e-3, batch=2, hold_out=2, noise=0.1)).recipe
    assert [(s.length, s.iterations, s.batch, s.noise) for s in found.stages] == [(4, 7, 2, 0.1), (30, 3, 2, 0.1)]
    assert max(s.lr for s in found.stages) == 1e-3 and found.hold_out == 2
    with pytest.raises(InputError, match="same length"):
        plan(Training(windows=(4, 50), iterations=(7,)))
    with pytest.raises(InputError, match="leaves none of the 4"):
        plan(Training(hold_out=4))


def test_unknown_curves_can_be_asked_for_in_python_as_in_a_file(tmp_path: Path) -> None:
    mesh, states = box((2, 2)), np.random.default_rng(0).random((2, 6, 9))
    runs = [dg.trajectory(one, mesh, 0.1) for one in states]
    project = dg.project("foo", mesh, PDE(diffusion=1.0), [], 0.1, runs, tmp_path / "d.h5",
                         unknown_curves=["capacity", "diffusion"])
    assert project.unknowns == Unknowns(curves=("capacity", "diffusion")) == Unknowns.of(make_plan(project, 2, 5).config)
    assert project.unknowns.words == ["the capacity as a curve", "the diffusion as a curve"]
