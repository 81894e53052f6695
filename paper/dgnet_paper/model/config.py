"""Which parts the paper's models have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.models.dgnet import DGNetConfig
from dgnet.problems import Problem, Rule

if TYPE_CHECKING:
    from dgnet.models.dgnet import Part

SCHEMES = ("elements", "paper")
AREAS = ("mixed", "thirds")


@checked
@dataclass(frozen=True)
class PaperConfig(DGNetConfig):
    """Settings of `DGNetConfig`, and those of the paper's models.

    - `scheme`: elements (finite elements, the source averaged over the step) or paper: control volumes, Green-Gauss, the source at
      both ends of a step, plain networks, all of it as the paper's text has it (`PAPER`)
    - `decoder`: structured, edge (numbers of edges, the paper's) or none
    - `residual`: a small network corrects each new state
    - `physics`: off for variant A
    - `green`: off for variant D, a network that only sees what the operator gives
    - `edge_limit`: largest |L_neural| against the local physical operator, `edge` decoder (the paper's scheme has `bound`)
    - `areas`: control volumes of the paper's scheme in the plane: mixed (Voronoi, in obtuse triangles mixed), as the text says of
      the Laplacian, or thirds of the triangles; faces go with them, through circumcentres or barycentres. The text is silent about
      the gradient
    - `diagonal`: [L_neural]_ii = -sum_j [L_neural]_ij in the paper's scheme, as both parts of L_physics have it. Eq. 10 is about
      edges, and the text does not say what stands on the diagonal
    - `bound`: above 0, |[L_neural]_ij| is at most this share of the mean |[L_physics]_ij| of the edges at node i, by tanh, in the
      paper's scheme: Theorem 2 assumes a bounded output ("e.g., bounded activation function tanh") and does not say in which unit
    - `norm`: the networks of the paper's scheme end their MLPs with LayerNorm, decoders excepted. The text says MLPs
    - `residual_hidden`, `residual_layers`: width and depth of the residual network

        >>> paper = PaperConfig(scheme="paper", decoder="edge", residual=True)
    """

    start: int = 0
    scheme: str = "elements"
    residual: bool = False  # type: ignore[misc]
    physics: bool = True  # type: ignore[misc]
    green: bool = True  # type: ignore[misc]
    edge_limit: float = 0.3
    areas: str = "mixed"
    diagonal: bool = False
    bound: float = 0.0
    norm: bool = False
    residual_hidden: int = 64
    residual_layers: int = 3

    decoders: ClassVar[tuple[str, ...]] = ("structured", "edge", "none")
    former: ClassVar[Mapping[str, object]] = {}
    model: ClassVar[str] = "dgnet-paper"

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InputError(f"unknown scheme '{self.scheme}' (known: {', '.join(SCHEMES)})")
        if self.areas not in AREAS:
            raise InputError(f"unknown kind of control volume '{self.areas}' (known: {', '.join(AREAS)})")
        if self.plain and (self.structured or self.free or self.regions or not self.network):
            raise InputError("the paper's scheme goes with decoder = \"edge\" or \"none\" and a network, not with free numbers or "
                             "regions")
        super().__post_init__()
        self.check_sizes("residual_hidden", "residual_layers")

    def first_parts(self, problem: Problem) -> list[Part]:
        from dgnet_paper.model.bounded import EdgeDecoder
        from dgnet_paper.model.paper import ControlVolumes, Decoder

        parts: list[Part] = [ControlVolumes(self.areas)] if self.plain else []
        if self.decoder == "edge":
            parts.append(Decoder(self, problem) if self.plain else EdgeDecoder(self, problem))
        return parts

    def last_parts(self, problem: Problem) -> list[Part]:
        from dgnet_paper.model.bounded import EndToEnd, Residual
        from dgnet_paper.model.paper import PlainResidual

        if not self.green:
            return [EndToEnd(self, problem)]
        if not self.residual:
            return []
        return [PlainResidual(self, problem) if self.plain else Residual(self, problem)]

    def bare(self) -> Self:
        return replace(self, decoder="none", network=self.plain, free=False, learn_start=False, early_steps=0,
                       learn_streamline=False, learn_swirl=False, residual=False, physics=True, green=True)

    @property
    def plain(self) -> bool:  # type: ignore[override]
        """As the paper's text has it."""
        return self.scheme == "paper"

    @property
    def linear(self) -> bool:
        return self.plain or self.decoder == "edge" or not self.green or not self.physics

    @property
    def backend(self) -> str:  # type: ignore[override]
        """The paper factorises once and solves many times."""
        return "lu" if self.plain else "auto"

    @property
    def rule(self) -> Rule:  # type: ignore[override]
        """How a source is taken, see `Model.rule`."""
        return "trapezoid" if self.plain else "average"


def variants(full: PaperConfig) -> dict[str, PaperConfig]:
    """The paper's ablation of a model (Section 4.3)."""
    return {"A": replace(full, physics=False),  # without L_physics
            "B": replace(full, decoder="none"),  # without L_neural
            "C": replace(full, residual=False),  # without the residual network
            "D": replace(full, green=False, decoder="none")}  # without the Green solver


BOUNDED = PaperConfig(decoder="edge", residual=True, consistent=0.0, learn_mass=False, learn_source=False, learn_diffusion=False)
"""The paper's model in our finite elements, with limits on every number that it learns."""

LETTER = replace(BOUNDED, scheme="paper")
"""The paper's model with nothing that its text does not say: no diagonal, no bound."""

PAPER = replace(LETTER, areas="thirds", diagonal=True, bound=1.0)
"""The paper's model with the readings that validation rollouts have settled (docs/results/depth.md)."""
