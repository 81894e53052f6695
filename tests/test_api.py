"""`import dgnet as dg`: every name is there, quick to import, documented argument by argument, and its example runs."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dgnet as dg
from dgnet.errors import InputError

ROOT = Path(__file__).parents[1]


def test_the_names_are_the_same_everywhere() -> None:
    assert 30 <= len(dg.__all__) <= 60
    assert set(dg.__all__) <= set(dir(dg))
    page = (ROOT / "docs" / "api" / "index.md").read_text()
    listed = re.findall(r"`(\w+)`", page[page.index("## Names"):page.index("## Packages")])
    assert sorted(set(listed) & set(dg.__all__)) == sorted(dg.__all__), "docs/api/index.md lists every name"


def test_import_is_quick_and_a_wrong_name_is_an_attribute_error() -> None:
    code = "import sys, dgnet; print(dgnet.__version__); assert not {'torch', 'scipy', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == dg.__version__
    with pytest.raises(AttributeError, match="no attribute 'Meshh'"):
        dg.Meshh  # noqa: B018


@pytest.mark.parametrize("name", sorted(dg.__all__))
def test_docstring_names_every_argument_and_its_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thing = getattr(dg, name)
    text = inspect.getdoc(thing) or ""
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        signature = inspect.signature(thing)
        for parameter in signature.parameters.values():
            assert f"`{parameter.name}`" in text, f"the docstring of {name} does not name `{parameter.name}`"
            assert not re.search(r"(?<!\[)\bAny\b", str(parameter.annotation)), f"{name}: {parameter}"
        returned = str(signature.return_annotation).replace("dict[str, Any]", "JSON")
        assert not re.search(r"\bAny\b", returned), f"{name} -> {returned}"
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert test.examples, f"the docstring of {name} has no example"
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert not said, "".join(said)


# ---------------------------------------------------------------------- at a point, at rest


@pytest.mark.parametrize("shape", [(6, 5), (3, 2, 3)])
def test_interpolation_is_exact_on_linear_fields(shape: tuple[int, ...]) -> None:
    mesh = dg.box(shape, perturb=0.2)
    slope = torch.arange(1.0, mesh.dim + 1, dtype=torch.float64)
    x = torch.rand(20, mesh.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nodal = torch.tensor(mesh.points) @ slope
    assert mesh.interpolate(nodal, x) == pytest.approx((x @ slope).numpy(), abs=1e-12)
    states = nodal[None, None, :, None] * torch.tensor([1.0, -2.0])  # [1, 1, N, 2]
    assert mesh.interpolate(states, x).shape == (1, 1, 20, 2)
    with pytest.raises(InputError, match=r"point 1 at .* outside"):
        mesh.interpolate(nodal, [[0.5] * mesh.dim, [2.0] * mesh.dim])
    with pytest.raises(InputError, match="values must be"):
        mesh.interpolate(nodal[:-1], x)


def test_a_steady_state_stays_and_is_where_a_rollout_ends() -> None:
    mesh = dg.box((6, 6), perturb=0.2)
    pde = dg.PDE(("a", "b"), diffusion={"a": 1.0, "b": 0.3}, decay={"a": 0.0, "b": 2.0}, velocity=[0.5, 0.2])
    sides = [dg.Dirichlet("left", 1.0, "a"), dg.Robin("right", 0.7, 0.2), dg.Neumann("top", 0.4)]
    problem = dg.Problem(mesh, pde, sides, dt=0.5)
    source = torch.rand(3, mesh.n_nodes, 2, dtype=torch.float64)
    rest = dg.steady(problem, source)
    assert rest.shape == (3, mesh.n_nodes, 2)
    later = dg.rollout(dg.Classical(), problem, rest, source[:, None].expand(-1, 4, -1, -1))
    assert torch.allclose(later[:, -1], rest, atol=1e-9)
    far = dg.rollout(dg.Classical(theta=1.0), problem, 0 * rest, source[:, None].expand(-1, 200, -1, -1))
    assert torch.allclose(far[:, -1], rest, atol=1e-6)


def test_a_steady_state_is_differentiable_and_refuses_what_has_none() -> None:
    mesh = dg.box((3, 3))
    held = dg.Problem(mesh, dg.PDE(diffusion=1.0), [dg.Dirichlet("left")], dt=1.0)
    source = torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda f: dg.steady(held, f), source)
    ring = dg.Problem(mesh, dg.PDE(diffusion=1.0, decay=1.0), [dg.Periodic("left", "right")], dt=1.0)
    assert torch.allclose(dg.steady(ring, torch.ones(1, mesh.n_nodes, 1)), torch.ones(1, mesh.n_nodes, 1))
    with pytest.raises(InputError, match="nothing fixes the level of 'b'"):
        dg.steady(dg.Problem(mesh, dg.PDE(("a", "b"), diffusion=1.0), [dg.Dirichlet("left", 0.0, "a")], dt=1.0))
    with pytest.raises(InputError, match="with a reaction"):
        dg.steady(dg.Problem(mesh, dg.PDE(diffusion=1.0, reaction=torch.sin), [], dt=1.0))


# ---------------------------------------------------------------------- what a user sets is honoured or refused


def test_what_cannot_be_is_refused() -> None:
    mesh = dg.box((2, 2))
    for make, words in (
        (lambda: dg.Problem(mesh, dg.PDE(diffusion=1.0), [], 0.1, advection_form="up"), "unknown advection form 'up'"),
        (lambda: dg.PDE(diffusion=lambda u: u), "diffusion must be .*: give its values"),
        (lambda: dg.Classical(start=-1), "start"),
        (lambda: dg.Classical(consistent=2.0), "consistent share"),
        (lambda: dg.GreenSolver(dg.Problem(mesh, dg.PDE(diffusion=1.0), [], 0.1), tolerance=-1.0), "tolerance"),
        (lambda: dg.DGNetConfig(advection_form="up"), "unknown advection form 'up'"),
        (lambda: dg.DGNetConfig(consistent=2.0), "consistent share"),
    ):
        with pytest.raises(InputError, match=words):
            make()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("form", ["galerkin", "skew", "upwind"])
@pytest.mark.parametrize("consistent", [0.0, 1.0])
def test_untrained_dgnet_is_the_classical_solver_of_the_same_problem(form: str, consistent: float) -> None:
    mesh = dg.box((5, 5), perturb=0.2)
    problem = dg.Problem(mesh, dg.PDE(diffusion=0.01, velocity=[1.0, 0.3]), [], 0.05, consistent, form)
    u = torch.rand(2, mesh.n_nodes, 1, dtype=torch.float64)
    model = dg.DGNet(dg.DGNetConfig(hidden=8, consistent=consistent, advection_form=form), problem).double()
    with torch.no_grad():
        difference = dg.rollout(model, problem, u, steps=3) - dg.rollout(dg.Classical(), problem, u, steps=3)
    assert float(difference.abs().max()) < 1e-10


def test_pages_of_the_reference_name_modules_that_exist() -> None:
    named = [m for page in (ROOT / "docs" / "api").glob("*.md") for m in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
    assert len(named) > 20
    assert [m for m in named if importlib.util.find_spec(m) is None] == []


def test_listings_of_contributing_run() -> None:
    listings = re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.S | re.M)
    assert len(listings) == 4  # the solver alone, a condition, a learned part, a baseline
    for text in listings:
        exec(compile(text, "CONTRIBUTING.md", "exec"), {})
