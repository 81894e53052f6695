"""Random linear problems by dgnet and by the solver of this folder."""

import pytest

from tests.independent.draw import difference, linear


@pytest.mark.parametrize("seed", range(30))
def test_states_are_those_of_the_independent_solver(seed: int) -> None:
    drawn = linear(seed)
    assert difference(drawn.dgnet(), drawn.independent()) < 1e-9
