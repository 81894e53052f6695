"""DGNet: a Green solver whose operator is partly learned."""

from dgnet.models.dgnet.config import INTERVALS, DGNetConfig
from dgnet.models.dgnet.model import DGNet, State, impose
from dgnet.models.dgnet.parts.calibration import regions_of
from dgnet.models.dgnet.parts.diffusion import learned_diffusion
from dgnet.models.dgnet.parts.edges import cell_pairs, edge_mass
from dgnet.models.dgnet.parts.limits import ceiling, soft_limit
from dgnet.models.dgnet.parts.mass import mass_headroom
from dgnet.models.dgnet.parts.paper import PAPER, VARIANTS
from dgnet.models.dgnet.parts.reaction import Table
from dgnet.models.dgnet.parts.start import Transfer
from dgnet.models.dgnet.parts.streamline import FlowInCells, streamline_diffusion
from dgnet.models.dgnet.parts.swirl import swirl_transport

__all__ = ["INTERVALS", "PAPER", "VARIANTS", "DGNet", "DGNetConfig", "FlowInCells", "State", "Table", "Transfer", "ceiling",
           "cell_pairs", "edge_mass", "impose", "learned_diffusion", "mass_headroom", "regions_of", "soft_limit",
           "streamline_diffusion", "swirl_transport"]
