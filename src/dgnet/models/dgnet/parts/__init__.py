"""One file for each part that DGNet can learn, with its guarantee; `parts_of` makes the list of a configuration."""

from dgnet.models.dgnet.config import DGNetConfig
from dgnet.models.dgnet.parts.calibration import Calibration
from dgnet.models.dgnet.parts.diffusion import Diffusion
from dgnet.models.dgnet.parts.heads import Heads
from dgnet.models.dgnet.parts.mass import Mass
from dgnet.models.dgnet.parts.material import Material
from dgnet.models.dgnet.parts.part import Part
from dgnet.models.dgnet.parts.reaction import Reaction
from dgnet.models.dgnet.parts.source import Source
from dgnet.models.dgnet.parts.start import Start
from dgnet.models.dgnet.parts.streamline import Streamline
from dgnet.models.dgnet.parts.swirl import Swirl
from dgnet.problems import Problem

__all__ = ["Calibration", "Diffusion", "Heads", "Mass", "Material", "Part", "Reaction", "Source", "Start", "Streamline", "Swirl",
           "parts_of"]


def parts_of(c: DGNetConfig, problem: Problem) -> list[Part]:
    """In the order in which they act: heads decode what the others use, a filter of the start follows the mass."""
    parts = c.first_parts(problem)
    if c.structured:
        parts.append(Heads(c, problem))
    if c.unknown_curves:
        parts.append(Material(c.unknown_curves, problem))
    if c.calibrate:
        parts.append(Calibration(c.calibrate, c.regions, problem))
    if c.structured:
        asked = ((c.learn_mass, Mass()), (c.learn_source, Source()), (c.learn_start, Start(bool(c.early_steps))),
                 (c.learn_diffusion, Diffusion()), (c.learn_streamline, Streamline()), (c.learn_swirl, Swirl()))
        parts += [part for wanted, part in asked if wanted]
    if c.reaction != "none":
        parts.append(Reaction(c, problem))
    return parts + c.last_parts(problem)
