"""Which parts a DGNet has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.models.base import START
from dgnet.operators import check_scheme
from dgnet.problems import Problem, Rule

if TYPE_CHECKING:
    from dgnet.models.dgnet.parts import Part

DECODERS = ("structured", "none")
REACTIONS = ("known", "learned", "none")
CALIBRATED = ("diffusion", "decay", "convection")
CURVES = ("capacity", "diffusion")
INTERVALS = 64  # of a table of the reaction, unless told otherwise
DEGREE, DEGREES = 3, 5  # of the products in a sum of terms: unless told otherwise, and the highest
_LARGEST_SIZE = 8192  # width or depth of a network


@checked
@dataclass(frozen=True)
class DGNetConfig:
    """What a DGNet learns: every part by name; each can be switched off. `dgnet_paper.model.PaperConfig` adds the paper's own.

    - `decoder`: structured (no weights can make energy) or none
    - `network`: a network of the mesh's geometry feeds the decoder
    - `free`: plus one free number per edge and cell, for one fixed mesh
    - `learn_mass`, `learn_source`, `learn_diffusion`, `learn_streamline`: parts of the structured decoder
    - `learn_swirl`: divergence-free corrections of the transport; they and streamline diffusion see the direction of the flow
    - `learn_start`: a filter of the initial state, for data whose start the mesh cannot resolve
    - `start`: how many steps after the start, or after a jump of boundary data, are L-stable, as of `Classical`
    - `early_steps`: that many first steps have a mass and diffusivities of their own, while a rough start smooths out
    - `reaction`: known, learned or none
    - `odd_reaction`: r(-u) = -r(u), a symmetry known beforehand
    - `calibrate`: which of diffusion, decay, convection to fit, as factors on the given ones
    - `unknown_curves`: which of capacity and diffusion are learned as curves of u, for one field
    - `regions`: calibrate diffusion and decay in each of the mesh's regions by itself
    - `consistent`, `advection_form`: of a problem that has the usual ones (1, "galerkin"); one that has others must agree
    - `hidden`, `layers`: width and depth of the geometry network
    - `reaction_hidden`: width of a network of the reaction
    - `reaction_table`: above 0, a learned reaction of one field is a table with this number of intervals instead of a network
    - `reaction_degree`: above 0, a learned reaction is a sum of few terms: products of the fields up to this degree
    - `reaction_terms`: further terms to choose from, such as "u/(1+v)"
    - `amp`: networks in bfloat16 (mixed precision); operators and solves never are

        >>> import dgnet as dg
        >>> small = dg.DGNetConfig(free=True, hidden=32, layers=2)
    """

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
    reaction: str = "known"
    odd_reaction: bool = False
    calibrate: tuple[str, ...] = ()
    unknown_curves: tuple[str, ...] = ()
    regions: bool = False
    consistent: float = 1.0
    advection_form: str = "galerkin"
    hidden: int = 64
    layers: int = 3
    reaction_hidden: int = 64
    reaction_table: int = 0
    reaction_degree: int = 0
    reaction_terms: tuple[str, ...] = ()
    amp: bool = False
    start: int = START

    # what only the paper's models change
    decoders: ClassVar[tuple[str, ...]] = DECODERS
    plain: ClassVar[bool] = False  # networks on raw coordinates
    physics: ClassVar[bool] = True  # L_physics is there
    green: ClassVar[bool] = True  # a step is a solve
    residual: ClassVar[bool] = False  # a network corrects each new state
    backend: ClassVar[str] = "auto"
    rule: ClassVar[Rule] = "average"
    model: ClassVar[str] = "dgnet"  # its name in the registry
    former: ClassVar[Mapping[str, object]] = {"scheme": "elements", "residual": False, "physics": True, "green": True,
                                              "edge_limit": None, "residual_hidden": None, "residual_layers": None}
    """Settings that files of before may hold, with the value that they must have; None for any."""
    unsaid: ClassVar[Mapping[str, object]] = {"start": 0}
    """Settings that files of before do not hold, with the value that they had."""

    def __post_init__(self) -> None:
        for value, known, what in ((self.decoder, self.decoders, "decoder"), (self.reaction, REACTIONS, "reaction")):
            if value not in known:
                raise InputError(f"unknown {what} '{value}' (known: {', '.join(known)})")
        check_scheme(self.consistent, self.advection_form)
        if self.start < 0 or (self.start and not self.starts_stable):
            raise InputError(f"start must be 0 or more, and 0 for the paper's scheme, got {self.start}")
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
        self.check_sizes("hidden", "layers", "reaction_hidden")
        strange = set(self.calibrate) - set(CALIBRATED)
        if strange:
            raise InputError(f"cannot calibrate '{min(strange)}' (known: {', '.join(CALIBRATED)})")

        strange = set(self.unknown_curves) - set(CURVES)
        if strange:
            raise InputError(f"cannot learn a curve of '{min(strange)}' (known: {', '.join(CURVES)})")
        if self.unknown_curves and (self.linear or self.calibrate):
            raise InputError("unknown_curves go with decoder = \"structured\" or \"none\", and not with calibrate")

    @property
    def starts_stable(self) -> bool:
        """Steps can be L-stable: they are solves of finite elements."""
        return self.green and not self.plain

    def check_sizes(self, *names: str) -> None:
        """Widths and depths are whole numbers that make sense."""
        for name in names:
            size = getattr(self, name)
            if not isinstance(size, int) or not 0 < size <= _LARGEST_SIZE:
                raise InputError(f"{name} must be a whole number from 1 to {_LARGEST_SIZE}, got {size!r}")

    def first_parts(self, problem: Problem) -> list[Part]:
        """Parts that act before those of `parts_of`: another L_physics, other numbers of edges."""
        return []

    def last_parts(self, problem: Problem) -> list[Part]:
        """Parts that act after those of `parts_of`."""
        return []

    def bare(self) -> Self:
        """The equation alone, with calibrated coefficients and the reaction: nothing else is learned."""
        return replace(self, decoder="none", network=False, free=False, learn_start=False, early_steps=0, learn_streamline=False,
                       learn_swirl=False)

    def reacting(self, fields: int, wishes: Mapping[str, object], table: bool = True) -> DGNetConfig:
        """With an unknown reaction: of one field as a table (or a network), unless the user's settings ask for a sum of terms; of
        several as a sum of terms."""
        terms = fields > 1 or bool(wishes.get("reaction_degree") or wishes.get("reaction_terms"))
        return replace(self, reaction="learned", reaction_table=INTERVALS if table and not terms else 0,
                       reaction_degree=DEGREE if terms else 0)

    @property
    def linear(self) -> bool:
        """Coefficients are numbers: curves of u are taken at their lower ends."""
        return False

    @property
    def structured(self) -> bool:
        return self.decoder == "structured"
