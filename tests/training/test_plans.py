"""What every scenario of the paper learns, and how, stays as it is until someone changes it on purpose."""

import json

import pytest

from dgnet.mesh import box
from dgnet.problems import PDE
from dgnet.problems.case import Case
from dgnet.recipe import GENERAL, IN_A_FLOW, Recipe
from dgnet.training.plan import RETREAT, Facts, Wishes, plan
from tests.training.plans import FILE, plans


def test_the_plans_of_all_scenarios_are_the_recorded_ones() -> None:
    found, kept = plans(), json.loads(FILE.read_text())
    assert list(found) == list(kept)
    for key, value in kept.items():
        assert json.loads(json.dumps(found[key])) == value, key


def own(name: str, pde: PDE, given_flow: bool = False) -> Case:
    return Case(name=name, title=name, equation="", build_mesh=lambda: box((2, 2)), pde=pde, conditions=(), dt=0.1, steps=100,
                given_flow=given_flow)


@pytest.mark.parametrize("name", ["cylinder", "allen-cahn", "laser-heat", "foo"])
@pytest.mark.parametrize("pde, given_flow", [(PDE(diffusion=1.0), False), (PDE(diffusion=1.0), True),
                                             (PDE(velocity=(1.0, 0.0)), False)])
def test_a_problem_of_a_user_is_trained_by_what_it_is_and_not_by_its_name(name: str, pde: PDE, given_flow: bool) -> None:
    config, recipe = plan(own(name, pde, given_flow), Facts(10, 100, sources=True), Wishes())
    flows = given_flow or pde.velocity is not None
    assert recipe == Recipe("own", IN_A_FLOW if flows else GENERAL, retreat=RETREAT)
    assert config.learn_streamline == flows and config.learn_source and not config.learn_swirl and not config.odd_reaction


def test_an_unknown_reaction_of_a_user_is_a_table_for_one_field_and_terms_for_two() -> None:
    for fields in (("u",), ("u", "v")):
        config, recipe = plan(own("foo", PDE(fields, diffusion=1.0)), Facts(10, 100), Wishes(unknown_reaction=True))
        one = len(fields) == 1
        assert bool(config.reaction_table) == one and bool(config.reaction_degree) != one and not config.learn_source
        assert [s.method for s in recipe.stages] == ["identify"] + ["adam"] * len(GENERAL) + ["identify"] * (not one)
        for model in ({"reaction_degree": 2}, {"reaction_terms": ("u/(1+u)",)}, {"dgnet": {"reaction_degree": 2}}):
            wished, _ = plan(own("foo", PDE(fields, diffusion=1.0)), Facts(10, 100), Wishes(unknown_reaction=True, model=model))
            assert wished.reaction_degree == (3 if "reaction_terms" in model else 2) and not wished.reaction_table
