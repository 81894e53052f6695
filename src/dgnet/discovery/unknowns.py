"""What is unknown about an equation: one type from problem.toml and `project` to the model's settings and the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dgnet.errors import InputError
from dgnet.models.registry import changes

if TYPE_CHECKING:
    from dgnet.models.dgnet import DGNetConfig

CURVES = ("capacity", "diffusion")


@dataclass(frozen=True)
class Unknowns:
    """Terms of the equation that are found in data; false where there are none.

    - `reaction`: learned: of one field a curve, of several a sum of terms
    - `curves`: which of capacity and diffusion are learned as curves of the field
    - `factors`: which of diffusion, decay and convection are fitted, as factors on the given ones
    - `per_region`: one factor for each region of the mesh
    """

    reaction: bool = False
    curves: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    per_region: bool = False

    def __post_init__(self) -> None:
        for name in self.curves:
            if name not in CURVES:
                raise InputError(f"'{name}' cannot be an unknown curve (known: {', '.join(CURVES)})")

    def __bool__(self) -> bool:
        return bool(self.reaction or self.curves or self.factors)

    @classmethod
    def of(cls, config: DGNetConfig) -> Unknowns:
        """What a model with these settings finds."""
        return cls(config.reaction == "learned", config.unknown_curves, config.calibrate, config.regions)

    @property
    def words(self) -> list[str]:
        """Their names in a sentence."""
        return [*["the reaction"] * self.reaction, *(f"the {name} as a curve" for name in self.curves),
                *(f"the calibrated {name}" for name in self.factors)]

    def put(self, config: DGNetConfig, fields: int, wanted: Mapping[str, object]) -> DGNetConfig:
        """Settings with these unknowns; a diffusivity is either found or corrected. `wanted`: settings that the user asks for."""
        if self.curves and (self.reaction or self.factors):
            raise InputError("unknown curves go neither with calibrated coefficients nor with an unknown reaction")
        found = {*self.curves, *self.factors}
        if self.reaction:
            config = config.reacting(fields, changes("dgnet", wanted))
        return replace(config, unknown_curves=self.curves, calibrate=self.factors, regions=self.per_region,
                       learn_diffusion="diffusion" not in found if self.factors else
                       config.learn_diffusion and "diffusion" not in found)
