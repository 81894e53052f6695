"""Unknowns from readings: the posterior against its closed form, answers against truths of the reference, bad readings by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dgnet.cli import app
from dgnet.errors import InputError
from dgnet.inverse import Point, Readings, read_readings, read_sensors, read_spots, recover, recover_coefficients
from dgnet.inverse.posterior import Unknown, infer
from dgnet.inverse.priors import fields, histories
from dgnet.inverse.readings import cleaned
from dgnet.mesh import box
from dgnet.models import Classical, Model, rollout
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Condition, Neumann, Problem, Robin, SpotTable, step_average
from dgnet.problems.curves import Curve, Latent
from dgnet_paper.reference.transport import solve

Tensor = torch.Tensor
DT, STEPS = 0.1, 24
PLACES = ((0.3, 0.35), (0.7, 0.65))
SPOTS = SpotTable(("a", "b"), (np.array([0.0, 1.0]),) * 2, tuple(np.array([[*p, 0.15, 1.0]] * 2) for p in PLACES))
SENSORS = tuple(Point(p, f"s{k}") for k, p in enumerate([
    (0.25, 0.25), (0.375, 0.375), (0.25, 0.5), (0.75, 0.625), (0.625, 0.75), (0.75, 0.5), (0.5, 0.125), (0.875, 0.875)]))
"""At nodes: between them the truth is not known, only interpolated."""


def plate(*more: Condition) -> Problem:
    return Problem(box((8, 8)), PDE(diffusion=0.05), [Robin("boundary", 0.2, 1.0), *more], DT)


def strengths(t: Tensor) -> Tensor:
    return torch.stack([2 + torch.sin(2 * t), 1.5 + 0.5 * torch.cos(3 * t)])


def heating(x: Tensor, t: Tensor) -> Tensor:
    near = torch.stack([torch.exp(-((x - torch.tensor(p)) ** 2).sum(1) / (2 * 0.15**2)) for p in PLACES])
    return torch.einsum("jt,jn->tn", strengths(t), near)[None, ..., None]


def measured(p: Problem, initial: Tensor, source: object = None, noise: float = 0.01) -> Readings:
    """Noisy readings of the independent reference on a mesh with half the spacing, with quadratic elements."""
    u = solve(p.mesh, p.pde, p.conditions, initial, dt=DT, steps=STEPS, refine=1, degree=2, substeps=2, order=2,
              source=source)[0]  # type: ignore[arg-type]
    seen = p.mesh.interpolate(u, [s.place for s in SENSORS])[..., 0]
    noisy = seen + noise * np.ptp(seen) * np.random.default_rng(0).standard_normal(seen.shape)
    return Readings(DT * np.arange(STEPS + 1), noisy, SENSORS)


def error(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.sqrt(((found - true) ** 2).mean() / (true**2).mean()))


ONES = torch.ones(1, 81, 1, dtype=torch.float64)
MIDDLES = DT * (torch.arange(STEPS, dtype=torch.float64) + 0.5)


def test_the_posterior_is_that_of_linear_regression() -> None:
    rng = np.random.default_rng(0)
    for m in (30, 8):  # more and fewer readings than unknowns
        H, y = rng.standard_normal((m, 12)), rng.standard_normal(m)
        choices, spread = histories(2, 6, 1.0)
        found = infer(y, [Unknown("x", H, choices[1:2], spread)], noise=0.3)
        C = spread(choices[1], np.eye(12))[0] * float(found.answers[0].prior_sd[0]) ** 2
        precision = np.linalg.inv(C) + H.T @ H / 0.3**2
        assert found.answers[0].mean == pytest.approx(np.linalg.solve(precision, H.T @ y / 0.3**2), abs=1e-9)
        assert found.answers[0].sd == pytest.approx(np.sqrt(np.diagonal(np.linalg.inv(precision))), abs=1e-9)
        assert found.noise == pytest.approx(0.3)


def test_noise_and_strength_come_from_the_evidence() -> None:
    rng = np.random.default_rng(1)
    choices, spread = histories(1, 60, 1.0)
    C = spread((np.inf, 8.0), np.eye(60))[0]
    x = 5.0 * np.linalg.cholesky(C + 1e-9 * np.eye(60)) @ rng.standard_normal(60)
    H = np.repeat(np.eye(60), 4, axis=0)
    found = infer(H @ x + 0.5 * rng.standard_normal(240), [Unknown("x", H, choices, spread)])
    assert found.noise == pytest.approx(0.5, rel=0.15) and found.answers[0].length in (4.0, 8.0, 16.0)
    assert (np.abs(found.answers[0].mean - x) < 3 * found.answers[0].sd).mean() > 0.95


def test_switched_histories_are_told_from_gradual_ones() -> None:
    """Sharper than with a Gaussian prior, whose bands would have to be wide everywhere; gradual ones stay what they are."""
    rng, t = np.random.default_rng(2), np.arange(40)
    H = np.tril(0.9 ** np.abs(t[:, None] - t)).repeat(2, 0)
    true = {"switched": 6.0 * ((t >= 9) & (t < 26)), "gradual": 3 + 3 * np.sin(0.3 * t)}
    choices, spread = histories(1, 40, 1.0)
    for kind, x in true.items():
        y = H @ x + 0.8 * rng.standard_normal(80)
        plain, found = (infer(y, [Unknown("x", H, choices, spread, shape)]) for shape in (None, (1, 40)))
        assert found.answers[0].switched == pytest.approx(float(kind == "switched"), abs=0.01)
        low, high = found.answers[0].band()
        assert ((low <= x) & (x <= high)).mean() > 0.8 and found.noise == pytest.approx(0.8, rel=0.25)
        ratio = error(found.answers[0].mean, x) / error(plain.answers[0].mean, x)
        assert ratio < 0.6 if kind == "switched" else ratio == pytest.approx(1.0, abs=0.01)


def test_fields_have_the_prior_that_they_say() -> None:
    mesh = box((7, 7))
    choices, spread = fields(mesh)
    C, variance = spread(choices[1], np.eye(mesh.n_nodes))
    assert np.diagonal(C) == pytest.approx(variance) and variance.mean() == pytest.approx(1.0)
    assert np.linalg.eigvalsh(C).min() > 0 and C == pytest.approx(C.T, abs=1e-12)
    assert C[0, 1] > C[0, 7] > C[0, 63]


@pytest.mark.parametrize("model", [Classical(degree=2), Universal(degree=2)], ids=["classical", "universal"])
def test_strengths_of_spots_at_known_places(model: Model) -> None:
    """With quadratic elements: on so coarse a mesh the error of linear ones is larger than the bands."""
    found = recover(plate(), measured(plate(), ONES, heating), ["source"], spots=SPOTS, start=ONES[0], model=model)
    true = strengths(MIDDLES).numpy().T
    assert error(found.get("source"), true) < 0.07
    low, high = (x.reshape(2, STEPS).T for x in found.answers["source"].band())
    assert ((low < true) & (true < high)).mean() > 0.8
    assert found.get("source", "seen")[-1].max() < found.get("source", "seen")[5].min()  # nobody has felt the last step yet
    assert found.columns["source"] == ("a", "b") and 5 < found.determined < 48


def test_sensors_need_no_names_and_one_step_is_enough() -> None:
    good = measured(plate(), ONES, heating)
    bare = Readings(good.times[:2], good.values[:2], tuple(Point(s.place) for s in SENSORS))
    found = recover(plate(), bare, ["field"], start=ONES[0])
    assert found.get("field").shape == (81, 1) and np.isfinite(found.fitted).all()


def test_the_start_where_sensors_see_it() -> None:
    def warm(x: Tensor) -> Tensor:
        return (1 + torch.exp(-((x - 0.5) ** 2).sum(1) / 0.1))[None, :, None]

    found = recover(plate(), measured(plate(), warm), ["start"], start=ONES[0])  # type: ignore[arg-type]
    true = warm(torch.tensor(plate().mesh.points))[0, :, 0].numpy() - 1
    seen = found.get("start", "seen")[:, 0] > 0.9
    assert seen.sum() > 10 and np.abs(found.get("start")[seen, 0] - true[seen]).mean() < 0.055 * np.ptp(true)
    assert (np.abs(found.get("start")[:, 0] - true) < 3 * found.get("start", "sd")[:, 0]).mean() > 0.95
    near = tuple(Point((0.05, 0.05 * k), f"s{k}") for k in range(1, 3))
    blind = recover(plate(), Readings(DT * np.arange(3), np.array([[1.0, 1.2], [1.1, 1.1], [1.0, 1.2]]), near), ["start"])
    assert any("hardly see" in note for note in blind.notes) and any("6 readings for 81" in note for note in blind.notes)


def test_a_flux_and_spots_at_once() -> None:
    heated = plate(Neumann("left", lambda x, t: 0.3 + 0.2 * np.sin(t) + 0 * x[:, 0]))
    readings = measured(heated, ONES, heating, noise=0.003)
    found = recover(plate(), readings, ["flux:left", "source"], spots=SPOTS, start=ONES[0])
    assert error(found.get("source"), strengths(MIDDLES).numpy().T) < 0.1
    assert error(found.get("flux:left")[3:18, 0], (0.3 + 0.2 * np.sin(MIDDLES.numpy()))[3:18]) < 0.15
    again = recover(plate(), readings, ["flux:left", "source"], spots=SPOTS, start=ONES[0], model=Classical())
    assert np.array_equal(again.get("flux:left"), found.get("flux:left"))  # as the command line names it


def test_the_temperature_of_the_surroundings() -> None:
    """It is 3 where the problem says 1; the exchange is strong, so the readings show it."""
    cooled = replace(plate(), conditions=[Robin("boundary", 0.2, 3.0)])
    found = recover(plate(), measured(cooled, ONES, heating, noise=0.003), ["ambient", "source"], spots=SPOTS, start=ONES[0])
    mean, sd = found.get("ambient")[0], found.get("ambient", "sd")[0]
    assert mean == pytest.approx(2.0, abs=0.1) and 0 < sd < 0.1
    with pytest.raises(InputError, match="no boundary exchanges"):
        recover(replace(plate(), conditions=[]), measured(plate(), ONES, heating), ["ambient"])


# ---------------------------------------------------------------------- bad readings


def test_faults_are_named_and_worked_around() -> None:
    good = measured(plate(), ONES, heating)
    values = np.concatenate([good.values, np.full((STEPS + 1, 1), 1.0), good.values[:, :1]], axis=1)
    values[4:8, 1] = np.nan
    values[15:, 2] = values[15, 2]  # stuck
    values[:, 5] += np.linspace(0, 1.0, STEPS + 1)  # drifts
    bad = Readings(good.times, values, (*SENSORS, Point((0.5, 0.5), "dead"), Point((1.5, 0.5), "away")))
    found = recover(plate(), bad, ["source"], spots=SPOTS, start=ONES[0])
    told = " ".join(found.notes)
    for words in ("outside of the part, left out: away", "never change, left out: dead", "'s1' lacks 4 of 25",
                  "'s2' repeats its reading", "'s5' disagrees with the others"):
        assert words in told, told
    assert error(found.get("source"), strengths(MIDDLES).numpy().T) < 0.12
    kelvin = cleaned(replace(good, values=good.values + 20), plate(), 294.15)
    assert "degrees Celsius" in kelvin.notes[-1] and kelvin.values[0, 0] == pytest.approx(good.values[0, 0] + 293.15)
    celsius = cleaned(replace(good, values=good.values + 293.15), plate(), 20.0)
    assert "taken for kelvin, 273.15 taken off" in celsius.notes[-1] and np.allclose(celsius.values, good.values + 20)
    few = recover(plate(), Readings(good.times[::6], good.values[::6, :2], SENSORS[:2]), ["source"], spots=SPOTS, start=ONES[0])
    assert "10 readings for 48 unknown numbers" in " ".join(few.notes)


def test_what_cannot_be_used_is_refused() -> None:
    good = Readings(DT * np.arange(3), np.random.default_rng(0).random((3, 8)), SENSORS)
    far = tuple(Point((300.0, 350.0), f"s{k}") for k in range(8))
    for readings, unknown, words in (
        (replace(good, times=1e-3 * good.times), ["start"], "another unit of time"),
        (replace(good, sensors=far), ["start"], "every sensor lies outside .* another unit"),
        (replace(good, values=np.ones((3, 8))), ["start"], "no sensor ever changes"),
        (replace(good, times=good.times - 1), ["start"], "before the start"),
        (good, ["sauce"], "unknown 'sauce' cannot be recovered"),
        (good, ["source"], "give the places"),
        (good, ["flux:lid"], "no boundary 'lid'"),
        (good, [], "at least one unknown"),
    ):
        with pytest.raises(InputError, match=words):
            recover(plate(), readings, unknown)
    with pytest.raises(InputError, match="misses the mesh"):
        recover(plate(), good, ["source"], spots=replace(SPOTS, values=tuple(1000 * v for v in SPOTS.values)))


def test_tables(tmp_path: Path) -> None:
    def put(name: str, *lines: str) -> Path:
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    sensors = read_sensors(put("s.csv", "sensor,x,y,radius,boundary", "A,0.1,0.2,,", "cam,0.5,0.5,0.1,", "wall,,,,left"), 2)
    assert [type(s).__name__ for s in sensors] == ["Point", "Patch", "Flux"]
    table = read_readings(put("r.csv", "t,wall,A", "0,1,2", "1,,nan"), sensors)
    assert [s.name for s in table.sensors] == ["wall", "A"] and np.isnan(table.values[1]).all() and "'cam'" in table.notes[0]
    spots = read_spots(put("p.csv", "x,y,radius", "0.1,0.2,0.3"), 2)
    assert spots.names == ("spot 1",) and spots.values[0][0].tolist() == [0.1, 0.2, 0.3, 1.0]
    for text, words in (("t,B\n0,1", "column 'B' is no sensor"), ("time,A\n0,1", "needs one column t"),
                        ("t,A\n0,x", "'x' in column 'A'"),
                        ("t,A\n1,1\n1,2", "times must increase"), ("t,A\n0", "1 cells under 2"), ("t,A", "no rows"),
                        ("t,A,A\n0,1,1", "twice the column 'A'")):
        with pytest.raises(InputError, match=words):
            read_readings(put("r.csv", text), sensors)
    for text, words in (("sensor,x,y\nA,1,1\nA,2,2", "listed twice"), ("sensor,x,y\nA,1,", "not a finite number"),
                        ("sensor,x,y", "lists no sensors")):
        with pytest.raises(InputError, match=words):
            read_sensors(put("s.csv", text), 2)


def test_the_command_writes_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("problem.toml").write_text('problem = { name = "plate", fields = ["T"], dt = 0.1, offset = 1.0 }\n'
                                    'mesh = { file = "plate.npz" }\npde = { diffusion = 0.05 }\n'
                                    'boundary = [{ name = "boundary", kind = "robin", coefficient = 0.2, ambient = 1.0 }]\n')
    from dgnet.mesh import save

    save(plate().mesh, Path("plate.npz"))
    good = measured(plate(), ONES, heating)
    Path("sensors.csv").write_text("sensor,x,y\n" + "".join(f"{s.name},{s.place[0]},{s.place[1]}\n" for s in SENSORS))
    rows = "".join(f"{t}," + ",".join(map(str, row)) + "\n" for t, row in zip(good.times, good.values))
    Path("readings.csv").write_text(f"t,{','.join(s.name for s in SENSORS)}\n{rows}")
    Path("spots.csv").write_text("spot,x,y,radius\n" + "".join(f"{n},{p[0]},{p[1]},0.15\n" for n, p in zip("ab", PLACES)))
    done = CliRunner().invoke(app, ["recover", ".", "readings.csv", "--sensors", "sensors.csv", "--unknown", "source", "--unknown",
                                    "start", "--spots", "spots.csv", "--out", "answers", "--json", "all.json"],
                              catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = np.genfromtxt("answers/source.csv", delimiter=",", names=True)
    assert error(found["a"], strengths(MIDDLES)[0].numpy()) < 0.15
    base = ["recover", ".", "readings.csv", "--sensors", "sensors.csv", "--out", "no"]
    for more, words in ((["--unknown", "start", "--spots", "spots.csv"], "--spots does not apply here"),
                        (["--unknown", "start", "--per-region"], "--per-region does not apply here"),
                        (["--unknown", "diffusion", "--unknown", "start"], "'start' and coefficients cannot"),
                        (["--unknown", "path"], "needs the spot's --radius"),
                        (["--unknown", "start", "--radius", "0.1"], "--radius does not apply here"),
                        (["--unknown", "fluxes"], "known: source, field, start, flux:BOUNDARY, ambient, lag, diffusion"),
                        (["--unknown", "difusion"], "did you mean 'diffusion'")):
        with pytest.raises(InputError, match=words):
            CliRunner().invoke(app, [*base, *more], catch_exceptions=False)
    Path("short.csv").write_text("".join(Path("readings.csv").read_text().splitlines(keepends=True)[:12]))
    for more in (["path", "--radius", "0.15"], ["ambient"]):
        words = [*base[:2], "short.csv", *base[3:-1], f"{more[0]}-out", "--unknown", *more]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert "to what was given" in done.output and (tmp_path / "path-out" / "path.png").stat().st_size > 1000
    for name in ("source.png", "start.csv", "start.vtu", "start.png", "fit.csv", "answers.json"):
        assert (tmp_path / "answers" / name).stat().st_size > 100, name


# ---------------------------------------------------------------------- coefficients


def test_coefficients_from_sensors_alone() -> None:
    """Two conductivities and the exchange with the surroundings; the truth is that of the reference on a finer mesh."""
    mesh = box((8, 8))
    left = np.flatnonzero(mesh.centroids[:, 0] < 0.5)
    mesh = replace(mesh, regions={"left": left, "right": np.setdiff1d(np.arange(mesh.n_cells), left)})
    true = np.where(mesh.centroids[:, 0] < 0.5, 0.05, 0.09)
    p = Problem(mesh, PDE(diffusion=true), [Robin("boundary", 0.3, 1.0)], DT)
    guess = Problem(mesh, PDE(diffusion=0.07), [Robin("boundary", 0.2, 1.0)], DT)
    found = recover_coefficients(guess, measured(p, ONES, heating), ["diffusion", "convection"], per_region=True, start=ONES[0],
                                 source=heating)
    wanted = {"diffusion in left": 0.05 / 0.07, "diffusion in right": 0.09 / 0.07, "convection": 1.5}
    for name, factor, sd in zip(found.names, found.factors, found.sd):
        truth = next(value for key, value in wanted.items() if key.split()[-1] in name)
        assert factor == pytest.approx(truth, rel=0.05) and abs(np.log(factor / truth)) < 3 * sd < 0.3, (name, factor, sd)
    assert found.noise == pytest.approx(found.misfit, rel=0.05) and np.abs(found.mesh).max() > 0.01


def test_a_coefficient_with_sources_and_surroundings_at_once() -> None:
    """The truth conducts 1.4 times as well as told, in surroundings that are warmer by 0.5, heated by unknown strengths."""
    warm = Problem(box((8, 8)), PDE(diffusion=0.07), [Robin("boundary", 0.2, 1.5)], DT)
    found = recover_coefficients(plate(), measured(warm, ONES, heating, noise=0.003), ["diffusion"], also=["source", "ambient"],
                                 spots=SPOTS, start=ONES[0])
    assert found.factors[0] == pytest.approx(1.4, rel=0.05) and abs(np.log(found.factors[0] / 1.4)) < 3 * found.sd[0] < 0.15
    assert found.others is not None
    ambient = found.others.answers["ambient"]
    assert ambient.mean[0] == pytest.approx(0.5, abs=0.1) and abs(ambient.mean[0] - 0.5) < 3 * ambient.sd[0]
    assert error(found.others.get("source"), strengths(MIDDLES).numpy().T) < 0.12


@pytest.mark.slow
def test_the_latent_heat_from_sensors_alone() -> None:
    """With the exchange at the rim. The truth is that of the same solver on a mesh with half the spacing."""
    melts = Curve([0.0, 4.0], [1.0, 1.0]).melting(0.6, 1.3, 1.6)
    true, guess = (Problem(box((n, n)), PDE(diffusion=0.05, capacity=curve), [Robin("boundary", h, 1.0)], 2 * DT)
                   for n, curve, h in ((16, melts, 0.3), (8, replace(melts, latent=(Latent(0.5, 1.3, 1.6),)), 0.25)))
    times = 2 * DT * torch.arange(STEPS // 2, dtype=torch.float64)

    def drive(x: Tensor) -> Tensor:
        return step_average(heating, x, times, 2 * DT)[0]

    states = rollout(Classical(), true, torch.ones(1, 289, 1, dtype=torch.float64), drive(torch.tensor(true.mesh.points))[None])
    seen = true.mesh.interpolate(states[0], [s.place for s in SENSORS])[..., 0]
    noisy = seen + 0.01 * np.ptp(seen) * np.random.default_rng(0).standard_normal(seen.shape)
    readings = Readings(2 * DT * np.arange(STEPS // 2 + 1), noisy, SENSORS)
    found = recover_coefficients(guess, readings, ["latent", "convection"], start=ONES[0], source=heating)
    assert found.names == ("latent", "convection")
    assert np.abs(np.log(found.factors / 1.2)).max() < 0.08 and (np.abs(np.log(found.factors / 1.2)) < 3 * found.sd).all()
    with pytest.raises(InputError, match="no capacity has a latent heat"):
        recover_coefficients(plate(), readings, ["latent"])


def test_coefficients_that_readings_do_not_determine() -> None:
    still = Readings(DT * np.arange(9), 1 + 1e-3 * np.random.default_rng(0).standard_normal((9, 8)), SENSORS)
    found = recover_coefficients(plate(), still, ["diffusion"], start=ONES[0])
    assert any("do not determine diffusion" in note for note in found.notes)
    few = Readings(np.array([0.1, 0.2]), np.array([[1.0], [1.2]]), SENSORS[:1])
    with pytest.raises(InputError, match="2 readings cannot determine 2"):
        recover_coefficients(plate(), few, ["diffusion", "convection"])


def test_variance_of_a_prior_on_a_large_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed at some nodes and linear in between: exact where readings depend on the field, within some per cent elsewhere."""
    mesh = box((24, 18), perturb=0.2, seed=1)
    near = np.linalg.norm(mesh.points - (0.3, 0.6), axis=1)
    H = np.exp(-((near / 0.05) ** 2))[None]
    choices, exact = fields(mesh)
    monkeypatch.setattr("dgnet.inverse.priors._COLUMNS", 60)
    _, sampled = fields(mesh)
    for choice in choices[:3]:
        one, other = exact(choice, H)[1], sampled(choice, H)[1]
        ratio = other / one * one.mean() / other.mean()
        assert np.ptp(ratio[near < 0.05]) < 1e-9 and np.abs(ratio - 1).mean() < 0.06, choice
