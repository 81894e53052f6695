"""Exact solutions with materials that change with the field: what the solver in the enthalpy must find."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.optimize import brentq

from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, Curve, Dirichlet, Problem, Robin, Scaled

Tensor = torch.Tensor


@dataclass(frozen=True)
class Stefan:
    """Solidification of aluminium in a half space: liquid at 740 °C, from t = 0 on a wall at 580 °C, melting at 660 °C.

    Neumann's solution: the front is at X = 2 root sqrt(a_s t), a = k / c. The data are those of code_aster's TTNL02, except for the
    latent heat (J/m3): the one printed there does not satisfy the balance of the front.
    """

    wall: float = 580.0
    melting: float = 660.0
    start: float = 740.0
    solid: tuple[float, float] = (210.0, 3e6)  # conductivity W/m/K, capacity J/m3/K
    liquid: tuple[float, float] = (95.0, 2.58e6)
    latent: float = 9.004e8
    length: float = 0.06

    @cached_property
    def root(self) -> float:
        """Of the balance of the front: conducted in the solid, less what the liquid brings, is the latent heat."""
        (ks, cs), (kl, cl) = self.solid, self.liquid
        a, b = ks / cs, kl / cl

        def balance(r: float) -> float:
            s = r * math.sqrt(a / b)
            out = ks * (self.melting - self.wall) * math.exp(-r * r) / (math.sqrt(math.pi * a) * math.erf(r))
            brought = kl * (self.start - self.melting) * math.exp(-s * s) / (math.sqrt(math.pi * b) * math.erfc(s))
            return out - brought - self.latent * r * math.sqrt(a)

        return float(brentq(balance, 1e-6, 3.0))

    def front(self, t: float) -> float:
        return 2 * self.root * math.sqrt(self.solid[0] / self.solid[1] * t)

    def exact(self, x: Tensor, t: float) -> Tensor:
        """The temperature at distances x from the wall."""
        s, m = (x / (2 * math.sqrt(k / c * t)) for k, c in (self.solid, self.liquid))
        far = self.root * math.sqrt(self.solid[0] / self.solid[1] * self.liquid[1] / self.liquid[0])
        cold = self.wall + (self.melting - self.wall) * torch.erf(s) / math.erf(self.root)
        warm = self.start - (self.start - self.melting) * torch.erfc(m) / math.erfc(far)
        return torch.where(x < self.front(t), cold, warm)

    def problem(self, cells: int, dt: float) -> Problem:
        at = [self.wall - 80, self.melting, self.melting + 1e-6, self.start + 80]
        k, c = (Curve(at, [s, s, m, m], name=name) for s, m, name in zip(self.solid, self.liquid, ("conductivity", "capacity")))
        strip = box((cells, 1), upper=(self.length, self.length / cells))
        return Problem(strip, PDE(("T",), diffusion=k, capacity=c.melting(self.latent, self.melting)),
                              [Dirichlet("left", self.wall), Dirichlet("right", self.start)], dt)

    def found(self, cells: int, steps: int, end: float = 5.0) -> tuple[float, float]:
        """The front at the end, and the root mean square error of the temperature over the second half of the time, K.

        (At one time the error depends on where the front stands between two nodes.)
        """
        p = self.problem(cells, end / steps)
        u0 = torch.full((1, p.mesh.n_nodes, 1), self.start, dtype=torch.float64)
        with torch.no_grad():
            states = rollout(Classical(start=4), p, u0, steps=steps)[0, ..., 0]
        capacity = p.pde.capacity
        assert isinstance(capacity, Curve)
        melt = capacity.latent[0]
        frozen = 1 - ((states[-1] - melt.low) / (melt.high - melt.low)).clamp(0, 1)
        width = float(torch.dot(frozen, p.lumps[0, 0] / capacity.mean)) / (self.length / cells)
        x = torch.tensor(p.mesh.points[:, 0])
        late = range(steps // 2, steps + 1)
        gaps = torch.stack([states[k] - self.exact(x, k * p.dt) for k in late])
        return width, float(gaps.square().mean().sqrt())


@dataclass(frozen=True)
class Barenblatt:
    """The porous-medium equation du/dt = laplace(u^2) = div(2 u grad u) in the plane, from a point: it spreads with a sharp edge.

    u = t^-1/2 (C - r^2 / (16 t^1/2)), where that is positive.
    """

    height: float = 0.1
    half: float = 3.0

    def exact(self, x: Tensor, t: float) -> Tensor:
        return (self.height - x.square().sum(-1) / (16 * math.sqrt(t))).clamp(min=0) / math.sqrt(t)

    def found(self, cells: int, steps: int, times: tuple[float, float] = (1.0, 3.0)) -> tuple[float, float, float]:
        """The height in the middle, the L1 error and the largest change of the mass in a step, both relative to the mass."""
        mesh = box((cells, cells), (-self.half,) * 2, (self.half,) * 2)
        D = Curve([0.0, 1.0], [0.0, 2.0], extends=True, name="diffusion")
        p = Problem(mesh, PDE(diffusion=D), [], (times[1] - times[0]) / steps)
        x = torch.tensor(mesh.points)
        with torch.no_grad():
            states = rollout(Classical(), p, self.exact(x, times[0])[None, :, None], steps=steps)[0, ..., 0]
        V, exact = p.lumps[0, 0], self.exact(x, times[1])
        mass = states @ V
        middle = int(x.norm(dim=1).argmin())
        error = torch.dot(V, (states[-1] - exact).abs()) / mass[0]
        return float(states[-1, middle]), float(error), float(mass.diff().abs().max() / mass[0])


@dataclass(frozen=True)
class Kirchhoff:
    """k = k0 (1 + b u) and c = c0 (1 + b u): theta = u + b u^2 / 2 obeys the linear equation with a = k0 / c0, tensors included.

    A Gaussian of theta then spreads with the covariance I s + 2 A t, A the tensor with 1 and 1/10 along axes turned by 30 degrees.
    """

    b: float = 0.8
    width: float = 0.02  # s
    half: float = 1.0

    @cached_property
    def tensor(self) -> Tensor:
        c, s = math.cos(math.pi / 6), math.sin(math.pi / 6)
        turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
        return turn @ torch.diag(torch.tensor([1.0, 0.1], dtype=torch.float64)) @ turn.T

    def exact(self, x: Tensor, t: float) -> Tensor:
        S = self.width * torch.eye(2, dtype=torch.float64) + 2 * t * self.tensor
        theta = self.width / S.det().sqrt() * torch.exp(-0.5 * torch.einsum("ni,ij,nj->n", x, S.inverse(), x))
        return ((1 + 2 * self.b * theta).sqrt() - 1) / self.b

    def error(self, cells: int, steps: int, t: float = 0.02, mesh_noise: float = 0.2) -> float:
        """Of u at t in the L2 norm, relative."""
        mesh = box((cells, cells), (-self.half,) * 2, (self.half,) * 2, perturb=mesh_noise)
        ramp = Curve([0.0, 2.0], [1.0, 1 + 2 * self.b], extends=True)
        p = Problem(mesh, PDE(diffusion=Scaled(ramp, self.tensor), capacity=ramp), [], t / steps)
        x = torch.tensor(mesh.points)
        with torch.no_grad():
            end = rollout(Classical(), p, self.exact(x, 0.0)[None, :, None], steps=steps)[0, -1, :, 0]
        V, exact = p.lumps[0, 0], self.exact(x, t)
        return math.sqrt(float(torch.dot(V, (end - exact) ** 2) / torch.dot(V, exact**2)))


def steel() -> tuple[Curve, Curve]:
    """Capacity J/m3/K and conductivity W/m/K of carbon steel, 20 to 1200 °C (EN 1993-1-2), with its change of phase at 735 °C."""
    T = torch.cat([torch.arange(20.0, 600.0, 20.0), torch.arange(600.0, 720.0, 5.0), torch.arange(720.0, 750.0, 1.0),
                   torch.arange(750.0, 900.0, 10.0), torch.tensor([900.0, 1200.0])]).double()
    rising = 425 + 0.773 * T - 1.69e-3 * T**2 + 2.22e-6 * T**3
    peak = torch.where(T < 735, 666 + 13002 / (738 - T), 545 + 17820 / (T - 731))
    c = torch.where(T < 600, rising, torch.where(T < 900, peak, torch.full_like(T, 650.0)))
    return Curve(T, 7850 * c, name="capacity"), Curve(T, (54 - 0.0333 * T).clamp(min=27.3), name="conductivity")


def heated_plate(mesh: Mesh, steps: int, dtype: torch.dtype, device: str, dt: float = 0.5) -> tuple[Problem, float]:
    """A steel plate that loses heat along its edge, and the power per volume (W/m3) that brings it to 850 °C in so many steps."""
    capacity, conductivity = steel()
    pde = PDE(("T",), diffusion=conductivity, capacity=capacity)
    content = float(capacity.integral(torch.tensor(850.0, dtype=torch.float64)))
    return Problem(mesh, pde, [Robin("boundary", 25.0, 20.0)], dt, dtype=dtype, device=device), content / (steps * dt)


def order(errors: Callable[[int], float], levels: int = 3) -> float:
    """The order of convergence, fitted to the errors at levels 0, 1, ... of halved spacing."""
    logs = torch.tensor([math.log2(errors(k)) for k in range(levels)], dtype=torch.float64)
    k = torch.arange(levels, dtype=torch.float64) - (levels - 1) / 2
    return float(-(k * logs).sum() / (k * k).sum())
