"""What every scenario of the paper learns, and how, stays as it is until someone changes it on purpose."""

import json

from tests.training.plans import FILE, plans


def test_the_plans_of_all_scenarios_are_the_recorded_ones() -> None:
    found, kept = plans(), json.loads(FILE.read_text())
    assert list(found) == list(kept)
    for key, value in kept.items():
        assert json.loads(json.dumps(found[key])) == value, key
