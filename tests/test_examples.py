"""The examples and the README's listing run, and their numbers are those they claim."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dgnet as dg
import dgnet_paper

ROOT = Path(__file__).parents[1]


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))


def test_every_example_is_tested() -> None:
    assert sorted(p.stem for p in (ROOT / "examples").glob("*.py")) == [
        "coefficients_from_sensors", "errors_in_motion", "follow_a_plate", "gray_scott", "green_function", "heat_on_a_plate",
        "heat_without_burning", "learned_reaction", "new_source_3d", "serve", "unknown_diffusivity", "unknown_material",
        "what_heats_the_plate", "where_was_the_laser", "without_finite_differences"]


def test_heat_on_a_plate() -> None:
    main = example("heat_on_a_plate")["main"]
    coarse, fine = main(20), main(40)
    assert fine < 5e-4
    assert coarse / fine > 3  # second order: a factor of four where the mesh were regular


def test_green_function(tmp_path: Path) -> None:
    found = example("green_function")["main"](tmp_path / "green.png")
    assert all(abs(heat) < 1e-12 for heat, _ in found)
    radii = [radius for _, radius in found]
    assert radii == sorted(radii)
    assert radii[0] < 0.15  # of a plate 1.4 m wide
    with Image.open(tmp_path / "green.png") as picture:
        assert picture.width > 500


def test_errors_in_motion(tmp_path: Path) -> None:
    errors = example("errors_in_motion")["main"](tmp_path / "errors.gif", frames=2)
    assert errors["universal weights"] < 0.5 * errors["linear elements"]
    with Image.open(tmp_path / "errors.gif") as picture:
        assert picture.width > 500


def test_unknown_diffusivity() -> None:
    module = example("unknown_diffusivity")
    for noise, tolerance in ((0.0, 0.01), (0.01, 0.05)):
        found, error = module["main"](noise)
        assert found == pytest.approx(module["TRUE"], rel=tolerance)
        assert abs(found / module["TRUE"] - 1) < error < 0.02


@pytest.mark.slow
def test_new_source_3d() -> None:
    errors = example("new_source_3d")["main"]()
    for found in errors.values():
        assert found["dgnet"] < 0.5 * min(found["classical, consistent"], found["classical, lumped"])
    assert errors["coil, never seen"]["dgnet"] < 0.015


@pytest.mark.slow
def test_learned_reaction() -> None:
    errors = example("learned_reaction")["main"]()
    assert errors["learned reaction"] < 0.1 * errors["diffusion only"]
    assert errors["learned reaction"] < 4 * errors["true reaction"]
    assert errors["curve"] < 0.15


def test_gray_scott(tmp_path: Path) -> None:
    module = example("gray_scott")
    found, true = module["main"](tmp_path), module["TRUE"]
    assert found.keys() == true.keys()
    for name, coefficient in true.items():
        assert found[name] == pytest.approx(coefficient, rel=0.02), name


@pytest.mark.slow
def test_unknown_material(tmp_path: Path) -> None:
    module = example("unknown_material")
    latent, error, before = module["main"](tmp_path, tmp_path / "curves.png")
    assert latent == pytest.approx(module["LATENT"], rel=0.05) and error < 2e-3 < 0.01 * before
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 500


def test_readme_listing(capsys: pytest.CaptureFixture[str]) -> None:
    (listing,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(listing.strip().splitlines()) <= 16
    names: dict[str, Any] = {}
    exec(compile(listing, "README.md", "exec"), names)
    assert tuple(names["states"].shape) == (1, 17, 6072, 1)
    problem, states, heating = names["problem"], names["states"], names["heating"]
    total = problem.mass.row_sums()[0, 0]
    gained, given = float((states[0, -1, :, 0] - 298.15) @ total), 0.5 * float((heating[0, :, :, 0] @ total).sum())
    assert gained == pytest.approx(given, rel=1e-2) and gained < given  # what is missing left through the edges
    assert f"{float(states.max()):.1f} K" in capsys.readouterr().out


@pytest.mark.slow  # the notebook about sensors is tested always
def test_what_heats_the_plate() -> None:
    found = example("what_heats_the_plate")["main"](2)
    assert max(found[kind]["median"] for kind in ("swinging", "switched")) < 0.08
    assert min(found[kind]["inside"] for kind in ("swinging", "switched")) > 0.8 and found["places"]["variance"] > 2


def test_without_finite_differences() -> None:
    found = example("without_finite_differences")["main"]((8, 6), 6)
    assert found["apart"] < 0.01 and found["theirs"] > 20 * found["mine"]


@pytest.mark.slow
def test_where_was_the_laser() -> None:
    found = example("where_was_the_laser")["main"](2)
    assert found["path"] < 1 and found["power"] < 0.05 and found["start"] < 0.1 and found["inside"] > 0.8


def test_coefficients_from_sensors() -> None:
    assert all(error < 0.08 for error, _ in example("coefficients_from_sensors")["main"](1).values())


@pytest.mark.parametrize("name", ["three lasers", pytest.param("a path", marks=pytest.mark.slow)])
def test_heat_without_burning(name: str) -> None:
    missed, margin, _ = example("heat_without_burning")["main"]((name,))[name]
    assert missed < 0.02 and margin > 0


@pytest.mark.slow
def test_follow_a_plate() -> None:
    found = example("follow_a_plate")["main"](2)
    assert found["inside"] > 0.8 and found["error"] < 0.03 and (found["noticed"], found["false"]) == (1.0, 0.0)


def test_serve(tmp_path: Path) -> None:
    """The answer to a request is what the command line computes from files."""
    client = pytest.importorskip("starlette.testclient").TestClient
    pytest.importorskip("httpx")
    run = dg.load_run(Path(dgnet_paper.__file__).parent / "pretrained" / "laser-heat-converged")
    middle, size = run.case.mesh.points.mean(0), float(np.ptp(run.case.mesh.points, axis=0).max())
    near = run.case.mesh.points[np.abs(run.case.mesh.points - middle).sum(1).argmin()]
    rows = [[0.0, *near, 0.05 * size, 300.0], [1e6, *near, 0.05 * size, 300.0]]
    (tmp_path / "spot.csv").write_text("t,x,y,radius,power\n" + "\n".join(",".join(map(repr, map(float, row))) for row in rows))
    states: list[Any] = []
    dg.rollout_run(run, source=tmp_path / "spot.csv", steps=3, sink=lambda k, u: states.append(u.copy()))
    served = client(example("serve")["application"](run), base_url="http://127.0.0.1")
    told = served.post("/probe", json={"steps": 3, "points": [near.tolist()], "spots": [rows]})
    assert told.status_code == 200 and told.json()["times"] == pytest.approx(run.case.dt * np.arange(4))
    expected = run.case.mesh.interpolate(np.stack(states), near[None])
    assert np.array(told.json()["values"])[-len(expected):] == pytest.approx(expected, rel=1e-5)
    assert expected[-1].max() > run.case.offsets[0] + 1
    for asked, status, words in (("{", 400, "JSON"), ("[]", 422, "steps"), ('{"steps": 1e9}', 422, "steps"), ("[" * 9**5, 400, ""),
                                 ('{"steps": 2, "points": [[9e9, 0]]}', 422, "outside"), (" " * 2_000_000, 413, "bytes"),
                                 (json.dumps({"steps": 2, "points": [near.tolist()], "spots": [[[0, 1]]]}), 422, "a spot")):
        found = served.post("/probe", content=asked)
        assert found.status_code == status and words in found.json()["error"], (asked[:40], found.text[:200])
    assert client(example("serve")["application"](run), base_url="http://elsewhere").post("/probe").status_code == 400
