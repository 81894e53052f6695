"""What every scenario learns and how it is trained, as plain data. `python tests/training/plans.py` writes plans.json anew."""

import json
from dataclasses import fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from dgnet.mesh import box
from dgnet.training.plan import Facts, Wishes, baseline_recipe, plan
from dgnet_paper.scenarios import SIZES, get, names

TINY = box((39, 24))  # 1000 nodes
FILE = Path(__file__).with_suffix(".json")


def changed(value: Any) -> Any:
    """A dataclass as the settings that differ from their defaults."""
    if isinstance(value, tuple):
        return [changed(v) for v in value]
    if not is_dataclass(value):
        return value
    return {f.name: changed(getattr(value, f.name)) for f in fields(value) if getattr(value, f.name) != f.default}


def plans() -> dict[str, Any]:
    """By scenario, size and recipe, with the reaction known or not; recipes also for fewer and shorter trajectories."""
    found: dict[str, Any] = {}
    for name, size in product(names(), SIZES):
        s = get(name, size)
        facts = Facts(s.train, s.steps)
        for recipe, unknown in product(("staged", "paper"), (False, True)):
            wishes = Wishes(recipe, unknown)
            config, stages = plan(s, facts, wishes)
            found[f"{name} {size} {recipe}" + " unknown" * unknown] = {
                "config": changed(config), "recipe": changed(stages), "short": changed(plan(s, Facts(3, 30), wishes)[1])}
        found[f"{name} {size} mgn"] = changed(baseline_recipe("mgn", replace(s, build_mesh=lambda: TINY), facts))
    return found


if __name__ == "__main__":
    rows = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in plans().items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
