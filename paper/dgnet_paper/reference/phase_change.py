"""Phase change, declared: rho c_eff(T) dT/dt = div(k(T) grad T) + Q (paper, Appendix on failure modes).

The enthalpy per volume H(T) holds the sensible and the latent heat, dH/dT = rho c_eff(T). The liquid fraction is a
logistic function of temperature, S = 1 / (1 + exp(-4 (T - T_c) / width)), so that H and the Kirchhoff transform
theta(T) = int k dT have closed forms, smooth and increasing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import softplus

from dgnet.arguments import Finite, NotNegative, Positive, checked
from dgnet.files import strict

Tensor = torch.Tensor


@checked
@dataclass(frozen=True)
class PhaseChange:
    """A material that melts; for the reference solver (`phase.solve`); models have no such term.

    - `temperature`: of melting, K
    - `width`: the range of temperatures over which three quarters of the material melt, K
    - `latent_heat`: J/kg
    - `density`: kg/m3
    - `capacity_solid`, `capacity_liquid`: J/(kg K)
    - `conductivity_solid`, `conductivity_liquid`: W/(m K)

        >>> import torch
        >>> ice = PhaseChange(273.15, 1.0, 334e3, 917.0, 2100.0, 4200.0, 2.2, 0.6)
        >>> ice.fraction(torch.tensor([200.0, 273.15, 300.0]))
        tensor([0.0000, 0.5000, 1.0000])
    """

    temperature: Finite
    width: Positive
    latent_heat: NotNegative
    density: Positive = 1.0
    capacity_solid: Positive = 1.0
    capacity_liquid: Positive = 1.0
    conductivity_solid: Positive = 1.0
    conductivity_liquid: Positive = 1.0

    def fraction(self, t: Tensor) -> Tensor:
        """Liquid fraction S(T)."""
        return torch.sigmoid(4 * (t - self.temperature) / self.width)

    def _molten(self, t: Tensor) -> Tensor:
        """int of S from -infinity to T."""
        return 0.25 * self.width * softplus(4 * (t - self.temperature) / self.width, threshold=40.0)

    def enthalpy(self, t: Tensor) -> Tensor:
        """H(T) per volume; zero for the solid extrapolated to T_c."""
        sensible = self.capacity_solid * (t - self.temperature)
        sensible = sensible + (self.capacity_liquid - self.capacity_solid) * self._molten(t)
        return self.density * (sensible + self.latent_heat * self.fraction(t))

    def capacity(self, t: Tensor) -> Tensor:
        """dH/dT = rho c_eff(T), per volume."""
        s = self.fraction(t)
        c = self.capacity_solid + (self.capacity_liquid - self.capacity_solid) * s
        return self.density * (c + self.latent_heat * 4 / self.width * s * (1 - s))

    def conductivity(self, t: Tensor) -> Tensor:
        """k(T)."""
        return self.conductivity_solid + (self.conductivity_liquid - self.conductivity_solid) * self.fraction(t)

    def kirchhoff(self, t: Tensor) -> Tensor:
        """theta(T) = int of k from T_c: grad theta = k grad T."""
        change = self.conductivity_liquid - self.conductivity_solid
        return self.conductivity_solid * (t - self.temperature) + change * self._molten(t)


@dataclass(frozen=True)
class Melting:
    """Where errors lie about a phase transition (`scoring.judge.Tally`), T_c - w .. T_c + w.

    Sums over all states: squared error in all; squared error, signed error and count where the truth is in transition or above it;
    highest predicted and true value; count in all.
    """

    phase: PhaseChange
    name: str = "melting"

    def of(self, states: Tensor, truth: Tensor) -> np.ndarray:
        hot = truth > self.phase.temperature - self.phase.width
        error = (states - truth).double()
        return np.array([float(error.square().sum()), float(error[hot].square().sum()), float(error[hot].sum()), float(hot.sum()),
                         float(states.double().max()), float(truth.double().max()), float(truth.numel())])

    def join(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        top = np.array([False, False, False, False, True, True, False])
        return np.where(top, np.maximum(a, b), a + b)

    def numbers(self, sums: np.ndarray) -> dict[str, float | None]:
        m = sums
        return strict({"share_of_error": float(m[1] / max(m[0], 1e-300)), "share_of_states": float(m[3] / max(m[6], 1.0)),
                       "mean_overheating": float(m[2] / max(m[3], 1.0)), "highest": float(m[4]), "highest_true": float(m[5])})
