"""A rollout that is cut anywhere and goes on equals the one that was never cut, to rounding, for every model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dgnet.data import Corpus
from dgnet.errors import InputError, SolveError
from dgnet.mesh import box
from dgnet.models import Adaptive, Classical, Model, Pause, Ready, Refined, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.registry import all_models, build
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Curve, Dirichlet, Neumann, Periodic, Problem, Robin, given_velocity
from dgnet_paper.model import PAPER, PaperConfig, variants
from paper.tests.models.test_baselines import TINY

Tensor = torch.Tensor
STEPS = 17


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(kind: str, dtype: torch.dtype) -> Problem:
    mesh = box((3, 3, 2), perturb=0.1) if kind == "3D" else box((6, 5), perturb=0.2)
    sides: list[Any] = [Robin("right", 0.7, lambda x, t: 0.3 + 0 * x[:, 0] + t), Dirichlet("left", lambda x, t: x[:, 1] + t)]
    pde = PDE(diffusion=0.02)
    if kind in ("heat", "3D"):
        sides = [Robin("right", 0.7, 0.3), Dirichlet("left", 0.5), Neumann("top", lambda x, t: t + 0 * x[:, 0])]
    elif kind == "fields":
        pde = PDE(("a", "b"), diffusion={"a": 0.02, "b": torch.linspace(0.01, 0.05, mesh.n_cells)}, decay=0.1)
    elif kind == "flow":  # bounds of the iterations widen with the flow
        pde = PDE(diffusion=0.01, velocity=given_velocity(0.5 * draw(1, STEPS + 1, mesh.n_nodes, 2, seed=3).to(dtype), 0.05))
        sides = [Dirichlet("left", 0.5)]
    elif kind in ("stiff", "turning"):
        pde = PDE(diffusion=0.02, reaction=lambda u: -8 * u**3)
        sides = sides if kind == "stiff" else []
    elif kind == "reaction":
        pde = PDE(diffusion=0.02, reaction=lambda u: 3 * (u - u**3))
    elif kind == "curves":
        pde = PDE(diffusion=Curve([-50.0, 0.0, 50.0], [0.01, 0.02, 0.06]),
                  capacity=Curve([-50.0, 50.0], [1.0, 2.0]).melting(0.5, 0.2, 0.6))
    elif kind == "periodic":
        pde, sides = PDE(diffusion=0.02, decay=0.2), [Periodic("left", "right"), Dirichlet("top", lambda x, t: t + x[:, 1])]
    return Problem(mesh, pde, sides, 0.05, dtype=dtype)


def learned(config: DGNetConfig) -> Callable[[Problem], Model[Any]]:
    small = dict(hidden=8, layers=1, reaction_hidden=8)
    if isinstance(config, PaperConfig):
        small |= dict(residual_hidden=8, residual_layers=1)
    return lambda p: DGNet(replace(config, **small), p).to(p.dtype)  # type: ignore[arg-type]


def fitted(name: str) -> Callable[[Problem], Model[Any]]:
    def make(p: Problem) -> Model[Any]:
        exact = replace(p, dtype=torch.float64)
        with torch.no_grad():
            states = rollout(Classical(), exact, 0.3 * draw(4, p.mesh.n_nodes, 1, seed=5), steps=20)
        data = Corpus(states.to(p.dtype), None, None, p.dt, (0.0,))
        model = build(name, {"modes": 8}, p)
        model.fit_data(p, data.part(range(3)), data.part([3]))
        return model
    return make


ALL = PaperConfig(free=True, learn_start=True, early_steps=5, residual=True, reaction="learned")
PLAIN = {  # a model and the problem it is tried on
    "classical": (lambda p: Classical(), "heat"),
    "classical on other sides": (lambda p: Classical(), "sides"),
    "classical lumped": (lambda p: Classical(0.0), "heat"),
    "classical damped": (lambda p: Classical(start=4), "sides"),
    "classical quadratic": (lambda p: Classical(degree=2), "sides"),
    "classical quadratic 3D": (lambda p: Classical(degree=2), "3D"),
    "classical iterative": (lambda p: Classical(backend="cg"), "heat"),
    "classical fields": (lambda p: Classical(), "fields"),
    "classical flow": (lambda p: Classical(backend="iterative"), "flow"),
    "classical periodic": (lambda p: Classical(), "periodic"),
    "classical reaction": (lambda p: Classical(), "reaction"),
    "classical stiff": (lambda p: Classical(), "stiff"),
    "classical turning": (lambda p: Classical(), "turning"),
    "classical curves": (lambda p: Classical(), "curves"),
    "classical refined": (lambda p: Refined(Classical()), "sides"),
    "quadratic refined": (lambda p: Refined(Classical(degree=2)), "heat"),
    "adaptive": (lambda p: Adaptive(Classical(), 1e-4), "sides"),
    "adaptive stiff": (lambda p: Adaptive(Classical(), 0.2), "stiff"),
    "adaptive curves": (lambda p: Adaptive(Classical(), 1e-3), "curves"),
    "adaptive flow": (lambda p: Adaptive(Classical(), 1e-3), "flow"),
    "universal": (lambda p: Universal(), "heat"),
    "universal 3D": (lambda p: Universal(), "3D"),
    "universal on other sides": (lambda p: Universal(), "sides"),
    "universal refined": (lambda p: Refined(Universal()), "heat"),
    "universal quadratic": (lambda p: Universal(degree=2), "sides"),
    "universal quadratic 3D": (lambda p: Universal(degree=2), "3D"),
    "universal quadratic refined": (lambda p: Refined(Universal(degree=2)), "heat"),
    "universal quadratic flow": (lambda p: Universal(degree=2), "flow"),
    "universal curves": (lambda p: Universal(), "curves"),
    "universal periodic": (lambda p: Universal(), "periodic"),
    "universal flow": (lambda p: Universal(), "flow"),
    "dgnet with all parts": (learned(ALL), "sides"),
    "dgnet in a flow": (learned(replace(ALL, learn_streamline=True, learn_swirl=True)), "flow"),
    "dgnet, known reaction": (learned(DGNetConfig(early_steps=4)), "stiff"),
    "dgnet fields": (learned(DGNetConfig(learn_start=True, calibrate=("diffusion",))), "fields"),
    "dgnet linear": (learned(DGNetConfig(reaction="none")), "heat"),
    "dgnet curves": (learned(DGNetConfig()), "curves"),
    "dgnet refined": (lambda p: Refined(learned(DGNetConfig(early_steps=3))(p)), "heat"),
    "dgnet paper": (learned(replace(PAPER, reaction="none")), "sides"),
    "dgnet without a solver": (learned(replace(variants(PAPER)["D"], reaction="none")), "heat"),
}
NAMED = {f"registry {name}": (fitted(name) if name in ("pod", "opinf") else lambda p, name=name: build(name, TINY.get(name), p),
                              "heat" if name in ("universal-tuned", "pod", "opinf") else "sides") for name in all_models()}
TRIED: dict[str, tuple[Callable[[Problem], Model[Any]], str]] = PLAIN | NAMED


@dataclass(frozen=True)
class Trial:
    model: Model[Any]
    problem: Problem
    start: Tensor
    source: Tensor


def trial(name: str, dtype: torch.dtype) -> Trial:
    make, kind = TRIED[name]
    p = problem(kind, dtype)
    torch.manual_seed(0)
    model = make(p)
    if isinstance(model, nn.Module) and "registry pod" != name != "registry opinf":
        with torch.no_grad():
            for w in model.parameters():
                w.add_(0.02 * torch.randn_like(w))
    fields = p.n_fields
    start, source = 0.3 * draw(2, p.mesh.n_nodes, fields), draw(2, STEPS, p.mesh.n_nodes, fields, seed=1)
    if kind == "stiff":
        source = 60 * source.abs()
    if kind == "turning":  # stiff where little changes: seen only by those who look, which steps do seldom
        left, k = torch.tensor(p.mesh.points[:, 0] < 0.5), torch.arange(STEPS, dtype=torch.float64)
        rising = (4 * (k < 6) + 8 * (0.35 + 0.2 * k.clamp(max=6)) ** 3)[:, None]
        source = torch.where(left, rising, 10 * (-1) ** k[:, None])[None, ..., None].expand(2, -1, -1, -1)
        start = torch.where(left, 0.35, 0.0)[None, :, None].expand(2, -1, -1).double()
    return Trial(model, p, start.to(dtype), source.to(dtype))


def in_parts(t: Trial, cuts: list[int], through: Path | None = None) -> Tensor:
    at: Tensor | Pause = t.start
    found, ends = [t.start[:, None]], [0, *cuts, STEPS]
    for begin, end in pairwise(ends):
        if isinstance(at, Pause) and through is not None:
            at.save(through)
            at = Pause.load(through)
        states, at = rollout(t.model, t.problem, at, t.source[:, begin:end], pause=True)
        assert torch.equal(states[:, 0], found[-1][:, -1])
        found.append(states[:, 1:])
    assert isinstance(at, Pause) and at.step == STEPS and torch.equal(at.values, found[-1][:, -1])
    return torch.cat(found, 1)


SINGLE = ("classical", "classical damped", "classical flow", "classical reaction", "classical curves", "adaptive", "universal",
          "dgnet paper", "dgnet with all parts")
"""Tried in single precision, too."""


@pytest.mark.parametrize(("name", "precision"), [(name, precision) for name in TRIED for precision in ("double", "single")
                                                 if precision == "double" or name in SINGLE])
def test_a_rollout_in_parts_is_the_whole(name: str, precision: str, tmp_path: Path) -> None:
    dtype = torch.float64 if precision == "double" else torch.float32
    t = trial(name, dtype)
    rng = np.random.default_rng(sum(map(ord, name)))
    with torch.no_grad():
        whole = rollout(t.model, t.problem, t.start, t.source)
        assert whole.dtype == dtype and torch.isfinite(whole).all() and not torch.allclose(whole[:, 0], whole[:, -1])
        # a backend is chosen by the number of steps, and iterations end at 1e-12, in single precision near its rounding
        room = (1e-11 if dtype == torch.float64 else 4e-6) * float(whole.abs().max())
        for through, first in ((None, 2), (tmp_path / "end.npz", 1)):
            cuts = sorted({first, *rng.integers(1, STEPS, 2).tolist()})
            found = in_parts(t, cuts, through)
            assert float((found - whole).abs().max()) <= room, f"cut at {cuts}"


@pytest.mark.parametrize("name", ["universal", "classical quadratic", "classical damped", "dgnet with all parts"])
def test_a_start_that_is_no_pause_begins_anew(name: str) -> None:
    """What the test above would not see if every model began as it goes on."""
    t = trial(name, torch.float64)
    with torch.no_grad():
        whole = rollout(t.model, t.problem, t.start, t.source)
        anew = rollout(t.model, t.problem, whole[:, 8], t.source[:, 8:], t0=8 * t.problem.dt)
    assert float((anew[:, -1] - whole[:, -1]).abs().max()) > 1e-6 * float(whole.abs().max())


@pytest.mark.parametrize("name", ["classical", "universal", "dgnet with all parts", "classical reaction", "adaptive"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_gradients_go_through_a_pause(name: str, checkpoint: bool) -> None:
    t = trial(name, torch.float64)
    start, source = t.start.clone().requires_grad_(), t.source.clone().requires_grad_()
    weight = draw(*t.start.shape, seed=7)

    def of(states: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad((states[:, -1] * weight).sum(), (start, source)))

    whole = of(rollout(t.model, t.problem, start, source))
    _, end = rollout(t.model, t.problem, start, source[:, :6], checkpoint=checkpoint, pause=True)
    parts = of(rollout(t.model, t.problem, end, source[:, 6:], checkpoint=checkpoint))
    for a, b in zip(whole, parts):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10 * float(a.abs().max()))


def test_a_checkpointed_rollout_remembers_the_length_of_adaptive_steps() -> None:
    """Steps are made again as they were, with the memory that they had."""
    t = trial("adaptive", torch.float64)
    source = (20 * t.source).requires_grad_()
    both = [torch.autograd.grad(rollout(t.model, t.problem, t.start, source, checkpoint=c)[:, -1].square().sum(), source)[0]
            for c in (False, True)]
    torch.testing.assert_close(*both, rtol=1e-8, atol=1e-10 * float(both[0].abs().max()))


def test_parts_share_their_set_up() -> None:
    t = trial("universal", torch.float64)
    with torch.no_grad():
        whole = rollout(t.model, t.problem, t.start, t.source)
        ready, seen = Ready(t.model, t.problem, 2, STEPS), {}
        ready.rollout(t.start, t.source[:, :5])
        for k in range(5, STEPS, 3):
            ready.rollout(ready.pause(), t.source[:, k:k + 3], sink=lambda j, u, k=k: seen.update({k + j: u}))
        assert float((torch.stack([seen[k] for k in range(6, STEPS + 1)], 1) - whole[:, 6:]).abs().max()) < 1e-12
        again = ready.rollout(t.start, t.source)  # nothing is left of the one before
    assert torch.equal(again, whole)


@pytest.mark.parametrize("name", ["universal", "classical flow", "dgnet with all parts", "adaptive"])
def test_a_pause_in_a_sink_is_one_at_that_step(name: str) -> None:
    t = trial(name, torch.float32)
    ready, held = Ready(t.model, t.problem, 2, STEPS), {}
    with torch.no_grad():
        ready.rollout(t.start, t.source, sink=lambda k, u: held.update({k: ready.pause()}))
        whole = rollout(t.model, t.problem, t.start, t.source)
        rest = rollout(t.model, t.problem, held[7], t.source[:, 7:])
    assert held[7].step == 7
    assert float((rest - whole[:, 7:]).abs().max()) <= 1e-6 * float(whole.abs().max())


@pytest.mark.parametrize("name", ["classical reaction", "classical flow", "dgnet in a flow", "registry mgn"])
def test_recorded_steps_pause_too(name: str) -> None:
    t = trial(name, torch.float64)
    with torch.no_grad():
        whole = rollout(t.model, t.problem, t.start, t.source)
        states, end = rollout(t.model, t.problem, t.start, t.source[:, :9], capture="always", pause=True)
        held = end.state.clone()
        rest = rollout(t.model, t.problem, end, t.source[:, 9:], capture="always")
        again, _ = rollout(t.model, t.problem, end, t.source[:, 9:].repeat(1, 2, 1, 1), capture="always", pause=True)
    assert torch.equal(end.state, held)  # no memory that later steps write to
    for found in (torch.cat([states, rest[:, 1:]], 1), torch.cat([states, again[:, 1:9]], 1)):
        assert float((found - whole).abs().max()) < 1e-9 * float(whole.abs().max())


def test_a_problem_with_quadratic_elements_pauses() -> None:
    t = trial("classical quadratic", torch.float64)
    p = t.problem.quadratic
    start, source = draw(1, p.n_nodes, 1), draw(1, STEPS, p.n_nodes, 1, seed=2)
    whole = rollout(t.model, p, start, source)
    _, end = rollout(t.model, p, start, source[:, :7], pause=True)
    assert float((rollout(t.model, p, end, source[:, 7:]) - whole[:, 7:]).abs().max()) < 1e-11 * float(whole.abs().max())


def test_time_goes_on_where_it_was() -> None:
    """Values that jump at a step's end are the same ones wherever the rollout is cut."""
    p = Problem(box((3, 3)), PDE(diffusion=0.1), [Dirichlet("left", lambda x, t: (t >= 1.2) + 0 * x[:, 0])], 0.1)
    start = torch.zeros(1, 16, 1, dtype=torch.float64)
    whole = rollout(Classical(), p, start, steps=20, t0=0.3)
    for cut in range(1, 20):
        _, end = rollout(Classical(), p, start, steps=cut, t0=0.3, pause=True)
        assert end.time == 0.3 + cut * 0.1
        assert torch.equal(rollout(Classical(), p, end, steps=20 - cut)[:, -1], whole[:, -1])


def test_growth_is_judged_over_all_parts() -> None:
    """Each part alone grows by less than what is absurd, all of them together do not."""
    p = Problem(box((4, 4)), PDE(diffusion=1e-3, velocity=[60.0, 0.0]), [], 1.0)
    start = draw(1, 25, 1)
    with pytest.raises(SolveError, match="grows without bound"):
        rollout(Classical(), p, start, steps=4000)
    at: Tensor | Pause = start
    with pytest.raises(SolveError, match="grows without bound"):
        for _ in range(400):
            _, at = rollout(Classical(), p, at, steps=10, pause=True)


# ---------------------------------------------------------------------- what a pause is taken for


def test_what_does_not_belong_together_is_refused() -> None:
    t = trial("universal", torch.float64)
    _, end = rollout(t.model, t.problem, t.start, t.source[:, :3], pause=True)
    p = t.problem
    for say, model, other, pause in (
        ("the model universal, not classical", Classical(), p, end),
        ("another mesh", t.model, replace(p, mesh=box((5, 6), perturb=0.2)), end),
        ("another mesh, with 42 nodes", t.model, replace(p, mesh=box((3, 3))), end),
        ("time step 0.05, not 0.1", t.model, replace(p, dt=0.1), end),
        ("must hold a state", t.model, p, replace(end, state=end.state[:, :5])),
        ("must hold values at", t.model, p, replace(end, state=end.state[:, :-1])),
    ):
        with pytest.raises(InputError, match=say):
            rollout(model, other, pause, steps=2)
    with pytest.raises(InputError, match="t0 = 1 does not apply"):
        rollout(t.model, p, end, steps=2, t0=1.0)
    with pytest.raises(InputError, match=r"the source must be \[batch"):
        rollout(t.model, p, end, t.source[:1].expand(3, -1, -1, -1))


def test_a_state_at_the_nodes_alone_is_completed() -> None:
    t = trial("classical quadratic", torch.float64)
    with torch.no_grad():
        whole, end = rollout(t.model, t.problem, t.start, t.source[:, :5], pause=True)
        nodes = replace(end, state=end.values)
        found = rollout(t.model, t.problem, nodes, t.source[:, 5:])
    assert torch.equal(found[:, 0], whole[:, -1]) and torch.isfinite(found).all()


def test_files_hold_numbers_and_are_checked(tmp_path: Path) -> None:
    t = trial("adaptive flow", torch.float32)
    _, end = rollout(t.model, t.problem, t.start, t.source[:, :5], pause=True)
    file = tmp_path / "end.npz"
    end.save(file)
    back = Pause.load(str(file))
    assert {**vars(back), "state": 0, "memory": 0} == {**vars(end), "state": 0, "memory": 0}
    assert torch.equal(back.state, end.state) and set(back.memory) == set(end.memory)
    with np.load(file, allow_pickle=False) as archive:
        assert json.loads(str(archive["pause"]))["step"] == 5
        arrays = {name: archive[name] for name in archive.files}
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(bytes(damaged))
        try:
            again = Pause.load(file)
        except InputError as error:
            assert str(file) in str(error)
        else:  # a bit that means nothing, such as the date of a file in the archive
            assert torch.equal(again.state, end.state)
    for wrong in (b"", whole[:100], b"PK\x03\x04", b"no archive"):
        file.write_bytes(wrong)
        with pytest.raises(InputError, match=r"end\.npz"):
            Pause.load(file)
    np.savez_compressed(file, **arrays)
    assert torch.equal(Pause.load(file).state, end.state)
    np.savez(file, **{**arrays, "state": np.array([{"code": 1}], dtype=object)})
    with pytest.raises(InputError, match="does not hold the pause"):
        Pause.load(file)
    with pytest.raises(InputError, match="there is no file"):
        Pause.load(tmp_path / "none.npz")
