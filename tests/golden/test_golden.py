"""Nothing that ships changes by rebuilding: states of all shipped weights and both classical solvers as recorded."""

from pathlib import Path

import numpy as np
import pytest

from tests.golden.record import FILE, labels, states, training


@pytest.mark.parametrize("label", labels())
def test_states_are_as_recorded(label: str) -> None:
    with np.load(FILE, allow_pickle=False) as recorded:
        for name, value in states(label).items():
            spread = np.ptp(recorded[name])  # not the size: 300 K would hide what changes
            assert spread > 0 and np.abs(value - recorded[name]).max() <= 2e-5 * spread, name


def test_a_short_training_is_as_recorded(tmp_path: Path) -> None:
    with np.load(FILE, allow_pickle=False) as recorded:
        np.testing.assert_allclose(training(tmp_path), recorded["training"], rtol=1e-4)
