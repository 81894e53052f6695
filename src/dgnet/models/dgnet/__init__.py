"""DGNet: a Green solver whose operator is partly learned."""

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.config import CURVES, DEGREE, INTERVALS, DGNetConfig
from dgnet.models.dgnet.edges import cell_pairs, edge_mass
from dgnet.models.dgnet.flow import FlowInCells, direction_features
from dgnet.models.dgnet.limits import ceiling, soft_limit
from dgnet.models.dgnet.model import DGNet, PreparedDGNet
from dgnet.models.dgnet.parts import Calibration, Material, Part, Reaction
from dgnet.models.dgnet.parts.calibration import regions_of
from dgnet.models.dgnet.parts.diffusion import learned_diffusion
from dgnet.models.dgnet.parts.library import Library
from dgnet.models.dgnet.parts.mass import mass_headroom
from dgnet.models.dgnet.parts.material import MaterialCurve
from dgnet.models.dgnet.parts.reaction import ReactionTable
from dgnet.models.dgnet.parts.start import MassChange
from dgnet.models.dgnet.parts.streamline import streamline_diffusion
from dgnet.models.dgnet.parts.swirl import swirl_transport

__all__ = ["CURVES", "DEGREE", "INTERVALS", "Build", "Calibration", "DGNet", "DGNetConfig",
           "FlowInCells", "Library", "MassChange", "Material", "MaterialCurve", "Part", "PreparedDGNet", "Reaction",
           "ReactionTable", "ceiling", "cell_pairs", "direction_features", "edge_mass", "learned_diffusion", "mass_headroom",
           "regions_of", "soft_limit", "streamline_diffusion", "swirl_transport"]
