"""Which parts a DGNet has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.operators import check_scheme
from dgnet.problems import Rule

SCHEMES = ("elements", "paper")
AREAS = ("mixed", "thirds")
DECODERS = ("structured", "edge", "none")
REACTIONS = ("known", "learned", "none")
CALIBRATED = ("diffusion", "decay", "convection")
CURVES = ("capacity", "diffusion")
INTERVALS = 64  # of a table of the reaction, unless told otherwise
DEGREE, DEGREES = 3, 5  # of the products in a sum of terms: unless told otherwise, and the highest
_LARGEST = 8192  # width or depth of a network


@checked
@dataclass(frozen=True)
class DGNetConfig:
    """What a DGNet learns: every part by name; each can be switched off.

    - `scheme`: elements (finite elements, the source averaged over the step) or paper: control volumes, Green-Gauss, the source at
      both ends of a step, plain networks, all of it as the paper's text has it (`PAPER`)
    - `decoder`: structured (ours: no weights can make energy), edge (numbers of edges, the paper's) or none
    - `network`: a network of the mesh's geometry feeds the decoder
    - `free`: plus one free number per edge and cell, for one fixed mesh
    - `learn_mass`, `learn_source`, `learn_diffusion`, `learn_streamline`: parts of the structured decoder
    - `learn_swirl`: divergence-free corrections of the transport; they and streamline diffusion see the direction of the flow
    - `learn_start`: a filter of the initial state, for data whose start the mesh cannot resolve
    - `early_steps`: that many first steps have a mass and diffusivities of their own, while a rough start smooths out
    - `residual`: a small network corrects each new state (the paper's)
    - `reaction`: known, learned or none
    - `odd_reaction`: r(-u) = -r(u), a symmetry known beforehand
    - `calibrate`: which of diffusion, decay, convection to fit, as factors on the given ones
    - `unknown_curves`: which of capacity and diffusion are learned as curves of u, for one field
    - `regions`: calibrate diffusion and decay in each of the mesh's regions by itself
    - `physics`: off for the paper's variant A
    - `green`: off for the paper's variant D, a network that only sees what the operator gives
    - `consistent`, `advection_form`: of a problem that has the usual ones (1, "galerkin"); one that has others must agree
    - `edge_limit`: largest |L_neural| against the local physical operator, `edge` decoder (the paper's scheme has `bound`)
    - `areas`: control volumes of the paper's scheme in the plane: mixed (Voronoi, in obtuse triangles mixed), as the text says of
      the Laplacian, or thirds of the triangles; faces go with them, through circumcentres or barycentres. The text is silent about
      the gradient
    - `diagonal`: [L_neural]_ii = -sum_j [L_neural]_ij in the paper's scheme, as both parts of L_physics have it. Eq. 10 is about
      edges, and the text does not say what stands on the diagonal
    - `bound`: above 0, |[L_neural]_ij| is at most this share of the mean |[L_physics]_ij| of the edges at node i, by tanh, in the
      paper's scheme: Theorem 2 assumes a bounded output ("e.g., bounded activation function tanh") and does not say in which unit
    - `norm`: the networks of the paper's scheme end their MLPs with LayerNorm, decoders excepted. The text says MLPs
    - `hidden`, `layers`: width and depth of the geometry network
    - `residual_hidden`, `residual_layers`, `reaction_hidden`: of the other networks
    - `reaction_table`: above 0, a learned reaction of one field is a table with this number of intervals instead of a network
    - `reaction_degree`: above 0, a learned reaction is a sum of few terms: products of the fields up to this degree
    - `reaction_terms`: further terms to choose from, such as "u/(1+v)"
    - `amp`: networks in bfloat16 (mixed precision); operators and solves never are

        >>> import dgnet as dg
        >>> small = dg.DGNetConfig(free=True, hidden=32, layers=2)
        >>> paper = dg.DGNetConfig(scheme="paper", decoder="edge", residual=True)
    """

    scheme: str = "elements"
    decoder: str = "structured"
    network: bool = True
    free: bool = False
    learn_mass: bool = True
    learn_source: bool = True
    learn_diffusion: bool = True
    learn_streamline: bool = False
    learn_swirl: bool = False
    learn_start: bool = False
    early_steps: int = 0
    residual: bool = False
    reaction: str = "known"
    odd_reaction: bool = False
    calibrate: tuple[str, ...] = ()
    unknown_curves: tuple[str, ...] = ()
    regions: bool = False
    physics: bool = True
    green: bool = True
    consistent: float = 1.0
    advection_form: str = "galerkin"
    edge_limit: float = 0.3
    areas: str = "mixed"
    diagonal: bool = False
    bound: float = 0.0
    norm: bool = False
    hidden: int = 64
    layers: int = 3
    residual_hidden: int = 64
    residual_layers: int = 3
    reaction_hidden: int = 64
    reaction_table: int = 0
    reaction_degree: int = 0
    reaction_terms: tuple[str, ...] = ()
    amp: bool = False

    def __post_init__(self) -> None:
        for value, known, what in ((self.scheme, SCHEMES, "scheme"), (self.decoder, DECODERS, "decoder"),
                                   (self.reaction, REACTIONS, "reaction"), (self.areas, AREAS, "kind of control volume")):
            if value not in known:
                raise InputError(f"unknown {what} '{value}' (known: {', '.join(known)})")
        check_scheme(self.consistent, self.advection_form)
        if self.plain and (self.structured or self.free or self.regions or not self.network):
            raise InputError("the paper's scheme goes with decoder = \"edge\" or \"none\" and a network, not with free numbers or "
                             "regions")
        if self.regions and not {"diffusion", "decay"} & set(self.calibrate):
            raise InputError("regions = true needs diffusion or decay among the calibrated coefficients")
        if self.early_steps and (self.early_steps < 2 or not (self.structured and self.learn_mass and self.green)):
            raise InputError("early_steps must be 0 or at least 2, and needs the structured decoder with a learned mass")
        if self.reaction_table and (self.reaction_table < 2 or self.reaction != "learned"):
            raise InputError("reaction_table must be 0 or at least 2, and needs reaction = \"learned\"")
        if self.reaction_degree and not (0 < self.reaction_degree <= DEGREES and self.reaction == "learned"
                                         and not self.reaction_table):
            raise InputError(f"reaction_degree must be 0 or at most {DEGREES}, and needs reaction = \"learned\" without a table")
        if self.reaction_terms and not self.reaction_degree:
            raise InputError("reaction_terms are further terms of a sum: give reaction_degree as well")
        for name in ("hidden", "layers", "residual_hidden", "residual_layers", "reaction_hidden"):
            size = getattr(self, name)
            if not isinstance(size, int) or not 0 < size <= _LARGEST:
                raise InputError(f"{name} must be a whole number from 1 to {_LARGEST}, got {size!r}")
        strange = set(self.calibrate) - set(CALIBRATED)
        if strange:
            raise InputError(f"cannot calibrate '{min(strange)}' (known: {', '.join(CALIBRATED)})")

        strange = set(self.unknown_curves) - set(CURVES)
        if strange:
            raise InputError(f"cannot learn a curve of '{min(strange)}' (known: {', '.join(CURVES)})")
        if self.unknown_curves and (self.linear or self.calibrate):
            raise InputError("unknown_curves go with decoder = \"structured\" or \"none\", and not with calibrate")

    def reacting(self, fields: int, wishes: Mapping[str, object], table: bool = True) -> DGNetConfig:
        """With an unknown reaction: of one field as a table (or a network), unless the user's settings ask for a sum of terms; of
        several as a sum of terms."""
        terms = fields > 1 or bool(wishes.get("reaction_degree") or wishes.get("reaction_terms"))
        return replace(self, reaction="learned", reaction_table=INTERVALS if table and not terms else 0,
                       reaction_degree=DEGREE if terms else 0)

    @property
    def linear(self) -> bool:
        """Coefficients are numbers: curves of u are taken at their lower ends."""
        return self.plain or self.decoder == "edge" or not self.green or not self.physics

    @property
    def structured(self) -> bool:
        return self.decoder == "structured"

    @property
    def plain(self) -> bool:
        """As the paper's text has it."""
        return self.scheme == "paper"

    @property
    def rule(self) -> Rule:
        """How a source is taken, see `Model.rule`."""
        return "trapezoid" if self.plain else "average"


def variants(full: DGNetConfig) -> dict[str, DGNetConfig]:
    """The paper's ablation of a model (Section 4.3)."""
    return {"A": replace(full, physics=False),  # without L_physics
            "B": replace(full, decoder="none"),  # without L_neural
            "C": replace(full, residual=False),  # without the residual network
            "D": replace(full, green=False, decoder="none")}  # without the Green solver


BOUNDED = DGNetConfig(decoder="edge", residual=True, consistent=0.0, learn_mass=False, learn_source=False, learn_diffusion=False)
"""The paper's model in our finite elements, with limits on every number that it learns."""

LETTER = replace(BOUNDED, scheme="paper")
"""The paper's model with nothing that its text does not say: no diagonal, no bound."""

PAPER = replace(LETTER, areas="thirds", diagonal=True, bound=1.0)
"""The paper's model with the readings that validation rollouts have settled (docs/results/depth.md)."""
