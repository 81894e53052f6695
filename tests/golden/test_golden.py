"""Nothing that ships changes by rebuilding: states of all shipped weights and both classical solvers as recorded."""

import numpy as np
import pytest

from tests.golden.record import FILE, labels, states


@pytest.mark.parametrize("label", labels())
def test_states_are_as_recorded(label: str) -> None:
    with np.load(FILE, allow_pickle=False) as recorded:
        for name, value in states(label).items():
            scale = np.abs(recorded[name]).max()
            assert scale > 0 and np.abs(value - recorded[name]).max() <= 1e-5 * scale, name
