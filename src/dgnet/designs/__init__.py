"""Sources that meet targets within limits."""

from dgnet.designs.design import Designed, Margin, Met, Target, design
from dgnet.designs.goal import design_from_goal
from dgnet.designs.spots import FreeSpot

__all__ = ["Designed", "FreeSpot", "Margin", "Met", "Target", "design", "design_from_goal"]
