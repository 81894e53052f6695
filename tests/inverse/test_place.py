"""Places of sensors: the greedy choice against brute force and random ones, its uncertainty against `infer`, the command."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dgnet.cli import app
from dgnet.errors import InputError
from dgnet.inverse import Placement, kernels, place, read_sensors
from dgnet.inverse.place import spread_out
from dgnet.inverse.posterior import Unknown, infer
from dgnet.inverse.priors import fields
from dgnet.inverse.unknowns import linear_kind
from dgnet.mesh import box
from dgnet.problems import PDE, Problem, Robin, SpotTable

PLATE = Problem(box((8, 8)), PDE(diffusion=0.05), [Robin("boundary", 0.2, 0.0)], 0.1)
SPOTS = SpotTable(("a", "b"), (np.array([0.0, 1.0]),) * 2, tuple(np.array([[*p, 0.15, 1.0]] * 2) for p in ((0.2, 0.3), (0.7, 0.8))))


def chosen(count: int, unknown: str, candidates: int = 10, criterion: str = "A") -> Placement:
    return place(PLATE, spread_out(PLATE.mesh, candidates), count, [unknown], 12, noise=0.02, strength=1.0, spots=SPOTS,
                 criterion=criterion)  # type: ignore[arg-type]


@pytest.mark.parametrize("unknown", ["source", "start", "field"])
def test_the_greedy_choice_is_within_five_percent_of_brute_force(unknown: str) -> None:
    found = chosen(3, unknown)
    best = min(found.left(some) for some in combinations(range(10), 3))
    assert best <= found.left(found.chosen) <= 1.05 * best
    assert found.uncertainty[-1] ** 2 == pytest.approx(found.left(found.chosen))


def test_most_information_is_within_five_percent_of_brute_force() -> None:
    found = chosen(3, "source", criterion="D")

    def worth(some: tuple[int, ...]) -> float:
        return float(np.linalg.slogdet(np.eye(len(found.prior)) + found.information[list(some)].sum(0))[1])

    assert worth(found.chosen) >= 0.95 * max(worth(some) for some in combinations(range(10), 3))


def test_chosen_places_beat_random_ones() -> None:
    found, rng = chosen(4, "source", 60), np.random.default_rng(0)
    random = np.median([found.left(rng.choice(60, 4, replace=False)) for _ in range(50)])
    assert found.left(found.chosen) < 0.5 * random
    assert (np.diff(found.uncertainty) < 0).all() and found.uncertainty[0] == 1.0


def test_the_uncertainty_is_that_of_the_posterior() -> None:
    """With the strength that `infer` finds for some readings, the standard deviations are the same, whatever was read."""
    candidates, length = spread_out(PLATE.mesh, 5), 0.4
    made = kernels(PLATE, candidates, 12)
    R = linear_kind("start", PLATE, 12).responses(PLATE, made, candidates).numpy()
    y = np.random.default_rng(0).standard_normal(R.shape[:2]).ravel()
    asked = Unknown("start", R.reshape(-1, R.shape[2]), ((1.0, length),), fields(PLATE.mesh)[1])
    posterior = infer(y, [asked], noise=0.5).answers[0]
    strength = float(np.sqrt((posterior.prior_sd**2).mean()))
    found = place(PLATE, candidates, 5, ["start"], 12, noise=0.5, strength=strength, length=length)
    assert found.uncertainty[-1] == pytest.approx(np.sqrt((posterior.sd**2).sum() / (posterior.prior_sd**2).sum()), rel=1e-3)


def test_what_cannot_be_placed_is_refused() -> None:
    for count, noise, words in ((11, 0.1, "11 of 10 candidates"), (2, -1.0, "must be a positive")):
        with pytest.raises(InputError, match=words):
            place(PLATE, spread_out(PLATE.mesh, 10), count, ["start"], 5, noise=noise, strength=1.0)
    with pytest.raises(InputError, match="not placed for their own lags"):
        place(PLATE, spread_out(PLATE.mesh, 10), 2, ["start", "lag"], 5, noise=0.1, strength=1.0)


@pytest.mark.slow
def test_the_page_about_sensors_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "sensors.md").read_text()
    exec(re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)[0], {})
    for line in "".join(re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)).splitlines():
        done = CliRunner().invoke(app, line.split()[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    found = np.genfromtxt("answers/source.csv", delimiter=",", names=True)
    assert np.abs(found["B"][4:-4] - 2.0).mean() < 0.15
    listed = read_sensors(tmp_path / "placed" / "sensors.csv", 2)
    assert len(listed) == 4 and (np.diff(np.genfromtxt("placed/curve.csv", delimiter=",", names=True)["uncertainty"]) < 0).all()
    factors = json.loads((tmp_path / "fitted" / "answers.json").read_text())["factors"]
    assert all(abs(f["factor"] - 1) < 0.2 for f in factors.values()) and set(factors) == {"convection", "diffusion"}
    for name in ("both/start.vtu", "somewhere/field.png", "flux/flux-left.csv", "placed/places.png"):
        assert (tmp_path / name).stat().st_size > 1000, name
