"""Placeholder."""
from dgnet.scenarios.scenario import Scenario


def scenario(size: str) -> Scenario:
    raise NotImplementedError
